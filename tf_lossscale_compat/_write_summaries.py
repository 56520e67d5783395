"""Summaries written by a training loop of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_lossscale_compat import _monitor, _replicas, _summaries, _tf

if TYPE_CHECKING:
    from tf_lossscale_compat import _types
    from tf_lossscale_compat._step_record import StepRecord

tf = _tf.tf
tf1 = _tf.tf1


def _is_first_replica():
    if not _replicas.in_replica_context():
        return True
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    if not isinstance(number, int):
        number = tf.get_static_value(number)
    return not number


def _metadata():
    # What TensorBoard's own `tf.summary.scalar` says, which is not there without TensorBoard.
    metadata = tf1.SummaryMetadata(
        plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="scalars")
    )
    if hasattr(metadata, "data_class"):
        metadata.data_class = 1  # DATA_CLASS_SCALAR
    return metadata


def _write(by_tag, step):
    """Writes to the default writer; returns whether it did, a bool scalar tensor."""
    metadata = _metadata()
    with tf1.name_scope("loss_scale_summaries"):
        done = [
            tf.compat.v2.summary.write(tag, tf.cast(value, tf.float32), step, metadata)
            for tag, value in by_tag.items()
        ]
        return tf.reduce_all(tf.stack(done))


class _Loop:
    """The state of a record's summaries from one call to the next.

    Attributes:
      monitor: `_monitor.Monitor`.
      with_bounds: set of the writers that have been given the bounds; the default one, which may be
        another each time, is given them with each point.
    """

    def __init__(self, record, now):
        self.monitor, self.with_bounds = _monitor.Monitor(record), set()
        # Of what came before the first call, those skipped just now are still news.
        self.monitor.begin(now, told_of=now.skipped - now.consecutive)


def _serialized(record, bounds):
    """Returns a serialized `Summary`, a string tensor of a graph for a Session."""
    record._check_place()
    by_tag = {**_summaries.tagged(_summaries.tensors(record)), **bounds}
    values = [tf.cast(value, tf.float32) for value in by_tag.values()]
    return tf.raw_ops.ScalarSummary(tags=list(by_tag), values=tf.stack(values))


def _log(record, values, seconds):
    """Logs what is new in eager mode; returns the record's `_Loop`."""
    now = _summaries.reading(value.numpy() for value in values)
    loop = record.__dict__.get("_loop")
    if loop is None:
        loop = record.__dict__["_loop"] = _Loop(record, now)
    if loop.monitor.note(now, seconds):
        loop.with_bounds.clear()
    return loop


@_tf.do_not_convert
def write_summaries(
    record: StepRecord,
    step: Any = None,
    *,
    writer: Any = None,
    log_every_n_secs: _types.Real = 60,
) -> Any:
    """Writes a loss scale's summaries for TensorBoard, and logs, in a training loop of one's own.

    Call it after a step, as often as a point is wanted. It writes the loss scale, how many steps
    have been skipped and how many of the last in a row, all as float32 scalars whose tags begin
    with `loss_scale/`; and of a policy that has them the floor and the ceiling, in eager mode with
    the first point of a writer alone.

    In eager mode it also logs through `absl.logging`: skipped steps (WARNING), that the scale has
    come down to its floor (WARNING), that it has grown (DEBUG). It may be called in a
    `tf.function`, but for one that XLA compiles. With replicas, call it outside of `strategy.run`,
    or inside, where the first of them writes. In a graph for a Session it makes a summary for a
    writer of `tf.compat.v1.summary`; run it after the step, in a `Session.run` of its own.

    Args:
      record: `StepRecord`.
      step: integer, or a scalar integer tensor, where the point lies on the axis of steps; None for
        `record.steps`. In a graph for a Session it is for the writer to say.
      writer: `tf.summary.SummaryWriter`; None for the default one, without which nothing is
        written.
      log_every_n_secs: real number. Skipped steps are logged at most once in so many seconds, with
        how many there were since.

    Returns:
      In a graph for a Session a scalar string tensor, a serialized `Summary`; else None.

    Raises:
      TypeError: `record` is no `StepRecord`.
      ValueError: `log_every_n_secs` is no such number; or, in a graph for a Session, the record was
        made in another one, or `step` or `writer` is given.
    """
    _summaries.check_record(record)
    seconds = _monitor.seconds(log_every_n_secs)
    bounds = _summaries.bounds(record.policy())
    if _tf.in_plain_graph():
        if step is not None or writer is not None:
            raise ValueError(
                "step and writer must be None in a graph that a Session is to run: give what is "
                "returned to the add_summary of a tf.compat.v1.summary.FileWriter, and the step."
            )
        return _serialized(record, bounds)
    if not _is_first_replica():
        return None
    values = _summaries.tensors(record)
    loop = _log(record, values, seconds) if tf.executing_eagerly() else None
    if not _summaries.writes_here(record):
        return None
    by_tag = _summaries.tagged(values)
    # What a function does is done at each of its calls.
    with_bounds = loop is None or writer not in loop.with_bounds
    if with_bounds:
        by_tag.update(bounds)
    step = tf.cast(values.steps if step is None else step, tf.int64)
    if writer is None:
        done = _write(by_tag, step)
    else:
        with writer.as_default():
            done = _write(by_tag, step)
    if loop is not None and with_bounds and bool(done) and writer is not None:
        loop.with_bounds.add(writer)
    return None
