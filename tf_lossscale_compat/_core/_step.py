"""One training step, for every optimizer: unscale, test, agree, apply or skip, update, notify.

The caller has multiplied the loss by the scale. `take` divides the gradients, unless the caller
has, and runs the rest for all replicas as one. Each replica tests its own gradients, and one scalar
is reduced over replicas and workers. Processes outside `tf.distribute` agree through the
optimizer's `agree`. If all gradients are finite, the wrapped optimizer applies them in each
replica, else the step is skipped, unless the loss scale never skips one. Then the loss scale is
updated, and a record is notified.

The loss scale is updated after the optimizer has applied, so that it keeps its value if the
optimizer fails. Two kinds of update come first: a user's `update(grads)`, which decides about the
step, and those of `MixedPrecisionLossScaleOptimizer` and of Keras' `OptimizerV2` in graphs, as in
the originals.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Union

from tf_lossscale_compat._core import (
    _agreement,
    _conditional,
    _finite,
    _graphs,
    _observers,
    _replicas,
    _scaler,
    _unscaling,
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
    division: _unscaling.Division | None = None,
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
    record = _find_record(adapter.watched)
    needs_decision = not scaler.never_skips or record is not None
    finite = None
    if division is not None:
        tests_next = needs_decision and not scaler.update_by_gradients and not adapter.aggregate
        if tests_next and tf.executing_eagerly() and not tf.distribute.has_strategy():
            grads, finite = _finite.unscale_and_test(grads, division)
        else:
            grads = _unscaling.unscale(grads, division)
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


def _find_record(watched: object) -> _observers.Observer | None:
    """Returns the record that observes this step, or None."""
    # Most eager steps have none, and need no call for it.
    if tf.executing_eagerly() and _observers.ATTRIBUTE not in getattr(watched, "__dict__", ()):
        return None
    return _observers.record_of_step(watched)


class _Decision(NamedTuple):
    """The decision about a step. Flags are bools, or bool scalar tensors equal on all replicas."""

    should_apply: bool | tf.Tensor
    can_skip: bool  # False if `should_apply` is always True.
    finite: bool | tf.Tensor  # Equal to `should_apply` if the user's update decides.
    # Updates the loss scale, unless the user's update has; returns what that returned.
    update: Callable[[], Any]


class _NoObservation:
    """Takes the place of an `Observation` in a step without a record."""

    def update_and_observe(self, update: Callable[[], Any], finite: Any = None) -> Any:
        return update()

    def inspect_gradients(self) -> list[tf.Operation]:
        return []

    def notify(self, finite: Any, can_skip: bool, dependencies: list[Any]) -> list[tf.Operation]:
        return []


_NO_OBSERVATION = _NoObservation()
if TYPE_CHECKING:
    _AnyObservation = Union[_observers.Observation, _NoObservation]


class _Step(NamedTuple):
    """One step of all replicas as one."""

    scaler: _scaler.Scaler
    adapter: _adapter.OptimizerAdapter
    record: _observers.Observer | None
    observed_variables: _types.Variables
    finite: tf.Tensor | None  # None if it is not yet computed.

    def run(
        self,
        grads: _types.Gradients,
        variables: _types.Variables,
        observed_grads: _types.Gradients,
    ) -> tf.Operation | None:
        """Takes the step; see the function `take`. Gradients may be per-replica."""
        observation: _AnyObservation = _NO_OBSERVATION
        if self.record is not None:
            observation = _observers.Observation(
                self.record, self.scaler, self.observed_variables, observed_grads
            )
        if tf.executing_eagerly():
            self._run_eagerly(grads, variables, observation)
            return None
        return self._run_in_graph(grads, variables, observation)

    def _run_eagerly(
        self, grads: _types.Gradients, variables: _types.Variables, observation: _AnyObservation
    ) -> None:
        decision = self._decide(grads, observation)
        if decision.should_apply:
            _replicas.call_for_each_replica(self.adapter.apply, (grads, variables))
        else:
            observation.inspect_gradients()
            if self.adapter.counts_skipped:
                self.adapter.add_skipped_steps(1)
        decision.update()
        observation.notify(decision.finite, decision.can_skip, [])

    def _run_in_graph(
        self, grads: _types.Gradients, variables: _types.Variables, observation: _AnyObservation
    ) -> tf.Operation:
        decision = self._decide(grads, observation)
        if self.adapter.updates_first:
            updated = decision.update()
        applied, *counted = _conditional.apply_or_skip(
            decision.should_apply,
            lambda: _replicas.call_for_each_replica(self.adapter.apply, (grads, variables)),
            # In this branch, because another conditional would capture all gradients again.
            observation.inspect_gradients,
            self.adapter,
            variables,
        )
        if not self.adapter.updates_first:
            with tf.control_dependencies([applied]):
                updated = decision.update()
        operations = [op for op in (applied, *counted, updated) if op is not None]
        operations += observation.notify(decision.finite, decision.can_skip, [applied, updated])
        train_op = tf.group(*operations, name=self.adapter.name)
        _graphs.collect_train_op(train_op)
        return train_op

    def _decide(self, grads: _types.Gradients, observation: _AnyObservation) -> _Decision:
        """Decides about a step, before anything is applied."""
        if self.scaler.update_by_gradients is not None:
            return self._decide_by_update(self.scaler.update_by_gradients, grads, observation)
        finite = self._finite_flag(grads)
        update = functools.partial(
            observation.update_and_observe,
            functools.partial(self.scaler.update_by_flag, finite),
            finite,
        )
        never_skips = self.scaler.never_skips
        return _Decision(never_skips or finite, not never_skips, finite, update)

    def _decide_by_update(
        self,
        users_update: Callable[[Any], tuple[Any, Any]],
        grads: _types.Gradients,
        observation: _AnyObservation,
    ) -> _Decision:
        """Lets the user's update decide."""
        updated, should_apply = observation.update_and_observe(
            functools.partial(users_update, grads)
        )
        can_skip = should_apply is not True
        return _Decision(should_apply, can_skip, should_apply, lambda: updated)

    def _finite_flag(self, grads: _types.Gradients) -> tf.Tensor:
        finite = _finite.finite_everywhere(grads) if self.finite is None else self.finite
        scaler = self.scaler
        if self.adapter.skips_zero_reciprocal and scaler.may_change():
            scale = _scaler.as_tensor(scaler.read())
            finite = tf.logical_and(finite, scale <= _scaler.LARGEST_WITH_RECIPROCAL)
        # If all steps are applied, only a record needs the flag, perhaps not on every process.
        if self.adapter.agreement is None or scaler.never_skips:
            return finite
        return _agreement.ask(self.adapter.agreement, finite)
