"""Names, arguments and paths that Keras 3 dropped, in files with loss scaling.

TensorFlow 2.16 made Keras 3 its `tf.keras`: https://keras.io/guides/migrating_to_keras_3/.
"""

import fnmatch
import re

from tf_lossscale_compat.migrate.checks import newer_versions

_of_keras = newer_versions.of_keras

_OPTIMIZER = newer_versions.LOOKS_LIKE_ONE
_TO_RATE = "LSC407 write `learning_rate`"
_STATUS = "expect_partial|assert_consumed|assert_existing_objects_matched|assert_nontrivial_match"
# By attributes.
_ATTRIBUTES = {
    "fit_generator": "LSC403 write `fit`",
    "evaluate_generator": "LSC403 write `evaluate`",
    "predict_generator": "LSC403 write `predict`",
    "reset_states": "LSC404 write `reset_state`; a model has it in its layers alone",
    "add_update": "LSC405 remove the call, and make the variable with `autocast=False`",
    "get_updates": "LSC406 write `optimizer.apply_gradients(zip(gradients, variables))`",
    "get_gradients": "LSC406 compute the gradients with `tf.GradientTape`",
    "get_weights": "LSC406 write `[each.numpy() for each in optimizer.variables]`",
    "_decayed_lr": "LSC407 write `optimizer.learning_rate`, as a number with `.numpy()` behind it",
    "_get_hyper": "LSC407 write the attribute of that name, such as `optimizer.learning_rate`",
    "_set_hyper": "LSC407 assign to the attribute of that name, such as `optimizer.learning_rate`",
    "lr": _TO_RATE,
    "aggregate_gradients|gradient_aggregator": "LSC415 remove it, as Keras sums gradients",
    _STATUS: "LSC420 remove it, as `load_weights` returns None",
    "metrics_names": "LSC421 the metrics of `compile` are one, `compile_metrics`: use the names"
    " that `model.evaluate(…, return_dict=True)` gives",
    "numpy|read_value": "LSC430 leave it out, as this is a number",
    "input_shape|output_shape": "LSC430 write `layer.input.shape` or `layer.output.shape`",
    "add_metric": "LSC422 make a `keras.metrics.Mean(name=…)` in `__init__` and update it here",
}
# Those that others have, too: how the text before them ends.
_OWNERS = {
    **dict.fromkeys(("get_weights", "lr", "aggregate_gradients|gradient_aggregator"), _OPTIMIZER),
    "numpy|read_value": re.compile(r"opt\w*\.(?:momentum|beta_[12]|rho|epsilon)$"),
    "input_shape|output_shape": re.compile(r"(?:\blayer|layers\[[^]]*\]|get_layer\(.*\))$"),
    _STATUS: re.compile(r"load_weights\(.*\)$", re.DOTALL),
}
# What nothing replaces.
_GONE = (
    r"(?:(?:(?:callbacks|metrics|models|utils|backend)\.)?experimental|estimator|dtensor"
    r"|wrappers\.scikit_learn|callbacks\.BaseLogger|applications\.(?:RegNet|ResNetRS)\w+"
    r"|constraints\.RadialConstraint|layers\.(?:DenseFeatures|LocallyConnected\w+)"
    r"|metrics\.Mean(?:RelativeError|Tensor)|utils\.(?:\w+Enqueuer|multi_gpu_model))"
)
# What makes gradients dense, or has no need of it.
_DENSE = re.compile(rb"convert_to_tensor\(|\A(?!.*\b(?:Ada|Ftrl|Lion|Nad|RMS)).*\bSGD\(", re.DOTALL)
_ROWS = (
    "LSC432 Adam and others do not sum gradients of rows that occur twice, without a word: make"
    " them dense by `tf.convert_to_tensor`"
)
# By what a name stands for, after `keras.`.
_NAMES = {
    r"layers\.Embedding": _ROWS,
    r"losses\.Loss": (
        "LSC433 `y` of shape `(n,)` comes to `call` as it is, and as floats: give it the shape of"
        " the predictions"
    ),
    r"losses\.Reduction\.AUTO": 'LSC408 write "sum_over_batch_size"',
    r"optimizers\.(?:legacy|experimental)": "LSC409 use the class of `tf.keras.optimizers`",
    r"layers\.experimental\.Sync\w+": "LSC410 write `BatchNormalization(synchronized=True)`",
    r"layers\.experimental(?:\.preprocessing)?": "LSC410 use the class of `tf.keras.layers`",
    r"experimental\.CosineDecay\w*": "LSC430 use the class of `tf.keras.optimizers.schedules`",
    r"(?<=tensorflow\.keras\.)(?:losses|metrics)\.(?:mean_\w+_error|kl_divergence|log_cosh)": (
        "LSC430 write the shorter name: `MSE`, `MAE`, `MAPE`, `MSLE`, `KLD` or `logcosh`"
    ),
    r"backend\.function": "LSC430 write `tf.keras.Model(inputs, outputs)`",
    r"backend\.placeholder": "LSC430 write `tf.keras.Input`",
    r"(?:backend|utils)\.clear_session": "LSC431 it resets the policy: set the policy again below",
    _GONE: "LSC411 stay with Keras 2, as nothing replaces it",
    r"backend\.(?:set_value|batch_set_value|update)": "LSC407 write `variable.assign(value)`",
    r"backend\.(?:set_)?learning_phase\w*": "LSC412 call the model with `training=True`",
    r"backend\.in_(?:train|test)_phase": "LSC412 write an `if` on the argument `training`",
}
# By a call's argument: of which methods, and what to do.
_TO_DATASET = ("fit|evaluate|predict", "LSC413 leave it out, or give it to a `PyDataset`")
_NOT_SUMMED = ("apply_gradients", "LSC415 leave it out, and apply gradients of one replica each")
_ARGUMENTS = {
    **dict.fromkeys(("workers", "use_multiprocessing", "max_queue_size"), _TO_DATASET),
    "save_format": (
        "save|save_weights",
        "LSC414 leave it out; the path must end in .keras, for weights in .weights.h5",
    ),
    "experimental_autocast": ("add_weight", "LSC430 write `autocast`"),
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
# Files of Keras that no `tf.train.latest_checkpoint` finds, and TensorFlow's, which it does.
_WRITERS = {"ModelCheckpoint", "save_weights"}
_CHECKPOINTS = {"Checkpoint", "CheckpointManager", "Saver", "MonitoredTrainingSession", "Estimator"}
_NEWEST = "LSC423 it ignores `.weights.h5`: write `max(glob.glob(…), key=getmtime, default=None)`"
# A number at the end of a file's name.
_EPOCH = re.compile(
    rb"\bint\(((?:re\.findall\([^\n]*?, ?)?(?:os\.path\.basename\()?"
    rb"[\w.]*(?:latest|last|ckpt|checkpoint|path|file|weights)\w*\)*"
    rb"(?:\.r?split\([\"'][-_.][\"'][, 1]*\))?\[-?1\])\)"
)
_HISTORY = re.compile(rb"(?:\.history|\blogs)(?:\[|\.get\()$")
_FILTERED = re.compile(rb"\bfor (\w+) in (self\.metrics) if (?!\1\.name [!=]= [\"']loss[\"'])")
_FILTER = "LSC424 the metrics of `compile` are one: filter `self.get_metrics_result()` by names"
_OF_COMPILED = {
    "metrics": "LSC424 write `super().metrics`, which has all metrics of the model",
    **dict.fromkeys(("reset_state", "reset_states"), "LSC424 write `self.reset_metrics()`"),
}
_NUMBER = re.compile(rb"\b(?:int|float)\(([\w.]*opt\w*\.(?:iterations|learning_rate))\)")
# What shows that a name is a model's.
_OF_MODELS = ("trainable_variables", "trainable_weights", "compile", "fit")
_SILENT = (
    "LSC426 weights of Keras 2's layers are not restored, without a word: take them from"
    ' `save_weights("….h5")`, and write `.assert_existing_objects_matched()` behind it'
)
# What loses variables that are none of a model's; one that is to be trained is lost in any case.
_SAVES = re.compile(rb"\b(?:\w*(?:save|load|best)_weights|ModelCheckpoint|load_model)\b")
_LOST = (
    "LSC419 no model trains or saves a `tf.Variable`: make it in `build` by `self.add_weight(…,"
    " autocast=False)`, or later by that of a `tf.keras.layers.Layer()` made in `__init__`"
)
_CLASS = rb"(?m)^class (\w+)\(.*?\bModel\b.*\):.*((?:\r?\n(?:[ \t].*)?)*)"
_ASSERTED = re.compile(rb"\((?:[^()]|\([^()]*\))*\)\s*\.assert_[ec]\w+")
_COPIES = re.compile(r"[^#]*?\bVariable\(", re.DOTALL)
_OLD_STEP = re.compile(rb"\bdef (?:_resource_apply_\w+|get_updates|_create_slots)\b")
_NOT_TRAINED = re.compile(r"\btrainable\s*=\s*False|\bVariable\(\s*(?:\d+|True|False)\s*[,)]")
_SHAPE = re.compile(r"(?:input_shape\s*=\s*)?[(\[]")


def find(plan):
    """Yields what Keras 3 no longer has."""
    if not plan.is_for_keras_3 or not plan.is_about_loss_scaling:
        return
    for check in (_attributes, _names, _arguments, _paths, _restored):
        yield from check(plan.tree)
    yield from _subclasses(plan)


def say(name, advice):
    """Returns a message with a code from an advice that begins with the code."""
    code, _, advice = advice.partition(" ")
    return f"{code} `{name}`: on Keras 3 {advice}"


def _attributes(tree):
    made = {id(call) for chain, call in tree.calls if _of_keras(chain, newer_versions.OPTIMIZER)}
    called = {id(call.func) for _, call in tree.calls}
    for names, advice in _ATTRIBUTES.items():
        owner = _OWNERS.get(names)
        for node in [node for name in names.split("|") for node in tree.attributes.get(name, ())]:
            value = tree.value(node.value)
            of_optimizer = owner is _OPTIMIZER and id(value) in made
            is_rate = names == "lr" and id(node) in called  # `newer_versions` has that.
            texts = map(tree.text, (node.value, value))
            if not is_rate and (owner is None or of_optimizer or any(map(owner.search, texts))):
                yield node, say(_short(tree.text(node)), advice)
    for node in tree.strings:
        if node.value in ("'lr'", '"lr"') and _HISTORY.search(tree.source, 0, tree.start(node)):
            yield node, say("lr", _TO_RATE)


def _short(text):
    return text if re.fullmatch(r"[\w.]+", text) else text.rpartition(".")[2]


def _names(tree):
    calls = {id(chain): call for chain, call in tree.calls}
    for chain in tree.chains:
        advice = _advice(chain, calls.get(id(chain)), tree)
        if advice and not (advice is _ROWS and _DENSE.search(tree.source)):
            yield chain, say(chain.text, advice)
    for match in _FILTERED.finditer(tree.source):
        yield match.start(2), say("self.metrics", _FILTER)
    for match in _NUMBER.finditer(tree.source) if b"Strategy" in tree.source else ():
        name = match.group(1).decode()
        advice = f"LSC425 a variable under a strategy is no number: write `{name}.numpy()`"
        yield match.start(1), say(name, advice)


def _advice(chain, call, tree):
    """Returns what to write in place of a name on Keras 3, None where it may stay."""
    for number, name in enumerate(chain.names[1:], 2):
        if name in ("compiled_loss", "compiled_metrics"):
            own = _OF_COMPILED.get("".join(chain.names[number : number + 1]))
            return own or _step(name, call, tree)
    is_base = chain.role == "base" and newer_versions.is_optimizer(chain)
    if is_base and _OLD_STEP.search(tree.source):
        return "LSC416 write the methods `build` and `update_step` in place of its old ones"
    return next((_NAMES[each] for each in _NAMES if _of_keras(chain, each + r"\b")), None)


def _arguments(tree):
    for chain, call in tree.calls:
        for argument in call.args:
            keyword = argument.keyword.value if argument.keyword else ""
            methods, advice = _ARGUMENTS.get(keyword, ("", ""))
            if keyword == "lr" and _of_keras(chain, newer_versions.OPTIMIZER):
                yield argument, say("lr", _TO_RATE)
            elif methods and re.fullmatch(methods, chain.names[-1]):
                yield argument, say(keyword, advice)
        name = tree.argument(call, 0) if chain.names[-1] == "add_weight" else None
        if name is not None and tree.text(name).startswith(('"', "'")):
            yield name, say("add_weight", f"LSC418 write `name={tree.text(name)}`")


def _step(name, call, tree):
    """Returns what a `train_step` or `test_step` says in place of Keras 2's two attributes."""
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
        f"LSC401 write `loss = self.compute_loss({arguments}) / share{less}`, and use the lines of"
        ' docs/hints.md for `share`, for replicas, and for the metric "loss"'
    )


def _paths(tree):
    """Yields paths of models and weights whose end Keras 3 refuses, or that nothing writes."""
    found = [each for chain, call in tree.calls for each in _path(chain, call, tree)]
    # What `save_weights` writes ends in `.weights.h5`, now or once its hint is followed.
    saved = [_stem(end) for _, kind, _, end in found if kind == "save_weights"]
    for chain, kind, path, end in found:
        ends, advice = _ENDS[kind]
        if kind == "load_weights" and any(fnmatch.fnmatch(_stem(end), each) for each in saved):
            ends = _ENDS["save_weights"][0]
        if not end.endswith(ends):
            yield path, say(chain.names[-1], f"LSC414 let the path end in {advice}")
    files = {chain.names[-1] for chain, _ in tree.calls}
    is_kept = files & _WRITERS and not files & _CHECKPOINTS
    for chain, _ in tree.calls if is_kept else ():
        if chain.text.endswith("train.latest_checkpoint"):
            yield chain, say(chain.text, _NEWEST)
    for match in _EPOCH.finditer(tree.source) if is_kept else ():
        advice = "LSC423 take `.weights.h5` off the path before a number is read from it"
        yield match.start(1), say(match.group(1).decode(), advice)


def _path(chain, call, tree):
    """Yields for a call that takes a path of a model: chain, kind, node and end of the path."""
    of_keras = _of_keras(chain, r"(?:callbacks|models)\.")
    kind = f"keras.{chain.imported[0][1].rpartition('.')[2]}" if of_keras else chain.names[-1]
    given = {each.keyword.value: tree.text(each.value) for each in call.args if each.keyword}
    if kind == "keras.ModelCheckpoint" and given.get("save_weights_only", "False") != "False":
        kind = "save_weights"
    owner = ".".join(chain.names[:-1])
    fits = any(each.text in (owner + ".fit", owner + ".compile") for each, _ in tree.calls)
    is_other = kind == "save" and not (fits or _MODEL.search("".join(chain.names[-2:-1])))
    path = tree.argument(call, 0, "filepath")
    if kind in _ENDS and path and not is_other and "save_format" not in given:
        end = _END.search(tree.text(tree.value(path)))
        if end:
            yield chain, kind, path, end.group(1)


def _stem(end):
    """Returns a file's name without its end, as a pattern where something is filled in."""
    stem = re.sub(r"(?:\.weights)?(?:\.(?:h5|hdf5|keras|tf|ckpt))?$", "", end)
    return re.sub(r"\{.*?\}|%[\d.]*[dsf]", "*", stem)


def _restored(tree):
    """Yields where a checkpoint with a model is restored and nobody asks what was found."""
    models = {".".join(chain.names[:-1]) for chain in tree.chains if chain.names[-1] in _OF_MODELS}
    for node in tree.attributes.get("restore", []) + tree.attributes.get("read", []):
        owner, (start, end) = tree.text(node.value), tree.span(node)
        made = [owner, *(tree.text(value) for name, value in tree.values if name == owner)]
        given = re.findall(r"[\w.]+", " ".join(made).partition("Checkpoint(")[2])
        asked = [f"{name}.assert_" for name, value in tree.values if tree.start(value) == start]
        is_asked = _ASSERTED.match(tree.source, end) or any(map(tree.module.code.count, asked))
        if not is_asked and any(word in models or _MODEL.search(word) for word in given):
            yield node, say(_short(tree.text(node)), _SILENT)


def models(data):
    """Returns what a file's bytes tell others: names of models' classes without a `build`.

    "" stands for that weights are saved.
    """
    found = {name.decode() for name, body in re.findall(_CLASS, data) if b"def build(" not in body}
    return found | ({""} if _SAVES.search(data) else set())


def _subclasses(plan):
    """Yields calls such as `model.build((None, 8))` that make no variables, and lost variables."""
    tree = plan.tree
    bases = [chain for chain in tree.chains if chain.role == "base"]
    has_models = any(_of_keras(chain, r"(?:models\.)?Model$") for chain in bases)
    is_own = has_models and b"def build(" not in tree.source
    known = plan.models | models(tree.source)
    classes = known - {""}
    # A function of the user's may return such a model, too.
    makes = re.compile(rf"(?:(?!tf\.|keras\.)\w+\.)*(?:[a-z]\w*|{'|'.join(classes)})\(")
    made = [name for name, value in tree.values if makes.match(tree.text(value))]
    others = {f"{name}.build" for name in made if classes}
    for chain, call in tree.calls:
        is_model = chain.text in others or (is_own and chain.text.endswith(".build"))
        if is_model and call.args and _SHAPE.match(tree.text(call.args[0])):
            advice = "LSC417 it makes no variables of a model without a method `build`, so a list"
            advice += " of copies is empty: call the model once, as in `model(tf.zeros([1, 8]))`"
            yield chain, say(chain.text, advice)
    has_any = has_models or any(_of_keras(chain, r"layers\.Layer$") for chain in bases)
    plain = [tree.span(each) for each in tree.classes if not each.bases]
    for name, value in tree.values if has_any else ():
        is_other = any(start < tree.start(value) < end for start, end in plain)
        text = tree.text(value) if name.startswith("self.") and not is_other else ""
        is_lost = {"save", ""} & (tree.methods | known) or not _NOT_TRAINED.search(text)
        if _COPIES.match(text) and is_lost:
            yield value, say(name, _LOST)
