"""Carrying a loss scale from one checkpoint into another kind of loss scale."""

import pathlib
from typing import List, Optional

import tensorflow as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat import checkpoint
from tf_lossscale_compat.checkpoint import CheckpointError, LossScaleState, read

states: List[LossScaleState] = checkpoint.find(pathlib.Path("logs"))
try:
    state = read("model.ckpt-1000", key=states[0].key)
except CheckpointError as error:
    raise SystemExit(f"no loss scale: {error}") from error
scale: float = state.scale
good: int = state.good_steps
bad: Optional[int] = state.bad_steps
doubled = state._replace(scale=state.scale * 2)
made = LossScaleState(8.0, 0, None, "contrib by name", "loss_scale")
checkpoint.assign(made, lsc.DynamicLossScale())
with tf.compat.v1.Session() as session:
    checkpoint.assign(state, lsc.ExponentialUpdateLossScaleManager(8, 100), session=session)

checkpoint.find(3)  # error: arg-type reportArgumentType
read("model.ckpt-1000", 3)  # error: arg-type reportArgumentType
read("model.ckpt-1000").skale  # error: attr-defined reportAttributeAccessIssue
LossScaleState("8", 0, 0, "contrib by name", "loss_scale")  # error: arg-type reportArgumentType
checkpoint.assign(8.0, lsc.DynamicLossScale())  # error: arg-type reportArgumentType
checkpoint.reed  # error: attr-defined reportAttributeAccessIssue
