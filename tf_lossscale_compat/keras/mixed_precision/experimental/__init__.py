"""`tf.keras.mixed_precision.experimental` of TensorFlow 2.0 to 2.5."""

from tf_lossscale_compat._core import _callers
from tf_lossscale_compat.keras._classes import ExperimentalLossScaleOptimizer as LossScaleOptimizer

__all__ = ["LossScaleOptimizer"]
_callers.explain_missing(__name__)
