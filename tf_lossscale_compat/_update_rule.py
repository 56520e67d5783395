"""The rule that moves a dynamic loss scale: (state, finite) -> state.

Pure arithmetic on tensors, by selection instead of branches, so that the same few ops serve a
graph, eager execution, `tf.function`, XLA and any replica. Source: Micikevicius et al. 2018,
"Mixed Precision Training", section 3.2, with the details of TensorFlow r1.15 (`exponential`) and
r2.0 (`dynamic`).
"""

from typing import Any, NamedTuple

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


def _growth(scale, ratio, grows):
    """What to multiply `scale` with: `ratio` where it grows and the product is finite, else 1.

    The product is looked at 2**-64 times as large: one that overflows, even if it were not used,
    would be an error under `tf.debugging.enable_check_numerics`.
    """
    ratio = tf.convert_to_tensor(ratio, scale.dtype)
    fits = scale * 2.0**-64 * ratio <= float(scale.dtype.max) * 2.0**-64
    return _select(tf.logical_and(grows, fits), ratio, tf.ones_like(ratio))


def exponential(state, finite, incr_every, decr_every, incr_ratio, decr_ratio):
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

    Returns:
      The next `State`.
    """
    # One counter counts in each step, and is held against its own period.
    zero = tf.zeros_like(state.good_steps)
    steps = _select(finite, state.good_steps, state.bad_steps) + 1
    moves = steps >= _select(finite, incr_every, decr_every)
    steps = _select(moves, zero, steps)
    lowered = tf.maximum(state.scale * decr_ratio, 1.0)
    grown = state.scale * _growth(state.scale, incr_ratio, finite)
    return State(
        scale=_select(moves, _select(finite, grown, lowered), state.scale),
        good_steps=_select(finite, steps, zero),
        bad_steps=_select(finite, _select(moves, zero, state.bad_steps), steps),
    )


def dynamic(
    state, finite, increment_period, multiplier, min_scale=1.0, max_scale=None, hysteresis=1
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
      min_scale: Python float, the floor.
      max_scale: Python float, or None for no ceiling.
      hysteresis: Python int, what growth sets `delay` to.

    Returns:
      The next `State`, its `bad_steps` None.
    """
    good = state.good_steps + 1
    grows = tf.logical_and(finite, good >= increment_period)
    grown = state.scale * _growth(state.scale, multiplier, grows)
    # Division, not multiplication by the reciprocal, which rounds differently.
    lowered = tf.maximum(state.scale / multiplier, min_scale)
    if max_scale is not None:
        # Either may be the one that raises the scale, as a multiplier may be below 1.
        grown = _select(grows, tf.minimum(grown, max_scale), grown)
        lowered = tf.minimum(lowered, max_scale)
    delay = state.delay
    if delay is not None:
        waits = delay > 1
        lowered = _select(waits, state.scale, lowered)
        after_skip = tf.maximum(delay - 1, 1)
        delay = _select(
            finite, _select(grows, tf.constant(hysteresis, delay.dtype), delay), after_skip
        )
    return State(
        scale=_select(finite, grown, lowered),
        good_steps=_select(
            tf.logical_and(finite, tf.logical_not(grows)), good, tf.zeros_like(good)
        ),
        delay=delay,
    )


# The same as functions of tensors. Ratios are among the tensors: where they are constants of a
# function, TensorFlow turns division by one into multiplication by its reciprocal.


@_compiled.in_eager_mode
def exponential_step(tensors, incr_every, decr_every):
    """`exponential` of [scale, good_steps, bad_steps, finite, incr_ratio, decr_ratio]."""
    *state, finite, incr_ratio, decr_ratio = tensors
    state = State(*state)
    return list(exponential(state, finite, incr_every, decr_every, incr_ratio, decr_ratio)[:3])


@_compiled.in_eager_mode
def dynamic_step(tensors, increment_period, min_scale, max_scale, hysteresis):
    """`dynamic` of [scale, good_steps, delay if there is one, finite, multiplier]."""
    scale, good_steps, *delay, finite, multiplier = tensors
    state = State(scale, good_steps, None, *delay)
    after = dynamic(state, finite, increment_period, multiplier, min_scale, max_scale, hysteresis)
    return [after.scale, after.good_steps] + [after.delay] * len(delay)
