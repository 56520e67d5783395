"""Policies, https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0.

Their older names stay: the newer ones are missing in TensorFlow 2.0 to 2.3, where the file may run.
"""

import re

from tf_lossscale_compat.migrate import rewrites

_HOME = r"(?:tensorflow\.|tf_)?keras\.mixed_precision\."
_POLICY = re.compile(rf"{_HOME}(?:experimental\.)?Policy(?:V1)?$")
_LOSS_SCALE = "LSC301 a policy takes no loss scale since TensorFlow 2.4: leave the argument out"
_WRAP = (
    " and wrap the optimizer in `tf_lossscale_compat.keras.mixed_precision.experimental"
    ".LossScaleOptimizer(optimizer, loss_scale)`"
)
_LITERAL = re.compile(r"None$|[\"'\d]")
_OLDER = re.compile(rf"^{_HOME}experimental\.(Policy|global_policy|set_policy|get_layer_policy)\b")
_NEWER = (
    "LSC303 `{}` of Keras' `experimental`: leave it for TensorFlow 2.0 to 2.3; from 2.4 on use"
    " `Policy`, `global_policy`, `set_global_policy` of `tf.keras.mixed_precision`, `dtype_policy`"
)
# Of a name such as `policy` or `tf.keras.mixed_precision.global_policy()`.
_OF_POLICY = re.compile(r"polic(?:y|ies)\w*(?:\(\))?\.loss_scale$", re.IGNORECASE)


def find(plan):
    """Yields what policies no longer have, and the first place of a file with an older name."""
    tree = plan.tree
    mentions = [(tree.start(node), rewrites.canonical(name)) for node, name, _ in tree.mentions()]
    found = [(start, older) for start, name in mentions for older in _OLDER.findall(name)]
    if found and "set_global_policy" not in tree.words:  # A file with both names runs on each.
        yield min(found)[0], _NEWER.format(min(found)[1])
    for chain, scale in _given(tree):
        yield chain, _LOSS_SCALE + _WRAP * (tree.text(scale) != "None")
    for node in tree.attributes.get("loss_scale", ()):
        if _OF_POLICY.search(tree.text(node)):
            advice = 'write `optimizer.loss_scale`, or to make one `"dynamic"` or the number'
            yield node, f"LSC302 `{tree.text(node)}`: since TensorFlow 2.4 {advice}"


def _given(tree):
    """Yields the loss scales that policies are given, each with the name of the policy's class."""
    for chain, call in tree.calls:
        scale = tree.argument(call, 1, "loss_scale")
        names = [rewrites.canonical(name) for _, name in chain.imported]
        if scale is not None and any(map(_POLICY.match, names)):
            yield chain, scale


def take_objects(tree):
    """Returns whether a policy may be given a loss-scale object, which has to be TensorFlow's."""
    scales = [tree.text(tree.value(scale)) for _, scale in _given(tree)]
    return not all(map(_LITERAL.match, scales))
