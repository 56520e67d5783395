"""Summaries of a loss scale for TensorBoard."""

import collections
import numbers
import time
import weakref

import numpy as np

from tf_lossscale_compat import _policy, _replicas, _summary_tags, _tf
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
        _policy.scale(record.policy()),
    )


def reading(values):
    """A `Reading` of arrays, as one of numbers."""
    *counts, scale = values
    return Reading(*map(int, counts), float(scale))


def read_eagerly(record):
    """What a record says now, a `Reading`; in eager mode."""
    return reading(tensor.numpy() for tensor in tensors(record))


def bounds(policy):
    """The bounds that a policy keeps its scale in, a dict from tags to floats."""
    floor = getattr(policy, "min_loss_scale", None)
    if floor is None and isinstance(policy, lsm.ExponentialUpdateLossScaleManager):
        floor = 1.0  # Of the rule that it follows.
    known = {
        _summary_tags.FLOOR: floor,
        _summary_tags.CEILING: getattr(policy, "max_loss_scale", None),
    }
    # A user's policy may have something else under these names.
    return {
        tag: float(value)
        for tag, value in known.items()
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and np.isfinite(value)
    }


def _of(values):
    """From tags to what is written under them; of a `Reading` of numbers or of tensors."""
    return dict(zip(_TAGS, (values.skipped, values.consecutive, values.scale)))


def proto(values, policy=None):
    """A `tf.compat.v1.Summary` of a `Reading`, and of the bounds of `policy`."""
    tagged = _of(values)
    if policy is not None:
        tagged.update(bounds(policy))
    return tf1.Summary(
        value=[tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in tagged.items()]
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


def _is_first_replica():
    if not _replicas.in_replica_context():
        return True
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    if not isinstance(number, int):
        number = tf.get_static_value(number)
    return not number


# What has been written of which record: the writers, None for the default one, that have its
# bounds, and the steps at that.
_written: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


class _Written:
    def __init__(self):
        self.bounds_in, self.steps = set(), -1


def _metadata():
    # What TensorBoard's own `tf.summary.scalar` says, which is not there without TensorBoard.
    metadata = tf1.SummaryMetadata(
        plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="scalars")
    )
    if hasattr(metadata, "data_class"):
        metadata.data_class = 1  # DATA_CLASS_SCALAR
    return metadata


def _write(tagged, step):
    """Writes to the default writer; returns whether it did, a bool scalar tensor."""
    metadata = _metadata()
    with tf1.name_scope("loss_scale_summaries"):
        done = [
            tf.compat.v2.summary.write(tag, tf.cast(value, tf.float32), step, metadata)
            for tag, value in tagged.items()
        ]
        return tf.reduce_all(tf.stack(done))


@_tf.do_not_convert
def write_summaries(record, step=None, *, writer=None):
    """Writes a loss scale's summaries for TensorBoard, in a training loop of one's own.

    Call it after a step, as often as a point is wanted. It writes the loss scale, how many steps
    have been skipped and how many of the last in a row, all as float32 scalars whose tags begin
    with `loss_scale/`; and of a policy that has them the floor and the ceiling, in eager mode with
    the first point of a writer alone.

    In eager mode or in a `tf.function` (not one that XLA compiles) it writes to `writer`. With
    replicas, call it outside of `strategy.run`, or inside, where the first of them writes. In a
    graph for a Session it makes a summary for a writer of `tf.compat.v1.summary`; run it after the
    step, in a call of `Session.run` of its own.

    Args:
      record: `StepRecord`.
      step: integer, or a scalar integer tensor, where the point lies on the axis of steps; None for
        `record.steps`. In a graph for a Session it is for the writer to say.
      writer: `tf.summary.SummaryWriter`; None for the default one, without which nothing is
        written.

    Returns:
      In a graph for a Session a scalar string tensor, a serialized `Summary`; else None.

    Raises:
      TypeError: `record` is no `StepRecord`.
      ValueError: in a graph for a Session, it was made in another one, or `step` or `writer` is
        given.
    """
    check_record(record)
    policy = record.policy()
    if _tf.in_plain_graph():
        if step is not None or writer is not None:
            raise ValueError(
                "step and writer must be None in a graph that a Session is to run: give what is "
                "returned to the add_summary of a tf.compat.v1.summary.FileWriter, and the step."
            )
        record.check_place()
        tagged = {**_of(tensors(record)), **bounds(policy)}
        values = [tf.cast(value, tf.float32) for value in tagged.values()]
        return tf.raw_ops.ScalarSummary(tags=list(tagged), values=tf.stack(values))
    if not _is_first_replica() or not writes_here(record):
        return None
    values = tensors(record)
    tagged = _of(values)
    step = tf.cast(values.steps if step is None else step, tf.int64)
    eager = tf.executing_eagerly()
    written = _written.setdefault(record, _Written())
    # Steps that have gone back are of a checkpoint that was restored.
    if eager and int(values.steps) < written.steps:
        written.bounds_in.clear()
    # What a function does is done at each of its calls.
    with_bounds = not eager or writer not in written.bounds_in
    if with_bounds:
        tagged.update(bounds(policy))
    if writer is None:
        done = _write(tagged, step)
    else:
        with writer.as_default():
            done = _write(tagged, step)
    if eager and bool(done):
        written.steps = int(values.steps)
        if with_bounds:
            written.bounds_in.add(writer)
    return None
