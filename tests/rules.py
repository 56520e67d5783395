"""The update rules: what each class does step by step, and r2.0's in NumPy's float32."""

import numpy as np

TINY, HUGE = float(np.finfo(np.float32).tiny), 2.0**127
EXPONENTIAL, DYNAMIC = "ExponentialUpdateLossScaleManager", "DynamicLossScale"
# Class, arguments, options that no original has; then for each step whether it is finite, and the
# state after it: scale, good steps, bad steps.
TABLE = (
    # With contrib's defaults, 2 bad steps and the factors 2 and 0.8. A bad step resets the good
    # ones alone; growth and shrinking reset both.
    (EXPONENTIAL, (10.0, 3), {}, "1 10 1 0, 0 10 0 1, 1 10 1 1, 0 8 0 0, 0 8 0 1, 1 8 1 1, 1 8 2 1,"
     " 1 16 0 0, 0 16 0 1, 1 16 1 1, 0 12.8 0 0, 1 12.8 1 0"),
    (EXPONENTIAL, (1.5, 2, 1, 2, 0.5), {}, "0 1 0 0, 0 1 0 0, 1 1 1 0, 1 2 0 0"),
    (EXPONENTIAL, (HUGE, 1, 3, 4), {}, f"0 {HUGE} 0 1, 1 {HUGE} 0 0"),
    (EXPONENTIAL, (2.0, 0, 1, 0.5, 4), {}, "0 8 0 0, 1 4 0 0"),
    (EXPONENTIAL, (TINY, 2), {}, f"1 {TINY} 1 0"),
    (DYNAMIC, (8.0, 2), {}, "1 8 1, 0 4 0, 1 4 1, 1 8 0, 1 8 1, 0 4 0, 0 2 0, 0 1 0, 0 1 0"),
    (DYNAMIC, (6.0, 3, 1.5), {}, "1 6 1, 1 6 2, 1 9 0, 0 6 0, 0 4 0, 1 4 1"),
    (DYNAMIC, (HUGE, 1, 4), {}, f"1 {HUGE} 0"),
    # Growth to more than float32 holds is none, also where there is a bound.
    (DYNAMIC, (HUGE, 1, 4), {"max_loss_scale": 3e38}, f"1 {HUGE} 0"),
    (DYNAMIC, (1.0, 1, 2), {"min_loss_scale": 0.25, "max_loss_scale": 2.0},
     "1 2 0, 1 2 0, 0 1 0, 0 0.5 0, 0 0.25 0, 0 0.25 0"),
    # Division by a multiplier below 1 raises the scale.
    (DYNAMIC, (1.0, 1, 0.5), {"max_loss_scale": 1.0}, "1 0.5 0, 0 1 0, 0 1 0"),
    # The smallest normal number; processors may flush half of it to zero.
    (DYNAMIC, (2 * TINY, 1, 2), {"min_loss_scale": TINY, "max_loss_scale": 4 * TINY},
     f"0 {TINY} 0, 0 {TINY} 0, 1 {2 * TINY} 0, 1 {4 * TINY} 0, 1 {4 * TINY} 0"),
    ("FixedLossScale", (8.0,), {}, "1 8, 0 8"),
    ("FixedLossScaleManager", (8.0,), {}, "1 8, 0 8"),
)  # fmt: skip


def dynamic(state, finite, period, multiplier=2.0, min_loss_scale=1.0, max_loss_scale=np.inf):
    """Scale and good steps of `DynamicLossScale` after one more step."""
    (scale, good), multiplier = state, np.float32(multiplier)
    if finite and good + 1 < period:
        return scale, good + 1
    with np.errstate(over="ignore"):
        moved = np.float32(scale) * multiplier if finite else np.float32(scale) / multiplier
    if finite:
        return (min(moved, max_loss_scale) if np.isfinite(moved) else scale), 0
    return min(max(moved, min_loss_scale), max_loss_scale), 0
