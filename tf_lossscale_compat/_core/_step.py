"""One training step, for every optimizer: unscale, test, agree, apply or skip, update, notify.

The caller has multiplied the loss by the scale. `take` divides the gradients, unless the caller
has, and runs the rest for all replicas as one. Each replica tests its own gradients, and one scalar
is reduced over replicas and workers. Processes outside `tf.distribute` agree through the
optimizer's `agree`. If all gradients are finite, the wrapped optimizer applies them in each
replica, else nothing changes. Then the loss scale is updated, and a record is notified.

The loss scale is updated after the optimizer has applied, so that it keeps its value if the
optimizer fails. Two kinds of update come first: a user's `update(grads)`, which decides about the
step, and those of `MixedPrecisionLossScaleOptimizer` and of Keras' `OptimizerV2` in graphs, as in
the originals.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, ContextManager, NamedTuple

from tf_lossscale_compat._core import (
    _agreement,
    _finite,
    _graphs,
    _observers,
    _replicas,
    _scaler,
    _state,
    _unscaling,
)
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


class GraphForm(NamedTuple):
    """The form of the graph that an original built; names of variables in checkpoints follow it.

    Attributes:
      cond: function that builds the conditional, whose name is part of the names of variables that
        are made in it.
      update_first: bool, the loss scale is updated before the conditional. The number in the
        conditional's name then follows those of the update.
      name: str, the name of the step's operation, or None.
    """

    cond: Callable[[tf.Tensor, Callable[[], Any], Callable[[], Any]], Any] = tf.cond
    update_first: bool = False
    name: str | None = None


class OptimizerAdapter:
    """One step's view of an optimizer; each kind of optimizer derives from it.

    Attributes:
      wrapped: the optimizer that applies gradients, or None for several optimizers.
      observed: optimizer whose record is notified, or None.
      agree: function of a scalar bool tensor that returns its AND over processes outside any
        strategy, or None; called once, before anything is applied or updated.
      counts_skipped: bool, `count_skipped` is called for a skipped step.
      checks_reciprocal: bool, steps are skipped while the reciprocal of the loss scale is zero,
        because this graph's division does not itself turn it into NaN.
      check_strategy: function that raises an error under a strategy that is not supported.
    """

    wrapped: _types.HasApplyGradients | None = None
    observed: object = None
    agree: _types.Agree | None = None
    counts_skipped = False
    checks_reciprocal = False
    check_strategy = staticmethod(_replicas.check_strategy)

    def apply(self, grads: list[_types.Gradient], variables: list[tf.Variable]) -> Any:
        """Applies unscaled gradients by the wrapped optimizer; called in a replica context."""
        raise NotImplementedError

    def count_skipped(self, number: int | tf.Tensor) -> Any:
        """Counts skipped steps, 1 or 0; called once for all replicas; returns the assignment."""


_PLAIN = GraphForm()


def check_context(
    called: str, check_strategy: Callable[[], None] = _replicas.check_strategy
) -> None:
    """Raises a ValueError if no step can be taken here; `called` is the method's name."""
    if not tf.distribute.has_strategy():
        return
    if tf.distribute.in_cross_replica_context():
        raise ValueError(
            f"{called} was called in a cross-replica context and must be called in a replica "
            "context: inside a function that strategy.run runs."
        )
    check_strategy()


def take(
    scaler: _scaler.Scaler,
    grads: list[_types.Gradient],
    variables: list[tf.Variable],
    adapter: OptimizerAdapter,
    *,
    called: str,
    division: _unscaling.Division | None = None,
    form: GraphForm = _PLAIN,
    unaggregated: tuple[list[_types.Gradient], list[tf.Variable]] | None = None,
) -> tf.Operation | tf.Tensor | None:
    """Applies gradients or skips them, and updates the loss scale, for one step.

    `division` is None if `grads` are unscaled. `called` is the calling method's name, for errors.
    Records name the variables of non-finite gradients by `unaggregated`: the gradients before their
    aggregation over replicas, and their variables.

    Returns:
      None in eager mode; in a graph the step's operation, or if no step can be skipped, what the
      wrapped optimizer returned.

    Raises:
      ValueError: called in a cross-replica context, or under a strategy that is not supported.
    """
    check_context(called, adapter.check_strategy)
    observed_variables = variables if unaggregated is None else unaggregated[1]
    observation = _observers.observe(scaler, adapter.observed, observed_variables)
    decides = not scaler.applies_all or observation is not None
    finite = None
    if division is not None:
        tests = decides and not scaler.needs_gradients
        if tests and tf.executing_eagerly() and not tf.distribute.has_strategy():
            grads, finite = _finite.unscale_and_test(grads, division)  # In one operation.
        else:
            grads = _unscaling.unscale(grads, division)
    if not decides:  # Nothing is updated either, so no `merge_call` is needed.
        applied = adapter.apply(grads, variables)
        return None if tf.executing_eagerly() else applied
    observed_grads: list[_types.Gradient] = []
    if observation is not None:
        observed_grads = grads if unaggregated is None else unaggregated[0]
    step = _Step(scaler, adapter, observation, form, finite)
    return _replicas.run_cross_replica(step.run, (grads, variables, observed_grads))


class _Decision(NamedTuple):
    """The decision about a step. Flags are bools, or bool scalar tensors equal on all replicas."""

    should_apply: bool | tf.Tensor
    finite: bool | tf.Tensor  # Equal to `should_apply` if the user's update decides.
    update: Callable[[Any], Any]  # Updates the loss scale; takes `finite`, or a copy of it.


class _Step(NamedTuple):
    """One step of all replicas as one."""

    scaler: _scaler.Scaler
    adapter: OptimizerAdapter
    observation: _observers.Observation | None  # None without a record.
    form: GraphForm
    finite: tf.Tensor | None  # None if it is not yet computed.

    def run(
        self,
        grads: list[_types.Gradient],
        variables: list[tf.Variable],
        observed_grads: list[_types.Gradient],
    ) -> tf.Operation | None:
        """Takes the step; see the function `take`. Gradients may be per-replica."""
        if self.observation is not None:
            self.observation.grads = observed_grads
        if tf.executing_eagerly():
            self._run_eagerly(grads, variables)
            return None
        return self._run_in_graph(grads, variables)

    def _run_eagerly(self, grads: list[_types.Gradient], variables: list[tf.Variable]) -> None:
        should_apply, finite, update = self._decide(grads)
        if should_apply:
            _replicas.call_for_each_replica(self.adapter.apply, (grads, variables))
        elif self.adapter.counts_skipped:
            self.adapter.count_skipped(1)
        update(finite)
        if self.observation is not None:
            self.observation.notify([], finite, skips_nonfinite=should_apply is not True)

    def _run_in_graph(
        self, grads: list[_types.Gradient], variables: list[tf.Variable]
    ) -> tf.Operation:
        should_apply, finite, update = self._decide(grads)
        by_xla = _graphs.compiled_by_xla()
        updated = update(finite) if self.form.update_first else None
        done = self._apply_or_skip(should_apply, grads, variables, by_xla)
        counted = None
        if by_xla and self.adapter.counts_skipped:
            # After the conditional, which XLA keeps only if the branch that skips does nothing.
            with tf.control_dependencies([done]):
                skipped = tf.cast(tf.logical_not(should_apply), tf.int32)
                counted = _graphs.as_operation(self._count(skipped))
        if not self.form.update_first:
            with tf.control_dependencies([done]):
                updated = update(done if isinstance(done, tf.Tensor) else finite)
        operations = [op for op in (done, counted, updated) if op is not None]
        if self.observation is not None:
            operations += self.observation.notify(
                [done, updated], finite, skips_nonfinite=should_apply is not True
            )
        step = tf.group(*operations, name=self.form.name)
        _graphs.collect_train_op(step)
        return step

    def _decide(self, grads: list[_types.Gradient]) -> _Decision:
        """Decides about a step, before anything is applied."""
        if self.scaler.needs_gradients:
            return self._decide_by_update(grads)
        finite = self._finite_flag(grads)
        return _Decision(self.scaler.applies_all or finite, finite, self._update_from_flag)

    def _updating(self, *finite: tf.Tensor) -> ContextManager[None]:
        observation = self.observation
        return contextlib.nullcontext() if observation is None else observation.updating(*finite)

    def _update_from_flag(self, flag: tf.Tensor) -> Any:
        with self._updating(flag):
            return self.scaler.update(flag)

    def _decide_by_update(self, grads: list[_types.Gradient]) -> _Decision:
        """Lets the user's update decide, and the finite flag too with `skip_nonfinite`."""
        scaler = self.scaler
        if self.adapter.agree is not None:
            raise ValueError(
                f"agree works on the finite flag, but {scaler.subject!r} needs the gradients. Use "
                "a LossScaleManager, whose update_loss_scale takes that flag."
            )
        finite = self._finite_flag(grads) if scaler.skip_nonfinite else None
        with self._updating():
            update, should_apply = scaler.update(grads)
        if finite is not None:
            should_apply = tf.logical_and(finite, should_apply)
        return _Decision(should_apply, should_apply, lambda flag: update)

    def _finite_flag(self, grads: list[_types.Gradient]) -> tf.Tensor:
        finite = _finite.finite_everywhere(grads) if self.finite is None else self.finite
        scaler = self.scaler
        if self.adapter.checks_reciprocal and scaler.changes():
            scale = _scaler.as_tensor(scaler.read())
            finite = tf.logical_and(finite, scale <= _scaler.LARGEST_WITH_RECIPROCAL)
        # If all steps are applied, only a record needs the flag, perhaps not on every process.
        if self.adapter.agree is None or scaler.applies_all:
            return finite
        return _agreement.ask(self.adapter.agree, finite)

    def _apply_or_skip(
        self,
        should_apply: bool | tf.Tensor,
        grads: list[_types.Gradient],
        variables: list[tf.Variable],
        by_xla: bool,
    ) -> tf.Operation | tf.Tensor:
        """Builds the conditional; returns an operation, or a tensor with the value `should_apply`.

        It is a tensor if XLA selects, and with the conditionals of TensorFlow 1.
        """

        def apply() -> tf.Operation | None:
            return _replicas.call_for_each_replica(self.adapter.apply, (grads, variables))

        def skip() -> tf.Operation | None:
            # In this branch, because another conditional would capture all gradients again.
            done = [] if self.observation is None else self.observation.inspect_gradients()
            if self.adapter.counts_skipped and not by_xla:
                done = [self._count(1), *done]
            return _graphs.as_operation([op for op in done if op is not None])

        if isinstance(should_apply, bool):
            return apply() if should_apply else skip()
        if not (by_xla and _should_select(self.adapter.wrapped, variables)):
            return self.form.cond(should_apply, apply, skip)
        return self.form.cond(
            should_apply, lambda: _flag_after(apply(), True), lambda: _flag_after(skip(), False)
        )

    def _count(self, number: int | tf.Tensor) -> Any:
        return _replicas.local_results(self.adapter.count_skipped(number))


def _flag_after(done: tf.Operation, flag: bool) -> tf.Tensor:
    with tf.control_dependencies([done]):
        return tf.constant(flag)


def _should_select(wrapped: object, variables: list[tf.Variable]) -> bool:
    """Returns whether XLA should select instead of branching.

    If both branches of a conditional do something, XLA computes both and then selects each
    variable's value. Selections fuse with the operations around them, but read and write every
    variable in full. For an optimizer with slots, such as Adam's moments, that costs more than it
    saves. XLA always keeps the conditional around a sparse gradient's update.
    """
    if wrapped is None:
        return False
    try:
        slots, weights = [
            sum(tf.TensorShape(variable.shape).num_elements() or 0 for variable in some)
            for some in (_state.variables_of(wrapped), variables)
        ]
    except Exception:  # Any object with `compute_gradients` and `apply_gradients` can be wrapped.
        return False
    return slots < weights
