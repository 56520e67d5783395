"""The loss scales of TensorFlow r2.0, and functions like those of `keras.losses`."""

from tf_lossscale_compat._scales._loss_scales import (
    DynamicLossScale,
    FixedLossScale,
    LossScale,
    deserialize,
    get,
    serialize,
)

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "deserialize",
    "get",
    "serialize",
]
