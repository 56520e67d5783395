"""A hook for sessions and a function for training loops, which write and log a record."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _arguments, _autograph, _graphs, _replicas, _tf
from tf_lossscale_compat._core._tf import tf, tf1
from tf_lossscale_compat.monitoring import _monitor, _summaries

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._core._step_record import StepRecord

_HINT = (
    "the train op does not use the optimizer that it watches. If an optimizer derives from this "
    "package's optimizer or wraps it, its apply_gradients must call that of this package."
)


class LossScaleHook(_tf.SessionRunHook):
    """Writes a loss scale's summaries for TensorBoard, logs, and ends a run that is stuck.

    For `tf.compat.v1.train.MonitoredTrainingSession` and Estimator::

        record = StepRecord(optimizer)
        train_op = optimizer.minimize(loss, global_step)
        hook = LossScaleHook(record, output_dir="logs/loss_scale", max_consecutive_skips=50)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            ...

    The hook reads the record when the session starts, restores or recovers, after every N calls of
    `Session.run`, and at the end. With `max_consecutive_skips` it also reads when the run can first
    be stuck. Nothing is fetched in between. It writes and logs like `write_summaries`, and also
    warns if the record sees no step at all.
    """

    def __init__(
        self,
        record: StepRecord,
        every_n_steps: _types.Integer = 100,
        output_dir: _types.Path | None = None,
        summary_writer: Any = None,
        *,
        max_consecutive_skips: _types.Integer | None = None,
        log_every_n_secs: _types.Real = 60,
        step: Any = None,
        is_chief: bool | None = None,
    ) -> None:
        """Makes the hook.

        Args:
          record: `StepRecord`, made in the graph of the steps.
          every_n_steps: int above zero, the number of calls of `Session.run` between two reads. The
            global step does not matter, because skipped steps do not increment it.
          output_dir: str or path, the folder for summaries. Use a separate folder: after a restart,
            TensorFlow's hooks drop all summaries after the global step from their folder. Without
            `output_dir` and `summary_writer`, no summaries are written.
          summary_writer: `tf.compat.v1.summary.FileWriter`, in place of `output_dir`.
          max_consecutive_skips: int above zero, the number of skipped steps in a row that ends the
            run with a `LossScaleError`; None for the record's number.
          log_every_n_secs: real number. Skipped steps are logged at most once in so many seconds,
            with their number since the last log line.
          step: scalar integer tensor or variable of the graph, such as the global step, the points'
            position on the axis of steps; None for `record.steps`, which counts skipped steps.
          is_chief: bool, whether this process writes summaries; None to follow the strategy or
            `TF_CONFIG`, and True without both.

        Raises:
          TypeError: an argument has a wrong type.
          ValueError: a number cannot be used, or both `output_dir` and `summary_writer` are given.
        """
        if output_dir is not None and summary_writer is not None:
            raise ValueError(
                "output_dir and summary_writer must not both be given, got "
                f"{output_dir!r} and {summary_writer!r}."
            )
        self._monitor = _monitor.Monitor(record, max_consecutive_skips, log_every_n_secs)
        self._every_n_steps = _arguments.step_count(
            "every_n_steps", every_n_steps, "int64", minimum=1
        )
        self._output_dir = _arguments.path("output_dir", output_dir)
        self._writer = _arguments.object_with("add_summary", "summary_writer", summary_writer)
        if step is not None and not (tf.is_tensor(step) and step.dtype.is_integer):
            raise TypeError(f"step must be a scalar integer tensor or variable, got {step!r}.")
        self._step = step
        self._is_chief = is_chief if is_chief is None else _arguments.flag("is_chief", is_chief)
        self._runs = 0

    def begin(self) -> None:
        """Makes all tensors that are fetched, before the graph is finalized."""
        self._monitor.prepare(self._step)
        self._global_step = tf1.train.get_global_step()
        writes = self._is_chief
        if writes is None:
            writes = _summaries.this_process_writes(self._monitor.record) and _is_chief_by_config()
        self._monitor.writer = self._writer if writes else None
        if writes and self._output_dir is not None:
            # The writer that other hooks use for this folder.
            self._monitor.writer = tf1.summary.FileWriterCache.get(self._output_dir)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Reads the record's values at the start of the session, new or restored."""
        # The count of runs continues, so that a stuck run ends even if its session is lost often.
        self._global_step_at_start = self._read_global_step(session)
        self._plan_check(self._monitor.start(session))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Reads the record after every N runs."""
        self._runs += 1
        is_due = self._runs % self._every_n_steps == 0
        if is_due or self._runs == self._next_check:
            session = run_context.session
            reading = self._monitor.read(session)
            if is_due:
                self._monitor.log_and_write(reading, session)
                self._warn(reading, session)
            self._monitor.raise_if_stuck(reading, session)
            self._plan_check(reading)

    def _plan_check(self, reading: _summaries.Reading) -> None:
        """Plans the next read for the first run after which the training can be stuck."""
        limit = self._monitor.max_consecutive_skips
        self._next_check = (
            None if limit is None else self._runs + max(1, limit - reading.consecutive_skips)
        )

    def _read_global_step(self, session: Any) -> Any:
        return None if self._global_step is None else session.run(self._global_step)

    def _warn(self, reading: _summaries.Reading, session: Any) -> None:
        # Without a global step it is unknown whether a run trains.
        step = self._read_global_step(session)
        if self._runs and (step is None or step != self._global_step_at_start):
            self._monitor.warn_if_unused(reading, _HINT)

    def end(self, session: Any) -> None:
        """Logs and writes the last values."""
        reading = self._monitor.read(session)
        self._monitor.log_and_write(reading, session, log_every_n_secs=0)
        self._warn(reading, session)


def _is_chief_by_config() -> bool:
    """Returns whether this process writes summaries according to `TF_CONFIG`."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    if "chief" in cluster or "master" in cluster:
        return task.get("type") in ("chief", "master")
    return task.get("type", "worker") == "worker" and int(task.get("index", 0)) == 0


def _is_first_replica() -> bool:
    if not _replicas.in_replica_context():
        return True
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return not (number if isinstance(number, int) else tf.get_static_value(number))


@_autograph.do_not_convert
def write_summaries(
    record: StepRecord,
    step: Any = None,
    *,
    writer: Any = None,
    log_every_n_secs: _types.Real = 60,
) -> Any:
    """Writes a loss scale's summaries for TensorBoard, and logs, in a custom training loop.

    Call it after a step, once for each point. It writes the loss scale, the numbers of all skipped
    steps and of the last ones in a row, and the loss scale's floor and ceiling if it has them. All
    are float32 scalars whose tags begin with `loss_scale/`.

    In eager mode it also logs through `absl.logging`: skipped steps (WARNING), a scale that has
    reached its floor (WARNING), a scale that has grown (DEBUG). It may be called in a
    `tf.function`, unless XLA compiles it. With replicas, call it outside of `strategy.run`, or
    inside, where only the first replica writes. In a graph for a Session it makes a summary for a
    writer of `tf.compat.v1.summary`; run it after the step, in a separate `Session.run`.

    Args:
      record: `StepRecord`.
      step: integer, or a scalar integer tensor, the point's position on the axis of steps; None for
        `record.steps`. In a graph for a Session it must be None, and the writer takes it.
      writer: `tf.summary.SummaryWriter`; None for the default writer. If there is no default
        writer, nothing is written.
      log_every_n_secs: real number. Skipped steps are logged at most once in so many seconds, with
        their number since the last log line.

    Returns:
      In a graph for a Session a scalar string tensor, a serialized `Summary`; else None.

    Raises:
      TypeError: `record` is not a `StepRecord`, or `writer` not a `SummaryWriter`.
      ValueError: `log_every_n_secs` is not such a number; or, in a graph for a Session, the record
        was made in another graph, or `step` or `writer` is given.
    """
    monitor = _monitor.Monitor(record, log_every_n_secs=log_every_n_secs)
    _arguments.object_with("as_default", "writer", writer)
    if _graphs.in_session_graph():
        if step is not None or writer is not None:
            raise ValueError(
                "step and writer must be None in a graph that a Session runs. Pass the returned "
                "summary and the step to add_summary of a tf.compat.v1.summary.FileWriter."
            )
        record._check_place()
        return _summaries.serialized(record)
    if not _is_first_replica():
        return None
    if tf.executing_eagerly():
        first = vars(record).setdefault("_monitor", monitor)
        first.log_and_write(first.read(), log_every_n_secs=monitor.log_every_n_secs)
    if _summaries.this_process_writes(record):
        step = tf.cast(record.steps if step is None else step, tf.int64)
        with contextlib.nullcontext() if writer is None else writer.as_default():
            tf.compat.v2.summary.experimental.write_raw_pb(_summaries.serialized(record), step)
    return None


for _public in (LossScaleHook, write_summaries):
    _public.__module__ = "tf_lossscale_compat.monitoring"  # Where users find it.
