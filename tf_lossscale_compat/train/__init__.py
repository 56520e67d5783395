"""The names of `tf.train` that this package provides."""

from tf_lossscale_compat.train import experimental

__all__ = ["experimental"]
