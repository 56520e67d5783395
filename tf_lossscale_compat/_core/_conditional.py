"""The conditional of a step in a graph: it applies the gradients, or skips them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from tf_lossscale_compat._core import _graphs, _replicas, _variables
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _adapter, _types


def apply_or_skip(
    should_apply: bool | tf.Tensor,
    apply: Callable[[], tf.Operation],
    skip: Callable[[], list[tf.Operation]],
    adapter: _adapter.OptimizerAdapter,
    variables: _types.Variables,
) -> list[tf.Operation | tf.Tensor]:
    """Builds the conditional, and what counts a skipped step.

    Args:
      should_apply: bool, for a step without a conditional, or bool scalar tensor.
      apply: function that builds the branch that applies the gradients to `variables`.
      skip: function that builds the other branch, but for the count.
      adapter: the step's `OptimizerAdapter`.
      variables: list of variables.

    Returns:
      A list of operations and tensors that have to run. The first is the conditional, or without
      one, what the branch returned.
    """

    def count(number: int | tf.Tensor) -> Any:
        return _replicas.local_results(adapter.add_skipped_steps(number))

    def skip_and_count() -> tf.Operation:
        done = skip()
        if adapter.counts_skipped:
            done = [count(1), *done]
        return _graphs.as_operation([op for op in done if op is not None])

    if isinstance(should_apply, bool):
        return [apply() if should_apply else skip_and_count()]
    if not _graphs.compiled_by_xla():
        return [adapter.cond(should_apply, apply, skip_and_count)]
    # XLA keeps the conditional only if the branch that skips does nothing, so the count is outside.
    if _should_select(adapter.wrapped, variables):
        done = adapter.cond(
            should_apply,
            lambda: _flag_after([apply()], True),
            lambda: _flag_after(skip(), False),
        )
    else:
        done = adapter.cond(should_apply, apply, lambda: _graphs.as_operation(skip()))
    if not adapter.counts_skipped:
        return [done]
    with tf.control_dependencies([done]):
        counted = count(tf.cast(tf.logical_not(should_apply), tf.int32))
        return [done, _graphs.as_operation(counted)]


def _flag_after(done: list[tf.Operation], flag: bool) -> tf.Tensor:
    with tf.control_dependencies(done):
        return tf.constant(flag)


def _should_select(wrapped: object, variables: _types.Variables) -> bool:
    """Returns whether XLA should select instead of branching.

    If both branches of a conditional do something, XLA computes both and then selects each
    variable's value. Selections fuse with the operations around them, but read and write every
    variable in full. For an optimizer with slots, such as Adam's moments, that costs more than it
    saves. XLA always keeps the conditional around a sparse gradient's update.
    """
    try:
        slots, weights = [
            sum(tf.TensorShape(variable.shape).num_elements() or 0 for variable in group)
            for group in (_variables.variables_of(wrapped), variables)
        ]
    except Exception:  # Any object with `compute_gradients` and `apply_gradients` can be wrapped.
        return False
    return slots < weights
