"""What the hook and the callback share: they read a record now and then, and tell of it."""

import time

from tf_lossscale_compat import _tf  # First, as it says what to do without TensorFlow.

# isort: split
import numpy as np
from absl import logging

from tf_lossscale_compat import _arguments, _summaries, _summary_tags

tf = _tf.tf


class Monitor:
    """Reads a record, writes summaries of it, logs, and says when a run is stuck."""

    def __init__(self, record, max_consecutive_skips=None, log_every_n_secs=60):
        _summaries.check_record(record)
        self.record = record
        asked = _arguments.max_consecutive_skips(max_consecutive_skips)
        # How many skipped steps in a row end the run, an int or None.
        self.max_skips = record.max_consecutive_skips if asked is None else asked
        self._seconds = seconds(log_every_n_secs)
        self._fetches, self._step = None, None
        self._writer, self._with_bounds, self._written = None, True, None
        self._told_at, self._warned = None, False

    def prepare(self, step=None):
        """In a graph for a Session: makes what is fetched there, and `step`, if it is given."""
        self._fetches = None
        if _tf.in_plain_graph():
            self.record._check_place()
            self._fetches = list(_summaries.tensors(self.record))
            if step is not None:
                self._fetches.append(tf.identity(step))

    def start(self, writer, session=None):
        """Takes what the record says for where the run starts, and writes it.

        Args:
          writer: `tf.compat.v1.summary.FileWriter`, or None.
          session: see `look`.

        Returns:
          A `_summaries.Reading`.
        """
        self._writer, self._with_bounds, self._written = writer, True, None
        now = self.read(session)
        self.begin(now, told_of=now.skipped)
        self._write(now)
        return now

    def begin(self, now, told_of):
        """Takes a `Reading` for where the run starts.

        Args:
          now: `_summaries.Reading`.
          told_of: int, how many of the skipped steps are not to be logged any more.
        """
        self._last, self._steps_at_start, self._told_of = now, now.steps, told_of
        self._at_floor, self._skipped_above = False, told_of

    def look(self, session=None, at_end=False):
        """Reads the record, writes and logs what is new.

        Args:
          session: the `tf.compat.v1.Session` that runs the steps, or None in eager mode.
          at_end: bool, whether nothing comes after, so that all is to be told.

        Returns:
          A `_summaries.Reading`.
        """
        now = self.read(session)
        if self.note(now, 0 if at_end else self._seconds, session):
            self._with_bounds = True
        self._write(now)
        return now

    def note(self, now, seconds, session=None):
        """Logs what is new in a `Reading`; returns whether the run has gone back to a checkpoint.

        Args:
          now: `_summaries.Reading`.
          seconds: float, how long the last message about skipped steps has to be past.
          session: see `look`.
        """
        went_back = now.steps < self._last.steps
        if went_back:
            self.begin(now, min(self._told_of, now.skipped))
        self._log(now, seconds, session)
        self._last = now
        return went_back

    def check(self, now, session=None):
        """Raises a `LossScaleError` where, by a `Reading`, the run is stuck."""
        if self.is_stuck(now):
            self.record.check(self.max_skips, session)

    def is_stuck(self, now):
        """Whether by a `Reading` too many steps in a row were skipped."""
        return self.max_skips is not None and now.consecutive >= self.max_skips

    def saw_nothing(self, now, hint):
        """Warns, once, if the record saw no step since the start, though there were some."""
        if now.steps != self._steps_at_start or self._warned:
            return
        self._warned = True
        logging.warning("The StepRecord has seen no step, though training goes on: %s", hint)

    def read(self, session):
        """Returns a `_summaries.Reading`; `session` as in `look`."""
        if self._fetches is None:
            return _summaries.reading(value.numpy() for value in _summaries.tensors(self.record))
        values = session.run(self._fetches)
        self._step = int(values.pop()) if len(values) > len(_summaries.Reading._fields) else None
        return _summaries.reading(values)

    def _write(self, now):
        step = now.steps if self._step is None else self._step
        if self._writer is None or self._written == (now, step):
            return
        policy = self.record.policy() if self._with_bounds else None
        self._writer.add_summary(_summaries.proto(now, policy), step)
        self._writer.flush()  # What comes next may be the run's end, in whichever way.
        self._written, self._with_bounds = (now, step), False

    def _log(self, now, seconds, session):
        new, clock = now.skipped - self._told_of, time.monotonic()
        if new > 0 and (self._told_at is None or clock - self._told_at >= seconds):
            steps = "1 more step" if new == 1 else f"{new} more steps"
            logging.warning("Loss scale: %s skipped. %s", steps, self.record.report(session))
            self._told_at, self._told_of = clock, now.skipped
        if now.scale > self._last.scale:
            before, after = self._last.scale, now.scale
            logging.debug("Loss scale: %.10g -> %.10g by step %d", before, after, now.steps)
        floor = _summaries.bounds(self.record.policy()).get(_summary_tags.FLOOR)
        if floor is None or now.scale > np.float32(floor):
            self._at_floor, self._skipped_above = False, now.skipped
        # A scale that starts there has come to no harm.
        elif not self._at_floor and now.skipped > self._skipped_above:
            self._at_floor = True
            logging.warning(
                "Loss scale: at its floor, %.10g, by step %d. It shrinks no further: gradients "
                "that overflow now will go on to. Look at the learning rate, the data, and what is "
                "computed in float16.",
                floor,
                now.steps,
            )


def seconds(log_every_n_secs):
    """Returns what an argument of that name says."""
    value = _arguments.real_number("log_every_n_secs", log_every_n_secs)
    if value < 0:
        raise ValueError(f"log_every_n_secs must be at least 0, got {log_every_n_secs!r}.")
    return value


def period(every_n_steps):
    """Returns what an argument of that name says."""
    return _arguments.period("every_n_steps", every_n_steps, "int64", least=1)
