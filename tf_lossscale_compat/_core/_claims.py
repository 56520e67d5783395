"""Claims: a loss scale or manager drives one Keras optimizer, or several of another kind.

Two Keras optimizers must not share a loss scale: they divide when they apply, so that the first
would update the scale before the second has divided by it. TensorFlow 1's optimizers may share one:
they all divide before any of them updates it. A deleted optimizer claims nothing: the loss scale is
free for the next fold of a cross-validation, or the next cell of a notebook. In a graph for a
Session, v1 optimizers claim it as long as the graph exists.
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


def _reference(claimant: object) -> Callable[[], object]:
    try:
        return weakref.ref(claimant)
    except TypeError:  # For example a class with `__slots__`: it counts as alive.
        return lambda: claimant


class _Claim:
    """Refers to the optimizers that a loss scale drives, and graphs; not copied with it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.references: dict[int, Callable[[], object]] = {}

    def add(self, claimants: Iterable[object]) -> None:
        self.references = {key: each for key, each in self.references.items() if each() is not None}
        self.references.update((id(each), _reference(each)) for each in claimants)

    def is_alive(self) -> bool:
        """Returns whether any claimant still exists."""
        if not self._any_alive():
            return False
        gc.collect()  # Models and their optimizers form reference cycles.
        return self._any_alive()

    def _any_alive(self) -> bool:
        return any(each() is not None for each in self.references.values())


def _claim_of(loss_scale: _types.LossScaleOrManager) -> _Claim | None:
    return getattr(getattr(_scaler.unwrap(loss_scale), "_tflsc", None), "claim", None)


def check_can_claim(kind: str, scaler: _scaler.Scaler) -> None:
    """Raises a ValueError if this kind of optimizer must not take a loss scale; see `claim`."""
    existing = _claim_of(scaler.loss_scale)
    if existing is None:
        return
    may_share = kind == existing.kind and kind != KERAS
    if not may_share and existing.is_alive():
        raise ValueError(
            f"{scaler.loss_scale!r} already drives another optimizer, {existing.kind}. The first "
            "of the two to apply would update the loss scale before the other divides by it. Give "
            "each a loss scale of its own. If the other is not needed any more, first delete it "
            "and the models and functions that hold it."
        )


def drove_deleted_optimizer(kind: str, loss_scale: _types.LossScaleOrManager) -> bool:
    """Returns whether `loss_scale` drove an optimizer of this kind that no longer exists."""
    existing = _claim_of(loss_scale)
    return existing is not None and existing.kind == kind and not existing.is_alive()


def claim(kind: str, scaler: _scaler.Scaler, optimizers: Iterable[object]) -> None:
    """Records that a loss scale drives optimizers; called after all checks.

    Args:
      kind: `KERAS`, where each optimizer needs its own loss scale; or `V1`.
      scaler: `_scaler.Scaler` of the loss scale; a fixed one never changes and may be shared.
      optimizers: list of the optimizers. The claim lasts while any of them exists; of other kinds
        than `KERAS`, also while the graph for a Session exists in which it was made.

    Raises:
      ValueError: the loss scale drives another optimizer, and they cannot share it.
    """
    check_can_claim(kind, scaler)
    if scaler.may_change() and hasattr(scaler.loss_scale, "__dict__"):
        data = _scaler.data_of(scaler.loss_scale)
        if data.claim is None or data.claim.kind != kind:
            data.claim = _Claim(kind)
        if kind != KERAS and _graphs.in_session_graph():  # A Session runs the graph alone.
            optimizers = [*optimizers, _tf.tf1.get_default_graph()]
        data.claim.add(optimizers)


def release(loss_scale: _types.LossScaleOrManager, optimizer: object) -> None:
    """Records that `optimizer` now has another loss scale; a graph that has this one keeps it."""
    existing = _claim_of(loss_scale)
    if existing is not None:
        existing.references.pop(id(optimizer), None)
        if not existing.references:
            _scaler.data_of(_scaler.unwrap(loss_scale)).claim = None
