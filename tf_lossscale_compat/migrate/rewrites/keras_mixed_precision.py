"""`tf.keras.mixed_precision.LossScaleOptimizer` as in TensorFlow 2.4 to 2.15 moves.

https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0 added it, with `dynamic`,
`get_scaled_loss` and `get_unscaled_gradients`. Keras 3 (TensorFlow 2.16) has another class of the
same name, without these: https://github.com/tensorflow/tensorflow/releases/tag/v2.16.1. Code that
is written for that one works and is left alone. `tf_keras` has the older one alone.
"""

from tf_lossscale_compat.migrate.rewrites._namespace import Namespace

_NEW = "tf_lossscale_compat.keras.mixed_precision"
_OLDER_METHODS = {"get_scaled_loss", "get_unscaled_gradients", "dynamic_counter"}
_NEWER_METHODS = {"scale_loss"}
_ARGUMENTS = ("inner_optimizer", "dynamic", "initial_scale", "dynamic_growth_steps")


def _signs(usage):
    """Returns whether the file has signs of the older and of the newer API."""
    older = bool(usage.attributes & _OLDER_METHODS)
    newer = bool(usage.methods & _NEWER_METHODS)
    for call in usage.calls:
        second = call.values[1] if call.positional > 1 else ""
        older = older or "dynamic" in call.keywords or second in ("True", "False")
        newer = newer or second[:1].isdigit()
        # Any other keyword is Keras 3's: `name`, and whatever its base class takes.
        newer = newer or any(keyword not in _ARGUMENTS for keyword in call.keywords)
    return older, newer


def _is_tf_keras(usage):
    older, newer = _signs(usage)
    if older and newer:
        return None
    return not newer


def _is_older(usage):
    older, newer = _signs(usage)
    if older and newer:
        return None
    # Today's `keras` has this class: it takes a sign to tell that another one is meant.
    return older


NAMESPACES = [
    Namespace(root + ".mixed_precision", _NEW, ("LossScaleOptimizer",), module=_NEW, is_meant=check)
    for root, check in (
        ("tensorflow.keras", _is_tf_keras),
        ("keras", _is_older),
        ("tf_keras", None),
    )
]
