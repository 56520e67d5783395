"""Watching a loss scale at work, and finding out what went wrong in a step."""

from tf_lossscale_compat._hook import LossScaleHook
from tf_lossscale_compat._replay import replay
from tf_lossscale_compat._write_summaries import write_summaries

__all__ = ["LossScaleHook", "replay", "write_summaries"]
