"""The names of `tf.train` that this package carries on."""

from tf_lossscale_compat.train import experimental

__all__ = ["experimental"]
