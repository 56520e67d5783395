"""Optimizers of this package and others that wrap optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def optimizer_chain(
    optimizer: _types.HasApplyGradients | None,
) -> Iterator[_types.HasApplyGradients]:
    """Yields an optimizer and the optimizers that it wraps, outermost first."""
    names = ("inner_optimizer", "_optimizer", "_opt", "_base_optimizer", "optimizer", "opt")
    seen = set()
    while optimizer is not None and id(optimizer) not in seen:
        yield optimizer
        seen.add(id(optimizer))
        inner = [getattr(optimizer, "__dict__", {}).get(name) for name in names]
        optimizer = next((each for each in inner if hasattr(each, "apply_gradients")), None)


def is_loss_scale_optimizer(cls: type) -> bool:
    """Returns whether a class, of this package or another, is a loss-scale optimizer.

    It goes by name: some classes of TensorFlow and Keras are private, and vendors have more.
    """
    return any("LossScaleOptimizer" in base.__name__ for base in cls.__mro__)
