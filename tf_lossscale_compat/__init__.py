"""TensorFlow's removed loss-scale APIs, on TensorFlow 1.15 and later.

The namespaces mirror TensorFlow's: replace `tf.contrib.mixed_precision` by
`tf_lossscale_compat.contrib.mixed_precision`, `tf.train.experimental` by
`tf_lossscale_compat.train.experimental`, and so on.
"""

# Under private names, as editors complete all others.
import importlib as _importlib
import typing as _typing

__version__ = "1.0.0.dev0"

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
    "contrib",
    "install_contrib",
    "loss_scale",
    "mixed_precision",
    "train",
]

# The module of each public class and function. Modules are imported at the first use, so that
# programs without TensorFlow, such as `tf-lossscale migrate`, do not wait for it.
_HOMES = {
    "DynamicLossScale": "_scales._loss_scales",
    "ExponentialUpdateLossScaleManager": "_scales._managers",
    "FixedLossScale": "_scales._loss_scales",
    "FixedLossScaleManager": "_scales._managers",
    "LossScale": "_scales._loss_scales",
    "LossScaleError": "_core._step_record",
    "LossScaleManager": "_scales._managers",
    "StepRecord": "_core._step_record",
    "install_contrib": "contrib._install",
}
_MODULES = ("contrib", "keras", "loss_scale", "mixed_precision", "train")

if _typing.TYPE_CHECKING:
    from tf_lossscale_compat import contrib, loss_scale, mixed_precision, train
    from tf_lossscale_compat import keras as keras
    from tf_lossscale_compat._core._step_record import LossScaleError, StepRecord
    from tf_lossscale_compat._scales._loss_scales import DynamicLossScale, FixedLossScale, LossScale
    from tf_lossscale_compat._scales._managers import (
        ExponentialUpdateLossScaleManager,
        FixedLossScaleManager,
        LossScaleManager,
    )
    from tf_lossscale_compat.contrib._install import install_contrib
else:
    # Hidden from type checkers, for which every name would otherwise exist.
    def __getattr__(name):
        if name in _MODULES:
            return _importlib.import_module(f"{__name__}.{name}")
        if name not in _HOMES:
            from tf_lossscale_compat._core import _missing_names

            raise _missing_names.error_of(__name__, name)
        value = getattr(_importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # Later uses do not call this function.
        return value

    def __dir__():
        return sorted({*__all__, "keras"})
