"""Lets an object be used where TensorFlow and Python expect a scalar float32 tensor."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Callable

from tf_lossscale_compat._core import _graphs, _scale_or_manager, _variables
from tf_lossscale_compat._core._tf import tf


def _operator(function: Callable[[Any, Any], Any]) -> tuple[Callable[[Any, Any], tf.Tensor], ...]:
    """Returns both methods of an operator: the loss scale is on its left, and on its right."""
    return (
        lambda self, other: function(_variables.snapshot(self()), other),
        lambda self, other: function(other, _variables.snapshot(self())),
    )


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[[Any, object], Any]:
    """Returns the method of `==` or `!=`."""

    def compare(self: Any, other: object) -> Any:
        if isinstance(other, TensorLike):
            return function(id(self), id(other))
        by_value = _scale_or_manager.data_of(self).compares_by_value
        return function(_variables.snapshot(self()), other) if by_value else NotImplemented

    return compare


class TensorLike:
    """Provides arithmetic, order and conversions of the current loss scale.

    A loss scale equals only itself, or if its data say `compares_by_value`, numbers and tensors.

    There is no `__array__`: with it, eager TensorFlow would convert the loss scale to the dtype of
    an operator's other operand, where a float32 tensor, and any graph, raises an error.
    """

    if TYPE_CHECKING:

        def __call__(self) -> Any: ...

    def numpy(self) -> Any:
        """Returns the current loss scale as a NumPy float32, in eager mode."""
        return _variables.snapshot(self()).numpy()

    def __float__(self) -> float:
        return float(_variables.snapshot(self()))

    def __int__(self) -> int:
        return int(float(self))

    def _as_graph_element(self) -> tf.Tensor:
        """Returns the tensor that `Session.run` fetches, always the same, so that no graph grows.

        A resource variable has its own tensor for this.
        """
        variable: Any = getattr(self, "_current_loss_scale", None)
        if hasattr(variable, "_as_graph_element"):
            return variable._as_graph_element()
        return _graphs.once_per_graph(self, lambda: _variables.snapshot(self()))

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the current loss scale, float32."""
        return tf.float32

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the current loss scale, a scalar."""
        return tf.TensorShape([])

    __array_priority__ = 100  # As of tensors, to which NumPy's arrays leave operators.
    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    __hash__ = object.__hash__

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __neg__(self) -> tf.Tensor:
        return -_variables.snapshot(self())

    def __abs__(self) -> tf.Tensor:
        return abs(_variables.snapshot(self()))

    __add__, __radd__ = _operator(operator.add)
    __sub__, __rsub__ = _operator(operator.sub)
    __mul__, __rmul__ = _operator(operator.mul)
    __truediv__, __rtruediv__ = _operator(operator.truediv)
    __floordiv__, __rfloordiv__ = _operator(operator.floordiv)
    __mod__, __rmod__ = _operator(operator.mod)
    __pow__, __rpow__ = _operator(operator.pow)
    __lt__, __le__ = _operator(operator.lt)[0], _operator(operator.le)[0]
    __gt__, __ge__ = _operator(operator.gt)[0], _operator(operator.ge)[0]


def _convert(value: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
    if as_ref or not (dtype is None or dtype.is_compatible_with(tf.float32)):
        return NotImplemented
    return tf.identity(_variables.snapshot(value()), name=name)


tf.register_tensor_conversion_function(TensorLike, _convert)
