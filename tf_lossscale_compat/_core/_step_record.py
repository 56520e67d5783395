"""A record of an optimizer's steps: how many were skipped, and because of which gradients.

A step asks `record_of_step` for its optimizer's record, and calls `_count` at its end.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from tf_lossscale_compat._core import (
    _arguments,
    _gradients,
    _graphs,
    _replicas,
    _scale_or_manager,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._keras_versions import names_of, track_in_session
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# Of an optimizer. It holds a function that returns the record, or None for an optimizer in a graph
# without one. Copies of the optimizer share it, and `record_of` sees that it is not theirs.
ATTRIBUTE = "_tflsc_record"
_MAX_SHOWN = 5  # The number of variables that a report names.


class Skip(NamedTuple):
    """A skipped step: its number, from 1 on, and the loss scale before and after it.

    `scale_after` is None if a user's loss scale does not show it. `names` are those of the
    variables whose gradients were not finite. It is empty without `names=True`, if only a sum over
    replicas was not finite, and in eager mode and functions from a restore to the first step.
    """

    step: int
    scale_before: float
    scale_after: float | None
    names: tuple[str, ...]


class LossScaleError(RuntimeError):
    """A run has skipped too many steps in a row."""

    __module__ = "tf_lossscale_compat"  # Where users find it.


def record_of(watched: object) -> StepRecord | None:
    """Returns the record of `watched`, or None."""
    record = getattr(watched, "__dict__", {}).get(ATTRIBUTE, type(None))()
    return record if record is not None and record.watched is watched else None


def record_of_step(watched: object) -> StepRecord | None:
    """Returns the record of `watched` for a step, or None.

    While a graph is built, an optimizer without a record is marked: no record will see its steps.
    """
    record = record_of(watched)
    if record is None:
        if not tf.executing_eagerly():
            vars(watched)[ATTRIBUTE] = type(None)
        return None
    variable, strategy = record._finite_steps, tf.distribute.get_strategy()
    graph = getattr(_variables.local_copy(variable), "graph", None)
    mirrored = strategy.extended.variable_created_in_scope(variable)
    in_graph = graph is not None or _graphs.in_session_graph()
    if in_graph and graph not in _graphs.enclosing_graphs():
        raise ValueError(f"The StepRecord of {watched!r} was not made in the graph of the step.")
    if strategy.num_replicas_in_sync > 1 and not mirrored:
        raise ValueError(f"The StepRecord of {watched!r} was not made under strategy.scope().")
    return record


class StepRecord(_tf.Trackable):
    """Counts the steps of an optimizer, and describes the last skipped step.

    Make it before the first step, in the graph or under the strategy of the optimizer. It sees only
    the steps of that optimizer, even if others share its loss scale. Replicas of `tf.distribute`
    take a step together, which counts once. With Horovod each process has its own record. A
    `tf.train.Checkpoint` of the record holds its totals; one of the optimizer does not.
    """

    __module__ = "tf_lossscale_compat"

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
          max_consecutive_skips: int above zero, or None: so many skipped steps in a row end a run
            with a `LossScaleError`. In eager mode the step raises it; elsewhere `check` does.

        Raises:
          TypeError, ValueError: an argument is no such value; `watched` has a record, or is part of
            a graph that was built without one; or the strategy in scope is not supported.
        """
        # Only this package's optimizer classes have this attribute.
        if not hasattr(type(watched), "_tflsc_loss_scale"):
            raise TypeError(
                f"watched must be a loss-scale optimizer of this package, got {watched!r}. If you "
                "use a loss scale without one, its `update` returns whether the step is applied."
            )
        self._with_names = _arguments.flag("names", names)
        self.max_consecutive_skips = _arguments.max_consecutive_skips(max_consecutive_skips)
        if record_of(watched) is not None:
            raise ValueError(f"watched has a StepRecord already, got {watched!r}. Use that one.")
        if vars(watched).get(ATTRIBUTE) is type(None):
            raise ValueError(
                f"watched must not be part of a graph or tf.function that is traced already: its "
                f"record would not see those steps, got {watched!r}. Make the StepRecord before, "
                "or give a LossScaleCallback to the first fit."
            )
        _replicas.check_strategy()
        self.watched: Any = watched
        variables = _scale_or_manager.variables_of(self.loss_scale) + _variables.of(watched)
        with tf.init_scope(), _variables.scope_of(variables):
            self._finite_steps = self._make("finite_steps", 0)
            self._nonfinite_steps = self._make("nonfinite_steps", 0)
            self._skipped_steps = self._make("skipped_steps", 0)
            # The number of finite steps before the last non-finite step; the last skipped step's
            # number, and its count of skipped steps in a row.
            self._last = self._make("last", [-1, 0, 0])
            self._last_scales = self._make("last_scales", [0.0, 0.0], tf.float32)
        # For each name, in how many skipped steps its gradient was not finite; if in the last one.
        self._names: dict[str, int] = {}  # With their places in these two.
        self._gradients: list[tf.Variable] = []
        self._lock = threading.Lock()  # Threads may take the first step at once.
        vars(watched)[ATTRIBUTE] = lambda: self

    def _make(self, name: str, value: Any, dtype: tf.DType = tf.int64) -> tf.Variable:
        with tf1.name_scope("step_record/"):
            variable = _variables.make(self, name, value, dtype, use_resource=True)
        track_in_session(variable)
        return variable

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A StepRecord cannot be copied or pickled. Make a new one for a copy of what it "
            "watches, and restore a tf.train.Checkpoint of this one into it."
        )

    @property
    def loss_scale(self) -> Any:
        """The optimizer's loss scale, a `LossScale` or `LossScaleManager`."""
        return _scale_or_manager.innermost(self.watched._tflsc_loss_scale)

    # Scalar tensors for any context. The key under which a graph keeps one is a variable.

    @property
    def steps(self) -> tf.Tensor:
        """The number of steps, int64."""
        finite, other = self._finite_steps, self._nonfinite_steps
        return _graphs.once_per_graph(other, lambda: tf.identity(finite) + tf.identity(other))

    @property
    def skipped_steps(self) -> tf.Tensor:
        """The number of skipped steps, int64."""
        skipped = self._skipped_steps
        return _graphs.once_per_graph(skipped, lambda: tf.identity(skipped))

    @property
    def consecutive_skips(self) -> tf.Tensor:
        """The number of steps skipped in a row up to the last step, int64."""
        last, finite = self._last, self._finite_steps
        return _graphs.once_per_graph(last, lambda: _in_a_row(tf.identity(last), finite))

    @property
    def last_step_finite(self) -> tf.Tensor:
        """True if the last step's gradients were finite, or a loss scale of yours applied it."""
        last, finite = self._last, self._finite_steps
        return _graphs.once_per_graph(finite, lambda: tf.not_equal(tf.identity(last)[0], finite))

    def _read(self, session: Any) -> tuple[int, int, int, Skip | None, dict[str, int]]:
        """Returns the counts of steps, skips, skips in a row; the last skip; counts by name."""
        counters = [self._finite_steps, self._nonfinite_steps, self._skipped_steps]
        variables = [*counters, self._last, self._last_scales, *self._gradients]
        copies = [_variables.local_copy(variable) for variable in variables]
        session = session or tf1.get_default_session()
        if not hasattr(copies[0], "graph"):
            values = [copy.numpy() for copy in copies]
        elif session is None:
            raise ValueError("session must be given if there is no default session, got None.")
        else:
            values = session.run(copies)  # No operation is added, as the graph may be finalized.
        finite, nonfinite, skipped, last, (before, after), *gradients = values
        totals, flags = gradients or ((), ())
        names = tuple(name for name, flag in zip(self._names, flags) if flag)
        shown = None if math.isnan(after) else float(after)
        skip = Skip(int(last[1]), float(before), shown, names) if skipped else None
        counts = {name: int(total) for name, total in zip(self._names, totals) if total}
        in_a_row = int(last[2]) if last[0] == finite else 0
        return int(finite + nonfinite), int(skipped), in_a_row, skip, counts

    def last_skip(self, session: Any = None) -> Skip | None:
        """Returns the last `Skip`, or None. `session`: for a graph, None for the default one."""
        return self._read(session)[3]

    def nonfinite_gradients(self, session: Any = None) -> dict[str, int]:
        """Returns in how many skipped steps each variable's gradient was not finite, by names."""
        return self._read(session)[4]

    def report(self, session: Any = None) -> str:
        """Returns one line on skipped steps and the last of them."""
        steps, skipped, in_a_row, skip, _ = self._read(session)
        text = f"{skipped} of {steps} steps skipped"
        if in_a_row > 1:
            text += f", the last {in_a_row} in a row"
        return text if skip is None else f"{text}; {_describe(skip)}"

    def check(self, session: Any = None) -> None:
        """Raises a LossScaleError if `max_consecutive_skips` steps in a row were skipped."""
        limit = self.max_consecutive_skips
        if limit is None:
            raise ValueError("max_consecutive_skips must be given to the StepRecord.")
        _, _, in_a_row, skip, _ = self._read(session)
        if skip is not None and in_a_row >= limit:
            raise LossScaleError(
                f"{in_a_row} steps in a row were skipped, since step {skip.step - in_a_row + 1}, "
                f"and max_consecutive_skips={limit}. Last: {_describe(skip)}. If the scale is "
                "still coming down, start it lower; otherwise look at the loss, the learning rate "
                "and the data, and find the operation with tf.debugging.enable_check_numerics."
            )

    def _prepare(self, variables: _types.Variables) -> None:
        """Makes the variables for `names` in the first step."""
        if not (self._with_names and variables) or self._gradients:
            return
        if _replicas.in_replica_context():
            raise ValueError(
                "names=True of a StepRecord is not supported without `merge_call`, as in a "
                "function that XLA compiles in strategy.run. Leave names= out."
            )
        self._names = {name: place for place, name in enumerate(names_of(variables))}
        zeros, strategy = [0] * len(self._names), tf.distribute.get_strategy()
        # With fewer or more variables than a checkpoint has, the counts by name begin anew.
        key = f"gradients_{len(variables)}"
        with tf.init_scope(), _graphs.allow_variables(), strategy.scope():
            self._gradients = [self._make(each, zeros) for each in (key, f"last_{key}")]

    def _count_gradients(self, variables: _types.Variables, grads: _types.Gradients) -> list[Any]:
        """Counts, with `names`, the gradients that are not finite; returns assignments."""
        if not self._gradients:
            return []
        flags = _replicas.all_reduce_sum(_gradients.nonfinite_each, (grads,))
        # A function may be traced again for other variables. Those not known are left out, by -1.
        rows = [self._names.get(name, -1) for name in names_of(variables)]
        flags = tf.cast(tf.math.unsorted_segment_max(flags, rows, len(self._names)) > 0.0, tf.int64)
        totals, last = self._gradients
        return [_variables.add(totals, flags), _variables.assign(last, flags)]

    def _count(
        self,
        variables: _types.Variables,
        grads: _types.Gradients,
        finite: bool | tf.Tensor,
        may_skip: bool,
        scales: tuple[tf.Tensor | None, tf.Tensor | None],
    ) -> list[tf.Operation]:
        """Counts a step that has been taken; returns operations, in eager mode none.

        `finite` is False if the gradients are not finite or not applied; such a step is skipped if
        `may_skip`. `scales` are those before and after the step; eager mode needs none if `finite`.
        """

        def count_finite() -> Any:
            return _graphs.as_operation(_variables.add(self._finite_steps, 1))

        def count_nonfinite() -> Any:
            snapshot_of = _variables.snapshot_of_variable
            before, last = snapshot_of(self._finite_steps), snapshot_of(self._last)
            number = before + snapshot_of(self._nonfinite_steps) + 1
            skips = [before, number, _in_a_row(last, before) + 1]
            applies = [before, last[1], tf.zeros_like(before)]
            with tf.control_dependencies([number, last]):
                done = [_variables.add(self._nonfinite_steps, 1)]
                if may_skip:
                    done.append(_variables.add(self._skipped_steps, 1))
                    done.append(_variables.assign(self._last_scales, tf.stack(scales)))
                    done += self._count_gradients(variables, grads)
                last = tf.stack(skips if may_skip else applies)
                return _graphs.as_operation([*done, _variables.assign(self._last, last)])

        with _variables.scope_of([self._finite_steps]):
            with self._lock:
                self._prepare(variables)  # A checkpoint after this step must hold them.
            if tf.executing_eagerly() or isinstance(finite, bool):
                done = count_finite() if finite else count_nonfinite()
            else:
                # Names of variables in checkpoints depend on how many `cond` there are.
                name = "skipped_step"
                done = tf1.cond(tf.identity(finite), count_finite, count_nonfinite, name=name)
        if self.max_consecutive_skips and tf.executing_eagerly() and may_skip and not finite:
            self.check()
        return [] if done is None else [done]


def _in_a_row(last: tf.Tensor, finite_steps: Any) -> tf.Tensor:
    return last[2] * tf.cast(tf.equal(last[0], finite_steps), tf.int64)


def _describe(skip: Skip) -> str:
    shown = ", ".join(skip.names[:_MAX_SHOWN]) + ", …" * (len(skip.names) > _MAX_SHOWN)
    text = f"step {skip.step} skipped{': ' * bool(shown)}{shown}"
    text += f"; loss scale {skip.scale_before:.10g}"
    return text if skip.scale_after is None else f"{text} -> {skip.scale_after:.10g}"
