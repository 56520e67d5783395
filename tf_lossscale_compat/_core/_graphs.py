"""The graph that is being built: of a Session, of a function, of a branch; and operations in it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, Iterator

from tf_lossscale_compat._core import _tf

try:
    from tensorflow.python.framework.ops import _default_graph_stack as _graph_stack
except ImportError:
    _graph_stack = None

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _tf.tf
tf1 = _tf.tf1


def in_session_graph() -> bool:
    """Returns whether a `tf.Graph` for a Session is being built."""
    return not tf.executing_eagerly() and not tf1.get_default_graph().building_function


def is_entered(graph: tf.Graph) -> bool:
    """Returns whether operations made here go into `graph`, or would if no other is entered.

    Nothing public says that none is: outside of all `as_default()` there is still a default graph.
    """
    if tf.executing_eagerly():
        return False
    return tf1.get_default_graph() is graph or not getattr(_graph_stack, "stack", [None])


def once_per_graph(owner: object, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Returns `make()`, a tensor; in a plain graph the one that was made there first.

    So that it can be read in a graph that is finalized. Within control dependencies, loops and
    conditionals it is made anew, as its value may depend on where it is read; and within replicas,
    which read their own copies. The first call makes one for outside of all these in any case.
    """
    if tf.executing_eagerly():
        return make()
    kept = None
    with tf.init_scope():  # Outside of all of these, in the graph of the Session.
        if in_session_graph():
            # Only collections with a string for a key go into exported graphs.
            made = tf1.get_default_graph().get_collection_ref(("tf_lossscale_compat",))
            kept = next((tensor for of, tensor in made if of is owner), None)
            if kept is None:
                kept = make()
                made.append((owner, kept))
    graph: Any = tf1.get_default_graph()
    if (
        not in_session_graph()
        or (tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())
        or graph._get_control_flow_context() is not None
        or graph._current_control_dependencies()
    ):
        return make()
    return kept


def collect_train_op(step: tf.Operation) -> None:
    """Puts a step into a graph's collection `TRAIN_OP`, in place of operations in its branches.

    Wrapped optimizers add the operation that applies. With TensorFlow 2's control flow that is in
    the graph of a branch, where no session can run it and `import_meta_graph` does not find it.
    """
    if not in_session_graph():  # Collections of functions may hold what is no part of a graph.
        return
    graph = tf1.get_default_graph()
    train_ops = graph.get_collection_ref(tf1.GraphKeys.TRAIN_OP)
    kept = [op for op in train_ops if getattr(op, "graph", graph) is graph]
    if len(kept) < len(train_ops):
        train_ops[:] = [*kept, step]


def as_operation(result: object) -> tf.Operation | None:
    """Returns what an optimizer returned as an operation; None in eager mode."""
    if tf.executing_eagerly():
        return None
    return tf.no_op() if result is None else tf.group(result)


def enclosing_graphs() -> Iterator[tf.Graph]:
    """Yields the graph that is being built and those that it is in, from the innermost on."""
    graph: Any = tf1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


@contextlib.contextmanager
def variables_allowed() -> Iterator[None]:
    """Context, within `tf.init_scope`, in which variables can be made whatever is traced outside.

    A `tf.function` refuses those that are made after its first trace, for it would make them anew
    in each. Nothing public lets it accept one that is made once and kept.
    """
    graph: Any = tf1.get_default_graph()
    creators = getattr(graph, "_variable_creator_stack", None)
    if not creators:
        yield
        return
    graph._variable_creator_stack = []
    try:
        yield
    finally:
        graph._variable_creator_stack = creators


def compiled_by_xla() -> bool:
    """Returns whether XLA is to compile the graph that is being built.

    Nothing public says so. TensorFlow before 2.4 cannot tell.
    """
    for graph in enclosing_graphs():
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
    return False


def _enclosing_name_scope() -> str:
    """Returns the name scope around the current function or branch, seen from the outermost."""
    _, *scopes = [graph.get_name_scope() for graph in enclosing_graphs()]
    return "".join(scope + "/" for scope in reversed(scopes) if scope)


def cond(pred: tf.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """`tf.cond` for graphs, under which variables get the names they had with TensorFlow 1.

    A variable that `true_fn` makes, such as Adam's `beta1_power`, was called `cond/beta1_power`
    with the control flow of TensorFlow 1, and checkpoints hold that name. In a branch that is a
    graph of its own (control flow v2) it would lose the prefix, so the prefix is put back. Not on
    1.15: there checkpoints of the original lack it, too.
    """
    if not _tf.at_least(2, 0):
        return tf1.cond(pred, true_fn, false_fn)
    with tf1.name_scope("cond") as scope:
        absolute_scope = _enclosing_name_scope() + scope

        def named_true_fn() -> Any:
            with tf1.name_scope(absolute_scope):
                return true_fn()

        return tf1.cond(pred, named_true_fn, false_fn, name=scope)
