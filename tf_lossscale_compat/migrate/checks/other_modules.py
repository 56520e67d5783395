"""Modules and classes about loss scaling that have no counterpart of their name here.

TensorFlow and Keras removed private ones without notice, each in another version; what is imported
from them may be more than the public classes. Ascend's packages have classes like contrib's and
Keras' that read their devices' overflow flag.
"""

import re

from tf_lossscale_compat.migrate import rewrites

_CONTRIB = "tf_lossscale_compat.contrib.mixed_precision"
_KERAS = "tf_lossscale_compat.keras.mixed_precision"
_TRAIN = "tf_lossscale_compat.train.experimental"
_PRIVATE = "LSC208 is private to TensorFlow or Keras"
_ASCEND = "LSC210 is for Ascend's devices: keep it for them, and elsewhere use"
_TAPE = (
    "LSC209 repeats a step until its gradients are finite, which nothing here does: use"
    f" `tf.GradientTape` and `{_KERAS}.LossScaleOptimizer`, which skips the step"
)
_NPU = r"npu_(?:bridge|device)\.(?:\w+\.)*"
_OF_TRAINING = r"tensorflow\.python\.training\.experimental\."
_ADVICE = {
    rf"{_OF_TRAINING}(?:loss_scale\w*|mixed_precision)": (
        f"{_PRIVATE}: use the public classes of `{_TRAIN}`"
    ),
    rf"{_OF_TRAINING}mixed_precision_global_state": (
        f"{_PRIVATE}: use `enable_mixed_precision_graph_rewrite` of `{_TRAIN}`, which sets it"
    ),
    rf"{_OF_TRAINING}loss_scaling_gradient_tape": _TAPE,
    r"tensorflow\.mixed_precision\.experimental\.LossScaleGradientTape": _TAPE,
    r"(?:tensorflow\.python\.|tf_)?keras\.(?:src\.)?mixed_precision\.(?:experimental\.)?loss_scale"
    r"\w*": f"{_PRIVATE}: use the public classes of `{_KERAS}`",
    r"keras\.src\.optimizers\.(?:loss_scale_optimizer|LossScaleOptimizer)": (
        f"{_PRIVATE}: use `keras.optimizers.LossScaleOptimizer`, or `{_KERAS}.LossScaleOptimizer`"
        " if the file must also run on older versions"
    ),
    rf"{_NPU}(?:npu_loss_scale_manager|(?:Fixed|Exponential)\w*Manager)": (
        f"{_ASCEND} the class of that name in `{_CONTRIB}`"
    ),
    rf"{_NPU}train\.(?:\w+\.)*(?:npu_loss_scale_optimizer|Npu\w*LossScaleOptimizer)": (
        f"{_ASCEND} `{_KERAS}.LossScaleOptimizer`"
    ),
    rf"{_NPU}(?:npu_loss_scale_optimizer|NPULossScaleOptimizer)": (
        f"{_ASCEND} `{_CONTRIB}.LossScaleOptimizer`"
    ),
}


def _advice(name):
    name = rewrites.canonical(name)
    if rewrites.find_member(name)[0] is not None:
        return None  # It moves, or the plan says why not.
    return next((_ADVICE[each] for each in _ADVICE if re.match(rf"(?:{each})(?:\.|$)", name)), None)


def find(plan):
    """Yields the imports of such a module, or from one, and names that reach one otherwise."""
    for node, name, imported in plan.tree.mentions():
        advice = _advice(name)
        if advice and not _advice(imported):
            code, _, advice = advice.partition(" ")
            yield node, f"{code} `{name}` {advice}"
