"""The reader of a `StepRecord` that the hook, the callback and `write_summaries` share."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _graphs
from tf_lossscale_compat._core._tf import tf  # First: it says what to do without TensorFlow.

# isort: split
import numpy as np
from absl import logging

from tf_lossscale_compat._core import _arguments
from tf_lossscale_compat.monitoring import _summaries
from tf_lossscale_compat.monitoring._step_record import StepRecord

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


class Monitor:
    """Writes summaries of a record, logs its news, and ends a run that is stuck.

    `writer` is a `tf.compat.v1.summary.FileWriter`, or None to write nothing.
    """

    def __init__(
        self,
        record: StepRecord,
        max_consecutive_skips: _types.Integer | None = None,
        log_every_n_secs: _types.Real = 60,
    ) -> None:
        if not isinstance(record, StepRecord):
            raise TypeError(f"record must be a StepRecord, got {record!r}.")
        self.record = record
        self.writer: Any = None
        limit = _arguments.max_consecutive_skips(max_consecutive_skips)
        self.max_skips = limit or record.max_consecutive_skips
        self.seconds = _arguments.seconds("log_every_n_secs", log_every_n_secs)
        self._fetches: Any = None
        self._last: Any = None
        self._logged_at, self._warned = -math.inf, False

    def prepare(self, step: Any = None) -> None:
        """Makes the tensors that a Session fetches, in a graph for a Session.

        `step` is a scalar integer tensor, the points' position on the axis; None for the record's.
        """
        self._fetches = None
        if _graphs.in_session_graph():
            self.record._check_context()
            values = _summaries.tensors(self.record)
            self._fetches = [*values, values.steps if step is None else tf.identity(step)]

    def read(self, session: Any = None) -> _summaries.Reading:
        """Returns a `Reading` of numbers; `session` is the one that runs the steps, or None."""
        if self._fetches is None:
            *values, scale = [value.numpy() for value in _summaries.tensors(self.record)]
            self._step = values[0]
        else:
            *values, scale, self._step = session.run(self._fetches)
        steps, skipped, consecutive = map(int, values)
        return _summaries.Reading(steps, skipped, consecutive, float(scale))

    def start(self, session: Any = None) -> _summaries.Reading:
        """Reads the values at the start of a run, of which no step is news; returns them."""
        now = self.read(session)
        self._start(now, now.skipped)
        self.observe(now, session)
        return now

    def _start(self, now: _summaries.Reading, logged: int) -> None:
        self._last, self._steps_at_start = now._replace(skipped=logged), now.steps
        self._written: Any = None
        self._logged, self._at_floor = logged, False

    def observe(
        self, now: _summaries.Reading, session: Any = None, seconds: float | None = None
    ) -> None:
        """Logs, at most once in `seconds`, and writes the news of the last `Reading`."""
        if self._last is None:  # The last skipped steps in a row are still news.
            self._start(now, now.skipped - now.consecutive)
        if now.steps < self._last.steps:  # The run has gone back to a checkpoint.
            self._start(now, now.skipped)
        self._log(now, session, self.seconds if seconds is None else seconds)
        self._last = now
        if self.writer is not None and self._written != (now, self._step):
            self.writer.add_summary(_summaries.proto(now, self.record.loss_scale), self._step)
            self.writer.flush()  # The run may end or fail before the next summary.
            self._written = now, self._step

    def check(self, now: _summaries.Reading, session: Any = None) -> None:
        """Raises a `LossScaleError` if a `Reading` shows that the run is stuck."""
        if self.max_skips is not None and now.consecutive >= self.max_skips:
            self.observe(now, session)
            self.record.check(self.max_skips, session)

    def warn_if_unused(self, now: _summaries.Reading, hint: str) -> None:
        """Warns, once, if the record has seen no step since the start."""
        if now.steps == self._steps_at_start and not self._warned:
            self._warned = True
            logging.warning("The StepRecord has seen no step, though training goes on: %s", hint)

    def _log(self, now: _summaries.Reading, session: Any, seconds: float) -> None:
        new, clock = now.skipped - self._logged, time.monotonic()
        if new > 0 and clock - self._logged_at >= seconds:
            steps = "1 more step" if new == 1 else f"{new} more steps"
            logging.warning("Loss scale: %s skipped. %s", steps, self.record.report(session))
            self._logged_at, self._logged = clock, now.skipped
        if now.scale > self._last.scale:
            before, after = self._last.scale, now.scale
            logging.debug("Loss scale: %.10g -> %.10g by step %d", before, after, now.steps)
        floor = _summaries.bounds(self.record.loss_scale).get(_summaries.FLOOR)
        if floor is None or now.scale > np.float32(floor):
            self._at_floor = False
        # A scale that starts at its floor is no reason to warn.
        elif not self._at_floor and now.skipped > self._last.skipped:
            self._at_floor = True
            logging.warning(
                "Loss scale: at its floor, %.10g, by step %d. It shrinks no further. Gradients "
                "that overflow at this scale will go on overflowing. Look at the learning rate, "
                "the data, and what is computed in float16.",
                floor,
                now.steps,
            )
