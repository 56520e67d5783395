"""The names of `tf.contrib` that this package provides."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat.contrib import mixed_precision

__all__ = ["mixed_precision"]
_missing_names.explain(__name__)
