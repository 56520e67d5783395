"""Ownership: a loss scale or manager drives one optimizer, or v1 optimizers that share it.

Two optimizers that share one would both update it, the first before the second has divided by it.
Code for TensorFlow 1 shares one between its optimizers all the same, which divide before either
updates it; Keras optimizers divide where they apply. An optimizer that is gone owns nothing: the
loss scale is free for the next fold of a cross-validation, or the next cell of a notebook.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Callable, Iterable

from tf_lossscale_compat._core import _graphs, _scaler, _tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

KERAS = "a Keras one"
V1 = "a tf.compat.v1.train one"
SEVERAL = "one that apply_if_finite was given"


def _reference(owner: object) -> Callable[[], object]:
    try:
        return weakref.ref(owner)
    except TypeError:  # Such as a user's with `__slots__`: it counts as alive.
        return lambda: owner


class _Claim:
    """The owners of a loss scale, kept on the loss scale; a copy has no owner."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._references: dict[int, Callable[[], object]] = {}

    def add(self, owners: Iterable[object]) -> None:
        self._references = {
            key: each for key, each in self._references.items() if each() is not None
        }
        self._references.update((id(owner), _reference(owner)) for owner in owners)

    def lives(self) -> bool:
        """Returns whether any of the owners is still there."""
        if not self._any():
            return False
        gc.collect()  # Models and their optimizers are in reference cycles.
        return self._any()

    def _any(self) -> bool:
        return any(each() is not None for each in self._references.values())


def _claim_of(loss_scale: object) -> _Claim | None:
    return getattr(getattr(loss_scale, "_tflsc", None), "claim", None)


def check(kind: str, loss_scale: _types.Subject) -> None:
    """Raises a ValueError where this kind of optimizer must not take `loss_scale`; see `claim`."""
    loss_scale = _scaler.unwrap(loss_scale)
    claim = _claim_of(loss_scale)
    if claim is not None and not (kind == claim.kind != KERAS) and claim.lives():
        raise ValueError(
            f"{loss_scale!r} drives another optimizer, {claim.kind}, already: whichever of the two "
            "is applied first would update it before the other divides by it. Give each a loss "
            "scale of its own; or scale and unscale with the loss scale itself and have "
            "tf_lossscale_compat.apply_if_finite apply to both and update it once. If the other "
            "one is not needed any more, delete it first, and the models and functions that it is "
            "in."
        )


def drove_another(kind: str, loss_scale: _types.Subject) -> bool:
    """Returns whether `loss_scale` drove an optimizer of this kind, which is gone now."""
    known = _claim_of(_scaler.unwrap(loss_scale))
    return known is not None and known.kind == kind and not known.lives()


def claim(kind: str, loss_scale: _types.Subject, owners: Iterable[object]) -> None:
    """Notes that `loss_scale` drives optimizers; called once nothing else of that can fail.

    Args:
      kind: `KERAS`, of which each needs its own; `V1`; or `SEVERAL`.
      loss_scale: `LossScale` or `LossScaleManager`; a fixed one never changes and is free to share.
      owners: list of the optimizers. The claim stands while any of them lives, or the graph in
        which TensorFlow 1's were made.

    Raises:
      ValueError: it drives another optimizer, with which it cannot be shared.
    """
    check(kind, loss_scale)
    loss_scale = _scaler.unwrap(loss_scale)
    if not _scaler.Scaler(loss_scale).never_changes() and hasattr(loss_scale, "__dict__"):
        kept = _scaler.kept(loss_scale)
        if kept.claim is None or kept.claim.kind != kind:
            kept.claim = _Claim(kind)
        if kind != KERAS and _graphs.in_session_graph():  # Which a Session runs without them.
            owners = [*owners, _tf.tf1.get_default_graph()]
        kept.claim.add(owners)


def release(loss_scale: _types.Subject) -> None:
    """Notes that the optimizer which `loss_scale` drove has another one now."""
    loss_scale = _scaler.unwrap(loss_scale)
    if hasattr(loss_scale, "__dict__"):
        _scaler.kept(loss_scale).claim = None
