"""`tf.keras.mixed_precision.experimental` of TensorFlow 2.0 to 2.5."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat.keras._classes import ExperimentalLossScaleOptimizer as LossScaleOptimizer

__all__ = ["LossScaleOptimizer"]
_missing_names.explain(__name__)
