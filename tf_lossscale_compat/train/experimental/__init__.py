"""The loss-scale part of `tf.train.experimental` (TensorFlow r1.14 to 2.3)."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat._scales._loss_scales import DynamicLossScale, FixedLossScale, LossScale
from tf_lossscale_compat._v1._optimizers import MixedPrecisionLossScaleOptimizer
from tf_lossscale_compat.train.experimental._graph_rewrite import (
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
_missing_names.explain(__name__)
