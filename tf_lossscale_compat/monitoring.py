"""Watching a loss scale at work."""

from tf_lossscale_compat._hook import LossScaleHook
from tf_lossscale_compat._write_summaries import write_summaries

__all__ = ["LossScaleHook", "write_summaries"]
