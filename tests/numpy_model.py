"""The update rules once more, in NumPy float32, independent of the package."""

import numpy as np

F32 = np.float32


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
    """r2.0's dynamic rule, as branches on NumPy scalars."""

    def __init__(self, scale, period, multiplier):
        self.state = (F32(scale), 0)
        self.parameters = (period, multiplier)

    def step(self, finite):
        period, multiplier = self.parameters
        scale, good = self.state
        with np.errstate(over="ignore", under="ignore"):
            if finite:
                good += 1
                if good >= period:
                    grown = scale * F32(multiplier)
                    scale = grown if np.isfinite(grown) else scale
                    good = 0
            else:
                good = 0
                shrunk = scale / F32(multiplier)
                scale = shrunk if shrunk > 1 else F32(1)
        self.state = (scale, good)
