"""One training step, for every optimizer: unscale, test, agree, apply or skip, update, record.

The caller has multiplied the loss by the scale. `Step.take` divides the gradients, unless the
caller has, and runs the rest for all replicas as one. Each replica tests its own gradients, and one
scalar is reduced over replicas and workers. Processes outside `tf.distribute` agree through the
optimizer's `agree`. If all gradients are finite, the wrapped optimizer applies them in each
replica, else the step is skipped, unless the loss scale never skips one. Then the loss scale is
updated, and a record counts the step.

The loss scale is updated after the optimizer has applied, so that it keeps its value if the
optimizer fails. Two kinds of update come first: a user's `update(grads)`, which decides about the
step, and those of `MixedPrecisionLossScaleOptimizer` and of Keras' `OptimizerV2` in graphs, as in
the originals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from tf_lossscale_compat._core import (
    _gradients,
    _graphs,
    _replicas,
    _scale,
    _step_record,
    _variables,
)
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def check_context(method_name: str, check_strategy: Callable[[], None]) -> None:
    """Raises a ValueError if the public method `method_name` can take no step here."""
    if not tf.distribute.has_strategy():
        return
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            f"{method_name} was called in a cross-replica context and must be called in a replica "
            "context: inside a function that strategy.run runs."
        )
    check_strategy()


class Step:
    """One step of a loss-scale optimizer; each kind of optimizer has a subclass.

    Flags are bools, or bool scalar tensors equal on all replicas.

    Attributes:
      owner: the loss-scale optimizer whose method was called; its record counts the step.
      wrapped: the optimizer that applies gradients.
      loss_scale: its loss scale or manager; the manager of a loss scale that wraps one.
      read: method of `loss_scale` that returns the scale, a tensor or variable.
      agreement: function of a scalar bool tensor that returns its AND over processes outside any
        strategy, or None; called at most once, before anything is applied or updated.
      may_skip: bool, False if every step is applied and nothing is updated.
    """

    record: _step_record.StepRecord | None = None
    counts_skipped = False  # By `add_skipped_steps`.
    # In graphs of the v1 optimizers the division cannot make NaN of a zero reciprocal of the loss
    # scale. Such a step is skipped.
    skips_zero_reciprocal = False
    # Aggregates unscaled gradients over replicas before they are tested.
    aggregate: _types.Aggregate | None = None
    # In a graph the loss scale is updated before the conditional. The number in the conditional's
    # name then follows those of the update.
    updates_first = False
    name: str | None = None  # Of the step's operation.
    # Builds the conditional in a graph, as the original does. Its name is part of the names of
    # variables that are made in it, which checkpoints hold.
    cond = staticmethod(tf.cond)

    _finite_if_tested: tf.Tensor | None = None
    # For a record. In the cross-replica context they are those of the first replica's step.
    _recorded_variables: _types.Variables
    _scale_before: tf.Tensor | None = None

    def __init__(self, owner: _types.LossScaleOptimizer) -> None:
        unwrapped = _scale.unwrap(owner._tflsc_loss_scale)
        self.owner, self.loss_scale = owner, unwrapped
        self.wrapped, self.agreement = owner._tflsc_wrapped, owner._tflsc_agreement
        is_manager = _scale.is_manager(unwrapped)
        self.read = unwrapped.get_loss_scale if is_manager else unwrapped.__call__
        update = unwrapped.update_loss_scale if is_manager else unwrapped.update
        is_own = _scale.is_own(update, unwrapped)
        self.may_skip = not is_own or getattr(unwrapped, "_tflsc_may_skip", True)
        # A user's `update` takes the gradients and decides; others take the finite flag.
        self._updates_by_gradients = not (is_own or is_manager)
        self._call_update = unwrapped._tflsc_update if is_own else update

    def check_strategy(self) -> None:
        """Raises an error under a strategy that is not supported."""
        _replicas.check_strategy()

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
        method_name: str,
        division: _gradients.Division | None = None,
    ) -> tf.Operation | tf.Tensor | None:
        """Divides, aggregates and tests gradients, applies or skips, and updates.

        `division` is None if `grads` are unscaled. `method_name`, of the public method, is for
        errors. Returns None in eager mode; in a graph the step's operation, or if no step can be
        skipped and there is no record, what the wrapped optimizer returned.
        """
        check_context(method_name, self.check_strategy)
        # Most eager steps have no record, and need no call for it.
        if _step_record.ATTRIBUTE in vars(self.owner) or not tf.executing_eagerly():
            self.record = _step_record.record_of_step(self.owner)
        applies_only = not self.may_skip and self.record is None
        if division is not None:
            tests_next = not (applies_only or self._updates_by_gradients or self.aggregate)
            if tests_next and tf.executing_eagerly() and not tf.distribute.has_strategy():
                grads, self._finite_if_tested = _gradients.unscale_and_test(grads, division)
            else:
                grads = _gradients.unscale(grads, division)
        # A record names a replica's own gradients, which are those before the aggregation.
        recorded_grads, self._recorded_variables = grads, variables
        if self.aggregate is not None:
            grads, variables = self.aggregate(grads, variables)
        if applies_only:  # Nothing is updated either, so no `merge_call` is needed.
            applied = self.apply_with_wrapped(grads, variables)
            return None if tf.executing_eagerly() else applied
        if self.record is None:
            recorded_grads = []  # Nothing to be merged.
        return _replicas.run_cross_replica(self._run, (grads, variables, recorded_grads))

    # From here on, once for all replicas: gradients may be per-replica.

    def _run(
        self,
        grads: _types.Gradients,
        variables: _types.Variables,
        recorded_grads: _types.Gradients,
    ) -> tf.Operation | None:
        should_apply, finite, update = self._decide(grads)
        if tf.executing_eagerly():
            if should_apply:
                _replicas.call_for_each_replica(self.apply_with_wrapped, (grads, variables))
            elif self.counts_skipped:
                self.add_skipped_steps(1)
            update()
            self._count(recorded_grads, should_apply, finite, [])
            return None
        if self.updates_first:
            updated = update()
        applied, *counted = self._apply_or_skip(should_apply, grads, variables)
        if not self.updates_first:
            with tf.control_dependencies([applied]):
                updated = update()
        operations = [op for op in (applied, *counted, updated) if op is not None]
        operations += self._count(recorded_grads, should_apply, finite, [applied, updated])
        train_op = tf.group(*operations, name=self.name)
        _graphs.collect_train_op(train_op)
        return train_op

    def _decide(
        self, grads: _types.Gradients
    ) -> tuple[bool | tf.Tensor, bool | tf.Tensor, Callable[[], Any]]:
        """Decides about the step, before anything is applied.

        Returns whether to apply, True itself if no such step is skipped; the flag that a record
        counts, the same if the user's update decides; and a function that updates the loss scale,
        unless the user's update has, and returns what that returned.
        """
        if self._updates_by_gradients:
            updated, should_apply = self._update(grads)
            return should_apply, should_apply, lambda: updated
        finite = self._finite_flag(grads)
        return not self.may_skip or finite, finite, lambda: self._update(finite)

    def _finite_flag(self, grads: _types.Gradients) -> tf.Tensor:
        finite = self._finite_if_tested
        if finite is None:
            finite = _gradients.finite_everywhere(grads)
        if self.skips_zero_reciprocal and _scale.may_change(self.loss_scale):
            scale = _scale.as_tensor(self.read())
            finite = tf.logical_and(finite, scale <= _scale.LARGEST_WITH_RECIPROCAL)
        # If all steps are applied, only a record needs the flag, perhaps not on every process.
        if self.agreement is None or not self.may_skip:
            return finite
        agreed = tf.convert_to_tensor(self.agreement(finite))
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
            scale = _scale.snapshot(self.read())
            self._scale_before = _variables.deep_copy(scale)
        with tf.control_dependencies([self._scale_before]):
            return self._call_update(grads_or_finite)

    def _count(
        self,
        grads: _types.Gradients,
        should_apply: bool | tf.Tensor,
        finite: bool | tf.Tensor,
        done: list[Any],
    ) -> list[tf.Operation]:
        """Makes a record count the step, after what is `done`; returns a graph's operations."""
        if self.record is None:
            return []
        # A user's update may return anything.
        done = [each for each in tf.nest.flatten(done) if each is not None]
        with tf.control_dependencies(done):
            known_finite = tf.executing_eagerly() and bool(finite)
            after = None if known_finite else _scale.read_for_record(self.loss_scale)
            scales, may_skip = (self._scale_before, after), should_apply is not True
            return self.record._count(self._recorded_variables, grads, finite, may_skip, scales)

    # The conditional in a graph.

    def _apply_or_skip(
        self,
        should_apply: bool | tf.Tensor,
        grads: _types.Gradients,
        variables: _types.Variables,
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
        # XLA keeps the conditional only if the branch that skips does nothing, so the count is
        # outside.
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
