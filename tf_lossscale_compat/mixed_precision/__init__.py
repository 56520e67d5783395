"""The names of `tf.mixed_precision` that this package provides."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat.mixed_precision import experimental

__all__ = ["experimental"]
_missing_names.explain(__name__)
