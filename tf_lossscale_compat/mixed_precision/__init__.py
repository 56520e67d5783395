"""What `tf.mixed_precision` had that this package carries on."""

from tf_lossscale_compat.mixed_precision import experimental

__all__ = ["experimental"]
