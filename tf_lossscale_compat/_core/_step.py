"""One training step, for every optimizer: unscale, test, agree, apply or skip, update, notify.

The caller has multiplied the loss by the scale. `take` divides the gradients, unless the caller
has, and runs the rest for all replicas as one. Each replica tests its own gradients, and one scalar
is reduced over replicas and workers. Processes outside `tf.distribute` agree through the
optimizer's `agree`. If all gradients are finite, the wrapped optimizer applies them in each
replica, else the step is skipped, unless the loss scale never skips one. Then the loss scale is
updated, and a record counts the step.

The loss scale is updated after the optimizer has applied, so that it keeps its value if the
optimizer fails. Two kinds of update come first: a user's `update(grads)`, which decides about the
step, and those of `MixedPrecisionLossScaleOptimizer` and of Keras' `OptimizerV2` in graphs, as in
the originals.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tf_lossscale_compat._core import (
    _agreement,
    _conditional,
    _gradients,
    _graphs,
    _replicas,
    _scaler,
    _step_record,
    _variables,
)
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _adapter, _types


def check_context(
    method_name: str, check_strategy: Callable[[], None] = _replicas.check_strategy
) -> None:
    """Raises a ValueError if the public method `method_name` can take no step here."""
    if not tf.distribute.has_strategy():
        return
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            f"{method_name} was called in a cross-replica context and must be called in a replica "
            "context: inside a function that strategy.run runs."
        )
    check_strategy()


def take(
    scaler: _scaler.Scaler,
    grads: _types.Gradients,
    variables: _types.Variables,
    adapter: _adapter.OptimizerAdapter,
    *,
    method_name: str,
    division: _gradients.Division | None = None,
) -> tf.Operation | tf.Tensor | None:
    """Takes one step: divides, aggregates and tests gradients, applies or skips, and updates.

    `division` is None if `grads` are unscaled. `method_name`, of the public method, is for errors.

    Returns:
      None in eager mode; in a graph the step's operation, or if no step can be skipped and there is
      no record, what the wrapped optimizer returned.

    Raises:
      ValueError: called in a cross-replica context, or under a strategy that is not supported; a
        record was made outside of the graph or strategy; or `agree` returned no scalar bool.
      TypeError: gradients are no numbers.
      LossScaleError: in eager mode, a record ends the run.
    """
    check_context(method_name, adapter.check_strategy)
    record = _step_record.record_of_step(adapter.watched)
    needs_decision = not scaler.never_skips or record is not None
    finite = None
    if division is not None:
        tests_next = needs_decision and not scaler.update_by_gradients and not adapter.aggregate
        if tests_next and tf.executing_eagerly() and not tf.distribute.has_strategy():
            grads, finite = _gradients.unscale_and_test(grads, division)
        else:
            grads = _gradients.unscale(grads, division)
    # A record names a replica's own gradients, which are those before the aggregation.
    observed_grads, observed_variables = grads, variables
    if adapter.aggregate is not None:
        grads, variables = adapter.aggregate(grads, variables)
    if not needs_decision:  # Nothing is updated either, so no `merge_call` is needed.
        applied = adapter.apply(grads, variables)
        return None if tf.executing_eagerly() else applied
    if record is None:
        observed_grads = []  # Nothing to be merged.
    step = _Step(scaler, adapter, record, observed_variables, finite)
    return _replicas.run_cross_replica(step.run, (grads, variables, observed_grads))


class _Decision(NamedTuple):
    """The decision about a step. Flags are bools, or bool scalar tensors equal on all replicas."""

    should_apply: bool | tf.Tensor
    can_skip: bool  # False if `should_apply` is always True.
    finite: bool | tf.Tensor  # Equal to `should_apply` if the user's update decides.
    # Updates the loss scale, unless the user's update has. Returns what that returned, and for a
    # record the scale before it.
    update: Callable[[], tuple[Any, tf.Tensor | None]]


class _Step(NamedTuple):
    """One step of all replicas as one."""

    scaler: _scaler.Scaler
    adapter: _adapter.OptimizerAdapter
    record: _step_record.StepRecord | None
    observed_variables: _types.Variables
    finite: tf.Tensor | None  # None if it is not yet computed.

    def run(
        self,
        grads: _types.Gradients,
        variables: _types.Variables,
        observed_grads: _types.Gradients,
    ) -> tf.Operation | None:
        """Takes the step; see the function `take`. Gradients may be per-replica."""
        if tf.executing_eagerly():
            self._run_eagerly(grads, variables, observed_grads)
            return None
        return self._run_in_graph(grads, variables, observed_grads)

    def _run_eagerly(
        self,
        grads: _types.Gradients,
        variables: _types.Variables,
        observed_grads: _types.Gradients,
    ) -> None:
        decision = self._decide(grads)
        if decision.should_apply:
            _replicas.call_for_each_replica(self.adapter.apply, (grads, variables))
        else:
            self._inspect(observed_grads)
            if self.adapter.counts_skipped:
                self.adapter.add_skipped_steps(1)
        _, scale_before = decision.update()
        self._count(decision, scale_before, [])

    def _run_in_graph(
        self,
        grads: _types.Gradients,
        variables: _types.Variables,
        observed_grads: _types.Gradients,
    ) -> tf.Operation:
        decision = self._decide(grads)
        if self.adapter.updates_first:
            updated, scale_before = decision.update()
        applied, *counted = _conditional.apply_or_skip(
            decision.should_apply,
            lambda: _replicas.call_for_each_replica(self.adapter.apply, (grads, variables)),
            # In this branch, because another conditional would capture all gradients again.
            lambda: self._inspect(observed_grads),
            self.adapter,
            variables,
        )
        if not self.adapter.updates_first:
            with tf.control_dependencies([applied]):
                updated, scale_before = decision.update()
        operations = [op for op in (applied, *counted, updated) if op is not None]
        operations += self._count(decision, scale_before, [applied, updated])
        train_op = tf.group(*operations, name=self.adapter.name)
        _graphs.collect_train_op(train_op)
        return train_op

    def _inspect(self, grads: _types.Gradients) -> list[tf.Operation]:
        """Makes a record look at the gradients of a skipped step."""
        return [] if self.record is None else self.record._inspect(self.observed_variables, grads)

    def _count(
        self, decision: _Decision, scale_before: tf.Tensor | None, done: list[Any]
    ) -> list[tf.Operation]:
        """Makes a record count the step, after what is `done`; returns a graph's operations."""
        if self.record is None:
            return []
        finite, can_skip = decision.finite, decision.can_skip
        # A user's update may return anything.
        done = [each for each in tf.nest.flatten(done) if each is not None]
        with tf.control_dependencies(done):
            known_finite = tf.executing_eagerly() and bool(finite)
            scales = scale_before, None if known_finite else self.scaler.read_for_record()
            return self.record._count(self.observed_variables, finite, can_skip, scales)

    def _update(
        self, update: Callable[[], Any], finite: bool | tf.Tensor | None = None
    ) -> tuple[Any, tf.Tensor | None]:
        """Updates the loss scale; returns as `_Decision.update` does. `finite`: None if unknown."""
        # A record keeps only the scale of skipped steps. Eager mode knows which steps are skipped.
        known_finite = finite is not None and tf.executing_eagerly() and bool(finite)
        if self.record is None or known_finite:
            return update(), None
        with tf.control_dependencies([] if finite is None else [finite]):
            scale_before = _variables.deep_copy(_scaler.snapshot(self.scaler.read()))
        with tf.control_dependencies([scale_before]):
            return update(), scale_before

    def _decide(self, grads: _types.Gradients) -> _Decision:
        """Decides about a step, before anything is applied."""
        if self.scaler.update_by_gradients is not None:
            return self._decide_by_update(self.scaler.update_by_gradients, grads)
        finite = self._finite_flag(grads)
        by_flag = functools.partial(self.scaler.update_by_flag, finite)
        update = functools.partial(self._update, by_flag, finite)
        never_skips = self.scaler.never_skips
        return _Decision(never_skips or finite, not never_skips, finite, update)

    def _decide_by_update(
        self, users_update: Callable[[Any], tuple[Any, Any]], grads: _types.Gradients
    ) -> _Decision:
        """Lets the user's update decide."""
        (updated, should_apply), before = self._update(functools.partial(users_update, grads))
        can_skip = should_apply is not True
        return _Decision(should_apply, can_skip, should_apply, lambda: (updated, before))

    def _finite_flag(self, grads: _types.Gradients) -> tf.Tensor:
        finite = _gradients.finite_everywhere(grads) if self.finite is None else self.finite
        scaler = self.scaler
        if self.adapter.skips_zero_reciprocal and scaler.may_change():
            scale = _scaler.as_tensor(scaler.read())
            finite = tf.logical_and(finite, scale <= _scaler.LARGEST_WITH_RECIPROCAL)
        # If all steps are applied, only a record needs the flag, perhaps not on every process.
        if self.adapter.agreement is None or scaler.never_skips:
            return finite
        return _agreement.ask(self.adapter.agreement, finite)
