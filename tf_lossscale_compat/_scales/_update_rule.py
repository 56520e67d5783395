"""The update rules of loss scales, as assignments to their variables.

A rule assigns only the variables that a step changes: a finite step that does not grow the scale
adds one to a counter and assigns nothing. Parallel steps, in one `session.run`, in threads or on
workers, therefore lose no more of each other's updates than with TensorFlow's classes.

All copies of a variable get the same update, in each mode (graph, eager, `tf.function`) and under
each strategy, inside or outside of its scope.

A rule takes the loss scale or manager, and a bool scalar tensor: True if this step's gradients are
finite everywhere. In eager mode it assigns immediately and returns None; in a graph it returns an
operation or a tensor that assigns. Source: Micikevicius et al. 2018, "Mixed Precision Training",
section 3.2, with the details of TensorFlow r1.15 (`exponential`) and r2.0 (`dynamic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence

from tf_lossscale_compat._core import _graphs, _replicas, _variables
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from typing import Protocol

    class ExponentialState(Protocol):
        """An `ExponentialUpdateLossScaleManager`, as its rule uses it."""

        # Public programs assign variables and numbers of their own.
        _loss_scale: Any
        _num_good_steps: Any
        _num_bad_steps: Any
        _incr_every_n_steps: Any
        _decr_every_n_nan_or_inf: Any
        _incr_ratio: Any
        _decr_ratio: Any

    class DynamicState(Protocol):
        """A `DynamicLossScale`, as its rule uses it."""

        _current_loss_scale: tf.Variable
        _num_good_steps: tf.Variable
        _increment_period: int
        _multiplier: float
        min_loss_scale: float
        max_loss_scale: float | None


def fixed(loss_scale: object, finite: Any) -> Any:
    """Changes nothing; returns a no-op in a graph."""
    return _graphs.as_operation(None)


def exponential(manager: ExponentialState, finite: Any) -> Any:
    """Takes one step of r1.15's rule, see `ExponentialUpdateLossScaleManager`."""
    scale, good, bad = manager._loss_scale, manager._num_good_steps, manager._num_bad_steps

    def reset_counters() -> Any:
        return [_assign(good, 0), _assign(bad, 0)]

    def grow() -> Any:
        return [_grow(scale, manager._incr_ratio), *reset_counters()]

    def shrink() -> Any:
        # 1.0 comes first: only in this order a NaN scale becomes 1, as in TensorFlow 1.15.
        lowered = tf.maximum(1.0, _read_here(scale) * manager._decr_ratio)
        return [_assign(scale, lowered), *reset_counters()]

    def grow_or_count() -> Any:
        grows = _reaches(good, manager._incr_every_n_steps)
        return _branch(grows, grow, lambda: _add(good, 1))

    def count_bad() -> Any:
        return [_add(bad, 1), _assign(good, 0)]

    def shrink_or_count() -> Any:
        shrinks = _reaches(bad, manager._decr_every_n_nan_or_inf)
        return _branch(shrinks, shrink, count_bad)

    return _update([scale, good, bad], lambda: _branch(finite, grow_or_count, shrink_or_count))


def dynamic(loss_scale: DynamicState, finite: Any) -> Any:
    """Takes one step of r2.0's rule with bounds, see `DynamicLossScale`.

    In a graph it returns a tensor, as in r2.0: public programs call `tf.identity` on it.
    """
    scale, good = loss_scale._current_loss_scale, loss_scale._num_good_steps
    ceiling = loss_scale.max_loss_scale  # Perhaps None.

    def grow() -> Any:
        return [_grow(scale, loss_scale._multiplier, ceiling), _assign(good, 0)]

    def shrink() -> Any:
        reset = _assign(good, 0)
        # Divides, because multiplication by the reciprocal rounds differently.
        lowered = _read_here(scale) / loss_scale._multiplier
        lowered = tf.maximum(lowered, loss_scale.min_loss_scale)
        # A multiplier below 1 raises the scale here.
        lowered = lowered if ceiling is None else tf.minimum(lowered, ceiling)
        return [reset, _assign(scale, lowered)]

    def grow_or_count() -> Any:
        grows = _reaches(good, loss_scale._increment_period)
        return _branch(grows, grow, lambda: _add(good, 1))

    return _update([scale, good], lambda: _branch(finite, grow_or_count, shrink))


def reset(counters: Sequence[tf.Variable]) -> tf.Operation | tf.Tensor | None:
    """Sets counters to zero; returns an operation or a tensor, None in eager mode."""
    return _update(counters, lambda: [_assign(each, 0) for each in counters])


def _grow(scale: Any, ratio: Any, ceiling: float | None = None) -> Any:
    """Multiplies the loss scale by `ratio`, unless the product is not finite."""
    grown = _read_here(scale) * ratio
    bounded = grown if ceiling is None else tf.minimum(grown, ceiling)
    return _branch(tf.math.is_finite(grown), lambda: _assign(scale, bounded), lambda: None)


def _read_here(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of `variable` at this point of the graph."""
    if tf.distribute.has_strategy():
        return tf.identity(variable)
    if not tf.executing_eagerly() and _variables.is_reference(variable):
        return variable.read_value()  # Converting it returns an earlier read.
    return tf.convert_to_tensor(variable)


def _reaches(counter: tf.Variable, number: Any) -> bool | tf.Tensor:
    """Returns whether one more step makes `counter` at least `number`."""
    value = _read_here(counter)
    # In eager mode Python adds and compares, because two operations take longer.
    return (int(value) if tf.executing_eagerly() else value) + 1 >= number


def _assign(variable: tf.Variable, value: float | tf.Tensor) -> Any:
    """Assigns `value` to each copy of `variable`; returns the assignments of a graph."""
    return _replicas.local_results(variable.assign(value, read_value=False))


def _add(variable: tf.Variable, number: float | tf.Tensor) -> Any:
    """Adds `number` to each copy of `variable` in one operation, so that parallel steps all count.

    Returns:
      The assignments of a graph.
    """
    # Without the lock of a reference variable, threads overwrite each other's additions.
    added = variable.assign_add(number, use_locking=True, read_value=False)
    return _replicas.local_results(added)


def _branch(pred: bool | tf.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Runs one of two functions that assign, chosen by a bool or a scalar bool tensor.

    Returns:
      The conditional of a graph; in eager mode the function's result.
    """
    if tf.executing_eagerly():
        return true_fn() if pred else false_fn()
    return tf1.cond(pred, lambda: _grouped(true_fn()), lambda: _grouped(false_fn()))


def _grouped(assigned: Any) -> tf.Operation | tf.Tensor:
    """Returns one operation or tensor for a graph's assignments."""
    if isinstance(assigned, (tf.Operation, tf.Tensor)):
        return assigned
    return tf.group(*[each for each in tf.nest.flatten(assigned) if each is not None])


def _check_copies(variables: Iterable[tf.Variable]) -> None:
    """Raises a ValueError if several replicas would each update the same variable."""
    strategy = tf.distribute.get_strategy()
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable):
            raise ValueError(
                f"{variable.name} was made outside strategy.scope() and is not mirrored. Make the "
                "loss scale or its manager under strategy.scope()."
            )


def _update(
    variables: Sequence[tf.Variable], change: Callable[[], Any]
) -> tf.Operation | tf.Tensor | None:
    """Runs `change`, a function that assigns to some of `variables`, for all their copies.

    Returns:
      An operation or a tensor; None in eager mode.
    """
    with _replicas.scope_of(variables):
        if _replicas.in_replica_context():
            _check_copies(variables)
        changed = change()
        return None if tf.executing_eagerly() else _grouped(changed)
