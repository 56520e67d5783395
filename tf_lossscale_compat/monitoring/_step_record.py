"""A record of steps: applied and skipped steps, their loss scales, and the causes of skips."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Iterable, NamedTuple, NoReturn

from tf_lossscale_compat._core import _graphs, _tf
from tf_lossscale_compat._core._tf import tf, tf1  # First: it says what to do without TensorFlow.

# isort: split
import numpy as np

from tf_lossscale_compat._core import (
    _arguments,
    _keras_versions,
    _observers,
    _replicas,
    _scaler,
    _variables,
)
from tf_lossscale_compat.monitoring import _nonfinite

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

_MAX_SHOWN = 5  # The number of gradients that a report names.


class Skip(NamedTuple):
    """A skipped step.

    Attributes:
      step: int, its number among the steps that the record has seen, starting at 1.
      scale_before: float, the loss scale before the step.
      scale_after: float, the loss scale after it; None if a user's loss scale does not show it.
      gradients: tuple of `BadGradient`, empty without `names`, and in eager mode and functions from
        the restore of a checkpoint to the first step.
    """

    step: int
    scale_before: float
    scale_after: float | None
    gradients: tuple[_nonfinite.BadGradient, ...]


class LossScaleError(RuntimeError):
    """A run has skipped too many steps in a row."""


class StepRecord(_tf.Trackable):
    """Counts the steps of an optimizer, and describes the last skipped step.

    Make it before the first step, in the graph or under the strategy of the optimizer::

        record = StepRecord(optimizer, names=True)
        ...
        print(record.report())

    It sees only the steps of that optimizer, even if others share its loss scale.

    Replicas of `tf.distribute` take a step together, which counts once; with Horovod each process
    has its own record. Checkpoints of the optimizer do not hold the record. The record is a
    trackable: if a `tf.train.Checkpoint` holds it, its totals continue after a restart.

    Attributes:
      watched: the optimizer that the record observes.
      max_consecutive_skips: int or None, see the constructor.
    """

    watched: Any
    max_consecutive_skips: int | None
    _nonfinite_counts: dict[int, _nonfinite.NonfiniteCounts]
    _monitor: Any = None  # A `Monitor`, of `write_summaries` in eager mode, from its first call on.

    def __init__(
        self,
        watched: _types.HasApplyGradients,
        *,
        names: bool = False,
        max_consecutive_skips: _types.Integer | None = None,
    ) -> None:
        """Makes the record and its variables; it then observes each step of `watched`.

        Args:
          watched: loss-scale optimizer of this package, for `tf.compat.v1.train` or any Keras.
          names: bool, whether to record which gradients of a skipped step were not finite. The
            variables for this are made in the first step.
          max_consecutive_skips: int above zero, or None: the number of skipped steps in a row that
            ends a run with a `LossScaleError`. In eager mode the last of them raises the error;
            elsewhere `check` does, which the hook and the callback call.

        Raises:
          TypeError: `watched` is not such an optimizer, for example a bare loss scale, or `names`
            is not a bool.
          ValueError: `watched` has a record or is part of a graph that was built without one,
            `max_consecutive_skips` is not such a number, or the strategy in scope is unsupported.
        """
        # Only this package's optimizer classes have this attribute.
        if not hasattr(type(watched), "_tflsc_family"):
            raise TypeError(
                f"watched must be a loss-scale optimizer of this package, got {watched!r}. If you "
                "use a loss scale without one, its `update` returns whether the step is applied."
            )
        self._with_names = _arguments.flag("names", names)
        self.max_consecutive_skips = _arguments.max_consecutive_skips(max_consecutive_skips)
        self.watched = watched
        _observers.check_can_attach(watched)
        _replicas.check_strategy()
        variables = _scaler.variables_of(self.loss_scale) + _variables.variables_of(watched)
        with tf.init_scope(), _replicas.scope_of(variables):
            self._finite_steps = self._make("finite_steps", np.int64(0))
            self._nonfinite_steps = self._make("nonfinite_steps", np.int64(0))
            self._skipped_steps = self._make("skipped_steps", np.int64(0))
            # The number of finite steps before the last non-finite step; the last skipped step's
            # number, its count of skipped steps in a row, and the key of its gradients.
            self._last = self._make("last", np.array([-1, 0, 0, 0], np.int64))
            self._last_scales = self._make("last_scales", np.zeros(2, np.float32))
            self._replica_count = tf.distribute.get_strategy().num_replicas_in_sync
        self._nonfinite_counts, self._lock = {}, threading.RLock()
        _observers.attach(watched, self)

    def _make(self, name: str, value: Any) -> tf.Variable:
        with tf1.name_scope("step_record/"):
            variable = _variables.make(self, name, value, value.dtype, use_resource=True)
        _keras_versions.track_in_session(variable)
        return variable

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A StepRecord cannot be copied or pickled. Make a new one for a copy of what it "
            "watches, and restore a tf.train.Checkpoint of this one into it."
        )

    @property
    def loss_scale(self) -> Any:
        """The optimizer's loss scale, a `LossScale` or `LossScaleManager`."""
        return _scaler.unwrap(self.watched._tflsc_family.loss_scale(self.watched))

    def _counters(self) -> list[tf.Variable]:
        counters = [self._finite_steps, self._nonfinite_steps, self._skipped_steps]
        return [*counters, self._last, self._last_scales]

    def variables(self) -> list[tf.Variable]:
        """Returns the record's variables, a list."""
        gradients = [
            var for each in self._nonfinite_counts.values() for var in (each.last, each.totals)
        ]
        return self._counters() + gradients

    # Values for graphs, functions and eager mode. A variable is the key under which each is kept.

    @property
    def steps(self) -> tf.Tensor:
        """The number of steps, a scalar int64 tensor."""
        finite, other = self._finite_steps, self._nonfinite_steps
        return _graphs.once_per_graph(other, lambda: tf.identity(finite) + tf.identity(other))

    @property
    def skipped_steps(self) -> tf.Tensor:
        """The number of skipped steps, a scalar int64 tensor."""
        skipped = self._skipped_steps
        return _graphs.once_per_graph(skipped, lambda: tf.identity(skipped))

    @property
    def consecutive_skips(self) -> tf.Tensor:
        """The number of steps skipped in a row up to the last step, a scalar int64 tensor."""

        def make() -> tf.Tensor:
            last = tf.identity(self._last)
            return last[2] * tf.cast(tf.equal(last[0], self._finite_steps), tf.int64)

        return _graphs.once_per_graph(self._last, make)

    @property
    def last_step_finite(self) -> tf.Tensor:
        """True if the last step's gradients were finite or there was none, a scalar bool tensor.

        With a loss scale whose `update` decides by the gradients: True if they were applied.
        """
        finite = self._finite_steps
        return _graphs.once_per_graph(
            finite, lambda: tf.not_equal(tf.identity(self._last)[0], finite)
        )

    # Values for Python.

    def _read_variables(self, session: Any, variables: Iterable[tf.Variable]) -> list[Any]:
        """Returns the values of variables as NumPy arrays, without adding operations to a graph."""
        copies = [_replicas.local_copy(variable) for variable in variables]
        if not copies:
            return []
        if not hasattr(copies[0], "graph"):
            if not tf.executing_eagerly() and not _graphs.in_session_graph():
                raise RuntimeError(
                    "A StepRecord's values cannot be read by Python while a tf.function is traced. "
                    "Read them outside, or use its tensors, such as record.skipped_steps."
                )
            with tf.init_scope():
                return [copy.numpy() for copy in copies]
        session = session or tf1.get_default_session()
        if session is None:
            raise ValueError("session must be given if there is no default session, got None.")
        return session.run(copies)

    def _read(self, session: Any) -> tuple[int, int, int, Skip | None]:
        """Returns the counts of steps, skips and skips in a row, and the last `Skip` or None."""
        gradients, counters = list(self._nonfinite_counts.values()), self._counters()
        values = self._read_variables(session, counters + [each.last for each in gradients])
        finite, nonfinite, skipped, last, scales = values[: len(counters)]
        skip = None
        if skipped:
            bad: tuple[_nonfinite.BadGradient, ...] = ()
            for each, rows in zip(gradients, values[len(counters) :]):
                if each.key == last[3]:
                    bad = each.bad_gradients(rows)
            before, after = (float(scale) for scale in scales)
            skip = Skip(int(last[1]), before, None if np.isnan(after) else after, bad)
        consecutive = int(last[2]) if last[0] == finite else 0
        return int(finite + nonfinite), int(skipped), consecutive, skip

    def last_skip(self, session: Any = None) -> Skip | None:
        """Returns the last skipped step, a `Skip`, or None if there is none.

        Args:
          session: the `tf.compat.v1.Session` that ran the step; None for the default session. Not
            needed in eager mode.
        """
        return self._read(session)[-1]

    def nonfinite_gradients(self, session: Any = None) -> dict[str, dict[str, int]]:
        """Returns the number of skipped steps in which each gradient was not finite.

        Args:
          session: see `last_skip`.

        Returns:
          A dict from names of gradients that were not finite on any replica to dicts from kinds
          ("NaN", "+inf", "-inf") to numbers of steps. Gradients with the same name are counted
          together. Empty without `names`.
        """
        gradients = list(self._nonfinite_counts.values())
        totals: dict[str, dict[str, int]] = {}
        for each, rows in zip(
            gradients, self._read_variables(session, [each.totals for each in gradients])
        ):
            for name, row in zip(each.names, rows):
                by_kind = totals.setdefault(name, dict.fromkeys(_nonfinite.KINDS, 0))
                for kind, count in zip(_nonfinite.KINDS, row):
                    by_kind[kind] += int(count)
        return {name: kinds for name, kinds in totals.items() if any(kinds.values())}

    def report(self, session: Any = None) -> str:
        """Returns one line with the number of skipped steps and the last skipped step, a str.

        Args:
          session: see `last_skip`.
        """
        steps, skipped, consecutive, skip = self._read(session)
        text = f"{skipped} of {steps} steps skipped"
        if consecutive > 1:
            text += f", the last {consecutive} in a row"
        return text if skip is None else f"{text}; {self._describe(skip)}"

    def check(
        self, max_consecutive_skips: _types.Integer | None = None, session: Any = None
    ) -> None:
        """Raises a LossScaleError if too many steps in a row were skipped.

        Args:
          max_consecutive_skips: int above zero, the number that is too many; None for the record's.
          session: see `last_skip`.
        """
        limit = _arguments.max_consecutive_skips(max_consecutive_skips)
        limit = limit or self.max_consecutive_skips
        if limit is None:
            raise ValueError(
                "max_consecutive_skips must be given here or to the StepRecord, got None."
            )
        _, _, consecutive, skip = self._read(session)
        if skip is None or consecutive < limit:
            return
        raise LossScaleError(
            f"{consecutive} steps in a row were skipped, since step {skip.step - consecutive + 1}, "
            f"and max_consecutive_skips={limit}. Last: {self._describe(skip)}. If the loss "
            "itself is NaN or infinite, no loss scale helps: look for the "
            "operation with tf.debugging.enable_check_numerics, and at the learning rate, the data "
            "and what is computed in float16. If the scale is still coming down, start it lower. "
            "If it is at its minimum, gradients overflow without any scaling."
        )

    def _describe(self, skip: Skip) -> str:
        replicas_of: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for bad in skip.gradients:
            replicas_of.setdefault((bad.name, bad.kinds), []).append(str(bad.replica))
        shown = []
        for (name, kinds), replicas in replicas_of.items():
            where = ""
            if self._replica_count > 1:
                where = f" on replica{'s' * (len(replicas) > 1)} {', '.join(replicas)}"
            shown.append(f"{name} ({', '.join(kinds)}{where})")
        if len(shown) > _MAX_SHOWN:
            shown[_MAX_SHOWN:] = [f"and {len(shown) - _MAX_SHOWN} more"]
        text = f"step {skip.step} skipped{': ' * bool(shown)}{', '.join(shown)}"
        text += f"; loss scale {skip.scale_before:.10g}"
        return text if skip.scale_after is None else f"{text} -> {skip.scale_after:.10g}"

    # A step, as `_observers` calls these methods. What reads the record calls the first, too.

    def _check_can_observe(self) -> None:
        """Raises a ValueError if the record cannot observe a step, before the step is taken."""
        made_in = getattr(_replicas.local_copy(self._finite_steps), "graph", None)
        outside = made_in not in _graphs.enclosing_graphs()
        if outside and (made_in is not None or _graphs.in_session_graph()):
            raise ValueError(
                f"The StepRecord of {self.watched!r} was made outside of the graph of the step. "
                "Make it there."
            )
        strategy = tf.distribute.get_strategy()
        mirrored = strategy.extended.variable_created_in_scope(self._finite_steps)
        if strategy.num_replicas_in_sync > 1 and not mirrored:
            raise ValueError(
                f"The StepRecord of {self.watched!r} was made outside strategy.scope() and is not "
                "mirrored. Make it under strategy.scope()."
            )

    def _record_step(self, observation: _observers.Observation, outcome: _observers.Outcome) -> Any:
        """Records the outcome of a step; returns an operation, None in eager mode."""

        def record_finite() -> Any:
            return _assigned(self._finite_steps.assign_add(1, read_value=False))

        def record_nonfinite() -> Any:
            return self._record_nonfinite(observation, outcome)

        with _replicas.scope_of([self._finite_steps]):
            if not self._nonfinite_counts:
                self._counts_for(observation)  # A checkpoint after this step must hold them.
            if tf.executing_eagerly() or isinstance(outcome.finite, bool):
                return record_finite() if outcome.finite else record_nonfinite()
            # Names of variables in checkpoints depend on how many `cond` there are.
            return tf1.cond(outcome.finite, record_finite, record_nonfinite, name="skipped_step")

    def _inspect_gradients(self, observation: _observers.Observation) -> list[Any]:
        """Records which gradients of a skipped step were not finite; returns operations."""
        with _replicas.scope_of([self._finite_steps]):
            gradients = self._counts_for(observation)
            if gradients is None:
                return []
            counts = _replicas.all_reduce_sum(_nonfinite.count_nonfinite, (observation.grads,))
            occurred = tf.reduce_any(counts[:, :, : len(_nonfinite.KINDS)] > 0, axis=0)
            return [
                _assigned(gradients.last.assign(counts, read_value=False)),
                _assigned(
                    gradients.totals.assign_add(tf.cast(occurred, tf.int64), read_value=False)
                ),
            ]

    def _raise_if_stuck(self, outcome: _observers.Outcome) -> None:
        """Raises a LossScaleError in eager mode if too many steps in a row were skipped."""
        limited = self.max_consecutive_skips is not None and tf.executing_eagerly()
        if limited and outcome.can_skip and not outcome.finite:
            self.check()

    def _record_nonfinite(
        self, observation: _observers.Observation, outcome: _observers.Outcome
    ) -> tf.Operation | None:
        finite_steps = _variables.snapshot_of(self._finite_steps)
        last = _variables.snapshot_of(self._last)
        with tf.control_dependencies([finite_steps, last]):
            number = finite_steps + _variables.snapshot_of(self._nonfinite_steps) + 1
        with tf.control_dependencies([number]):
            done = [_assigned(self._nonfinite_steps.assign_add(1, read_value=False))]
        if not outcome.can_skip:
            last = tf.stack([finite_steps, last[1], tf.zeros_like(finite_steps), last[3]])
        else:
            consecutive = last[2] * tf.cast(tf.equal(last[0], finite_steps), tf.int64) + 1
            gradients = self._counts_for(observation)
            key = tf.constant(0 if gradients is None else gradients.key, tf.int64)
            last = tf.stack([finite_steps, number, consecutive, key])
            scales = tf.stack([outcome.scale_before, outcome.scale_after])
            done += [
                _assigned(self._skipped_steps.assign_add(1, read_value=False)),
                _assigned(self._last_scales.assign(scales, read_value=False)),
            ]
        with tf.control_dependencies([last]):
            done.append(_assigned(self._last.assign(last, read_value=False)))
        return None if tf.executing_eagerly() else tf.group(*done)

    def _counts_for(self, observation: _observers.Observation) -> _nonfinite.NonfiniteCounts | None:
        """Returns the counts for a step's variables, made at the first call, or None."""
        if not (self._with_names and observation.grads):
            return None
        names = _nonfinite.names_of(observation.variables)
        key = _nonfinite.key_of(observation.variables, names)
        with self._lock:
            if key not in self._nonfinite_counts:
                if _replicas.in_replica_context():
                    raise ValueError(
                        "names=True of a StepRecord is not supported without `merge_call`, "
                        "as in a function that XLA compiles in strategy.run. Leave names= out."
                    )
                # A function may be traced again for other variables, or before its first step.
                strategy = tf.distribute.get_strategy()
                with tf.init_scope(), _graphs.allow_variables(), strategy.scope():
                    # A run may resume with another number of replicas.
                    name = f"last_gradients_{key:08x}_{self._replica_count}"
                    shape = (self._replica_count, len(names), len(_nonfinite.KINDS) + 1)
                    last = self._make(name, np.zeros(shape))
                    totals = np.zeros((len(names), len(_nonfinite.KINDS)), np.int64)
                    totals = self._make(f"gradients_{key:08x}", totals)
                self._nonfinite_counts[key] = _nonfinite.NonfiniteCounts(key, names, last, totals)
            return self._nonfinite_counts[key]


def _assigned(value: Any) -> Any:
    return _graphs.as_operation(_replicas.local_results(value))


for _public in (LossScaleError, StepRecord):
    _public.__module__ = "tf_lossscale_compat"  # Where users find it.
