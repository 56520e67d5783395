"""Monitoring of a loss scale, in sessions and in custom training loops."""

from tf_lossscale_compat.monitoring._writers import LossScaleHook, write_summaries

__all__ = ["LossScaleHook", "write_summaries"]
