"""Names, arguments and paths that Keras 3 dropped, in files with loss scaling.

TensorFlow 2.16 made Keras 3 its `tf.keras`:
https://github.com/tensorflow/tensorflow/releases/tag/v2.16.1,
https://keras.io/guides/migrating_to_keras_3/. Who stays with Keras 2 (`tf_keras`) says so by
TF_USE_LEGACY_KERAS=1, in the environment or in the file.
"""

import re

from tf_lossscale_compat.migrate.checks import newer_versions

_of_keras = newer_versions.of_keras

# By an attribute, of whatever object.
_ATTRIBUTES = {
    "fit_generator": "LSC403 write `fit`",
    "evaluate_generator": "LSC403 write `evaluate`",
    "predict_generator": "LSC403 write `predict`",
    "reset_states": "LSC404 write `reset_state`",
    "add_update": "LSC405 take the call out, as variables that a layer assigns are updated"
    " without it",
    "get_updates": "LSC406 write `optimizer.apply_gradients(zip(gradients, variables))`",
    "get_gradients": "LSC406 take the gradients with `tf.GradientTape`",
    "_decayed_lr": "LSC407 write `optimizer.learning_rate`",
    "_get_hyper": "LSC407 write the attribute of that name, such as `optimizer.learning_rate`",
    "_set_hyper": "LSC407 assign to the attribute of that name, such as `optimizer.learning_rate`",
}
# By how a name that looks like an optimizer's goes on.
_METHODS = {
    r"get_weights\(": "LSC406 write `[each.numpy() for each in optimizer.variables]`",
    r"learning_rate\(": "LSC407 write `optimizer.learning_rate`, or call the schedule itself",
    r"(?:aggregate_gradients|gradient_aggregator)\b": "LSC415 take it out, as Keras sums gradients",
}
_OPTIMIZER = r"(?i)opt(?:im(?:izer)?)?s?\."
_RATE = re.compile(r"opt(?:im(?:izer)?)?s?(?:\[.*\]|\(.*\))?\.lr$", re.IGNORECASE | re.DOTALL)
_TO_RATE = "LSC407 write `learning_rate`"
# By what a name stands for, after `keras.`.
_NAMES = {
    r"losses\.Reduction\.AUTO": 'LSC408 write "sum_over_batch_size"',
    r"optimizers\.(?:legacy|experimental)": "LSC409 take the class of `tf.keras.optimizers`",
    r"layers\.experimental\.Sync\w+": "LSC410 write `BatchNormalization(synchronized=True)`",
    r"layers\.experimental(?:\.preprocessing)?": "LSC410 take the class of `tf.keras.layers`",
    r"(?:experimental|wrappers|estimator)": "LSC411 stay with Keras 2, as nothing replaces it",
    r"backend\.set_value": "LSC407 write `variable.assign(value)`",
    r"backend\.(?:set_)?learning_phase\w*": (
        "LSC412 call the model with `training=True` or `=False`"
    ),
    r"backend\.in_(?:train|test)_phase": (
        "LSC412 write an `if` on the argument `training` of `call`"
    ),
}
# By a call's argument: of which methods, and what to do.
_TO_DATASET = (
    "fit|evaluate|predict",
    "LSC413 leave it out, or give it to a `keras.utils.PyDataset`",
)
_NOT_SUMMED = ("apply_gradients", "LSC415 leave it out, and apply gradients of one replica each")
_ARGUMENTS = {
    "workers": _TO_DATASET,
    "use_multiprocessing": _TO_DATASET,
    "max_queue_size": _TO_DATASET,
    "save_format": (
        "save|save_weights",
        "LSC414 leave it out, and let the path end in .keras, that of weights in .weights.h5",
    ),
    "experimental_aggregate_gradients": _NOT_SUMMED,
    "skip_gradients_aggregation": _NOT_SUMMED,
}
# The last text of a path, such as of `os.path.join(folder, "x.h5")` and `"{}.h5".format(epoch)`.
_END = re.compile(r"([\w.{}:% -]*)['\"](?:\)*|\.format\(.*\)| %.*)$", re.DOTALL)
_MODEL = re.compile(r"model|net(?:work)?$|^self$", re.IGNORECASE)
_FILES = (".keras", ".h5", ".hdf5")
# Of what takes a path the ends that it takes, and which to write.
_ENDS = {
    "save_weights": ((".weights.h5",), "`.weights.h5`"),
    "load_weights": (_FILES, "`.weights.h5`, as that of `save_weights`"),
    "save": (_FILES, "`.keras`, or write a SavedModel by `model.export(path)`"),
    "keras.ModelCheckpoint": ((".keras", ".h5"), "`.keras`"),
    "keras.load_model": (_FILES, "`.keras`, or serve a SavedModel by `keras.layers.TFSMLayer`"),
}
_COPIES = re.compile(r"[^#]*?\bVariable\(", re.DOTALL)
_OLD_STEP = re.compile(rb"\bdef (?:_resource_apply_\w+|get_updates|_create_slots)\b")
_BUILD = re.compile(rb"\bdef build\b")
_SHAPE = re.compile(r"(?:input_shape\s*=\s*)?[(\[]")
_MODELS = r"(?:models\.)?Model$"
_LAYERS = r"layers\.Layer$"


def find(plan):
    """Yields what Keras 3 has no more."""
    if not plan.is_for_keras_3 or not plan.is_about_loss_scaling:
        return
    tree = plan.tree
    calls = {id(chain): call for chain, call in tree.calls}
    for chain in tree.chains:
        advice = _advice(chain, calls.get(id(chain)), tree)
        if advice:
            yield tree.start(chain.nodes[0]), _say(chain.text, advice)
    made = {id(call) for chain, call in tree.calls if _of_keras(chain, newer_versions.OPTIMIZER)}
    for node in tree.ends["lr"]:
        if _RATE.search(tree.text(node)) or id(tree.value(node.value)) in made:
            yield tree.start(node), _say(tree.text(node), _TO_RATE)
    for chain, call in tree.calls:
        for argument in call.args:
            keyword = argument.keyword.value if argument.keyword else ""
            methods, advice = _ARGUMENTS.get(keyword, ("", ""))
            if keyword == "lr" and _of_keras(chain, newer_versions.OPTIMIZER):
                yield tree.start(argument), _say("lr", _TO_RATE)
            elif methods and re.fullmatch(methods, chain.names[-1]):
                yield tree.start(argument), _say(keyword, advice)
        name = tree.argument(call, 0) if chain.names[-1] == "add_weight" else None
        if name is not None and tree.text(name).startswith(('"', "'")):
            yield tree.start(name), _say("add_weight", f"LSC418 write `name={tree.text(name)}`")
    yield from _paths(tree)
    yield from _subclasses(tree)


def _say(name, advice):
    code, _, advice = advice.partition(" ")
    return f"{code} `{name}`: on Keras 3 {advice}"


def _advice(chain, call, tree):
    """Returns what to write in place of a name on Keras 3, None where it may stay."""
    for name in chain.names[1:]:
        if name in ("compiled_loss", "compiled_metrics"):
            return _step(name, call, tree)
        if name in _ATTRIBUTES:
            return _ATTRIBUTES[name]
    is_base = chain.role == "base" and newer_versions.is_optimizer(chain)
    if is_base and _OLD_STEP.search(tree.source):
        return "LSC416 write the methods `build` and `update_step` in place of its old ones"
    text = chain.text + "(" * (call is not None)
    said = [each for name, each in _METHODS.items() if re.search(_OPTIMIZER + name, text)]
    said += [each for name, each in _NAMES.items() if _of_keras(chain, name + r"\b")]
    return said[0] if said else None


def _step(name, call, tree):
    """Returns what a `train_step` or `test_step` says in place of Keras 2's two attributes.

    Keras 3 adds the model's own losses by itself. From 3.8 on it divides losses by the number of
    replicas, as Keras 2 did, and has no public name for what it shows as "loss".
    """
    given, adds_losses = ["y", "y_pred"], False
    if call is not None and call.args:
        words = [each.keyword.value if each.keyword else "" for each in call.args]
        own = [each for each, word in zip(call.args[:3], words) if not word.startswith("regul")]
        adds_losses = len(own) < len(call.args)
        given = [tree.text(each) for each in own]
    arguments = ", ".join(["x", *given])
    if name == "compiled_metrics":
        return f"LSC402 end the step with `return self.compute_metrics({arguments})`"
    less = "" if adds_losses else " - sum(self.losses)"
    return (
        f"LSC401 write `loss = self.compute_loss({arguments}) / share{less}`, and take the lines of"
        ' docs/hints.md for `share`, for replicas, and for the metric "loss"'
    )


def _paths(tree):
    """Yields paths of models and weights whose end Keras 3 refuses."""
    for chain, call in tree.calls:
        of_keras = _of_keras(chain, r"(?:callbacks|models)\.")
        kind = f"keras.{chain.imported[0][1].rpartition('.')[2]}" if of_keras else chain.names[-1]
        given = {each.keyword.value: tree.text(each.value) for each in call.args if each.keyword}
        if kind == "keras.ModelCheckpoint" and given.get("save_weights_only", "False") != "False":
            kind = "save_weights"
        is_other = kind == "save" and not _MODEL.search("".join(chain.names[-2:-1]))
        if kind not in _ENDS or is_other or "save_format" in given:
            continue
        (ends, advice), path = _ENDS[kind], tree.argument(call, 0, "filepath")
        end = _END.search(tree.text(tree.value(path))) if path else None
        if end and not end.group(1).endswith(ends):
            yield tree.start(path), _say(chain.names[-1], f"LSC414 let the path end in {advice}")


def _subclasses(tree):
    """Yields calls such as `model.build((None, 8))` that make no variables, and lost variables."""
    bases = [chain for chain in tree.chains if chain.role == "base"]
    has_models = any(_of_keras(chain, _MODELS) for chain in bases)
    for chain, call in tree.calls if has_models and not _BUILD.search(tree.source) else ():
        if chain.names[-1] == "build" and call.args and _SHAPE.match(tree.text(call.args[0])):
            advice = (
                "LSC417 it makes no variables of a model without a method `build`, so a list of"
                " copies is empty: call the model once instead, as in `model(tf.zeros([1, 8]))`"
            )
            yield tree.start(chain.nodes[0]), _say(chain.text, advice)
    has_any = has_models or any(_of_keras(chain, _LAYERS) for chain in bases)
    for name, value in tree.values if has_any and tree.methods & {*_ENDS} else ():
        if name.startswith("self.") and _COPIES.match(tree.text(value)):
            advice = "LSC419 files of a model hold no `tf.Variable`: make it in `build` by"
            yield tree.start(value), _say(name, f"{advice} `self.add_weight(…, trainable=False)`")
