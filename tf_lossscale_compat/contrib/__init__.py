"""The names of `tf.contrib` that this package provides."""

from tf_lossscale_compat._core import _callers
from tf_lossscale_compat.contrib import mixed_precision

__all__ = ["mixed_precision"]
_callers.explain_missing(__name__)
