"""`tf.contrib.mixed_precision` of TensorFlow r1.15."""

from tf_lossscale_compat.loss_scale_manager import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)
from tf_lossscale_compat.loss_scale_optimizer import LossScaleOptimizer

__all__ = [
    "ExponentialUpdateLossScaleManager",
    "FixedLossScaleManager",
    "LossScaleManager",
    "LossScaleOptimizer",
]
