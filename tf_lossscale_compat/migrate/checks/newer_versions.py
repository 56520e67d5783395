"""Names that newer TensorFlows dropped besides loss scales, each in the version that is said.

See https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0 and so on.
"""

import re

from tf_lossscale_compat.migrate import rewrites

_KERAS = r"(?:tensorflow\.|tf_)?keras\."
_POLICY = r"mixed_precision\.(?:experimental\.)?Policy(?:V1)?$"
_LOSS_SCALE = "LSC301 a policy takes no loss scale since TensorFlow 2.4: leave the argument out"
_WRAP = (
    " and wrap the optimizer in `tf_lossscale_compat.keras.mixed_precision.experimental"
    ".LossScaleOptimizer(optimizer, loss_scale)`"
)
_AT_ONCE = ". That of this package fails at once, before the upgrade, too"
_STABLE = {
    "Policy": "`tf.keras.mixed_precision.Policy`",
    "global_policy": "`tf.keras.mixed_precision.global_policy`",
    "set_policy": "`tf.keras.mixed_precision.set_global_policy`",
    "get_layer_policy": "the layer's `dtype_policy`",
}
_OLDER = re.compile(rf"{_KERAS}mixed_precision\.experimental\b")
_OLDER_NAME = re.compile(rf"{_OLDER.pattern}\.({'|'.join(_STABLE)})\b")
# An optimizer of Keras that is no loss-scale optimizer.
OPTIMIZER = r"optimizers\.(?!LossScale)[A-Z]\w+$"
# The end of a text that looks like one.
LOOKS_LIKE_ONE = re.compile(r"opt(?:im(?:izer)?)?s?(?:\[.*\]|\(.*\))?$", re.IGNORECASE | re.DOTALL)
_ADDONS = re.compile(r"tensorflow_addons\.optimizers\..*\b[A-Z]\w+$")
_ESTIMATOR = re.compile(r"(?:tensorflow\.(?:python\.)?|tensorflow_)estimator\.")
# Of a name such as `policy` or `tf.keras.mixed_precision.global_policy()`.
_OF_POLICY = re.compile(r"polic(?:y|ies)\w*(?:\(\))?\.loss_scale$", re.IGNORECASE)


def find(plan):
    """Yields what the TensorFlow that the file goes to has dropped."""
    yield from _policies(plan)
    if plan.is_about_loss_scaling:
        if plan.to >= (2, 11):
            yield from _decay(plan.tree)
            yield from _slots(plan.tree)
        if plan.to >= (2, 16):
            yield from _estimator(plan.tree)


def is_optimizer(chain):
    """Returns whether a chain stands for an optimizer of Keras or of tensorflow-addons."""
    return of_keras(chain, OPTIMIZER) or any(_ADDONS.match(name) for _, name in chain.imported)


def of_keras(chain, pattern):
    """Returns whether a chain stands for a name of Keras that a pattern matches."""
    names = [rewrites.canonical(name) for _, name in chain.imported]
    return any(re.match(_KERAS + pattern, name) for name in names)


def _policies(plan):
    """Yields what policies no longer have, and the first place of a file with an older name."""
    tree = plan.tree
    if plan.to < (2, 4):
        return
    ours = {id(call) for _, _, call in plan.wrapper_calls()}
    for chain, call in tree.calls:
        scale = tree.argument(call, 1, "loss_scale")
        if scale is not None and of_keras(chain, _POLICY):
            wrap = "" if tree.text(scale) == "None" else _WRAP
            yield chain, _LOSS_SCALE + wrap + _AT_ONCE * (id(tree.value(scale)) in ours)
    for node in tree.attributes.get("loss_scale", ()):
        if _OF_POLICY.search(tree.text(node)):
            advice = 'write `optimizer.loss_scale`, or to make one `"dynamic"` or the number'
            yield node, f"LSC302 `{tree.text(node)}`: since TensorFlow 2.4 {advice}"
    mentions = [(rewrites.canonical(name), node) for node, name, _ in tree.mentions()]
    older = [(tree.start(node), _OLDER_NAME.match(name)) for name, node in mentions]
    found = [(start, match.group(1)) for start, match in older if match]
    if found:
        names = sorted({name for _, name in found})
        yield (
            min(found)[0],
            f"LSC303 {' and '.join(f'`{name}`' for name in names)} of Keras' `experimental`: leave"
            f" them for TensorFlow 2.0 to 2.3, and for 2.4 and later use"
            f" {' and '.join(_STABLE[name] for name in names)}",
        )
    for binding in tree.bindings if plan.to >= (2, 6) else ():
        is_left = not plan.is_moved(binding) and not plan.is_dropped(binding)
        if is_left and _OLDER.fullmatch(rewrites.canonical(binding.path)):
            advice = "remove this import" + (", once its names are replaced" if found else "")
            yield binding.alias, f"LSC304 `{binding.path}` was removed in TensorFlow 2.6: {advice}"


def _decay(tree):
    for chain, call in tree.calls:
        given = {each.keyword.value: each for each in call.args if each.keyword is not None}
        if "decay" not in given or not of_keras(chain, OPTIMIZER):
            continue
        rate = tree.argument(call, 0, "learning_rate", "lr")
        default = "0.01" if chain.names[-1] == "SGD" else "0.001"
        initial = default if rate is None else tree.text(rate)
        advice = f"InverseTimeDecay({initial}, 1, {tree.text(given['decay'].value)})`"
        advice = f"write `learning_rate=tf.keras.optimizers.schedules.{advice}"
        yield given["decay"], f"LSC305 `decay`: since TensorFlow 2.11 {advice}"


def _slots(tree):
    if b"keras" not in tree.source or "legacy" in tree.attributes:
        return
    for chain, _ in tree.calls:
        is_rate = len(chain.names) > 1 and chain.names[-1] in ("lr", "learning_rate")
        if is_rate and LOOKS_LIKE_ONE.search(chain.names[-2]):
            advice = "since TensorFlow 2.11 write `optimizer.learning_rate` without the call"
            yield chain, f"LSC308 `{chain.text}`: {advice}, as a number with `.numpy()` behind it"
    for name in ("get_slot", "get_slot_names", "weights"):
        message = f"LSC307 `{name}` was removed in TensorFlow 2.11: look in `optimizer.variables`"
        for node in tree.attributes.get(name, ()):
            if LOOKS_LIKE_ONE.search(tree.text(node.value)):
                yield node, message


def _estimator(tree):
    """Yields the first place of a file with `tf.estimator`, with how many there are."""
    names = [(rewrites.canonical(name), node) for node, name, _ in tree.mentions()]
    places = [tree.start(node) for name, node in names if _ESTIMATOR.match(name + ".")]
    if places:
        what = f"LSC306 `tf.estimator` ({len(places)} in this file) was removed in TensorFlow 2.16"
        yield min(places), f"{what}: use the loop of docs/estimator.md, or stay on 2.15"
