"""TensorFlow's removed loss-scale APIs, from TensorFlow 1.15 to the newest.

The namespaces mirror TensorFlow's: replace `tf.contrib.mixed_precision` by
`tf_lossscale_compat.contrib.mixed_precision`, `tf.train.experimental` by
`tf_lossscale_compat.train.experimental`, and so on.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Optional

from tf_lossscale_compat._version import __version__

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


def _is_run() -> bool:
    """Whether this package is run, by `python -m` or by the command, and not imported."""
    # "-m" is what Python puts there while it looks for the module to run.
    return sys.argv[:1] == ["-m"] or "tf_lossscale_command" in sys.modules


# Python imports a package before it runs a part of it. What `tf-lossscale migrate` does needs no
# TensorFlow; so where there is none, running the package goes on without its classes. Importing it
# is an error at once: it would be of no use, and this is where its user looks.
_no_tensorflow: Optional[ImportError] = None
try:
    from tf_lossscale_compat import _tf  # noqa: F401  First: it says what to do without TensorFlow.
except ImportError as error:
    if not _is_run():
        raise
    _no_tensorflow = error

if _no_tensorflow is None:
    from tf_lossscale_compat import contrib, loss_scale, mixed_precision, train
    from tf_lossscale_compat._apply_if_finite import apply_if_finite
    from tf_lossscale_compat._step_record import LossScaleError, StepRecord
    from tf_lossscale_compat.contrib_install import install_contrib, uninstall_contrib
    from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale
    from tf_lossscale_compat.loss_scale_manager import (
        ExponentialUpdateLossScaleManager,
        FixedLossScaleManager,
        LossScaleManager,
    )

if TYPE_CHECKING:
    from tf_lossscale_compat import checkpoint as checkpoint
    from tf_lossscale_compat import keras as keras
    from tf_lossscale_compat import loss_scale_manager as loss_scale_manager
    from tf_lossscale_compat import monitoring as monitoring
else:
    # Type checkers are not to see it, as to them any name would then be there.
    def __getattr__(name):
        if _no_tensorflow is not None and name in (*__all__, *_LAZY):
            raise _no_tensorflow
        # Importing `keras` imports Keras, which many who need the rest do without.
        if name in _LAZY:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_LAZY})
