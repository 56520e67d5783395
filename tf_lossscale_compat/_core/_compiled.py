"""Functions of tensors that eager mode compiles, so that it dispatches one operation, not many."""

from __future__ import annotations

import collections
import functools
import threading
from typing import TYPE_CHECKING, Any, Callable, Hashable, Iterable

from tf_lossscale_compat._core import _tf

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _tf.tf

# The number of structures that a function stays compiled for. Models have a few; a program
# whose structures never repeat must not pile up graphs.
CAPACITY = 32

_NEW: Any = object()


class _Compiled:
    """Runs a function of a list of tensors, in eager mode compiled once per structure.

    A structure is the dtypes and shapes of the tensors, and the constants. It is compiled when it
    comes for the second time, as tracing costs more than running each operation once. Those that
    were used longest ago are dropped.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        # None for a structure met once.
        self._concrete: collections.OrderedDict[
            Hashable, tf.types.experimental.ConcreteFunction | None
        ] = collections.OrderedDict()
        self._lock = threading.Lock()  # Replicas have threads of their own.

    def __call__(
        self,
        tensors: list[tf.Tensor],
        *constants: Hashable,
        varying_first_dim: Iterable[int] = (),
    ) -> Any:
        """Runs the function.

        Args:
          tensors: list of tensors.
          *constants: hashable values, the function's further arguments.
          varying_first_dim: positions of tensors whose first dimension varies, which makes no new
            structure.
        """
        if not (tf.executing_eagerly() and _tf.functions_compute_as_eager()):
            return self._function(tensors, *constants)
        structure = _tf.structure(tensors)
        for i in varying_first_dim:
            dtype, sizes = structure[i]
            structure[i] = (dtype, (None,) + sizes[1:])
        key = (tuple(structure), constants, _tf.has_op_callbacks())
        with self._lock:
            concrete = self._concrete.pop(key, _NEW)
            self._concrete[key] = None if concrete is _NEW else concrete  # As the latest.
            if len(self._concrete) > CAPACITY:
                self._concrete.popitem(last=False)
        if concrete is _NEW:
            return self._function(tensors, *constants)
        if concrete is None:
            concrete = self._compile(structure, constants)
            with self._lock:
                self._concrete[key] = concrete
        return _tf.call_flat(concrete, tensors)

    def _compile(
        self, structure: list[tuple[int, tuple[int | None, ...]]], constants: tuple[Hashable, ...]
    ) -> tf.types.experimental.ConcreteFunction:
        specs = [tf.TensorSpec(sizes, tf.dtypes.as_dtype(dtype)) for dtype, sizes in structure]
        function = tf.function(
            lambda tensors: self._function(tensors, *constants),
            input_signature=[specs],
            autograph=False,
        )
        return function.get_concrete_function()


def in_eager_mode(function: Callable[..., Any]) -> _Compiled:
    """Decorates a function of a list of tensors and of constants, on which alone it depends.

    It returns a list of tensors, a tensor or None, and may assign to variables whose handles are
    among the tensors.
    """
    return _Compiled(function)
