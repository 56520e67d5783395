"""Divides gradients of any dtype by the loss scale, as the originals do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, NamedTuple

from tf_lossscale_compat._core import _compiled, _structure
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


@_compiled.compiled_in_eager_mode
def multiply(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Multiplies each tensor by the last one, a float32 scalar; results keep the dtypes."""
    *tensors, factor = tensors
    factor = _nan_if_zero(factor)
    factors: dict[tf.DType, tf.Tensor] = {}  # Made once for all tensors of a dtype.
    results = []
    for tensor in tensors:
        dtype = _structure.number_dtype(tensor)
        is_half = dtype == tf.float16
        if dtype not in factors:
            # A factor that is not zero in float32 is not zero in bfloat16 or float64 either.
            factors[dtype] = _for_float16(factor) if is_half else tf.cast(factor, dtype)
        # Raw operations here and below: public functions take longer to trace for each gradient.
        if is_half:
            product = tf.raw_ops.Mul(x=tf.cast(tensor, tf.float32), y=factors[dtype])
            results.append(tf.cast(product, dtype))
        else:
            results.append(tf.raw_ops.Mul(x=tensor, y=factors[dtype]))
    return results


def _nan_if_zero(factor: tf.Tensor) -> tf.Tensor:
    """Returns NaN if `factor` is zero, else `factor`.

    The reciprocal of a loss scale above 2**126 is subnormal, and processors may flush it to zero.
    All gradients would then be zero, and finite steps would train nothing.
    """
    # A healthy step must not make a NaN: `tf.debugging.enable_check_numerics` would report it.
    return factor / tf.sign(factor)


def _for_float16(factor: tf.Tensor) -> tf.Tensor:
    """Returns `factor` rounded to float16, in float32; not rounded if it would become zero.

    The reciprocal of a loss scale of 2**25 or more would become zero, and with it all gradients.
    """
    rounded = tf.cast(tf.cast(factor, tf.float16), tf.float32)
    return tf.where(tf.equal(rounded, 0.0), factor, rounded)


@_compiled.compiled_in_eager_mode
def divide(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Divides each tensor by the last one, a float32 scalar, in the wider dtype.

    Integers are divided in float32.
    """
    *tensors, divisor = tensors
    results = []
    for tensor in tensors:
        dtype = _structure.number_dtype(tensor)
        if dtype.is_integer or dtype.size < divisor.dtype.size:
            dtype = divisor.dtype
        results.append(tf.raw_ops.RealDiv(x=tf.cast(tensor, dtype), y=tf.cast(divisor, dtype)))
    return results


@_compiled.compiled_in_eager_mode  # Only graphs use it; so all three are called alike.
def multiply_as_v1(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Multiplies each tensor by the last one, by the operations of the v1 originals' graphs alone.

    Names of variables depend on these, such as those of an `ExponentialMovingAverage` of gradients.
    float16 is an exception: there the factor, the reciprocal of a large scale, may be zero.
    """
    *tensors, factor = tensors
    results = []
    for tensor in tensors:
        dtype = _structure.number_dtype(tensor)
        if dtype == tf.float16:
            results += multiply([tensor, factor])
        else:
            results.append(tensor * tf.cast(factor, dtype))
    return results


class Division(NamedTuple):
    """The division of gradients by the loss scale, as an original does it.

    Attributes:
      operand: float32 scalar tensor, the loss scale or its reciprocal.
      function: `multiply` or `multiply_as_v1`, by the reciprocal, or `divide`, by the scale. It
        takes a list of tensors and the operand as the last of them.
    """

    operand: tf.Tensor
    function: _compiled.Compiled = multiply


def unscale(grads: Iterable[_types.Gradient], division: Division) -> _types.Gradients:
    """Returns a list of divided gradients; sparse stays sparse, None stays None.

    With `divide`, integers and narrower dtypes than float32 are returned in float32.
    """
    grads = list(grads)
    tensors, sparse_positions = _structure.flatten(grads)
    tensors = [*tensors, division.operand]
    return _structure.unflatten(
        grads, division.function(tensors, varying_first_dim=sparse_positions)
    )
