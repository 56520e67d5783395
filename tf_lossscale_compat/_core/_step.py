"""One training step, for every optimizer: unscale, test, agree, apply or skip, update, record.

The caller has multiplied the loss by the scale. `Step.take` divides the gradients, unless the
caller has, and runs the rest once for all replicas, or in each where `merge_call` is not allowed.
Each replica tests its own gradients, and one scalar is reduced over replicas and workers. Processes
outside `tf.distribute` agree through the optimizer's `agree`. Then the wrapped optimizer applies
the gradients in each replica, or the step is skipped. Then the loss scale is updated, and a record
counts the step.

The update comes last, so that the loss scale keeps its value if the optimizer fails. Two come
first: a user's `update(grads)`, which decides about the step, and in graphs, as in the originals,
those of `MixedPrecisionLossScaleOptimizer` and of Keras' `OptimizerV2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tf_lossscale_compat._core import (
    _gradients,
    _graphs,
    _replicas,
    _scale_or_manager,
    _step_record,
    _variables,
)
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


class _Decision(NamedTuple):
    """What is decided about a step before anything is applied."""

    should_apply: bool | tf.Tensor  # True itself if no such step is skipped.
    finite: bool | tf.Tensor  # What a record counts; `should_apply` if a user's update decides.
    update: Callable[[], Any]  # Updates the loss scale, or returns what a user's update returned.


class Step:
    """One step of a loss-scale optimizer; each kind of optimizer has a subclass.

    Flags are bools, or bool scalar tensors equal on all replicas.

    Attributes:
      optimizer: the loss-scale optimizer whose method was called; its record counts the step.
      method_name: str, the name of that public method, for errors.
      wrapped: the optimizer that applies gradients.
      loss_scale: its loss scale or manager; the manager of a loss scale that wraps one.
      read: method of `loss_scale` that returns the scale, a tensor or variable.
      may_skip: bool, False if every step is applied and nothing is updated.
    """

    record: _step_record.StepRecord | None = None
    counts_skipped = False  # By `add_skipped_steps`.
    # In a graph with the originals' operations a zero reciprocal of the scale makes no NaN to skip.
    skips_zero_reciprocal = False
    # Aggregates unscaled gradients over replicas before they are tested.
    aggregate: _types.Aggregate | None = None
    # In a graph the update comes before the conditional, whose name then has a later number.
    updates_first = False
    name: str | None = None  # Of the step's operation.
    # Builds the conditional in a graph, as the original does. Its name is part of the names of
    # variables that are made in it, which checkpoints hold.
    cond = staticmethod(tf.cond)

    _finite_if_tested: tf.Tensor | None = None  # By `_divide`.
    # For a record. In the cross-replica context they are those of the first replica's step.
    _recorded_variables: _types.Variables
    _scale_before: tf.Tensor | None = None

    def __init__(self, optimizer: _types.LossScaleOptimizer, method_name: str) -> None:
        loss_scale = _scale_or_manager.innermost(optimizer._tflsc_loss_scale)
        self.optimizer, self.method_name, self.loss_scale = optimizer, method_name, loss_scale
        self.wrapped = optimizer._tflsc_wrapped
        is_manager = _scale_or_manager.is_manager(loss_scale)
        self.read = loss_scale.get_loss_scale if is_manager else loss_scale.__call__
        update = loss_scale.update_loss_scale if is_manager else loss_scale.update
        is_ours = _scale_or_manager.is_ours(update, loss_scale)
        self.may_skip = not is_ours or getattr(loss_scale, "_tflsc_may_skip", True)
        # A user's `update` takes the gradients and decides; others take the finite flag.
        self._updates_by_gradients = not (is_ours or is_manager)
        self._call_update = loss_scale._tflsc_update if is_ours else update

    def check_strategy(self) -> None:
        """Raises an error under a strategy that is not supported."""
        _replicas.check_strategy()

    def check_context(self) -> None:
        """Raises a ValueError if the public method can take no step here."""
        if not tf.distribute.has_strategy():
            return
        if tf.distribute.in_cross_replica_context():
            raise ValueError(
                f"{self.method_name} was called in a cross-replica context and must be called in a "
                "replica context: inside a function that strategy.run runs."
            )
        self.check_strategy()

    def apply_with_wrapped(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        """Applies unscaled gradients by the wrapped optimizer; called in a replica context."""
        raise NotImplementedError

    def add_skipped_steps(self, number: int | tf.Tensor) -> Any:
        """Counts skipped steps, 1 or 0, for all replicas; returns the assignment or None."""
        raise NotImplementedError

    def take(
        self,
        grads: _types.Gradients,
        variables: _types.Variables,
        division: _gradients.Division | None = None,
    ) -> tf.Operation | tf.Tensor | None:
        """Divides, aggregates and tests gradients, applies or skips, and updates.

        `division` is None if `grads` are unscaled. Returns None in eager mode. In a graph it is the
        step's operation; if nothing is tested or recorded, what the wrapped optimizer returned.
        """
        self.check_context()
        # Most eager steps have no record, and need no call for it.
        if _step_record.ATTRIBUTE in vars(self.optimizer) or not tf.executing_eagerly():
            self.record = _step_record.record_of_step(self.optimizer)
        if division is not None:
            grads = self._divide(grads, division)
        # A record names a replica's own gradients, which are those before the aggregation.
        recorded_grads = [] if self.record is None else grads
        self._recorded_variables = variables
        if self.aggregate is not None:
            grads, variables = self.aggregate(grads, variables)
        if not (self.may_skip or self.record):  # Nothing is updated, so no `merge_call` is needed.
            applied = self.apply_with_wrapped(grads, variables)
            return None if tf.executing_eagerly() else applied
        if not tf.distribute.has_strategy():
            return self._run(grads, variables, recorded_grads)
        return _replicas.run_cross_replica(self._run, (grads, variables, recorded_grads))

    def _divide(self, grads: _types.Gradients, division: _gradients.Division) -> _types.Gradients:
        """Returns divided gradients; where eager mode tests them next, it does both in one call."""
        tests = self.may_skip or self.record is not None
        tests_next = tests and not (self._updates_by_gradients or self.aggregate)
        if tests_next and tf.executing_eagerly() and not tf.distribute.has_strategy():
            grads, self._finite_if_tested = _gradients.unscale_and_test(grads, division)
            return grads
        return _gradients.unscale(grads, division)

    # From here on per-replica gradients, once for all replicas; or in each, without `merge_call`.

    def _run(
        self, grads: _types.Gradients, variables: _types.Variables, recorded_grads: _types.Gradients
    ) -> tf.Operation | None:
        decision = self._decide(grads)
        if tf.executing_eagerly():
            if not decision.should_apply:
                if self.counts_skipped:
                    self.add_skipped_steps(1)
            elif tf.distribute.has_strategy():
                _replicas.call_for_each_replica(self.apply_with_wrapped, (grads, variables))
            else:
                self.apply_with_wrapped(grads, variables)
            decision.update()
            self._count(recorded_grads, decision, [])
            return None
        if self.updates_first:
            updated = decision.update()
        applied, *counted = self._apply_or_skip(decision.should_apply, grads, variables)
        if not self.updates_first:
            with tf.control_dependencies([applied]):
                updated = decision.update()
        operations = [op for op in (applied, *counted, updated) if op is not None]
        operations += self._count(recorded_grads, decision, [applied, updated])
        train_op = tf.group(*operations, name=self.name)
        _graphs.collect_train_op(train_op)
        return train_op

    def _decide(self, grads: _types.Gradients) -> _Decision:
        """Decides about the step, before anything is applied."""
        if self._updates_by_gradients:
            updated, should_apply = self._update(grads)
            return _Decision(should_apply, should_apply, lambda: updated)
        finite = self._finite_flag(grads)
        return _Decision(not self.may_skip or finite, finite, lambda: self._update(finite))

    def _finite_flag(self, grads: _types.Gradients) -> tf.Tensor:
        finite = self._finite_if_tested
        if finite is None:
            replicas = tf.distribute.has_strategy()
            test = _gradients.finite_everywhere if replicas else _gradients.finite_here
            finite = test(grads)
        if self.skips_zero_reciprocal and _scale_or_manager.may_change(self.loss_scale):
            scale = _variables.as_float32(self.read())
            finite = tf.logical_and(finite, scale <= _scale_or_manager.LARGEST_WITH_RECIPROCAL)
        # If all steps are applied, only a record needs the flag, perhaps not on every process.
        agree = self.optimizer._tflsc_agreement if self.may_skip else None
        if agree is None:
            return finite
        agreed = tf.convert_to_tensor(agree(finite))  # Once, and before anything is changed.
        if agreed.dtype != tf.bool or agreed.shape.rank not in (0, None):
            raise ValueError(f"agree must return a scalar bool tensor, got {agreed!r}.")
        return agreed

    def _update(self, grads_or_finite: Any) -> Any:
        """Updates the loss scale; for a record, the scale is read before."""
        finite = None if self._updates_by_gradients else grads_or_finite
        # A record keeps only the scale of skipped steps. Eager mode knows which steps are skipped.
        known_finite = finite is not None and tf.executing_eagerly() and bool(finite)
        if self.record is None or known_finite:
            return self._call_update(grads_or_finite)
        with tf.control_dependencies([] if finite is None else [finite]):
            scale = _variables.snapshot(self.read())
            self._scale_before = _variables.deep_copy(scale)
        with tf.control_dependencies([self._scale_before]):
            return self._call_update(grads_or_finite)

    def _count(self, grads: _types.Gradients, decision: _Decision, done: list[Any]) -> list[Any]:
        """Makes a record count the step, after what is `done`; returns a graph's operations."""
        if self.record is None:
            return []
        # A user's update may return anything.
        done = [each for each in tf.nest.flatten(done) if each is not None]
        finite, may_skip = decision.finite, decision.should_apply is not True
        with tf.control_dependencies(done):
            known_finite = tf.executing_eagerly() and bool(finite)
            after = None if known_finite else _scale_or_manager.scale_after_step(self.loss_scale)
            scales = (self._scale_before, after)
            return self.record._count(self._recorded_variables, grads, finite, may_skip, scales)

    # The conditional in a graph.

    def _apply_or_skip(
        self, should_apply: bool | tf.Tensor, grads: _types.Gradients, variables: _types.Variables
    ) -> list[tf.Operation | tf.Tensor]:
        """Builds the conditional, and what counts a skipped step; returns what has to run.

        The first is the conditional, or without one, what the branch returned.
        """

        def apply() -> Any:
            return _replicas.call_for_each_replica(self.apply_with_wrapped, (grads, variables))

        def count(number: int | tf.Tensor) -> Any:
            return _variables.local_results(self.add_skipped_steps(number))

        def skip() -> Any:
            return _graphs.as_operation(count(1) if self.counts_skipped else None)

        if isinstance(should_apply, bool):
            return [apply() if should_apply else skip()]
        if not _graphs.compiled_by_xla():
            return [self.cond(should_apply, apply, skip)]
        # XLA keeps the conditional only if one branch does nothing, so the count is outside.
        if self._should_select(variables):

            def apply_and_return_true() -> tf.Tensor:
                with tf.control_dependencies([apply()]):
                    return tf.constant(True)

            done = self.cond(should_apply, apply_and_return_true, lambda: tf.constant(False))
        else:
            done = self.cond(should_apply, apply, tf.no_op)
        if not self.counts_skipped:
            return [done]
        with tf.control_dependencies([done]):
            counted = count(tf.cast(tf.logical_not(should_apply), tf.int32))
            return [done, _graphs.as_operation(counted)]

    def _should_select(self, variables: _types.Variables) -> bool:
        """Returns whether XLA should select instead of branching.

        If both branches of a conditional do something, XLA computes both and then selects each
        variable's value. Selections fuse with the operations around them, but read and write every
        variable in full. For an optimizer with slots, such as Adam's moments, that costs more than
        it saves. XLA always keeps the conditional around a sparse gradient's update.
        """
        try:
            slots, weights = [
                sum(tf.TensorShape(variable.shape).num_elements() or 0 for variable in group)
                for group in (_variables.of(self.wrapped), variables)
            ]
        except Exception:  # Any object with these two methods can be wrapped.
            return False
        return slots < weights
