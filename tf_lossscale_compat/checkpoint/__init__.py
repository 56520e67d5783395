"""Find the loss scale in a checkpoint, whatever wrote it, and put it into any other kind.

state = checkpoint.read("model.ckpt-1000")
checkpoint.assign(state, optimizer)
"""

from tf_lossscale_compat.checkpoint._assign import assign
from tf_lossscale_compat.checkpoint._reader import CheckpointError, LossScaleState, find, read

__all__ = ["CheckpointError", "LossScaleState", "assign", "find", "read"]
