"""A hook for sessions that TensorFlow runs: `MonitoredTrainingSession` and Estimator."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat import _monitor, _summaries, _tf

if TYPE_CHECKING:
    from tf_lossscale_compat import _types
    from tf_lossscale_compat._step_record import StepRecord

tf = _tf.tf
tf1 = _tf.tf1

_HINT = (
    "the optimizer or loss scale that it watches takes no part in the train op. Where an optimizer "
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
    N; nothing is fetched in between. What is written is what `write_summaries` writes, the floor
    and the ceiling at each start. Logged through `absl.logging` are skipped steps (WARNING), that
    the scale has come down to its floor (WARNING), that it has grown (DEBUG), and that the record
    sees no step at all (WARNING).
    """

    _global_step: Any
    _checks_at: int | None

    def __init__(
        self,
        record: StepRecord,
        every_n_steps: _types.Integer = 100,
        output_dir: str | None = None,
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
          output_dir: str, the folder to write summaries to; best one of its own, as where a run is
            restarted TensorFlow's own hooks drop from theirs all that lies after the global step.
            With neither this nor `summary_writer` none are written.
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
          TypeError: `record` is no `StepRecord`.
          ValueError: a number cannot be used, or both `output_dir` and `summary_writer` are given.
        """
        if output_dir is not None and summary_writer is not None:
            raise ValueError(
                "output_dir and summary_writer must not both be given, got "
                f"{output_dir!r} and {summary_writer!r}."
            )
        self._monitor = _monitor.Monitor(record, max_consecutive_skips, log_every_n_secs)
        self._every_n_steps = _monitor.period(every_n_steps)
        self._output_dir, self._writer = output_dir, summary_writer
        self._step, self._is_chief = step, is_chief
        self._global_step, self._global_step_at_start, self._runs = None, None, 0
        self._checks_at = None

    def begin(self) -> None:
        """Makes all that is ever fetched, before the graph is finalized."""
        self._monitor.prepare(self._step)
        self._global_step = tf1.train.get_global_step()
        if self._writes() and self._output_dir is not None:
            # The one that other hooks use for this folder.
            self._writer = tf1.summary.FileWriterCache.get(self._output_dir)

    def _writes(self) -> bool:
        if self._is_chief is not None:
            return self._is_chief
        return _summaries.writes_here(self._monitor.record) and _is_chief()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Reads what the session starts with, new or restored."""
        # The runs are counted on: a session that is lost again and again has a stuck run end, too.
        if self._global_step is not None:
            self._global_step_at_start = session.run(self._global_step)
        self._next_check(self._monitor.start(self._writer if self._writes() else None, session))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Reads the record after every N runs."""
        self._runs += 1
        session = run_context.session
        if self._runs % self._every_n_steps == 0:
            now = self._monitor.look(session)
            self._monitor.check(now, session)
            self._next_check(now)
            self._warn(now, session)
        elif self._runs == self._checks_at:
            now = self._monitor.read(session)
            if self._monitor.is_stuck(now):
                self._monitor.check(self._monitor.look(session), session)
            self._next_check(now)

    def _next_check(self, now: Any) -> None:
        """Sees to it that the record is read when, at the earliest, the run can be stuck."""
        limit = self._monitor.max_skips
        self._checks_at = None if limit is None else self._runs + max(1, limit - now.consecutive)

    def _warn(self, now: Any, session: Any) -> None:
        # Without a global step there is no telling what a run is for.
        if self._global_step is None or session.run(self._global_step) != (
            self._global_step_at_start
        ):
            self._monitor.saw_nothing(now, _HINT)

    def end(self, session: Any) -> None:
        """Tells what is left to be told."""
        now = self._monitor.look(session, at_end=True)
        if self._runs:
            self._warn(now, session)


def _is_chief() -> bool:
    """Whether `TF_CONFIG` makes this process the one that writes."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    except ValueError:
        return True
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    if "chief" in cluster or "master" in cluster:
        return task.get("type") in ("chief", "master")
    return task.get("type", "worker") == "worker" and int(task.get("index", 0)) == 0
