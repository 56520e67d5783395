"""Modules and classes about loss scaling that have no counterpart of their name here.

TensorFlow and Keras removed private ones without notice, each in another version; what is imported
from them may be more than the public classes.
"""

import re

from tf_lossscale_compat.migrate import rewrites

_KERAS = "tf_lossscale_compat.keras.mixed_precision"
_TRAIN = "tf_lossscale_compat.train.experimental"
_PRIVATE = "LSC208 is private to TensorFlow or Keras"
_TAPE = (
    "LSC209 repeats a step until its gradients are finite, which nothing here does: use"
    f" `tf.GradientTape` and `{_KERAS}.LossScaleOptimizer`, which skips the step"
)
_PUBLIC_KERAS = f"{_PRIVATE}: use the public classes of `{_KERAS}`"
_OF_TRAINING = r"tensorflow\.python\.training\.experimental\."
_OF_KERAS = r"(?:tensorflow\.python\.|tf_)?keras\.(?:src\.)?mixed_precision\."
_KERAS_3 = re.compile(
    r"(?:tensorflow\.)?keras\.(?:mixed_precision|optimizers)\.LossScaleOptimizer\b"
)
_ADVICE = {
    rf"{_OF_TRAINING}(?:loss_scale\w*|mixed_precision)": (
        f"{_PRIVATE}: use the public classes of `{_TRAIN}`"
    ),
    rf"{_OF_TRAINING}mixed_precision_global_state": (
        f"{_PRIVATE}: use `enable_mixed_precision_graph_rewrite` of `{_TRAIN}`, which sets it"
    ),
    rf"{_OF_TRAINING}loss_scaling_gradient_tape": _TAPE,
    r"tensorflow\.mixed_precision\.experimental\.LossScaleGradientTape": _TAPE,
    rf"{_OF_KERAS}(?:experimental\.)?loss_scale\w*": _PUBLIC_KERAS,
    r"keras\.src\.optimizers\.(?:loss_scale_optimizer|LossScaleOptimizer)": _PUBLIC_KERAS,
}


def _advice(name):
    name = rewrites.canonical(name)
    if rewrites.find_member(name)[0] is not None:
        return None  # It moves, or the plan says why not.
    return next((_ADVICE[each] for each in _ADVICE if re.match(rf"(?:{each})(?:\.|$)", name)), None)


def find(plan):
    """Yields the imports of such a module, or from one, and names that reach one otherwise."""
    yield from _of_keras_3(plan)
    for node, name, imported in plan.tree.mentions():
        advice = _advice(name)
        if advice and not _advice(imported):
            code, _, advice = advice.partition(" ")
            yield node, f"{code} `{name}` {advice}"


def _of_keras_3(plan):
    """Yields the first use of Keras 3's own class, which decides on each replica by itself."""
    for chain in plan.tree.chains:
        names = [rewrites.canonical(name) for _, name in chain.imported]
        namespaces = [rewrites.find_member(name)[0] for name in names if _KERAS_3.match(name)]
        is_of_keras_3 = any(not each or plan.accepts(each) is False for each in namespaces)
        # A check finds this package's class by that name, too.
        if is_of_keras_3 and not plan.is_in_class_check(chain):
            what = f"LSC213 `{chain.text}` is Keras 3's own class and left as it is"
            yield chain, f"{what}: on several replicas change it to `{_KERAS}.LossScaleOptimizer`"
            return
