"""Watching a loss scale at work, in sessions and in training loops of one's own."""

from tf_lossscale_compat.monitoring._writers import LossScaleHook, write_summaries

__all__ = ["LossScaleHook", "write_summaries"]
