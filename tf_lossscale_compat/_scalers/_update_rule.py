"""The update rules of dynamic loss scales: (state, finite) -> state.

Pure arithmetic on tensors, by selection instead of branches, so that the same few ops serve a
graph, eager execution, `tf.function`, XLA and any replica. Source: Micikevicius et al. 2018,
"Mixed Precision Training", section 3.2, with the details of TensorFlow r1.15 (`exponential`) and
r2.0 (`dynamic`).
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from tf_lossscale_compat._core import _compiled, _tf

tf = _tf.tf


class State(NamedTuple):
    """Loss scale (float32 scalar) and step counters (integer scalars).

    `bad_steps` and `delay` are None where the rule does not count them.
    """

    scale: Any
    good_steps: Any
    bad_steps: Any = None
    delay: Any = None


_select = tf.compat.v2.where


def max_scale_before_overflow(ratio):
    """Returns the largest float32 whose product with `ratio` is finite, as a Python float.

    None if `ratio` is no positive number that is finite in float32: subclasses may assign tensors
    and variables, too. None also in eager mode, where the compiled rule must not depend on a ratio.
    """
    if tf.executing_eagerly() or not isinstance(ratio, (int, float)):
        return None
    return _largest(ratio)


@functools.lru_cache(maxsize=64)
def _largest(ratio):
    with np.errstate(over="ignore"):
        ratio, most = np.float32(ratio), np.finfo(np.float32).max
        if not 0 < ratio <= most:
            return None
        largest = np.float32(min(float(most) / float(ratio), float(most)))
        # The quotient is rounded, and so is the product that it is compared with.
        while not np.isfinite(largest * ratio):
            largest = np.nextafter(largest, np.float32(0))
        return float(largest)


def _grown(scale, ratio, largest):
    """Returns `scale` times `ratio` if that is finite, else `scale`.

    No product overflows, not even one that is not used: `tf.debugging.enable_check_numerics` would
    call it an error. Where no `largest` is known, the product is tested 2**-64 times as large.
    """
    ratio = tf.convert_to_tensor(ratio, scale.dtype)
    if largest is None:
        fits = scale * 2.0**-64 * ratio <= float(scale.dtype.max) * 2.0**-64
    else:
        fits = scale <= largest
    return scale * _select(fits, ratio, tf.ones_like(ratio))


def change_of(state, finite, incr_every, decr_every):
    """Returns whether r1.15's rule changes the scale, and the new count of steps of this kind.

    Args:
      state: `State` with both counters.
      finite: this and the following are those of `exponential`.
      incr_every: see there.
      decr_every: see there.
    """
    # One counter counts in each step, and is compared with its own period.
    steps = _select(finite, state.good_steps, state.bad_steps) + 1
    return steps >= _select(finite, incr_every, decr_every), steps


def exponential(
    state, finite, incr_every, decr_every, incr_ratio, decr_ratio, largest, resets=True
):
    """One step of r1.15's rule, as `ExponentialUpdateLossScaleManager` documents it.

    Args:
      state: `State` with both counters.
      finite: bool scalar tensor, whether this step's gradients are finite everywhere.
      incr_every: Python int or int32 scalar, finite steps to growth.
      decr_every: Python int or int32 scalar, non-finite steps to shrinking.
      incr_ratio: float32 scalar, what growth multiplies with.
      decr_ratio: float32 scalar, what shrinking multiplies with.
      largest: float, `max_scale_before_overflow` of `incr_ratio`, or None.
      resets: bool, both counters become zero where the scale changes; else they stay there.

    Returns:
      The next `State`.
    """
    changes, steps = change_of(state, finite, incr_every, decr_every)
    zero = tf.zeros_like(steps)
    lowered = tf.maximum(state.scale * decr_ratio, 1.0)
    grown = _grown(state.scale, incr_ratio, largest)
    scale = _select(changes, _select(finite, grown, lowered), state.scale)
    if not resets:
        good_steps = _select(finite, steps, zero)
        bad_steps = _select(finite, state.bad_steps, steps)
        return State(
            scale=scale,
            good_steps=_select(changes, state.good_steps, good_steps),
            bad_steps=_select(changes, state.bad_steps, bad_steps),
        )
    steps = _select(changes, zero, steps)
    return State(
        scale=scale,
        good_steps=_select(finite, steps, zero),
        bad_steps=_select(finite, _select(changes, zero, state.bad_steps), steps),
    )


def dynamic(
    state,
    finite,
    increment_period,
    multiplier,
    largest,
    min_scale=1.0,
    max_scale=None,
    hysteresis=1,
):
    """One step of r2.0's rule with bounds and hysteresis, as `DynamicLossScale` documents it.

    Args:
      state: `State`; `bad_steps` is not read, and `delay` may be None where it is always 1.
      finite: bool scalar tensor, whether this step's gradients are finite everywhere.
      increment_period: Python int, finite steps to growth.
      multiplier: float32 scalar, what growth multiplies with and shrinking divides by.
      largest: float, `max_scale_before_overflow` of `multiplier`, or None.
      min_scale: Python float, the floor.
      max_scale: Python float, or None for no ceiling.
      hysteresis: Python int, what growth sets `delay` to.

    Returns:
      The next `State`, its `bad_steps` None.
    """
    good = state.good_steps + 1
    grows = good >= increment_period  # If the step is finite, which is asked last.
    grown = _grown(state.scale, multiplier, largest)
    # Division, not multiplication by the reciprocal, which rounds differently.
    lowered = tf.maximum(state.scale / multiplier, min_scale)
    if max_scale is not None:
        # Either may be the one that raises the scale, as a multiplier may be below 1.
        grown, lowered = tf.minimum(grown, max_scale), tf.minimum(lowered, max_scale)
    delay = state.delay
    if delay is not None:
        lowered = _select(delay > 1, state.scale, lowered)
        after_skip = tf.maximum(delay - 1, 1)
        delay = _select(
            finite, _select(grows, tf.constant(hysteresis, delay.dtype), delay), after_skip
        )
    zero = tf.zeros_like(good)
    return State(
        scale=_select(finite, _select(grows, grown, state.scale), lowered),
        good_steps=_select(finite, _select(grows, zero, good), zero),
        delay=delay,
    )


# The same as functions of tensors. Ratios are among the tensors: where they are constants of a
# function, TensorFlow turns division by one into multiplication by its reciprocal.


@_compiled.in_eager_mode
def exponential_step(tensors, periods, largest, resets=True):
    """Applies `exponential` to [scale, good_steps, bad_steps, finite, incr_ratio, decr_ratio].

    Both periods follow among the tensors if `periods` is None.
    """
    *state, finite, incr_ratio, decr_ratio = tensors[:6]
    incr_every, decr_every = periods or tensors[6:]
    after = exponential(
        State(*state), finite, incr_every, decr_every, incr_ratio, decr_ratio, largest, resets
    )
    return list(after[:3])


@_compiled.in_eager_mode
def dynamic_step(tensors, *constants):
    """Applies `dynamic` to [scale, good_steps, delay if there is one, finite, multiplier]."""
    scale, good_steps, *delay, finite, multiplier = tensors
    state = State(scale, good_steps, None, *delay)
    increment_period, *others = constants
    after = dynamic(state, finite, increment_period, multiplier, *others)
    return [after.scale, after.good_steps] + [after.delay] * len(delay)
