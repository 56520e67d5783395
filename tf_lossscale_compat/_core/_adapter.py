"""Adapters: one step's view of an optimizer, and of the graph that its original built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _replicas
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


class OptimizerAdapter:
    """One step's view of an optimizer; each kind of optimizer has a class for its steps.

    Attributes:
      wrapped: the optimizer that applies gradients.
      watched: optimizer whose record is notified, or None.
      agreement: function of a scalar bool tensor that returns its AND over processes outside any
        strategy, or None; called at most once, before anything is applied or updated.
      counts_skipped: bool, skipped steps are counted by `add_skipped_steps`.
      skips_zero_reciprocal: bool, steps are skipped while the reciprocal of the loss scale may be
        zero, because this graph's division does not itself turn it into NaN.
      aggregate: function that aggregates gradients over replicas before they are tested; it takes
        unscaled gradients and their variables and returns both, two lists. None if the step
        aggregates nothing.
      check_strategy: function that raises an error under a strategy that is not supported.
      cond: function that builds the conditional in a graph, as the original does. Its name is part
        of the names of variables that are made in it, which checkpoints hold.
      updates_first: bool, in a graph the loss scale is updated before the conditional. The number
        in the conditional's name then follows those of the update.
      name: str, the name of the step's operation, or None.
    """

    wrapped: _types.HasApplyGradients
    watched: object = None
    agreement: _types.Agree | None = None
    counts_skipped = False
    skips_zero_reciprocal = False
    aggregate: _types.Aggregate | None = None
    check_strategy = staticmethod(_replicas.check_strategy)
    cond = staticmethod(tf.cond)
    updates_first = False
    name: str | None = None

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        """Applies unscaled gradients by the wrapped optimizer; called in a replica context."""
        raise NotImplementedError

    def add_skipped_steps(self, number: int | tf.Tensor) -> Any:
        """Counts skipped steps, 1 or 0, for all replicas; returns the assignment."""
        raise NotImplementedError
