"""Loss-scale optimizers for Keras, under the names that `tf.keras` had for them; a callback.

Importing this package imports Keras; importing `tf_lossscale_compat` does not.
"""

from tf_lossscale_compat.keras import callbacks, mixed_precision

__all__ = ["callbacks", "mixed_precision"]
