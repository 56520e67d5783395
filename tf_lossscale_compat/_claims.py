"""Which kind of optimizer a loss scale or manager drives: one that is shared moves under another.

Two optimizers that share one would both move it, the first before the second has divided by it.
Code for TensorFlow 1 shares one between its optimizers all the same, which divide before either
moves it; Keras optimizers divide where they apply.
"""

from tf_lossscale_compat import _policy, _watch

KERAS = "a Keras one"
V1 = "a tf.compat.v1.train one"
TOGETHER = "one that apply_if_finite was given"

# An attribute of users' policies, too, which have names of their own.
_NAME = "_tf_lossscale_compat_claim"


class _Claim(_watch.OfOne):
    """An owner's kind, kept by what is owned; a copy of that belongs to nobody."""

    def __init__(self, kind):
        self.kind = kind


def check(kind, policy):
    """Raises a ValueError where an optimizer of this kind must not take `policy`; see `claim`."""
    policy = _policy.held(policy)
    owner = getattr(policy, _NAME, None)
    if owner is not None and not (kind == owner.kind != KERAS):
        raise ValueError(
            f"{policy!r} drives another optimizer, {owner.kind}, already: whichever of the two is "
            "applied first would move it before the other divides by it. Give each optimizer a "
            "loss scale of its own; or scale and unscale with the loss scale itself and have "
            "tf_lossscale_compat.apply_if_finite apply to both and move it once."
        )


def claim(kind, policy):
    """Notes that an optimizer is driven by `policy`, once nothing else can fail in making it.

    Args:
      kind: `KERAS`, of which each needs its own; `V1`; or `TOGETHER`.
      policy: `LossScale` or `LossScaleManager`; a fixed one never moves and is free to share.

    Raises:
      ValueError: another optimizer is driven by it, with which it cannot be shared.
    """
    check(kind, policy)
    policy = _policy.held(policy)
    if not _policy.never_moves(policy) and hasattr(policy, "__dict__"):
        policy.__dict__[_NAME] = _Claim(kind)


def release(policy):
    """Notes that the optimizer which `policy` drove has another one now."""
    getattr(_policy.held(policy), "__dict__", {}).pop(_NAME, None)
