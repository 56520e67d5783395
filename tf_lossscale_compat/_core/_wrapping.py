"""Optimizers that wrap others, of this package and of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def with_wrapped(
    optimizer: _types.HasApplyGradients | None,
) -> Iterator[_types.HasApplyGradients]:
    """Yields an optimizer and those that it wraps."""
    names = ("inner_optimizer", "_optimizer", "_opt", "_base_optimizer", "optimizer", "opt")
    seen = set()
    while optimizer is not None and id(optimizer) not in seen:
        yield optimizer
        seen.add(id(optimizer))
        inner = [getattr(optimizer, "__dict__", {}).get(name) for name in names]
        optimizer = next((each for each in inner if hasattr(each, "apply_gradients")), None)


def is_loss_scale_optimizer(cls: type) -> bool:
    """Returns whether a class, of this package or another, is one of optimizers with a loss scale.

    TensorFlow's and Keras' own are not all public, and vendors have more; all are named so.
    """
    return any("LossScaleOptimizer" in base.__name__ for base in cls.__mro__)
