"""Loss-scale optimizers for Keras, under the names that `tf.keras` had for them; a callback.

To import this imports Keras. Models that were saved with these optimizers can be loaded then, by
each Keras that is imported before.
"""

from tf_lossscale_compat.keras import callbacks, mixed_precision

__all__ = ["callbacks", "mixed_precision"]
