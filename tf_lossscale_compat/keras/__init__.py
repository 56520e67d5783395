"""Loss-scale optimizers for Keras, under the names that `tf.keras` had for them; a callback.

Keras is imported with either of the two modules, not before.
"""

import importlib
from typing import TYPE_CHECKING

__all__ = ["callbacks", "mixed_precision"]

if TYPE_CHECKING:
    from tf_lossscale_compat.keras import callbacks, mixed_precision
else:
    # Not seen by type checkers, which would take any name for one that is there.
    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")

    def __dir__():
        return list(__all__)
