"""Optimizers that are wrapped: the family of each, by the class that it derives from.

There may be several families in one process: those of Keras 3 and of `tf_keras`, each with its own
base classes, and in tf.keras of 2.11 to 2.15 two kinds of optimizers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tf_lossscale_compat._core import _keras_versions, _tf, _wrapping
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    import types

# The base classes that all optimizers of a family derive from.
KERAS_3, TF_KERAS, OPTIMIZER_V2 = _BASES = "BaseOptimizer", "_BaseOptimizer", "OptimizerV2"


def of_keras(cls: type) -> list[type]:
    """Returns the bases of a class, itself included, that are of any Keras, in order."""
    return [c for c in cls.__mro__ if c.__module__.split(".")[0] in _keras_versions.ROOTS]


def bases_of(optimizer_class: type) -> list[type]:
    """Returns the base classes of families that a class derives from, the nearest first."""
    return [base for base in of_keras(optimizer_class) if base.__name__ in _BASES]


def keras_of(base: type) -> types.ModuleType:
    """Returns the Keras module, with `optimizers` and the like, that a base class is from."""
    root = base.__module__.split(".")[0]
    return importlib.import_module(root) if root.endswith("keras") else tf.keras


def base_of(optimizer: object, argument: str) -> type:
    """Returns the base class of the family of an optimizer, which was given as `argument`.

    Raises a TypeError or ValueError where it is no Keras optimizer that can be wrapped.
    """
    found = [] if isinstance(optimizer, type) else bases_of(type(optimizer))
    if not found:
        hint = ""
        if isinstance(optimizer, _tf.Optimizer):
            hint = (
                " A tf.compat.v1.train.Optimizer is wrapped by "
                "tf_lossscale_compat.train.experimental.MixedPrecisionLossScaleOptimizer or "
                "tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer instead."
            )
        raise TypeError(f"{argument} must be a Keras optimizer, got {optimizer!r}.{hint}")
    if _wrapping.is_loss_scale_optimizer(type(optimizer)):
        raise TypeError(
            f"{argument} must have no loss scale itself, as a LossScaleOptimizer cannot wrap "
            f"another LossScaleOptimizer, got {optimizer!r}."
        )
    if getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False):  # As all mark it.
        raise ValueError(
            f'"{argument}" is already wrapped by a LossScaleOptimizer, got {optimizer!r}: use that '
            "one, or make another optimizer."
        )
    # In 2.10 they are classes of their own, and later the others with a mesh.
    of_dtensor = getattr(optimizer, "_mesh", None) is not None or any(
        ".dtensor." in base.__module__ for base in type(optimizer).__mro__
    )
    if of_dtensor and found[0].__name__ == TF_KERAS:
        raise TypeError(
            f"{argument} must not be an optimizer of tf.keras.dtensor, got {optimizer!r}: its "
            "gradients are on a mesh, but a loss scale is not. Use an optimizer of "
            "tf.keras.optimizers without a mesh, under a strategy of tf.distribute."
        )
    return found[0]
