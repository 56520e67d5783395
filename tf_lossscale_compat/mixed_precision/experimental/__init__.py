"""`tf.mixed_precision.experimental` (TensorFlow 2.1 to 2.4)."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat._scales._loss_scales import DynamicLossScale, FixedLossScale, LossScale

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale"]
_missing_names.explain(__name__)
