"""`tf.keras.mixed_precision.LossScaleOptimizer` of TensorFlow 2.4 to 2.15."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat.keras._classes import LossScaleOptimizer
from tf_lossscale_compat.keras.mixed_precision import experimental

__all__ = ["LossScaleOptimizer", "experimental"]
_missing_names.explain(__name__)
