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
from tf_lossscale_compat._core._step_record import StepRecord
from tf_lossscale_compat.monitoring import _summaries

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
        self.max_consecutive_skips = limit or record.max_consecutive_skips
        self.log_every_n_secs = _arguments.seconds("log_every_n_secs", log_every_n_secs)
        self._fetches: Any = None
        self._last_reading: Any = None
        self._logged_at, self._warned = -math.inf, False

    def prepare(self, step: Any = None) -> None:
        """Makes the tensors that a Session fetches, in a graph for a Session.

        `step` is a scalar integer tensor, the points' position on the axis; None for the record's.
        """
        self._fetches = None
        if _graphs.in_session_graph():
            self.record._check_place()
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
        reading = self.read(session)
        self._reset(reading, reading.skipped_steps)
        self.log_and_write(reading, session)
        return reading

    def _reset(self, reading: _summaries.Reading, logged: int) -> None:
        self._last_reading = reading._replace(skipped_steps=logged)
        self._steps_at_start = reading.steps
        self._last_written: Any = None
        self._logged_skips, self._at_floor = logged, False

    def log_and_write(
        self,
        reading: _summaries.Reading,
        session: Any = None,
        log_every_n_secs: float | None = None,
    ) -> None:
        """Logs, at most once in `log_every_n_secs`, and writes the news of the last `Reading`."""
        if self._last_reading is None:  # The last skipped steps in a row are still news.
            self._reset(reading, reading.skipped_steps - reading.consecutive_skips)
        if reading.steps < self._last_reading.steps:  # The run has gone back to a checkpoint.
            self._reset(reading, reading.skipped_steps)
        seconds = self.log_every_n_secs if log_every_n_secs is None else log_every_n_secs
        self._log(reading, session, seconds)
        self._last_reading = reading
        if self.writer is not None and self._last_written != (reading, self._step):
            self.writer.add_summary(_summaries.proto(reading, self.record.loss_scale), self._step)
            self.writer.flush()  # The run may end or fail before the next summary.
            self._last_written = reading, self._step

    def raise_if_stuck(self, reading: _summaries.Reading, session: Any = None) -> None:
        """Raises a `LossScaleError` if a `Reading` shows that the run is stuck."""
        limit = self.max_consecutive_skips
        if limit is not None and reading.consecutive_skips >= limit:
            self.log_and_write(reading, session)
            self.record.check(limit, session)

    def warn_if_unused(self, reading: _summaries.Reading, hint: str) -> None:
        """Warns, once, if the record has seen no step since the start."""
        if reading.steps == self._steps_at_start and not self._warned:
            self._warned = True
            logging.warning("The StepRecord has seen no step, though training goes on: %s", hint)

    def _log(self, reading: _summaries.Reading, session: Any, log_every_n_secs: float) -> None:
        new, clock = reading.skipped_steps - self._logged_skips, time.monotonic()
        if new > 0 and clock - self._logged_at >= log_every_n_secs:
            steps = "1 more step" if new == 1 else f"{new} more steps"
            logging.warning("Loss scale: %s skipped. %s", steps, self.record.report(session))
            self._logged_at, self._logged_skips = clock, reading.skipped_steps
        if reading.scale > self._last_reading.scale:
            before, after = self._last_reading.scale, reading.scale
            logging.debug("Loss scale: %.10g -> %.10g by step %d", before, after, reading.steps)
        floor = _summaries.bounds(self.record.loss_scale).get(_summaries.FLOOR)
        if floor is None or reading.scale > np.float32(floor):
            self._at_floor = False
        # A scale that starts at its floor is no reason to warn.
        elif not self._at_floor and reading.skipped_steps > self._last_reading.skipped_steps:
            self._at_floor = True
            logging.warning(
                "Loss scale: at its floor, %.10g, by step %d. It shrinks no further. Gradients "
                "that overflow at this scale will go on overflowing. Look at the learning rate, "
                "the data, and what is computed in float16.",
                floor,
                reading.steps,
            )
