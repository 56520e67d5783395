"""Names that newer TensorFlows dropped besides loss scales, in files with loss scaling.

TensorFlow 2.4 took the loss scale from Keras' policies and gave them names outside of
`experimental`, 2.11 took `decay` from Keras' optimizers, 2.16 took away `tf.estimator` and made
Keras 3 its `tf.keras`: https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0 and so on,
https://keras.io/guides/migrating_to_keras_3/. Who stays with Keras 2 (`tf_keras`) says so by
TF_USE_LEGACY_KERAS=1, in the environment or in the file.
"""

import re

from tf_lossscale_compat.migrate import rewrites

# By an attribute, of whatever object.
_ATTRIBUTES = {
    # Keras 3 has it for a while yet, but leaves the metric "loss" as it was in every epoch.
    "compiled_loss": (
        "write `loss = self.compute_loss(x, y, y_pred)`, and update the metric"
        ' "loss" with it, by `[m.update_state(loss, tf.shape(x)[0]) for m in self.metrics if'
        ' m.name == "loss"]`, else every epoch shows the same loss'
    ),
    "compiled_metrics": "end the step with `return self.compute_metrics(x, y, y_pred)`",
    "fit_generator": "write `fit`",
    "evaluate_generator": "write `evaluate`",
    "predict_generator": "write `predict`",
    "reset_states": "write `reset_state`",
    "add_update": "take the call out, as variables that a layer assigns are updated without it",
    "get_updates": "write `optimizer.apply_gradients(zip(gradients, variables))`",
    "get_gradients": "take the gradients with `tf.GradientTape`",
    "_decayed_lr": "write `optimizer.learning_rate`",
    "_get_hyper": "write the attribute of that name, such as `optimizer.learning_rate`",
    "_set_hyper": "assign to the attribute of that name, such as `optimizer.learning_rate`",
}
_RATE = re.compile(r"(?:^|\.)\w*opt(?:imizer)?\.lr$", re.IGNORECASE)
# By what a name stands for, after `keras.`.
_NAMES = {
    r"losses\.Reduction": 'write "none", "sum" or "sum_over_batch_size"',
    r"optimizers\.(?:legacy|experimental)": "take the class of `tf.keras.optimizers`",
    r"layers\.experimental(?:\.preprocessing)?": "take the class of `tf.keras.layers`",
    r"(?:experimental|wrappers|estimator)": "stay with Keras 2, as nothing replaces it",
    r"backend\.(?:set_)?learning_phase\w*": "call the model with `training=True` or `=False`",
    r"backend\.in_(?:train|test)_phase": "write an `if` on the argument `training` of `call`",
}
# By a call's argument: of which methods, and what to do.
_TO_DATASET = ("fit|evaluate|predict", "leave it out, or give it to a `keras.utils.PyDataset`")
_NOT_SUMMED = ("apply_gradients", "leave it out, and apply gradients of one replica each")
_ARGUMENTS = {
    "workers": _TO_DATASET,
    "use_multiprocessing": _TO_DATASET,
    "max_queue_size": _TO_DATASET,
    "save_format": (
        "save|save_weights",
        "leave it out, and let the path end in .keras, that of weights in .weights.h5",
    ),
    "experimental_aggregate_gradients": _NOT_SUMMED,
    "skip_gradients_aggregation": _NOT_SUMMED,
}
# A literal path of weights that Keras 3 refuses.
_PATH = re.compile(r"(?<!\.weights\.h5)['\"]$")
_KERAS = r"(?:tensorflow\.|tf_)?keras\."
_POLICY = r"mixed_precision\.(?:experimental\.)?Policy(?:V1)?$"
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
_OLDER_NAME = re.compile(rf"{_KERAS}mixed_precision\.experimental\.({'|'.join(_STABLE)})\b")
_OLD_STEP = re.compile(rb"\bdef (?:_resource_apply_\w+|get_updates|_create_slots)\b")
_BUILD = re.compile(rb"\bdef build\b")
_SHAPE = re.compile(r"(?:input_shape\s*=\s*)?[(\[]")
_MODEL = r"(?:models\.)?Model$"
_OPTIMIZER = r"optimizers\.[A-Z]\w+$"


def find(plan):
    """Yields what the TensorFlow that the file goes to has dropped."""
    yield from _policies(plan)
    if not plan.is_about_loss_scaling:
        return
    tree = plan.tree
    if plan.to >= (2, 11):
        yield from _decay(tree)
    if plan.to >= (2, 16):
        yield from _estimator(tree)
    if plan.is_for_keras_3:
        for chain in tree.chains:
            advice = _advice(chain, tree)
            if advice:
                yield tree.start(chain.nodes[0]), f"`{chain.text}`: on Keras 3 {advice}"
        for chain, argument in [(chain, each) for chain, call in tree.calls for each in call.args]:
            keyword = argument.keyword.value if argument.keyword else ""
            methods, advice = _ARGUMENTS.get(keyword, ("", ""))
            if keyword == "lr" and _of_keras(chain, _OPTIMIZER):
                yield tree.start(argument), "`lr`: on Keras 3 write `learning_rate`"
            elif re.fullmatch(methods, chain.names[-1]):
                yield tree.start(argument), f"`{keyword}`: on Keras 3 {advice}"
            elif chain.names[-1] == "save_weights" and _PATH.search(tree.text(argument.value)):
                yield (
                    tree.start(argument),
                    "`save_weights`: on Keras 3 let the path end in `.weights.h5`",
                )
        yield from _builds(tree)


def _advice(chain, tree):
    """Returns what to write in place of a name on Keras 3, None where it may stay."""
    for name in chain.names[1:]:
        if name in _ATTRIBUTES:
            return _ATTRIBUTES[name]
    if _RATE.search(chain.text):
        return "write `learning_rate`"
    if chain.role == "base" and _of_keras(chain, _OPTIMIZER) and _OLD_STEP.search(tree.source):
        return "write the methods `build` and `update_step` in place of this class's old ones"
    return next((each for name, each in _NAMES.items() if _of_keras(chain, name + r"\b")), None)


def _builds(tree):
    """Yields calls such as `model.build((None, 8))` of models that leave `build` to Keras."""
    models = [chain for chain in tree.chains if chain.role == "base" and _of_keras(chain, _MODEL)]
    if not models or _BUILD.search(tree.source):
        return
    for chain, call in tree.calls:
        if chain.names[-1] == "build" and call.args and _SHAPE.match(tree.text(call.args[0])):
            yield (
                tree.start(chain.nodes[0]),
                f"`{chain.text}`: on Keras 3 it makes no variables of a model without a method"
                " `build`, so a list of copies is empty: call the model once instead, as in"
                " `model(tf.zeros([1, 8]))`",
            )


def _of_keras(chain, pattern):
    """Returns whether a chain stands for a name of Keras that a pattern matches."""
    names = [rewrites.canonical(name) for _, name in chain.imported]
    return any(re.match(_KERAS + pattern, name) for name in names)


def _policies(plan):
    """Yields policies with a loss scale, and the first place of a file with an older name."""
    tree = plan.tree
    for chain, call in tree.calls:
        positional = [argument for argument in call.args if argument.keyword is None]
        keywords = [argument.keyword.value for argument in call.args if argument.keyword]
        if _of_keras(chain, _POLICY) and ("loss_scale" in keywords or len(positional) > 1):
            yield tree.start(chain.nodes[0]), _LOSS_SCALE
    found = [
        (tree.start(node), match.group(1))
        for node, name, _ in tree.mentions()
        for match in [_OLDER_NAME.match(rewrites.canonical(name))]
        if match
    ]
    if found and plan.to >= (2, 4):
        names = sorted({name for _, name in found})
        yield (
            min(found)[0],
            f"{' and '.join(f'`{name}`' for name in names)} of Keras' `experimental`: leave them"
            f" for TensorFlow 2.0 to 2.3, and from 2.4 on take"
            f" {' and '.join(_STABLE[name] for name in names)}",
        )


def _decay(tree):
    for chain, call in tree.calls:
        given = {each.keyword.value: each for each in call.args if each.keyword is not None}
        if "decay" not in given or not _of_keras(chain, _OPTIMIZER):
            continue
        rate = given.get("learning_rate") or given.get("lr")
        if call.args[0].keyword is None:
            rate = call.args[0]
        default = "0.01" if chain.names[-1] == "SGD" else "0.001"
        initial = default if rate is None else tree.text(rate.value)
        yield (
            tree.start(given["decay"]),
            "`decay`: since TensorFlow 2.11 write `learning_rate=tf.keras.optimizers.schedules."
            f"InverseTimeDecay({initial}, 1, {tree.text(given['decay'].value)})`",
        )


def _estimator(tree):
    """Yields the first place of a file with `tf.estimator`, with how many there are."""
    places = [
        tree.start(node)
        for node, name, _ in tree.mentions()
        if (rewrites.canonical(name) + ".").startswith("tensorflow.estimator.")
    ]
    if places:
        yield (
            min(places),
            f"`tf.estimator` ({len(places)} in this file) is gone since TensorFlow 2.16: stay on"
            " 2.15 with it, or write the training loop out",
        )
