"""The names of `tf.train` that this package provides."""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat.train import experimental

__all__ = ["experimental"]
_missing_names.explain(__name__)
