"""Watching a loss scale at work, and finding out what went wrong in a step."""

from tf_lossscale_compat._replay import replay

__all__ = ["replay"]
