"""Ownership: a loss scale or manager drives one optimizer, or v1 optimizers that share it.

Two optimizers that share one would both update it, the first before the second has divided by it.
Code for TensorFlow 1 shares one between its optimizers all the same, which divide before either
updates it; Keras optimizers divide where they apply.
"""

from tf_lossscale_compat._core import _observers, _scaler

KERAS = "a Keras one"
V1 = "a tf.compat.v1.train one"
SEVERAL = "one that apply_if_finite was given"

# With the package's prefix, as users' loss scales get this attribute, too.
_NAME = "_tflsc_claim"


class _Claim(_observers.NotCopied):
    """The kind of a loss scale's owner, an attribute of the loss scale; a copy has no owner."""

    def __init__(self, kind):
        self.kind = kind


def check(kind, loss_scale):
    """Raises a ValueError where this kind of optimizer must not take `loss_scale`; see `claim`."""
    loss_scale = _scaler.unwrap(loss_scale)
    owner = getattr(loss_scale, _NAME, None)
    if owner is not None and not (kind == owner.kind != KERAS):
        raise ValueError(
            f"{loss_scale!r} drives another optimizer, {owner.kind}, already: whichever of the two "
            "is applied first would update it before the other divides by it. Give each a loss "
            "scale of its own; or scale and unscale with the loss scale itself and have "
            "tf_lossscale_compat.apply_if_finite apply to both and update it once."
        )


def claim(kind, loss_scale):
    """Notes that `loss_scale` drives an optimizer; called once nothing else of that can fail.

    Args:
      kind: `KERAS`, of which each needs its own; `V1`; or `SEVERAL`.
      loss_scale: `LossScale` or `LossScaleManager`; a fixed one never changes and is free to share.

    Raises:
      ValueError: it drives another optimizer, with which it cannot be shared.
    """
    check(kind, loss_scale)
    loss_scale = _scaler.unwrap(loss_scale)
    if not _scaler.Scaler(loss_scale).never_changes() and hasattr(loss_scale, "__dict__"):
        loss_scale.__dict__[_NAME] = _Claim(kind)


def release(loss_scale):
    """Notes that the optimizer which `loss_scale` drove has another one now."""
    getattr(_scaler.unwrap(loss_scale), "__dict__", {}).pop(_NAME, None)
