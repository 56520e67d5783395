"""Keras' dtype policies by their names in `tf.keras.mixed_precision.experimental`.

In TensorFlow 2.0 to 2.3 a policy held a loss scale, and `Model.compile` wrapped the optimizer with
it. TensorFlow 2.4 took that argument away and gave policies names outside of `experimental`, and
later versions have no others: https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0. Which
of these TensorFlows the program goes to does not show in its source.
"""

import re

from tf_lossscale_compat.migrate import rewrites

_MODULE = r"(?:tensorflow\.|tf_)?keras\.mixed_precision\."
_POLICY = re.compile(_MODULE + r"(?:experimental\.)?Policy(?:V1)?$")
_LOSS_SCALE = (
    "a policy takes no loss scale any more: leave the argument out and wrap the optimizer in"
    " `tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(optimizer,"
    " loss_scale)`"
)
_STABLE = {
    "Policy": "`tf.keras.mixed_precision.Policy`",
    "global_policy": "`tf.keras.mixed_precision.global_policy`",
    "set_policy": "`tf.keras.mixed_precision.set_global_policy`",
    "get_layer_policy": "the layer's `dtype_policy`",
}
_EXPERIMENTAL = re.compile(_MODULE + rf"experimental\.({'|'.join(_STABLE)})\b")


def find(plan):
    """Yields policies with a loss scale, and the first place of a file with an older name."""
    tree = plan.tree
    for chain, call in tree.calls:
        names = [name for binding, name in chain.references if binding is not None]
        if not any(_POLICY.match(rewrites.canonical(name)) for name in names):
            continue
        positional = [argument for argument in call.args if argument.keyword is None]
        keywords = [argument.keyword.value for argument in call.args if argument.keyword]
        if "loss_scale" in keywords or len(positional) > 1:
            yield tree.start(chain.nodes[0]), _LOSS_SCALE
    found = [
        (tree.start(node), match.group(1))
        for node, name, _ in tree.mentions()
        for match in [_EXPERIMENTAL.match(rewrites.canonical(name))]
        if match
    ]
    if found and plan.to >= (2, 4):
        names = sorted({name for _, name in found})
        old = " and ".join(f"`{name}`" for name in names)
        new = " and ".join(_STABLE[name] for name in names)
        yield (
            min(found)[0],
            f"{old} of Keras' `experimental`: leave them for TensorFlow 2.0 to 2.3, and from 2.4 on"
            f" take {new}",
        )
