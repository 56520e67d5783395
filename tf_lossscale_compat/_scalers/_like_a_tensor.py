"""Lets an object stand where TensorFlow and Python expect a scalar float32 tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _scaler, _tf

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _tf.tf


class LikeATensor:
    """Multiplication, division, order and conversions are those of the current loss scale.

    Equality is not: two loss scales are the same if they are one object.

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
        return _scaler.scale(self)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __mul__(self, other: Any) -> tf.Tensor:
        return _scaler.scale(self) * other

    def __rmul__(self, other: Any) -> tf.Tensor:
        return other * _scaler.scale(self)

    def __truediv__(self, other: Any) -> tf.Tensor:
        return _scaler.scale(self) / other

    def __rtruediv__(self, other: Any) -> tf.Tensor:
        return other / _scaler.scale(self)

    def __lt__(self, other: Any) -> tf.Tensor:
        return _scaler.scale(self) < other

    def __le__(self, other: Any) -> tf.Tensor:
        return _scaler.scale(self) <= other

    def __gt__(self, other: Any) -> tf.Tensor:
        return _scaler.scale(self) > other

    def __ge__(self, other: Any) -> tf.Tensor:
        return _scaler.scale(self) >= other


def _convert(value, dtype=None, name=None, as_ref=False):
    if as_ref or not (dtype is None or dtype.is_compatible_with(tf.float32)):
        return NotImplemented
    return tf.identity(_scaler.scale(value), name=name)


tf.register_tensor_conversion_function(LikeATensor, _convert)
