"""TensorFlow's removed loss-scale APIs, from TensorFlow 1.15 to the newest.

The namespaces mirror TensorFlow's: replace `tf.contrib.mixed_precision` by
`tf_lossscale_compat.contrib.mixed_precision`, `tf.train.experimental` by
`tf_lossscale_compat.train.experimental`, and so on.
"""

import importlib
from typing import TYPE_CHECKING

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

# The module of each public class and function. Nothing is imported before it is asked for: what
# needs no TensorFlow, such as `tf-lossscale migrate`, does not wait for it.
_HOMES = {
    "DynamicLossScale": "loss_scale",
    "ExponentialUpdateLossScaleManager": "loss_scale_manager",
    "FixedLossScale": "loss_scale",
    "FixedLossScaleManager": "loss_scale_manager",
    "LossScale": "loss_scale",
    "LossScaleError": "_step_record",
    "LossScaleManager": "loss_scale_manager",
    "StepRecord": "_step_record",
    "apply_if_finite": "_apply_if_finite",
    "install_contrib": "contrib_install",
    "uninstall_contrib": "contrib_install",
}
_MODULES = (
    "checkpoint",
    "contrib",
    "keras",
    "loss_scale",
    "loss_scale_manager",
    "mixed_precision",
    "monitoring",
    "train",
)

if TYPE_CHECKING:
    from tf_lossscale_compat import checkpoint as checkpoint
    from tf_lossscale_compat import contrib, loss_scale, mixed_precision, train
    from tf_lossscale_compat import keras as keras
    from tf_lossscale_compat import loss_scale_manager as loss_scale_manager
    from tf_lossscale_compat import monitoring as monitoring
    from tf_lossscale_compat._apply_if_finite import apply_if_finite
    from tf_lossscale_compat._step_record import LossScaleError, StepRecord
    from tf_lossscale_compat.contrib_install import install_contrib, uninstall_contrib
    from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale
    from tf_lossscale_compat.loss_scale_manager import (
        ExponentialUpdateLossScaleManager,
        FixedLossScaleManager,
        LossScaleManager,
    )
else:
    # Type checkers are not to see it, as to them any name would then be there.
    def __getattr__(name):
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # Found without this function from now on.
        return value

    def __dir__():
        return sorted({*__all__, "checkpoint", "keras", "monitoring"})
