"""The names of `tf.mixed_precision` that this package provides."""

from tf_lossscale_compat._core import _callers
from tf_lossscale_compat.mixed_precision import experimental

__all__ = ["experimental"]
_callers.explain_missing(__name__)
