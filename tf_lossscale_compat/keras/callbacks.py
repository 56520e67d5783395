"""A Keras callback that tells how a loss scale fares."""

from tf_lossscale_compat.keras._callback import LossScaleCallback

__all__ = ["LossScaleCallback"]
