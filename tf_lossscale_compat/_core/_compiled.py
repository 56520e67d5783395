"""Functions of tensors, compiled in eager mode so that it dispatches one operation, not many."""

from __future__ import annotations

import collections
import functools
import threading
from typing import Any, Callable, Hashable, Iterable, Sequence

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat._core._tf import tf

try:
    from tensorflow.python.eager import context as _context
except ImportError:
    _context = None

# The number of signatures for which a function stays compiled. Models have a few signatures; a
# program whose signatures never repeat must not pile up graphs.
CAPACITY = 32

_NEW: Any = object()


def signature_of(tensors: Sequence[tf.Tensor]) -> list[tuple[int, tuple[int | None, ...]]]:
    """Returns the dtypes (as numbers) and shapes of eager tensors, a list of hashable pairs."""
    try:
        # Takes a tenth of the time of the public properties, for each gradient of each step.
        return [(tensor._datatype_enum(), tensor._shape_tuple()) for tensor in tensors]
    except AttributeError:
        return [
            (tensor.dtype.as_datatype_enum, tuple(tensor.shape.as_list())) for tensor in tensors
        ]


def call_flat(
    function: tf.types.experimental.ConcreteFunction, tensors: Sequence[tf.Tensor]
) -> Any:
    """Calls a concrete function with one list of tensors.

    The public call sorts arguments by name first. For hundreds of arguments that takes longer than
    the function itself. Before TensorFlow 2.3 it does not accept positional arguments.
    """
    call = getattr(function, "_call_flat", None)
    if call is None:
        return function(list(tensors))
    return call(list(tensors), function.captured_inputs)


def has_op_callbacks() -> bool:
    """Returns whether a callback sees each operation's result, as with `enable_check_numerics`.

    TensorFlow has no public API for this. TensorFlow before 2.1 has no callbacks.
    """
    return _context is not None and bool(getattr(_context.context(), "op_callbacks", ()))


class Compiled:
    """Runs a function of a list of tensors, and compiles it in eager mode once per signature.

    A signature is the dtypes and shapes of the tensors, the constants, and whether a callback sees
    operations. It is compiled when it occurs for the second time, because tracing costs more than
    running each operation once. The least recently used signatures are dropped.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        # None for a signature that occurred once.
        self._concrete: collections.OrderedDict[
            Hashable, tf.types.experimental.ConcreteFunction | None
        ] = collections.OrderedDict()
        self._lock = threading.Lock()  # Each replica has its own thread.

    def __call__(
        self,
        tensors: list[tf.Tensor],
        *constants: Hashable,
        varying_first_dim: Iterable[int] = (),
    ) -> Any:
        """Runs the function, whose other arguments are the constants.

        `varying_first_dim` has the positions of tensors whose first dimension is not part of the
        signature, because it varies.
        """
        if not (tf.executing_eagerly() and _tf.functions_compute_as_eager()):
            return self._function(tensors, *constants)
        signature = signature_of(tensors)
        for i in varying_first_dim:
            dtype, sizes = signature[i]
            signature[i] = (dtype, (None,) + sizes[1:])
        key = (tuple(signature), constants, has_op_callbacks())
        with self._lock:
            concrete = self._concrete.pop(key, _NEW)
            self._keep(key, None if concrete is _NEW else concrete)
        if concrete is _NEW:
            return self._function(tensors, *constants)
        if concrete is None:
            concrete = self._compile(signature, constants)
            with self._lock:
                self._keep(key, concrete)
        return call_flat(concrete, tensors)

    def _keep(self, key: Hashable, concrete: tf.types.experimental.ConcreteFunction | None) -> None:
        self._concrete.pop(key, None)
        self._concrete[key] = concrete  # The most recently used is the last.
        if len(self._concrete) > CAPACITY:
            self._concrete.popitem(last=False)

    def _compile(
        self, signature: list[tuple[int, tuple[int | None, ...]]], constants: tuple[Hashable, ...]
    ) -> tf.types.experimental.ConcreteFunction:
        specs = [tf.TensorSpec(sizes, tf.dtypes.as_dtype(dtype)) for dtype, sizes in signature]
        function = tf.function(
            lambda tensors: self._function(tensors, *constants),
            input_signature=[specs],
            autograph=False,
        )
        return function.get_concrete_function()


def compiled_in_eager_mode(function: Callable[..., Any]) -> Compiled:
    """Decorates a function that depends only on a list of tensors and on constants.

    The function returns a list of tensors or a tensor.
    """
    return Compiled(function)
