"""The update rules of loss scales, as assignments to their variables.

A rule assigns only the variables that a step changes: a finite step adds one to a counter and does
not assign the scale. Parallel steps, in one `session.run`, in threads or on workers, therefore lose
no more of each other's updates than with TensorFlow's classes.

A rule takes the loss scale or manager, and a bool scalar tensor: True if this step's gradients are
finite everywhere. In eager mode it assigns immediately and returns None; in a graph it returns an
operation or a tensor that assigns. Source: Micikevicius et al. 2018, "Mixed Precision Training",
section 3.2, with the details of TensorFlow r1.15 (`exponential`) and r2.0 (`dynamic`).
"""

from __future__ import annotations

from typing import Any

from tf_lossscale_compat._core import _graphs, _state
from tf_lossscale_compat._core._tf import tf


def fixed(loss_scale: object, finite: Any) -> Any:
    """Changes nothing; returns a no-op in a graph."""
    return _graphs.as_operation(None)


def exponential(manager: Any, finite: Any) -> Any:
    """Takes one step of r1.15's rule, see `ExponentialUpdateLossScaleManager`."""
    scale, good, bad = manager._loss_scale, manager._num_good_steps, manager._num_bad_steps

    def reset() -> Any:
        return [_state.assign(good, 0), _state.assign(bad, 0)]

    def grow() -> Any:
        return [_grow(scale, manager._incr_ratio), *reset()]

    def shrink() -> Any:
        # 1.0 comes first: only in this order a NaN scale becomes 1, as in TensorFlow 1.15.
        lowered = tf.maximum(1.0, _state.read_here(scale) * manager._decr_ratio)
        return [_state.assign(scale, lowered), *reset()]

    def grow_or_count() -> Any:
        grows = _state.reaches(good, manager._incr_every_n_steps)
        return _state.branch(grows, grow, lambda: _state.add(good, 1))

    def count_bad() -> Any:
        return [_state.add(bad, 1), _state.assign(good, 0)]

    def shrink_or_count() -> Any:
        shrinks = _state.reaches(bad, manager._decr_every_n_nan_or_inf)
        return _state.branch(shrinks, shrink, count_bad)

    return _state.update(
        [scale, good, bad], lambda: _state.branch(finite, grow_or_count, shrink_or_count)
    )


def dynamic(loss_scale: Any, finite: Any) -> Any:
    """Takes one step of r2.0's rule with bounds and hysteresis, see `DynamicLossScale`.

    In a graph it returns a tensor, as in r2.0: public programs call `tf.identity` on it.
    """
    scale, good = loss_scale._current_loss_scale, loss_scale._num_good_steps
    delay, ceiling = loss_scale.shrink_delay, loss_scale.max_loss_scale  # Perhaps None.

    def grow() -> Any:
        grown = [_grow(scale, loss_scale._multiplier, ceiling), _state.assign(good, 0)]
        return grown if delay is None else [*grown, _state.assign(delay, loss_scale.hysteresis)]

    def lower() -> Any:
        # Divides, because multiplication by the reciprocal rounds differently.
        lowered = _state.read_here(scale) / loss_scale._multiplier
        lowered = tf.maximum(lowered, loss_scale.min_loss_scale)
        # A multiplier below 1 raises the scale here.
        return _state.assign(scale, lowered if ceiling is None else tf.minimum(lowered, ceiling))

    def shrink() -> Any:
        if delay is None:
            return [_state.assign(good, 0), lower()]
        lowered = _state.branch(_state.read_here(delay) > 1, lambda: _state.add(delay, -1), lower)
        return [_state.assign(good, 0), lowered]

    def grow_or_count() -> Any:
        grows = _state.reaches(good, loss_scale._increment_period)
        return _state.branch(grows, grow, lambda: _state.add(good, 1))

    variables = [scale, good] if delay is None else [scale, good, delay]
    return _state.update(variables, lambda: _state.branch(finite, grow_or_count, shrink))


def _grow(scale: Any, ratio: Any, ceiling: float | None = None) -> Any:
    """Multiplies the loss scale by `ratio`, unless the product is not finite."""
    grown = _state.read_here(scale) * ratio
    bounded = grown if ceiling is None else tf.minimum(grown, ceiling)
    return _state.branch(
        tf.math.is_finite(grown), lambda: _state.assign(scale, bounded), lambda: None
    )
