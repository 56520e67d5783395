"""Loss scales of policies, https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0."""

import re

from tf_lossscale_compat.migrate import rewrites

_POLICY = re.compile(
    r"(?:tensorflow\.|tf_)?keras\.mixed_precision\.(?:experimental\.)?Policy(?:V1)?$"
)
_LOSS_SCALE = "LSC301 a policy takes no loss scale since TensorFlow 2.4: leave the argument out"
_WRAP = (
    " and wrap the optimizer in `tf_lossscale_compat.keras.mixed_precision.experimental"
    ".LossScaleOptimizer(optimizer, loss_scale)`"
)
_AT_ONCE = ". That of this package fails at once, before the upgrade, too"
# Of a name such as `policy` or `tf.keras.mixed_precision.global_policy()`.
_OF_POLICY = re.compile(r"polic(?:y|ies)\w*(?:\(\))?\.loss_scale$", re.IGNORECASE)


def find(plan):
    """Yields what policies no longer have."""
    tree = plan.tree
    ours = {id(call) for _, _, call in plan.wrapper_calls()}
    for chain, call in tree.calls:
        scale = tree.argument(call, 1, "loss_scale")
        names = [rewrites.canonical(name) for _, name in chain.imported]
        if scale is not None and any(map(_POLICY.match, names)):
            wrap = "" if tree.text(scale) == "None" else _WRAP
            yield chain, _LOSS_SCALE + wrap + _AT_ONCE * (id(tree.value(scale)) in ours)
    for node in tree.attributes.get("loss_scale", ()):
        if _OF_POLICY.search(tree.text(node)):
            advice = 'write `optimizer.loss_scale`, or to make one `"dynamic"` or the number'
            yield node, f"LSC302 `{tree.text(node)}`: since TensorFlow 2.4 {advice}"
