"""The update rules of dynamic loss scales, as assignments to their variables.

A rule assigns only the variables that a step changes: a finite step adds one to a counter and does
not assign the scale. Parallel steps, in one `session.run`, in threads or on workers, therefore lose
no more of each other's updates than with TensorFlow's classes.

In eager mode each function assigns immediately; in a graph it returns the assignments. Source:
Micikevicius et al. 2018, "Mixed Precision Training", section 3.2, with the details of TensorFlow
r1.15 (`exponential`) and r2.0 (`dynamic`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tf_lossscale_compat._core import _state
from tf_lossscale_compat._core._tf import tf


class State(NamedTuple):
    """Variables: the loss scale (float32) and counters of steps (integers), all scalars.

    `bad_steps` and `delay` are None if the rule does not count them.
    """

    scale: Any
    good_steps: Any
    bad_steps: Any = None
    delay: Any = None


def fixed(loss_scale: object, finite: Any) -> Any:
    """Changes nothing; returns a no-op in a graph, None in eager mode."""
    return None if tf.executing_eagerly() else tf.no_op()


def exponential(
    state: State,
    finite: Any,
    incr_every: int,
    decr_every: int,
    incr_ratio: float,
    decr_ratio: float,
) -> Any:
    """Takes one step of r1.15's rule, see `ExponentialUpdateLossScaleManager`.

    Args:
      state: `State` with both counters.
      finite: bool scalar tensor, True if this step's gradients are finite everywhere.
      incr_every: the number of finite steps that it takes to grow.
      decr_every: the number of non-finite steps that it takes to shrink.
      incr_ratio: the factor of growth.
      decr_ratio: the factor of shrinking.
    """
    scale, good, bad, _ = state

    def reset() -> Any:
        return [_state.assign(good, 0), _state.assign(bad, 0)]

    def grow() -> Any:
        return [_grow(scale, incr_ratio), *reset()]

    def shrink() -> Any:
        # 1.0 comes first: only in this order a NaN scale becomes 1, as in TensorFlow 1.15.
        return [_state.assign(scale, tf.maximum(1.0, _state.value(scale) * decr_ratio)), *reset()]

    def count_good() -> Any:
        return _state.add(good, 1)

    def count_bad() -> Any:
        return [_state.add(bad, 1), _state.assign(good, 0)]

    return _state.branch(
        finite,
        lambda: _state.branch(_state.value(good) + 1 >= incr_every, grow, count_good),
        lambda: _state.branch(_state.value(bad) + 1 >= decr_every, shrink, count_bad),
    )


def dynamic(
    state: State,
    finite: Any,
    increment_period: int,
    multiplier: float,
    min_scale: float = 1.0,
    max_scale: float | None = None,
    hysteresis: int = 1,
) -> Any:
    """Takes one step of r2.0's rule with bounds and hysteresis, see `DynamicLossScale`.

    Args:
      state: `State`; its `delay` may be None if `hysteresis` is 1.
      finite: bool scalar tensor, True if this step's gradients are finite everywhere.
      increment_period: the number of finite steps that it takes to grow.
      multiplier: the factor of growth, and the divisor of shrinking.
      min_scale: the lower bound.
      max_scale: the upper bound, or None.
      hysteresis: the value to which growth sets `delay`.
    """
    scale, good, _, delay = state

    def grow() -> Any:
        grown = [_grow(scale, multiplier, max_scale), _state.assign(good, 0)]
        return grown if delay is None else [*grown, _state.assign(delay, hysteresis)]

    def lower() -> Any:
        # Divides, because multiplication by the reciprocal rounds differently.
        lowered = tf.maximum(_state.value(scale) / multiplier, min_scale)
        # A multiplier below 1 raises the scale here.
        return _state.assign(
            scale, lowered if max_scale is None else tf.minimum(lowered, max_scale)
        )

    def shrink() -> Any:
        if delay is None:
            return [_state.assign(good, 0), lower()]
        lowered = _state.branch(_state.value(delay) > 1, lambda: _state.add(delay, -1), lower)
        return [_state.assign(good, 0), lowered]

    def grow_or_count() -> Any:
        return _state.branch(
            _state.value(good) + 1 >= increment_period, grow, lambda: _state.add(good, 1)
        )

    return _state.branch(finite, grow_or_count, shrink)


def _grow(scale: Any, ratio: Any, ceiling: float | None = None) -> Any:
    """Multiplies the loss scale by `ratio`, unless the product is not finite."""
    grown = _state.value(scale) * ratio
    bounded = grown if ceiling is None else tf.minimum(grown, ceiling)
    return _state.branch(
        tf.math.is_finite(grown), lambda: _state.assign(scale, bounded), lambda: None
    )
