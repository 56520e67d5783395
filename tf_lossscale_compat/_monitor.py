"""What the hook and the callback share: they read a record now and then, and tell of it."""

import time

import numpy as np
from absl import logging

from tf_lossscale_compat import _arguments, _summaries, _summary_tags, _tf

tf = _tf.tf


class Monitor:
    """Reads a record, writes summaries of it, logs, and says when a run is stuck."""

    def __init__(self, record, max_consecutive_skips, log_every_n_secs):
        _summaries.check_record(record)
        self.record = record
        self.limit = limit(max_consecutive_skips)
        self._seconds = seconds(log_every_n_secs)
        self._fetches = None
        self._writer, self._step, self._with_bounds = None, None, True
        self._last, self._written = None, None
        self._told_at, self._told_of = None, 0
        self._sits, self._skipped_above = False, 0
        self._steps_at_start, self._warned = 0, False

    def prepare(self, step=None):
        """In a graph for a Session: makes what is fetched there, and `step`, if it is given."""
        self._fetches = None
        if _tf.in_plain_graph():
            self.record.check_place()
            self._fetches = list(_summaries.tensors(self.record))
            if step is not None:
                self._fetches.append(tf.identity(step))

    def start(self, writer, session=None):
        """Takes what the record says for where the run starts, and writes it.

        Args:
          writer: `tf.compat.v1.summary.FileWriter`, or None.
          session: see `look`.
        """
        self._writer, self._with_bounds, self._written = writer, True, None
        now = self._read(session)
        self._last, self._steps_at_start = now, now.steps
        self._told_of, self._skipped_above, self._sits = now.skipped, 0, False
        self._log(now, session)
        self._write(now)

    def look(self, session=None, at_end=False):
        """Reads the record, writes and logs what is new.

        Args:
          session: the `tf.compat.v1.Session` that runs the steps, or None in eager mode.
          at_end: bool, whether nothing comes after, so that all is to be told.

        Returns:
          A `_summaries.Reading`.
        """
        now = self._read(session)
        if now.steps < self._last.steps:
            # Restored from a checkpoint meanwhile.
            self._with_bounds, self._steps_at_start = True, now.steps
            self._told_of, self._last = min(self._told_of, now.skipped), now
        self._log(now, session, at_end)
        self._write(now)
        self._last = now
        return now

    def check(self, now, session=None):
        """Raises a `LossScaleError` where, by a `Reading`, the run is stuck."""
        own = self.record._limit
        most = own if self.limit is None else self.limit
        if most is not None and now.consecutive >= most:
            self.record.check(most, session)

    def saw_nothing(self, now, hint):
        """Warns, once, if the record saw no step since the start, though there were some."""
        if now.steps != self._steps_at_start or self._warned:
            return
        self._warned = True
        logging.warning(
            "The StepRecord has seen no step, though training goes on: %s", hint
        )

    def _read(self, session):
        if self._fetches is None:
            return _summaries.read_eagerly(self.record)
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

    def _log(self, now, session, at_end=False):
        new, clock = now.skipped - self._told_of, time.monotonic()
        due = self._told_at is None or clock - self._told_at >= self._seconds
        if new > 0 and (due or at_end):
            more = f"{new} more step{'s' * (new > 1)} skipped for the loss scale: "
            logging.warning("%s%s", more, self.record.report(session))
            self._told_at, self._told_of = clock, now.skipped
        if now.scale > self._last.scale:
            logging.debug(
                "The loss scale has grown by step %d: %.10g -> %.10g",
                now.steps,
                self._last.scale,
                now.scale,
            )
        floor = _summaries.bounds(self.record.policy()).get(_summary_tags.FLOOR)
        if floor is None or now.scale > np.float32(floor):
            self._sits, self._skipped_above = False, now.skipped
        # A scale that starts there has come to no harm.
        elif not self._sits and now.skipped > self._skipped_above:
            self._sits = True
            logging.warning(
                "The loss scale is at its floor, %.10g, by step %d: it shrinks no further, and a "
                "gradient that overflows is none that a lower scale is tried for. Look at the "
                "learning rate, the data, and what is computed in float16.",
                floor,
                now.steps,
            )


def limit(max_consecutive_skips):
    """Returns what an argument of that name says, which is an int above zero or None."""
    if max_consecutive_skips is None:
        return None
    return _arguments.period("max_consecutive_skips", max_consecutive_skips, "int64", least=1)


def seconds(log_every_n_secs):
    """Returns what an argument of that name says."""
    value = _arguments.real_number("log_every_n_secs", log_every_n_secs)
    if value < 0:
        raise ValueError(f"log_every_n_secs must be at least 0, got {log_every_n_secs!r}.")
    return value


def period(every_n_steps):
    """Returns what an argument of that name says."""
    return _arguments.period("every_n_steps", every_n_steps, "int64", least=1)
