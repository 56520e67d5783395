"""Differences between TensorFlow versions, in one place.

Other modules ask for the version by `at_least`, and name nothing that only some versions have.
Differences between versions of Keras are in `_keras_versions` and in `keras/`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence

from tf_lossscale_compat._core import _install

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        "tf_lossscale_compat needs TensorFlow 1.15 or newer, and none can be imported "
        f"({error}). It is not installed by default, so that any build of it can be used: "
        f"{_install.command('tensorflow', 'tensorflow-cpu')}."
    ) from error

try:
    from tensorflow.python.eager import context as _context
except ImportError:
    _context = None

try:
    from tensorflow.python.eager import function as _function
except ImportError:
    _function = None

try:
    from tensorflow.python.framework.ops import _default_graph_stack as _graph_stack
except ImportError:
    _graph_stack = None

try:
    from tensorflow.python.autograph.core import ag_ctx as _ag_ctx
    from tensorflow.python.autograph.impl import api as _autograph
except ImportError:
    _ag_ctx = _autograph = None

tf1 = tf.compat.v1

if TYPE_CHECKING:
    from types import ModuleType

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._core._types import Optimizer as Optimizer
    from tf_lossscale_compat._core._types import SessionRunHook as SessionRunHook
    from tf_lossscale_compat._core._types_trackable import Trackable as Trackable
else:
    Optimizer = tf1.train.Optimizer
    SessionRunHook = tf1.train.SessionRunHook
    # The base class of everything that tf.train.Checkpoint saves has no public name of its own,
    # but is a base of the v1 Optimizer in every version.
    Trackable = next(
        base for base in Optimizer.__mro__ if base.__name__ in ("Trackable", "Checkpointable")
    )

# Autograph would rewrite this package's Python line by line when a user's tf.function calls it:
# slow to trace, and of no use, as there is no tensor-dependent Python control flow here.
if TYPE_CHECKING:

    def do_not_convert(func: _types.Function) -> _types.Function: ...
else:
    do_not_convert = tf.autograph.experimental.do_not_convert


def converts_functions_given(method: _types.Function) -> _types.Function:
    """Decorates a method as `do_not_convert` does, but for the functions that it is given.

    What a user's loss calls is converted as it would be where the method is called.
    """
    unconverted = do_not_convert(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # Not `self`, which may be callable.
        given = {name: as_converted_here(each) for name, each in kwargs.items()}
        return unconverted(self, *[as_converted_here(each) for each in args], **given)

    decorated: Any = call
    return decorated


def as_converted_here(function: Any) -> Any:
    """Returns a function as autograph has it here, to be called where autograph is off.

    Nothing public says so; without it autograph leaves the function alone. Other values stay.
    """
    if _autograph is None or not callable(function):
        return function
    context = _ag_ctx.control_status_ctx()
    if context.status is not _ag_ctx.Status.ENABLED:
        return function
    converted = _autograph.tf_convert(function, context)

    def call(*args: Any, **kwargs: Any) -> Any:
        with context:  # In force, too, for functions that it calls.
            return converted(*args, **kwargs)

    return call


def at_least(major: int, minor: int) -> bool:
    """Returns whether the installed TensorFlow is that version or a later one."""
    return tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (major, minor)


def with_wrapped(
    optimizer: _types.HasApplyGradients | None,
) -> Iterator[_types.HasApplyGradients]:
    """Yields an optimizer and those that it wraps."""
    names = ("inner_optimizer", "_optimizer", "_opt", "_base_optimizer", "optimizer", "opt")
    seen = set()
    while optimizer is not None and id(optimizer) not in seen:
        yield optimizer
        seen.add(id(optimizer))
        inner = [getattr(optimizer, "__dict__", {}).get(name) for name in names]
        optimizer = next((each for each in inner if hasattr(each, "apply_gradients")), None)


def is_loss_scale_optimizer(cls: type) -> bool:
    """Returns whether a class, of this package or another, is one of optimizers with a loss scale.

    TensorFlow's and Keras' own are not all public, and vendors have more; all are named so.
    """
    return any("LossScaleOptimizer" in base.__name__ for base in cls.__mro__)


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


def variables_of(owner: object) -> list[tf.Variable]:
    """Returns the variables of an optimizer or manager of this package or another, a list."""
    variables = getattr(owner, "variables", [])
    return list(variables() if callable(variables) else variables)


def structure(tensors: Sequence[tf.Tensor]) -> list[tuple[int, tuple[int | None, ...]]]:
    """Returns the dtypes (as numbers) and shapes of eager tensors, a list of hashable pairs."""
    try:
        # A tenth of the time that the public properties take, for each gradient of each step.
        return [(tensor._datatype_enum(), tensor._shape_tuple()) for tensor in tensors]
    except AttributeError:
        return [
            (tensor.dtype.as_datatype_enum, tuple(tensor.shape.as_list())) for tensor in tensors
        ]


def call_flat(
    function: tf.types.experimental.ConcreteFunction, tensors: Sequence[tf.Tensor]
) -> Any:
    """Calls a concrete function of one list of tensors.

    The public call sorts arguments by name first, which takes longer than the function itself where
    there are hundreds of them, and does not take positions before TensorFlow 2.3.
    """
    call = getattr(function, "_call_flat", None)
    if call is None:
        return function(list(tensors))
    return call(list(tensors), function.captured_inputs)


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


def has_op_callbacks() -> bool:
    """Returns whether a callback sees each operation's result, as of `enable_check_numerics`.

    Nothing public says so. TensorFlow before 2.1 has no such thing.
    """
    return _context is not None and bool(getattr(_context.context(), "op_callbacks", ()))


@functools.lru_cache(maxsize=None)
def functions_compute_as_eager() -> bool:
    """Returns whether functions treat subnormal numbers as operations of eager mode do.

    In TensorFlow before 2.1 only functions flush them to zero.
    """
    with tf.device("/cpu:0"):
        return float(tf.constant(1e-38) * tf.constant(0.1)) == 0.0


def as_one_operation(function: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> Any:
    """Calls `function` with tensors; in a graph, as one operation that stays one when it is run.

    There is no public option for that before TensorFlow 2.12. Where there is no private one either,
    the graph that calls the function has its operations inlined.
    """
    if tf.executing_eagerly():
        return function(*tensors)
    options: Any = {"autograph": False}
    options["input_signature"] = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]
    if "experimental_attributes" in inspect.signature(tf.function).parameters:
        options["experimental_attributes"] = {"_noinline": True}
    elif hasattr(_function, "defun_with_attributes"):
        options["attributes"] = {"_noinline": True}
        return _function.defun_with_attributes(function, **options)(*tensors)
    return tf.function(function, **options)(*tensors)


def uses_merge_call(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether replicas of `strategy` may use `merge_call`; newer modes forbid it."""
    uses = getattr(strategy.extended, "_use_merge_call", None)
    return uses is None or uses()


def module_that_called() -> str:
    """Returns the name of the module that called the public method, three frames up.

    The stack is examined because Keras and checkpoints ask the same methods as users do, and want
    another answer.
    """
    frame: Any = sys._getframe(3)
    while frame.f_code.co_name == "__getattribute__":  # Keras optimizers define it in Python.
        frame = frame.f_back
    return frame.f_globals.get("__name__", "")


def called_by_checkpointing() -> bool:
    """Returns whether the caller's caller is TensorFlow's object-based checkpointing."""
    return module_that_called().startswith(
        (
            "tensorflow.python.checkpoint.",
            "tensorflow.python.training.tracking.",
            "tensorflow_core.python.training.tracking.",
        )
    )


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
    if not at_least(2, 0):
        return tf1.cond(pred, true_fn, false_fn)
    with tf1.name_scope("cond") as scope:
        absolute_scope = _enclosing_name_scope() + scope

        def named_true_fn() -> Any:
            with tf1.name_scope(absolute_scope):
                return true_fn()

        return tf1.cond(pred, named_true_fn, false_fn, name=scope)


def set_graph_rewrite(enabled: bool) -> None:
    """Turns TensorFlow's own auto-mixed-precision rewrite on or off, for sessions and functions."""
    module: Any = getattr(tf1, "mixed_precision", None)
    if not hasattr(module, "enable_mixed_precision_graph_rewrite"):
        module = tf1.train.experimental
    if enabled:
        # Sessions read a private switch that only this public function sets. What it returns
        # is not needed; a fixed scale makes no variables.
        module.enable_mixed_precision_graph_rewrite(tf1.train.GradientDescentOptimizer(0.0), 1.0)
    else:
        module.disable_mixed_precision_graph_rewrite()


def graph_rewrite_is_enabled() -> bool:
    """Returns whether the auto-mixed-precision rewrite is on."""
    return bool(tf.config.optimizer.get_experimental_options().get("auto_mixed_precision"))


def has_contrib() -> bool:
    """Returns whether there is a `tf.contrib`, TensorFlow's own up to 1.15 or another."""
    return hasattr(tf, "contrib") or "tensorflow.contrib" in sys.modules


def v1_module() -> ModuleType:
    """Returns the module that `import tensorflow.compat.v1 as tf` binds."""
    importlib.import_module("tensorflow.compat.v1")
    return sys.modules["tensorflow"].compat.v1


def api_modules() -> list[Any]:
    """Returns every module that `import tensorflow` or `tensorflow.compat.v1` may bind, a list.

    The attribute `tf.compat.v1` and the module imported under that name are different objects in
    some versions, and the import replaces the attribute.
    """
    found = [tf, tf1, v1_module(), sys.modules["tensorflow.compat.v1"]]
    return list({id(module): module for module in found}.values())
