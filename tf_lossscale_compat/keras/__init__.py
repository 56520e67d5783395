"""Loss-scale optimizers for Keras, under the names that `tf.keras` had for them.

Importing this package imports Keras; importing `tf_lossscale_compat` does not.
"""

from tf_lossscale_compat.keras import mixed_precision

__all__ = ["mixed_precision"]
