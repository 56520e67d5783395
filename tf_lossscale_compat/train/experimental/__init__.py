"""The loss-scale part of `tf.train.experimental` (TensorFlow r1.14 to 2.3)."""

from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale
from tf_lossscale_compat.loss_scale_optimizer import (
    MixedPrecisionLossScaleOptimizer,
    disable_mixed_precision_graph_rewrite,
    enable_mixed_precision_graph_rewrite,
)

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "MixedPrecisionLossScaleOptimizer",
    "disable_mixed_precision_graph_rewrite",
    "enable_mixed_precision_graph_rewrite",
]
