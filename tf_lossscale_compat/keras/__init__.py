"""Loss-scale optimizers for Keras, under their names in `tf.keras`; a callback.

This module imports Keras. Each Keras that was imported before it can then load models that were
saved with these optimizers.
"""

from tf_lossscale_compat._core import _missing_names
from tf_lossscale_compat.keras import callbacks, mixed_precision

__all__ = ["callbacks", "mixed_precision"]
_missing_names.explain(__name__)
