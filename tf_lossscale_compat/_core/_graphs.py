"""The graph being built (of a Session, a function or a branch), and its operations."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, Iterator

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

try:
    from tensorflow.python.framework.ops import _default_graph_stack as _graph_stack
except ImportError:
    _graph_stack = None


def in_session_graph() -> bool:
    """Returns whether a `tf.Graph` for a Session is being built."""
    return not tf.executing_eagerly() and not tf1.get_default_graph().building_function


def can_use_tensors_of(graph: tf.Graph) -> bool:
    """Returns whether tensors of `graph` can be used here.

    That is so if it or a function in it is being built, or no graph is entered. TensorFlow has no
    public test for the latter: without eager mode, there is always a default graph.
    """
    if tf.executing_eagerly():
        return False
    if not getattr(_graph_stack, "stack", [None]):
        return True
    with tf.init_scope():  # Out of functions, loops and branches.
        return not tf.executing_eagerly() and tf1.get_default_graph() is graph


def once_per_graph(key: object, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Makes a tensor, once per graph of a Session, so that it can be read when that is finalized.

    `key` is an object that stands for the tensor. The graph's tensor is outside of control flow.
    Where a value may depend on the place, each call returns a new tensor: inside control flow,
    under control dependencies, in functions, and in replicas, which read their own copies.
    """
    if tf.executing_eagerly():
        return make()
    tensor = None
    with tf.init_scope():  # Lifts out of control flow, into the graph of the Session.
        if in_session_graph():
            # Exported graphs hold only collections whose key is a string.
            cached = tf1.get_default_graph().get_collection_ref(("tf_lossscale_compat",))
            tensor = next((each for known, each in cached if known is key), None)
            if tensor is None:
                tensor = make()
                cached.append((key, tensor))
    graph: Any = tf1.get_default_graph()
    if (
        not in_session_graph()
        or (tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())
        or graph._get_control_flow_context() is not None
        or graph._current_control_dependencies()
    ):
        return make()
    return tensor


def collect_train_op(train_op: tf.Operation) -> None:
    """Puts a step into a graph's collection `TRAIN_OP`, in place of operations in its branches.

    Wrapped optimizers add their update operation. With TensorFlow 2's control flow that operation
    is in the graph of a branch: no session can run it, and `import_meta_graph` does not find it.
    """
    if not in_session_graph():  # Collections of functions may hold objects outside any graph.
        return
    graph = tf1.get_default_graph()
    train_ops = graph.get_collection_ref(tf1.GraphKeys.TRAIN_OP)
    in_graph = [op for op in train_ops if getattr(op, "graph", graph) is graph]
    if len(in_graph) < len(train_ops):
        train_ops[:] = [*in_graph, train_op]


def to_current_graph(grads: _types.Gradients) -> _types.Gradients:
    """Returns gradients as tensors of the graph that is being built, such as a branch's graph.

    Not for eager mode, which has no such graph.
    Keras' optimizers sum gradients over replicas when they apply them. If a user's optimizer has
    changed some gradients in the branch, TensorFlow rejects a sum with gradients from outside.
    """
    graph = tf1.get_default_graph()

    def localize(grad: Any) -> Any:
        if isinstance(grad, tf.IndexedSlices):
            # A shape may be a tuple, for which `expand_composites` fails on TensorFlow 2.4.
            return tf.IndexedSlices(*map(localize, (grad.values, grad.indices, grad.dense_shape)))
        outside = tf.is_tensor(grad) and getattr(grad, "graph", None) is not graph
        return tf.identity(grad) if outside else grad

    return tf.nest.map_structure(localize, grads)


def as_operation(result: object) -> tf.Operation | None:
    """Returns the result of an optimizer's method as an operation; None in eager mode."""
    if tf.executing_eagerly():
        return None
    return tf.no_op() if result is None else tf.group(result)


def enclosing_graphs() -> Iterator[tf.Graph]:
    """Yields the graph being built and the graphs around it, innermost first."""
    graph: Any = tf1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


@contextlib.contextmanager
def allow_variables() -> Iterator[None]:
    """Lets variables be made within `tf.init_scope`, whatever is traced outside of it.

    A `tf.function` rejects variables that are made after its first trace, because each trace would
    make them anew. No public API makes it accept a variable that is made once and kept.
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
    """Returns whether XLA will compile the graph that is being built.

    TensorFlow has no public API for this. TensorFlow before 2.4 does not know it.
    """
    for graph in enclosing_graphs():
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
    return False


def cond_with_v1_names(
    pred: tf.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]
) -> Any:
    """Builds a conditional; variables get the names that they had with TensorFlow 1.

    A variable that `true_fn` makes, such as Adam's `beta1_power`, was called `cond/beta1_power`
    with TensorFlow 1's control flow, and checkpoints hold that name. In a branch with its own graph
    (control flow v2) it would lose the prefix, so the prefix is added. On 1.15 with control flow v2
    it is not added: the original's variables lack it there, too.
    """
    if not _tf.at_least(2, 0):
        return tf1.cond(pred, true_fn, false_fn)
    with tf1.name_scope("cond") as scope:
        # A branch or function is a graph with name scopes of its own.
        _, *outer = [graph.get_name_scope() for graph in enclosing_graphs()]
        absolute_scope = "".join(each + "/" for each in reversed(outer) if each) + scope

        def named_true_fn() -> Any:
            with tf1.name_scope(absolute_scope):
                return true_fn()

        return tf1.cond(pred, named_true_fn, false_fn, name=scope)
