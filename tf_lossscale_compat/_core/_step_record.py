"""A record of an optimizer's steps: how many were skipped, and because of which gradients.

A step asks `record_of_step` for its optimizer's record. It calls `_inspect` where it skips, and
`_count` at its end.
"""

from __future__ import annotations

import collections
import threading
import zlib
from typing import TYPE_CHECKING, Any, Iterable, NamedTuple, NoReturn

from tf_lossscale_compat._core import _graphs, _tf
from tf_lossscale_compat._core._tf import tf, tf1  # First: it says what to do without TensorFlow.

# isort: split
import numpy as np

from tf_lossscale_compat._core import _arguments, _gradients, _keras_versions, _replicas, _scale
from tf_lossscale_compat._core._graphs import make_variable, snapshot_of, variables_of

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

ATTRIBUTE = "_tflsc_record"  # Of an optimizer; it holds an `_Attachment`.
_MAX_SHOWN = 5  # The number of variables that a report names.


class Skip(NamedTuple):
    """A skipped step.

    Attributes:
      step: int, its number among the steps that the record has seen, starting at 1.
      scale_before: float, the loss scale before the step.
      scale_after: float, the loss scale after it; None if a user's loss scale does not show it.
      names: tuple of the names of variables whose gradients were not finite. Empty without `names`,
        and in eager mode and functions from the restore of a checkpoint to the first step.
    """

    step: int
    scale_before: float
    scale_after: float | None
    names: tuple[str, ...]


class LossScaleError(RuntimeError):
    """A run has skipped too many steps in a row."""


class _Attachment:
    """Holds an optimizer's record, or None if a graph was built without one. Copies have none."""

    def __init__(self, record: StepRecord | None = None) -> None:
        self.record = record

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def record_of(watched: object) -> StepRecord | None:
    """Returns the record of `watched`, or None."""
    record = getattr(getattr(watched, "__dict__", {}).get(ATTRIBUTE), "record", None)
    # A shallow copy of the optimizer shares its attributes, but has no record.
    return record if record is not None and record.watched is watched else None


def record_of_step(watched: object) -> StepRecord | None:
    """Returns the record of `watched` for a step, or None.

    While a graph is built, an optimizer without a record is marked: no record will see its steps.
    """
    record = record_of(watched)
    if record is not None:
        record._check_place()
    elif watched is not None and not tf.executing_eagerly():
        vars(watched)[ATTRIBUTE] = _Attachment()
    return record


class StepRecord(_tf.Trackable):
    """Counts the steps of an optimizer, and describes the last skipped step.

    Make it before the first step, in the graph or under the strategy of the optimizer::

        record = StepRecord(optimizer, names=True)
        ...
        print(record.report())

    It sees only the steps of that optimizer, even if others share its loss scale. Replicas of
    `tf.distribute` take a step together, which counts once. With Horovod each process has its own
    record. A `tf.train.Checkpoint` of the record holds its totals; one of the optimizer does not.

    Attributes:
      watched: the optimizer that the record observes.
      max_consecutive_skips: int or None, see the constructor.
    """

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
          names: bool, whether to record which gradients of skipped steps were not finite, for the
            variables of the first step. Two variables for this are made in that step.
          max_consecutive_skips: int above zero, or None: the number of skipped steps in a row that
            ends a run with a `LossScaleError`. In eager mode the last of them raises the error;
            elsewhere `check` does, which the Keras callback calls.

        Raises:
          TypeError: an argument has another type; `watched` is a bare loss scale, for example.
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
        if record_of(watched) is not None:
            raise ValueError(f"watched has a StepRecord already, got {watched!r}. Use that one.")
        attached = vars(watched).get(ATTRIBUTE)
        if attached is not None and attached.record is None:
            raise ValueError(
                f"watched must not be part of a graph or tf.function that is traced already: its "
                f"record would not see those steps, got {watched!r}. Make the StepRecord before."
            )
        _replicas.check_strategy()
        self.watched: Any = watched
        variables = _scale.variables_of(self.loss_scale) + variables_of(watched)
        with tf.init_scope(), _replicas.scope_of(variables):
            self._finite_steps = self._make("finite_steps", np.int64(0))
            self._nonfinite_steps = self._make("nonfinite_steps", np.int64(0))
            self._skipped_steps = self._make("skipped_steps", np.int64(0))
            # The number of finite steps before the last non-finite step; the last skipped step's
            # number, and its count of skipped steps in a row.
            self._last = self._make("last", np.array([-1, 0, 0], np.int64))
            self._last_scales = self._make("last_scales", np.zeros(2, np.float32))
        # For each name: in how many skipped steps its gradient was not finite; if in the last one.
        self._names: list[str] = []
        self._gradients: list[tf.Variable] = []
        self._lock = threading.Lock()
        vars(watched)[ATTRIBUTE] = _Attachment(self)

    def _make(self, name: str, value: Any) -> tf.Variable:
        with tf1.name_scope("step_record/"):
            variable = make_variable(self, name, value, value.dtype, use_resource=True)
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
        return _scale.unwrap(self.watched._tflsc_family.loss_scale(self.watched))

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
        last, finite = self._last, self._finite_steps
        return _graphs.once_per_graph(last, lambda: _in_a_row(tf.identity(last), finite))

    @property
    def last_step_finite(self) -> tf.Tensor:
        """True if the last step's gradients were finite or there was none, a scalar bool tensor.

        With a loss scale whose `update` decides by the gradients: True if they were applied.
        """
        last, finite = self._last, self._finite_steps
        return _graphs.once_per_graph(finite, lambda: tf.not_equal(tf.identity(last)[0], finite))

    def _read(self, session: Any) -> tuple[int, int, int, Skip | None, dict[str, int]]:
        """Returns the counts of steps, skips, skips in a row; the last skip; counts by name."""
        counters = [self._finite_steps, self._nonfinite_steps, self._skipped_steps]
        variables = [*counters, self._last, self._last_scales, *self._gradients]
        copies = [_replicas.local_copy(variable) for variable in variables]
        if hasattr(copies[0], "graph"):
            session = session or tf1.get_default_session()
            if session is None:
                raise ValueError("session must be given if there is no default session, got None.")
            values = session.run(copies)  # No operation is added, as the graph may be finalized.
        elif tf.executing_eagerly() or _graphs.in_session_graph():
            with tf.init_scope():
                values = [copy.numpy() for copy in copies]
        else:
            raise RuntimeError(
                "A StepRecord's values cannot be read by Python while a tf.function is traced. "
                "Read them outside, or use its tensors, such as record.skipped_steps."
            )
        finite, nonfinite, skipped, last, (before, after), *gradients = values
        totals, flags = gradients or ((), ())
        skip = None
        if skipped:
            names = tuple(name for name, flag in zip(self._names, flags) if flag)
            shown = None if np.isnan(after) else float(after)
            skip = Skip(int(last[1]), float(before), shown, names)
        counts = {name: int(total) for name, total in zip(self._names, totals) if total}
        in_a_row = int(last[2]) if last[0] == finite else 0
        return int(finite + nonfinite), int(skipped), in_a_row, skip, counts

    def last_skip(self, session: Any = None) -> Skip | None:
        """Returns the last skipped step, a `Skip`, or None if there is none.

        Args:
          session: the `tf.compat.v1.Session` that ran the step; None for the default session. Not
            needed in eager mode.
        """
        return self._read(session)[3]

    def nonfinite_gradients(self, session: Any = None) -> dict[str, int]:
        """Returns in how many skipped steps each variable's gradient was not finite, by names.

        `session`: see `last_skip`. The dict is empty without `names`.
        """
        return self._read(session)[4]

    def report(self, session: Any = None) -> str:
        """Returns one line on skipped steps and the last of them; `session`: see `last_skip`."""
        steps, skipped, in_a_row, skip, _ = self._read(session)
        text = f"{skipped} of {steps} steps skipped"
        if in_a_row > 1:
            text += f", the last {in_a_row} in a row"
        return text if skip is None else f"{text}; {_describe(skip)}"

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
            raise ValueError("max_consecutive_skips must be given here or to the StepRecord.")
        _, _, in_a_row, skip, _ = self._read(session)
        if skip is not None and in_a_row >= limit:
            raise LossScaleError(
                f"{in_a_row} steps in a row were skipped, since step {skip.step - in_a_row + 1}, "
                f"and max_consecutive_skips={limit}. Last: {_describe(skip)}. If the scale is "
                "still coming down, start it lower. If it is at its minimum, or the loss itself is "
                "NaN or infinite, no loss scale helps: find the operation with "
                "tf.debugging.enable_check_numerics; look at the learning rate and the data."
            )

    # A step, as `_step` calls these methods.

    def _check_place(self) -> None:
        """Raises a ValueError if the record was made outside of the step's graph or strategy."""
        made_in = getattr(_replicas.local_copy(self._finite_steps), "graph", None)
        strategy = tf.distribute.get_strategy()
        mirrored = strategy.extended.variable_created_in_scope(self._finite_steps)
        in_graph = made_in is not None or _graphs.in_session_graph()
        if in_graph and made_in not in _graphs.enclosing_graphs():
            place = "in the graph of the step"
        elif strategy.num_replicas_in_sync > 1 and not mirrored:
            place = "under strategy.scope()"
        else:
            return
        raise ValueError(f"The StepRecord of {self.watched!r} was not made {place}. Make it there.")

    def _inspect(self, variables: _types.Variables, grads: _types.Gradients) -> list[tf.Operation]:
        """Records which gradients of a skipped step are not finite; returns operations."""
        with _replicas.scope_of([self._finite_steps]):
            self._prepare(variables)
            if not self._gradients:
                return []
            flags = _replicas.all_reduce_sum(_gradients.nonfinite_each, (grads,))
            position = dict(zip(self._names, range(len(self._names))))
            # A function may be traced again for other variables. Those not known come last.
            rows = [position.get(name, len(position) - 1) for name in _names_of(variables)]
            flags = tf.math.unsorted_segment_max(flags, rows, len(position))
            flags = tf.cast(flags > 0.0, tf.int64)
            totals, last = self._gradients
            return [
                _done(totals.assign_add(flags, read_value=False)),
                _done(last.assign(flags, read_value=False)),
            ]

    def _prepare(self, variables: _types.Variables) -> None:
        """Makes the variables for `names` in the first step."""
        with self._lock:
            if not (self._with_names and variables) or self._gradients:
                return
            if _replicas.in_replica_context():
                raise ValueError(
                    "names=True of a StepRecord is not supported without `merge_call`, as in a "
                    "function that XLA compiles in strategy.run. Leave names= out."
                )
            names = [*_names_of(variables), "variables of later steps"]
            # A checkpoint's counts are those of its names.
            key = f"gradients_{zlib.crc32(' '.join(names).encode()):08x}"
            zeros, strategy = np.zeros(len(names), np.int64), tf.distribute.get_strategy()
            with tf.init_scope(), _graphs.allow_variables(), strategy.scope():
                self._names = names
                self._gradients = [self._make(each, zeros) for each in (key, f"last_{key}")]

    def _count(
        self,
        variables: _types.Variables,
        finite: bool | tf.Tensor,
        can_skip: bool,
        scales: tuple[tf.Tensor | None, tf.Tensor | None],
    ) -> list[tf.Operation]:
        """Counts a step that has been taken; returns operations, in eager mode none.

        Args:
          variables: list of variables.
          finite: bool or bool scalar tensor, False if the gradients are not finite or not applied.
          can_skip: bool, a step that is not `finite` is skipped.
          scales: the loss scale before and after the step, float32 scalar tensors; NaN if unknown.
            In eager mode those of a finite step may be None.

        Raises:
          LossScaleError: in eager mode, as many steps in a row were skipped as end the run.
        """

        def count_finite() -> Any:
            return _done(self._finite_steps.assign_add(1, read_value=False))

        def count_nonfinite() -> Any:
            before, last = snapshot_of(self._finite_steps), snapshot_of(self._last)
            number = before + snapshot_of(self._nonfinite_steps) + 1
            new = [before, number, _in_a_row(last, before) + 1]
            done = []
            with tf.control_dependencies([number, last]):
                done.append(self._nonfinite_steps.assign_add(1, read_value=False))
                if can_skip:
                    done.append(self._skipped_steps.assign_add(1, read_value=False))
                    done.append(self._last_scales.assign(tf.stack(scales), read_value=False))
                else:
                    new = [before, last[1], tf.zeros_like(before)]
                done.append(self._last.assign(tf.stack(new), read_value=False))
            return _graphs.as_operation([_done(each) for each in done])

        with _replicas.scope_of([self._finite_steps]):
            self._prepare(variables)  # A checkpoint after this step must hold them.
            if tf.executing_eagerly() or isinstance(finite, bool):
                done = count_finite() if finite else count_nonfinite()
            else:
                # Names of variables in checkpoints depend on how many `cond` there are.
                name = "skipped_step"
                done = tf1.cond(tf.identity(finite), count_finite, count_nonfinite, name=name)
        if (
            tf.executing_eagerly()
            and self.max_consecutive_skips is not None
            and can_skip
            and not finite
        ):
            self.check()
        return [] if done is None else [done]


def _done(value: Any) -> Any:
    return _graphs.as_operation(_replicas.local_results(value))


def _in_a_row(last: tf.Tensor, finite_steps: Any) -> tf.Tensor:
    return last[2] * tf.cast(tf.equal(last[0], finite_steps), tf.int64)


def _names_of(variables: Iterable[Any]) -> list[str]:
    # Keras 3 distinguishes layers only by their path.
    names = [getattr(each, "path", None) or each.name.split(":")[0] for each in variables]
    times = collections.Counter(names)
    return [f"{name} [{i}]" if times[name] > 1 else name for i, name in enumerate(names)]


def _describe(skip: Skip) -> str:
    names = list(skip.names)
    if len(names) > _MAX_SHOWN:
        names[_MAX_SHOWN:] = [f"and {len(names) - _MAX_SHOWN} more"]
    text = f"step {skip.step} skipped{': ' * bool(names)}{', '.join(names)}"
    text += f"; loss scale {skip.scale_before:.10g}"
    return text if skip.scale_after is None else f"{text} -> {skip.scale_after:.10g}"


for _public in (LossScaleError, StepRecord):
    _public.__module__ = "tf_lossscale_compat"  # Where users find it.
