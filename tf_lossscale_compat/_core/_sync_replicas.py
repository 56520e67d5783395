"""Loss scales and `tf.compat.v1.train.SyncReplicasOptimizer`, which waits for all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from tf_lossscale_compat._core import _graphs, _wrapping
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def check_order(optimizer: _types.HasApplyGradients) -> None:
    """Raises a ValueError if SyncReplicasOptimizer is wrapped: its steps must not be skipped."""
    sync = tf1.train.SyncReplicasOptimizer
    if any(isinstance(each, sync) for each in _wrapping.with_wrapped(optimizer)):
        raise ValueError(
            "A loss scale around SyncReplicasOptimizer would let one worker skip a step while the "
            "others wait for its gradients forever. Write the other order, "
            "SyncReplicasOptimizer(LossScaleOptimizer(opt, ...), ...), which skips the whole step."
        )


def _sources(tensors: Sequence[_types.Gradient]) -> set[tf.Operation]:
    """Returns the set of accumulators from which a graph's tensors are computed."""
    seen, found = set(), set()
    ops = [
        part.op
        for each in tensors
        if each is not None
        for part in tf.nest.flatten(each, expand_composites=True)
    ]
    while ops:
        op = ops.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type.endswith("AccumulatorTakeGradient"):
            found.add(op.inputs[0].op)
        else:
            ops += [tensor.op for tensor in op.inputs]
    return found


def reopen_accumulators(
    step: tf.Operation,
    grads: Sequence[_types.Gradient],
    variables: Sequence[tf.Variable],
    global_step: tf.Variable | None,
) -> tf.Operation:
    """Returns a step after which SyncReplicasOptimizer's accumulators are at the global step.

    An accumulator counts each step that empties it. After a skipped step it is ahead of the global
    step. It would drop all later gradients as stale, while the workers wait. The accumulators are
    found by the names of `variables`.
    """
    if global_step is None or not _graphs.in_session_graph():
        return step
    names = {f"{variable.name}/grad_accum".encode() for variable in variables}
    accumulators = [
        op
        for op in tf1.get_default_graph().get_operations()
        if op.type.endswith("ConditionalAccumulator") and op.get_attr("shared_name") in names
    ]
    if not accumulators:  # As in most graphs, which then need no search.
        return step
    sources = _sources(grads)
    done = [step]
    for accumulator in accumulators:
        if accumulator not in sources:
            continue
        prefix = "Resource" if accumulator.type.startswith("Resource") else ""
        put = getattr(tf.raw_ops, f"{prefix}AccumulatorSetGlobalStep")
        with tf.control_dependencies([step]), tf1.device(accumulator.device):
            now = tf.cast(global_step.read_value(), tf.int64)
            done.append(put(handle=accumulator.outputs[0], new_global_step=now))
    return tf.group(*done) if len(done) > 1 else step
