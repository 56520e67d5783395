"""Loss scales and `tf.compat.v1.train.SyncReplicasOptimizer`, which waits for all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from tf_lossscale_compat._core import _graphs, _wrapping
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def check_not_wrapped(optimizer: _types.HasApplyGradients) -> None:
    """Raises a ValueError if SyncReplicasOptimizer is wrapped: its steps must not be skipped."""
    sync = tf1.train.SyncReplicasOptimizer
    if any(isinstance(each, sync) for each in _wrapping.optimizer_chain(optimizer)):
        raise ValueError(
            "A loss scale around SyncReplicasOptimizer would let one worker skip a step while the "
            "others wait for its gradients forever. Write the other order, "
            "SyncReplicasOptimizer(LossScaleOptimizer(opt, ...), ...), which skips the whole step."
        )


def _source_accumulators(tensors: Sequence[_types.Gradient]) -> set[tf.Operation]:
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
    train_op: tf.Operation,
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
        return train_op
    names = {f"{variable.name}/grad_accum".encode() for variable in variables}
    accumulators = [
        op
        for op in tf1.get_default_graph().get_operations()
        if op.type.endswith("ConditionalAccumulator") and op.get_attr("shared_name") in names
    ]
    if not accumulators:  # As in most graphs, which then need no search.
        return train_op
    sources = _source_accumulators(grads)
    ops = [train_op]
    for accumulator in accumulators:
        if accumulator not in sources:
            continue
        prefix = "Resource" if accumulator.type.startswith("Resource") else ""
        set_global_step = getattr(tf.raw_ops, f"{prefix}AccumulatorSetGlobalStep")
        with tf.control_dependencies([train_op]), tf1.device(accumulator.device):
            current_step = tf.cast(global_step.read_value(), tf.int64)
            ops.append(set_global_step(handle=accumulator.outputs[0], new_global_step=current_step))
    return tf.group(*ops) if len(ops) > 1 else train_op
