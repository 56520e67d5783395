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
_AT_ONCE = ". That of this package fails at once, before the upgrade, too"
_NEWER = {
    "Policy": "`tf.keras.mixed_precision.Policy`",
    "global_policy": "`tf.keras.mixed_precision.global_policy`",
    "set_policy": "`tf.keras.mixed_precision.set_global_policy`",
    "get_layer_policy": "`layer.dtype_policy`",
}
_OLDER = re.compile(rf"^{_HOME}experimental\.({'|'.join(_NEWER)})\b")
# Of a name such as `policy` or `tf.keras.mixed_precision.global_policy()`.
_OF_POLICY = re.compile(r"polic(?:y|ies)\w*(?:\(\))?\.loss_scale$", re.IGNORECASE)


def find(plan):
    """Yields what policies no longer have, and the first place of a file with an older name."""
    tree = plan.tree
    mentions = [(tree.start(node), rewrites.canonical(name)) for node, name, _ in tree.mentions()]
    found = [(start, older) for start, name in mentions for older in _OLDER.findall(name)]
    if found and "set_global_policy" not in tree.words:  # A file with both names runs on each.
        names = sorted({name for _, name in found})
        yield (
            min(found)[0],
            f"LSC303 {' and '.join(f'`{name}`' for name in names)} of Keras' `experimental`: leave"
            " them for TensorFlow 2.0 to 2.3, and for 2.4 and later write"
            f" {' and '.join(_NEWER[name] for name in names)}",
        )
    for binding in () if found else tree.bindings:
        is_left = not (plan.is_moved(binding) or plan.is_dropped(binding))
        if is_left and re.fullmatch(_HOME + "experimental", rewrites.canonical(binding.path)):
            yield binding.alias, f"LSC303 `{binding.path}` was removed in TensorFlow 2.6"
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
