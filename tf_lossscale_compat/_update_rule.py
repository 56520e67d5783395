"""The rule that moves a dynamic loss scale: (state, finite) -> state.

Pure arithmetic on tensors, by selection instead of branches, so that the same few ops serve a
graph, eager execution, `tf.function`, XLA and any replica. Source: Micikevicius et al. 2018,
"Mixed Precision Training", section 3.2, with the details of TensorFlow r1.15 (`exponential`) and
r2.0 (`dynamic`).
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from tf_lossscale_compat import _compiled, _tf

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


def largest_to_grow(ratio):
    """The largest float32 whose product with `ratio` is finite in float32, as a Python float.

    None if `ratio` is no positive number that is finite in float32: subclasses assign what they
    like, tensors and variables among it. None also in eager mode, where the rule is compiled and
    what it is compiled for had better not depend on a ratio.
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
        # The quotient is rounded, and so is the product that it is to be held against.
        while not np.isfinite(largest * ratio):
            largest = np.nextafter(largest, np.float32(0))
        while largest < most and np.isfinite(np.nextafter(largest, most) * ratio):
            largest = np.nextafter(largest, most)
        return float(largest)


def _grown(scale, ratio, largest):
    """`scale` times `ratio` if that is finite, else `scale`.

    No product overflows, not even one that is not used: `tf.debugging.enable_check_numerics` would
    call it an error. Where no `largest` is known, the product is looked at 2**-64 times as large.
    """
    ratio = tf.convert_to_tensor(ratio, scale.dtype)
    if largest is None:
        fits = scale * 2.0**-64 * ratio <= float(scale.dtype.max) * 2.0**-64
    else:
        fits = scale <= largest
    return scale * _select(fits, ratio, tf.ones_like(ratio))


def exponential(state, finite, incr_every, decr_every, incr_ratio, decr_ratio, largest):
    """One step of r1.15's exponential rule.

        if finite:
            good += 1
            if good >= incr_every: scale = scale * incr_ratio if finite; good = bad = 0
        else:
            bad += 1; good = 0
            if bad >= decr_every: scale = max(1, scale * decr_ratio); good = bad = 0

    Args:
      state: `State` with both counters.
      finite: bool scalar tensor, whether this step's gradients are finite everywhere.
      incr_every: Python int, finite steps to growth.
      decr_every: Python int, non-finite steps to shrinking.
      incr_ratio: float32 scalar, what growth multiplies with.
      decr_ratio: float32 scalar, what shrinking multiplies with.
      largest: float, `largest_to_grow` of `incr_ratio`, or None.

    Returns:
      The next `State`.
    """
    # One counter counts in each step, and is held against its own period.
    zero = tf.zeros_like(state.good_steps)
    steps = _select(finite, state.good_steps, state.bad_steps) + 1
    moves = steps >= _select(finite, incr_every, decr_every)
    steps = _select(moves, zero, steps)
    lowered = tf.maximum(state.scale * decr_ratio, 1.0)
    grown = _grown(state.scale, incr_ratio, largest)
    return State(
        scale=_select(moves, _select(finite, grown, lowered), state.scale),
        good_steps=_select(finite, steps, zero),
        bad_steps=_select(finite, _select(moves, zero, state.bad_steps), steps),
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
    """One step of r2.0's dynamic rule, with bounds and DeepSpeed's hysteresis.

        if finite:
            good += 1
            if good >= increment_period:
                scale = min(scale * multiplier, max_scale) if that is finite; good = 0
                delay = hysteresis
        else:
            good = 0
            if delay > 1: delay -= 1
            else: scale = min(max(scale / multiplier, min_scale), max_scale)

    Args:
      state: `State`; `bad_steps` is not looked at, and `delay` may be None where it is always 1.
      finite: bool scalar tensor, whether this step's gradients are finite everywhere.
      increment_period: Python int, finite steps to growth.
      multiplier: float32 scalar, what growth multiplies with and shrinking divides by.
      largest: float, `largest_to_grow` of `multiplier`, or None.
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
def exponential_step(tensors, incr_every, decr_every, largest):
    """`exponential` of [scale, good_steps, bad_steps, finite, incr_ratio, decr_ratio]."""
    *state, finite, incr_ratio, decr_ratio = tensors
    state = State(*state)
    after = exponential(state, finite, incr_every, decr_every, incr_ratio, decr_ratio, largest)
    return list(after[:3])


@_compiled.in_eager_mode
def dynamic_step(tensors, *constants):
    """`dynamic` of [scale, good_steps, delay if there is one, finite, multiplier]."""
    scale, good_steps, *delay, finite, multiplier = tensors
    state = State(scale, good_steps, None, *delay)
    increment_period, *others = constants
    after = dynamic(state, finite, increment_period, multiplier, *others)
    return [after.scale, after.good_steps] + [after.delay] * len(delay)
