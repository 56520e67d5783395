"""Summaries of a loss scale for TensorBoard."""

import collections
import numbers
import time
from typing import Any, Dict

import numpy as np

from tf_lossscale_compat import _scaler, _summary_tags, _tf
from tf_lossscale_compat import loss_scale_manager as lsm
from tf_lossscale_compat._step_record import StepRecord

tf = _tf.tf
tf1 = _tf.tf1

Reading = collections.namedtuple("Reading", ["steps", "skipped", "consecutive", "scale"])
Reading.__doc__ = """What a record said at one moment: three ints, and the loss scale, a float."""

_TAGS = (_summary_tags.SKIPPED_STEPS, _summary_tags.CONSECUTIVE_SKIPS, _summary_tags.SCALE)


def check_record(record):
    """Raises a TypeError where `record` is no `StepRecord`."""
    if not isinstance(record, StepRecord):
        raise TypeError(f"record must be a StepRecord, got {record!r}.")


def tensors(record):
    """The four values of a `Reading`, in any context, a `Reading` of scalar tensors."""
    return Reading(
        record.steps,
        record.skipped_steps,
        record.consecutive_skips,
        _scaler.scale(record.policy()),
    )


def reading(values):
    """A `Reading` of arrays, as one of numbers."""
    steps, skipped, consecutive, scale = values
    return Reading(int(steps), int(skipped), int(consecutive), float(scale))


def bounds(policy):
    """The bounds that a policy keeps its scale in, a dict from tags to floats."""
    floor = getattr(policy, "min_loss_scale", None)
    if floor is None and isinstance(policy, lsm.ExponentialUpdateLossScaleManager):
        floor = 1.0  # Of the rule that it follows.
    known: Dict[str, Any] = {
        _summary_tags.FLOOR: floor,
        _summary_tags.CEILING: getattr(policy, "max_loss_scale", None),
    }
    # A user's policy may have something else under these names.
    return {
        tag: float(value)
        for tag, value in known.items()
        if not isinstance(value, bool) and isinstance(value, numbers.Real) and np.isfinite(value)
    }


def tagged(values):
    """From tags to what is written under them; of a `Reading` of numbers or of tensors."""
    return dict(zip(_TAGS, (values.skipped, values.consecutive, values.scale)))


def proto(values, policy=None):
    """A `tf.compat.v1.Summary` of a `Reading`, and of the bounds of `policy`."""
    by_tag = {**tagged(values), **({} if policy is None else bounds(policy))}
    return tf1.Summary(
        value=[tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in by_tag.items()]
    )


def file_writer(folder):
    """A `tf.compat.v1.summary.FileWriter`, also in eager mode."""
    # Two that are made in the same second would write over each other's file.
    suffix = f".{time.time_ns()}"
    with tf.Graph().as_default():  # Which makes it without asking for eager mode's.
        return tf1.summary.FileWriter(folder, filename_suffix=suffix)


def writes_here(record):
    """Whether this process is the one to write summaries, of those that a strategy has."""
    for variable in record.variables():
        strategy = getattr(variable, "distribute_strategy", None)
        if strategy is not None:
            return bool(strategy.extended.should_save_summary)
    return True
