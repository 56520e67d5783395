"""A Keras callback that logs the loss scale and skipped steps."""

from tf_lossscale_compat.keras._callback import LossScaleCallback

__all__ = ["LossScaleCallback"]
