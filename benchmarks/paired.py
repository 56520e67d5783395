"""Statistics of steps that were run in the same rounds: medians and intervals.

Every figure comes with what it would have been, had other of its rounds happened more or less
often: the rounds are drawn anew, with repetition, and the middle 95 % of what comes out is the
interval. Figures of the same rounds are drawn alike, so that their ratio is of the same rounds too.
"""

import functools
import math
import zlib

import numpy as np

RESAMPLES = 2000
# Of fewer rounds not even the smallest and the largest hold the median between them 19 times in 20.
FEWEST = 6


class Figure:
    """A figure, and what resampling makes of it.

    Attributes:
      value: float.
      samples: NumPy array of what it is in each resample, of one element for what is counted and
        not measured; None where there were too few rounds to tell.
    """

    def __init__(self, value, samples):
        self.value = value
        self.samples = samples

    @classmethod
    def exact(cls, value):
        """Returns the figure of something that is the same every time."""
        return cls(value, np.array([value], float))

    @property
    def interval(self):
        """The ends of the 95 % interval; None if there were too few rounds."""
        if self.samples is None:
            return None
        ordered = np.sort(self.samples)  # Nothing is interpolated: an end may be infinite.
        out = len(ordered) * 25 // 1000
        return float(ordered[out]), float(ordered[-1 - out])

    def __sub__(self, other):
        samples = None
        if self.samples is not None and other.samples is not None:
            samples = self.samples - other.samples
        return Figure(self.value - other.value, samples)

    def over(self, other):
        """Returns the ratio to another figure; None where that may be zero or less."""
        ends = other.interval or (other.value, other.value)
        if ends[0] <= 0:
            return None
        if self.samples is None or other.samples is None:
            return Figure(self.value / other.value, None)
        with np.errstate(divide="ignore", invalid="ignore"):
            # The few resamples in which it is not: next to nothing, so the ratio is without end.
            samples = np.where(
                other.samples > 0,
                self.samples / other.samples,
                np.copysign(math.inf, self.samples),
            )
        return Figure(self.value / other.value, samples)


def seed_of(*names):
    """Returns a seed: others for figures of other rounds, which are independent of each other."""
    return zlib.crc32(" ".join(names).encode())


@functools.lru_cache(maxsize=4)
def _draws(rounds, seed):
    return np.random.RandomState(seed).randint(rounds, size=(RESAMPLES, rounds))


def median(values, seed=0):
    """Returns the median of values, one for each round, as a `Figure`.

    Args:
      values: sequence of floats.
      seed: int, the same for all figures of the same rounds.
    """
    values = np.asarray(values, float)
    samples = None
    if len(values) >= FEWEST:
        samples = np.median(values[_draws(len(values), seed)], axis=1)
    return Figure(float(np.median(values)), samples)


def _milliseconds(seconds):
    return 1e3 * np.asarray(seconds, float)


def compare(rows, seed=0):
    """Adds `Figure`s to rows: what each has more than its baseline, and the ratios to its peer's.

    Args:
      rows: {name: row}, a row being a dict of "seconds", one for each round, and maybe of
        "applied_seconds" in the same rounds, "trace_seconds", one for each trace, and "nodes", and
        of the names "baseline" and "peer". All rows have the same rounds.
      seed: int, see `median`.
    """
    for row in rows.values():
        for prefix in ("", "applied_"):
            if f"{prefix}seconds" in row:
                milliseconds = _milliseconds(row[f"{prefix}seconds"])
                row[f"{prefix}milliseconds"] = Figure.exact(float(np.median(milliseconds)))
    for row in rows.values():
        base = rows.get(row.get("baseline"))
        if base is None or base is row:
            continue
        _less_baseline(row, base, seed)
        if "applied_overhead" in row:
            row["overhead_to_applied"] = row["overhead"].over(row["applied_overhead"])
    for row in rows.values():
        peer = rows.get(row.get("peer"), {})
        for added in ("overhead", "trace_added", "nodes_added"):
            if added in row and added in peer:
                row[f"{added}_ratio"] = row[added].over(peer[added])
                row[f"{added}_difference"] = row[added] - peer[added]


def _less_baseline(row, base, seed):
    for prefix in ("", "applied_"):
        if f"{prefix}seconds" in row:
            seconds = np.subtract(row[f"{prefix}seconds"], base["seconds"])
            row[f"{prefix}overhead"] = median(_milliseconds(seconds), seed)
    if row.get("trace_seconds") and base.get("trace_seconds"):
        # Another seed: traces are made in rounds of their own.
        seconds = np.subtract(row["trace_seconds"], base["trace_seconds"])
        row["trace_added"] = median(seconds, seed ^ 1)
    if row.get("nodes") is not None and base.get("nodes") is not None:
        row["nodes_added"] = Figure.exact(row["nodes"] - base["nodes"])
