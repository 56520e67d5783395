"""Lets an object stand where TensorFlow and Python expect a scalar float32 tensor."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat import _scaler, _tf

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _tf.tf

# Equality is left out: two loss scales are the same if they are one object.
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_OTHERS = ("neg", "abs", "lt", "le", "gt", "ge")


class LikeATensor:
    """Arithmetic, comparisons and conversions are those of the current loss scale.

    There is no `__array__`: with it, eager TensorFlow would convert to whatever dtype stands on the
    other side of an operator, where a float32 tensor, and any graph, raises an error.
    """

    def numpy(self) -> Any:
        """Returns the current loss scale as a NumPy float32, in eager mode."""
        return _scaler.scale(self).numpy()

    def __float__(self) -> float:
        return float(_scaler.scale(self))

    def __int__(self) -> int:
        return int(float(self))

    def _as_graph_element(self) -> tf.Tensor:
        """Lets `Session.run` take it."""
        return tf.convert_to_tensor(_scaler.scale(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    if TYPE_CHECKING:  # They are made below.

        def __add__(self, other: Any) -> tf.Tensor: ...
        def __sub__(self, other: Any) -> tf.Tensor: ...
        def __mul__(self, other: Any) -> tf.Tensor: ...
        def __truediv__(self, other: Any) -> tf.Tensor: ...
        def __floordiv__(self, other: Any) -> tf.Tensor: ...
        def __mod__(self, other: Any) -> tf.Tensor: ...
        def __pow__(self, other: Any) -> tf.Tensor: ...
        def __radd__(self, other: Any) -> tf.Tensor: ...
        def __rsub__(self, other: Any) -> tf.Tensor: ...
        def __rmul__(self, other: Any) -> tf.Tensor: ...
        def __rtruediv__(self, other: Any) -> tf.Tensor: ...
        def __rfloordiv__(self, other: Any) -> tf.Tensor: ...
        def __rmod__(self, other: Any) -> tf.Tensor: ...
        def __rpow__(self, other: Any) -> tf.Tensor: ...
        def __neg__(self) -> tf.Tensor: ...
        def __abs__(self) -> tf.Tensor: ...
        def __lt__(self, other: Any) -> tf.Tensor: ...
        def __le__(self, other: Any) -> tf.Tensor: ...
        def __gt__(self, other: Any) -> tf.Tensor: ...
        def __ge__(self, other: Any) -> tf.Tensor: ...


def _forward(function):
    return lambda self, *others: function(_scaler.scale(self), *others)


def _reflected(function):
    return lambda self, other: function(other, _scaler.scale(self))


for _name in _BINARY + _OTHERS:
    setattr(LikeATensor, f"__{_name}__", _forward(getattr(operator, _name)))
for _name in _BINARY:
    setattr(LikeATensor, f"__r{_name}__", _reflected(getattr(operator, _name)))


def _convert(value, dtype=None, name=None, as_ref=False):
    if as_ref or not (dtype is None or dtype.is_compatible_with(tf.float32)):
        return NotImplemented
    return tf.identity(_scaler.scale(value), name=name)


tf.register_tensor_conversion_function(LikeATensor, _convert)
