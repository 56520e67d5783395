"""Summaries of a loss scale for TensorBoard."""

from __future__ import annotations

import numbers
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tf_lossscale_compat._core import _graphs, _scaler
from tf_lossscale_compat._core._tf import tf, tf1
from tf_lossscale_compat._scales import _managers

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._core._step_record import StepRecord

# Tags in TensorBoard.
SCALE = "loss_scale/scale"
SKIPPED_STEPS = "loss_scale/skipped_steps"  # The running total, a whole number.
CONSECUTIVE_SKIPS = "loss_scale/consecutive_skips"
# Not written if there is no such bound.
FLOOR = "loss_scale/floor"
CEILING = "loss_scale/ceiling"
TAGS = (SCALE, SKIPPED_STEPS, CONSECUTIVE_SKIPS, FLOOR, CEILING)


class Reading(NamedTuple):
    """Values of a record at one moment: three integers, and the loss scale; or their tensors."""

    steps: Any
    skipped_steps: Any
    consecutive_skips: Any
    scale: Any


def tensors(record: StepRecord) -> Reading:
    """Returns the values of a record as a `Reading` of scalar tensors, in any context."""
    scaler = _scaler.Scaler(record.loss_scale)
    # A hook may begin again in a graph that is finalized.
    scale = _graphs.once_per_graph(scaler.loss_scale, lambda: _scaler.snapshot(scaler.read()))
    return Reading(record.steps, record.skipped_steps, record.consecutive_skips, scale)


def bounds(loss_scale: _types.LossScaleOrManager) -> dict[str, float]:
    """Returns the bounds of a loss scale, a dict from tags to floats."""
    floor = getattr(loss_scale, "min_loss_scale", None)
    if floor is None and isinstance(loss_scale, _managers.ExponentialUpdateLossScaleManager):
        floor = 1.0  # Part of the manager's update rule.
    ceiling = getattr(loss_scale, "max_loss_scale", None)
    limits: dict[str, Any] = {FLOOR: floor, CEILING: ceiling}
    # A user's class may have other values under these names.
    return {
        tag: float(value)
        for tag, value in limits.items()
        if not isinstance(value, bool) and isinstance(value, numbers.Real) and np.isfinite(value)
    }


def _by_tag(values: Reading, loss_scale: _types.LossScaleOrManager) -> dict[str, Any]:
    """Returns a dict from tags to the values of a `Reading` and the loss scale's bounds."""
    return {
        SKIPPED_STEPS: values.skipped_steps,
        CONSECUTIVE_SKIPS: values.consecutive_skips,
        SCALE: values.scale,
        **bounds(loss_scale),
    }


def proto(values: Reading, loss_scale: _types.LossScaleOrManager) -> Any:
    """Returns a `tf.compat.v1.Summary` of a `Reading` of numbers, and the loss scale's bounds."""
    items = _by_tag(values, loss_scale).items()
    return tf1.Summary(
        value=[tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in items]
    )


def serialized(record: StepRecord) -> tf.Tensor:
    """Returns a serialized `Summary` of a record, a scalar string tensor."""
    by_tag = _by_tag(tensors(record), record.loss_scale)
    values = [tf.cast(value, tf.float32) for value in by_tag.values()]
    return tf.raw_ops.ScalarSummary(tags=list(by_tag), values=tf.stack(values))


def file_writer(folder: str) -> Any:
    """Returns a `tf.compat.v1.summary.FileWriter`, also in eager mode."""
    # Two writers that are made in the same second would overwrite each other's file.
    suffix = f".{time.time_ns()}"
    with tf.Graph().as_default():  # FileWriter cannot be made in eager mode.
        return tf1.summary.FileWriter(folder, filename_suffix=suffix)


def this_process_writes(record: StepRecord) -> bool:
    """Returns whether this process of a strategy writes summaries."""
    for variable in [record._finite_steps]:
        strategy = getattr(variable, "distribute_strategy", None)
        if strategy is not None:
            return bool(strategy.extended.should_save_summary)
    return True
