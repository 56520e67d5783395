"""What `tf.train` had that this package carries on."""

from tf_lossscale_compat.train import experimental

__all__ = ["experimental"]
