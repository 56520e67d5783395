"""Differences between versions of Keras, without importing any."""

from __future__ import annotations

import collections
import sys
from typing import TYPE_CHECKING

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# The packages that are a Keras. TensorFlow contains one, too: tf.keras, or an older copy of it.
PACKAGES = ("keras", "tf_keras")
ROOTS = (*PACKAGES, "tensorflow", "tensorflow_core")
# The names of the base classes of optimizers: code for one serves each package that has it.
# TensorFlow 2.9 to 2.15 has both of the last two.
KERAS_3, OPTIMIZER_V3, OPTIMIZER_V2 = _BASES = "BaseOptimizer", "_BaseOptimizer", "OptimizerV2"


def base_of(cls: type) -> type | None:
    """Returns the base class of the optimizers that `cls` is one of; None for other classes."""
    if issubclass(cls, _tf.Optimizer):  # Contrib of TensorFlow 1.15 has another `OptimizerV2`.
        return None
    of_keras = (base for base in cls.__mro__ if base.__module__.split(".")[0] in ROOTS)
    return next((base for base in of_keras if base.__name__ in _BASES), None)


def is_optimizer(opt: object) -> bool:
    """Returns whether `opt` is an optimizer of any Keras."""
    return base_of(type(opt)) is not None


def track_in_session(variable: tf.Variable) -> None:
    """Registers `variable` with Keras' session, which initializes it."""
    roots = ("tensorflow_core.python.keras", "tensorflow.python.keras", *PACKAGES)
    for name in (*roots, *(f"{package}.src" for package in PACKAGES)):
        track = getattr(sys.modules.get(f"{name}.backend"), "track_variable", None)
        if track is not None and not tf.executing_eagerly():
            track(variable)


def is_loss_scale_optimizer(cls: type) -> bool:
    """Returns whether a class, of this package or another, is a loss-scale optimizer.

    It goes by name: some classes of TensorFlow and Keras are private, and vendors have more.
    """
    return any("LossScaleOptimizer" in base.__name__ for base in cls.__mro__)


def names_of(variables: _types.Variables) -> list[str]:
    """Returns a distinct name for each variable."""
    # Keras 3 distinguishes layers only by their path.
    names = [getattr(each, "path", None) or each.name.split(":")[0] for each in variables]
    times = collections.Counter(names)
    return [f"{name} [{i}]" if times[name] > 1 else name for i, name in enumerate(names)]
