"""The names of `tf.train` that this package provides."""

from tf_lossscale_compat._core import _callers
from tf_lossscale_compat.train import experimental

__all__ = ["experimental"]
_callers.explain_missing(__name__)
