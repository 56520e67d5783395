"""The update rules once more, in NumPy float32, independent of the package."""

import numpy as np

F32 = np.float32
TINY = np.finfo(np.float32).tiny  # The smallest normal number.


class ExponentialModel:
    """r1.15's exponential rule, as branches on NumPy scalars."""

    def __init__(self, scale, incr_every, decr_every, incr_ratio, decr_ratio):
        self.state = (F32(scale), 0, 0)
        self.parameters = (incr_every, decr_every, incr_ratio, decr_ratio)

    def step(self, finite):
        incr_every, decr_every, incr_ratio, decr_ratio = self.parameters
        scale, good, bad = self.state
        with np.errstate(over="ignore", under="ignore"):
            if finite:
                good += 1
                if good >= incr_every:
                    grown = scale * F32(incr_ratio)
                    scale = grown if np.isfinite(grown) else scale
                    good = bad = 0
            else:
                good = 0
                bad += 1
                if bad >= decr_every:
                    shrunk = scale * F32(decr_ratio)
                    scale = shrunk if shrunk > 1 else F32(1)
                    good = bad = 0
        self.state = (scale, good, bad)


class DynamicModel:
    """r2.0's dynamic rule with bounds and hysteresis, as branches on NumPy scalars."""

    def __init__(self, scale, period, multiplier, low=1.0, high=None, hysteresis=1):
        self.state = (F32(scale), 0)
        self.parameters = (period, multiplier, low, high)
        self.hysteresis = self.left = hysteresis  # How many non-finite steps, and are left.

    def step(self, finite, shrunk=None):
        period, multiplier, low, high = self.parameters
        scale, good = self.state
        with np.errstate(over="ignore", under="ignore"):
            if finite:
                good += 1
                if good >= period:
                    grown = scale * F32(multiplier)
                    scale = grown if np.isfinite(grown) else scale
                    if high is not None and scale > F32(high):
                        scale = F32(high)
                    good = 0
                    self.left = self.hysteresis
            else:
                good = 0
                if self.left > 1:
                    self.left -= 1
                else:
                    shrunk = scale / F32(multiplier) if shrunk is None else shrunk
                    scale = shrunk if shrunk > F32(low) else F32(low)
                    if high is not None and scale > F32(high):  # A multiplier below 1.
                        scale = F32(high)
        self.state = (scale, good)
