"""`tf.contrib.mixed_precision` of TensorFlow r1.15."""

from tf_lossscale_compat._scales._managers import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)
from tf_lossscale_compat._v1._optimizers import LossScaleOptimizer

__all__ = [
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "LossScaleManager",
    "LossScaleOptimizer",
]
