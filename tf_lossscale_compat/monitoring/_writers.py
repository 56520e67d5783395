"""The hook for sessions, and the function for training loops, that write and log a record."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _arguments, _autograph, _graphs, _replicas, _tf
from tf_lossscale_compat.monitoring import _monitor, _summaries

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat.monitoring._step_record import StepRecord

tf = _tf.tf
tf1 = _tf.tf1

_HINT = (
    "the optimizer that it watches takes no part in the train op. Where an optimizer "
    "is derived from this package's or wraps it, its own apply_gradients has to call that one's."
)


class LossScaleHook(_tf.SessionRunHook):
    """Writes a loss scale's summaries for TensorBoard, logs, and ends a run that is stuck.

    For `tf.compat.v1.train.MonitoredTrainingSession` and Estimator::

        record = StepRecord(optimizer)
        train_op = optimizer.minimize(loss, global_step)
        hook = LossScaleHook(record, output_dir="logs/loss_scale", max_consecutive_skips=50)
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            ...

    The record is read where the session starts, restores or recovers, after every N calls of
    `Session.run`, at the end, and where a run can be stuck that may skip fewer steps in a row than
    N; nothing is fetched in between. It writes and logs what `write_summaries` does, and logs, too,
    that the record sees no step at all (WARNING).
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
          every_n_steps: int above zero, after how many calls of `Session.run` the record is read.
            Not by the global step, which stands still while steps are skipped.
          output_dir: str or path, the folder to write summaries to; best one of its own, as where a
            run is restarted TensorFlow's own hooks drop from theirs all that lies after the global
            step. With neither this nor `summary_writer` none are written.
          summary_writer: `tf.compat.v1.summary.FileWriter`, in place of `output_dir`.
          max_consecutive_skips: int above zero, how many skipped steps in a row end the run with a
            `LossScaleError`; None for what the record was made with.
          log_every_n_secs: real number. Skipped steps are logged at most once in so many seconds,
            with how many there were since.
          step: scalar integer tensor or variable of the graph, such as the global step, where
            points lie on the axis of steps; None for `record.steps`, which counts skipped steps.
          is_chief: bool, whether this process writes summaries; None for what the strategy or
            `TF_CONFIG` says, and without both yes.

        Raises:
          TypeError: an argument is of another type.
          ValueError: a number cannot be used, or both `output_dir` and `summary_writer` are given.
        """
        if output_dir is not None and summary_writer is not None:
            raise ValueError(
                "output_dir and summary_writer must not both be given, got "
                f"{output_dir!r} and {summary_writer!r}."
            )
        self._monitor = _monitor.Monitor(record, max_consecutive_skips, log_every_n_secs)
        self._every_n_steps = _arguments.period("every_n_steps", every_n_steps, "int64", least=1)
        self._output_dir = _arguments.path("output_dir", output_dir)
        self._writer = _arguments.having("add_summary", "summary_writer", summary_writer)
        if step is not None and not (tf.is_tensor(step) and step.dtype.is_integer):
            raise TypeError(f"step must be a scalar integer tensor or variable, got {step!r}.")
        self._step = step
        self._is_chief = is_chief if is_chief is None else _arguments.flag("is_chief", is_chief)
        self._runs = 0

    def begin(self) -> None:
        """Makes all that is ever fetched, before the graph is finalized."""
        self._monitor.prepare(self._step)
        self._global_step = tf1.train.get_global_step()
        writes = self._is_chief
        if writes is None:
            writes = _summaries.writes_here(self._monitor.record) and _is_chief()
        self._monitor.writer = self._writer if writes else None
        if writes and self._output_dir is not None:
            # The one that other hooks use for this folder.
            self._monitor.writer = tf1.summary.FileWriterCache.get(self._output_dir)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Reads what the session starts with, new or restored."""
        # The runs are counted on: a session that is lost again and again has a stuck run end, too.
        self._global_step_at_start = self._read_global_step(session)
        self._plan_check(self._monitor.start(session))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Reads the record after every N runs."""
        self._runs += 1
        observes = self._runs % self._every_n_steps == 0
        if observes or self._runs == self._checks_at:
            session = run_context.session
            now = self._monitor.read(session)
            if observes:
                self._monitor.observe(now, session)
                self._warn(now, session)
            self._monitor.check(now, session)
            self._plan_check(now)

    def _plan_check(self, now: Any) -> None:
        """Has the record read when, at the earliest, the run can be stuck."""
        limit = self._monitor.max_skips
        self._checks_at = None if limit is None else self._runs + max(1, limit - now.consecutive)

    def _read_global_step(self, session: Any) -> Any:
        return None if self._global_step is None else session.run(self._global_step)

    def _warn(self, now: Any, session: Any) -> None:
        # Without a global step there is no telling what a run is for.
        step = self._read_global_step(session)
        if self._runs and (step is None or step != self._global_step_at_start):
            self._monitor.warn_if_unused(now, _HINT)

    def end(self, session: Any) -> None:
        """Logs and writes what is left."""
        now = self._monitor.read(session)
        self._monitor.observe(now, session, seconds=0)
        self._warn(now, session)


def _is_chief() -> bool:
    """Returns whether `TF_CONFIG` makes this process the one that writes."""
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
    """Writes a loss scale's summaries for TensorBoard, and logs, in a training loop of one's own.

    Call it after a step, as often as a point is wanted. It writes the loss scale, how many steps
    have been skipped and how many of the last in a row, and the floor and the ceiling of a loss
    scale that has them, all as float32 scalars whose tags begin with `loss_scale/`.

    In eager mode it also logs through `absl.logging`: skipped steps (WARNING), that the scale has
    come down to its floor (WARNING), that it has grown (DEBUG). It may be called in a
    `tf.function`, but for one that XLA compiles. With replicas, call it outside of `strategy.run`,
    or inside, where the first of them writes. In a graph for a Session it makes a summary for a
    writer of `tf.compat.v1.summary`; run it after the step, in a `Session.run` of its own.

    Args:
      record: `StepRecord`.
      step: integer, or a scalar integer tensor, where the point lies on the axis of steps; None for
        `record.steps`. In a graph for a Session it is for the writer to say.
      writer: `tf.summary.SummaryWriter`; None for the default one, without which nothing is
        written.
      log_every_n_secs: real number. Skipped steps are logged at most once in so many seconds, with
        how many there were since.

    Returns:
      In a graph for a Session a scalar string tensor, a serialized `Summary`; else None.

    Raises:
      TypeError: `record` is no `StepRecord`, or `writer` no `SummaryWriter`.
      ValueError: `log_every_n_secs` is no such number; or, in a graph for a Session, the record was
        made in another one, or `step` or `writer` is given.
    """
    monitor = _monitor.Monitor(record, log_every_n_secs=log_every_n_secs)
    _arguments.having("as_default", "writer", writer)
    if _graphs.in_session_graph():
        if step is not None or writer is not None:
            raise ValueError(
                "step and writer must be None in a graph that a Session is to run: give what is "
                "returned to the add_summary of a tf.compat.v1.summary.FileWriter, and the step."
            )
        record._check_context()
        return _summaries.serialized(record)
    if not _is_first_replica():
        return None
    if tf.executing_eagerly():
        first = record.__dict__.setdefault("_monitor", monitor)
        first.observe(first.read(), seconds=monitor.seconds)
    if _summaries.writes_here(record):
        step = tf.cast(record.steps if step is None else step, tf.int64)
        with contextlib.nullcontext() if writer is None else writer.as_default():
            tf.compat.v2.summary.experimental.write_raw_pb(_summaries.serialized(record), step)
    return None


for _public in (LossScaleHook, write_summaries):
    _public.__module__ = "tf_lossscale_compat.monitoring"  # Where users find it.
