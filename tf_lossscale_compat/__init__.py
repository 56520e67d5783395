"""TensorFlow's removed loss-scale APIs, from TensorFlow 1.15 to the newest.

The namespaces mirror TensorFlow's: replace `tf.contrib.mixed_precision` by
`tf_lossscale_compat.contrib.mixed_precision`, `tf.train.experimental` by
`tf_lossscale_compat.train.experimental`, and so on.
"""

from tf_lossscale_compat import _tf  # noqa: F401  First: it says what to do without TensorFlow.

# isort: split

import importlib
from typing import TYPE_CHECKING

from tf_lossscale_compat import contrib, loss_scale, mixed_precision, train
from tf_lossscale_compat._apply_if_finite import apply_if_finite
from tf_lossscale_compat._step_record import LossScaleError, StepRecord
from tf_lossscale_compat._version import __version__
from tf_lossscale_compat.contrib_install import install_contrib, uninstall_contrib
from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale
from tf_lossscale_compat.loss_scale_manager import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)

__all__ = [
    "DynamicLossScale",
    "ExponentialUpdateLossScaleManager",
    "FixedLossScale",
    "FixedLossScaleManager",
    "LossScale",
    "LossScaleError",
    "LossScaleManager",
    "StepRecord",
    "__version__",
    "apply_if_finite",
    "contrib",
    "install_contrib",
    "loss_scale",
    "mixed_precision",
    "train",
    "uninstall_contrib",
]

_LAZY = ("checkpoint", "keras", "monitoring")

if TYPE_CHECKING:
    from tf_lossscale_compat import checkpoint as checkpoint
    from tf_lossscale_compat import keras as keras
    from tf_lossscale_compat import loss_scale_manager as loss_scale_manager
    from tf_lossscale_compat import monitoring as monitoring
else:
    # Type checkers are not to see it, as to them any name would then be there.
    def __getattr__(name):
        # Importing `keras` imports Keras, which many who need the rest do without.
        if name in _LAZY:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_LAZY})
