"""Code that a person has to look at before training; docs/hints.md says why, under each code."""

import re
from typing import Any

import libcst as cst

from tf_lossscale_compat.migrate.checks import newer_versions

_LARGEST = 65504
_LITERALS = re.compile(r"([\d._]+(?:e\d+)?)(?:\s*(\*\*|\*|<<)\s*([\d._]+(?:e\d+)?))?")
_FLOAT16 = {"float16", "fp16", "half"}
# Of each class the argument with the first loss scale: its position and its name.
_FIRST = {
    "FixedLossScaleManager": (0, "loss_scale"),
    "ExponentialUpdateLossScaleManager": (0, "init_loss_scale"),
    "FixedLossScale": (0, "loss_scale_value"),
    "DynamicLossScale": (0, "initial_loss_scale"),
    "LossScaleOptimizer": (2, "initial_scale"),
}
_REWRITE = "enable_mixed_precision_graph_rewrite"
_OF_REWRITE = (
    "write `tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(opt,"
    ' "dynamic", count_skipped=True)`, with `tf.config.optimizer.set_experimental_options('
    '{"auto_mixed_precision": True})` above it,'
)
_COUNT = "give `count_skipped=True`"
_UNCOUNTED = (
    "LSC104 on Keras 3 `iterations`, which schedules and Adam follow, counts no skipped step:"
)
_OPTIMIZERS = ("LossScaleOptimizer", "MixedPrecisionLossScaleOptimizer")
_GRADIENTS = {"gradient", "gradients"}
# What scales a loss, or hands the optimizer to something that does.
_SCALE = {"compute_gradients", "minimize", "get_scaled_loss", "scale_loss", "get_loss_scale"}
_SCALE |= {"compile", "fit", "loss_scale", "_loss_scale"}
_VERSION = re.compile(
    r"\b\w*tf_?v?2\w*\b|\btf\w*_version|(?:tf|tensorflow)\w*\.(?:__version__|VERSION\b)"
    r"|hasattr\(\s*(?:tf|tensorflow)\w*\s*,\s*[\"']contrib[\"']",
    re.IGNORECASE,
)
_SCHEDULE = re.compile(r"schedules$|^learningrateschedule$")
# Of Keras' optimizers whose step depends on `iterations` the names, and those of others.
_CORRECT = {"adam", "adamw", "adamax", "nadam", "adafactor"}
_PLAIN = re.compile(r"[\w.]*\b(?:SGD|RMSprop|Adagrad|Adadelta|Ftrl|Lion)\((.*)\)$", re.DOTALL)
# What gives such a one a rate that is no schedule, also where the file has one for a callback.
_NUMBER = re.compile(r"(?:learning_rate=|lr=)?[\d.]|$")
_FIXED = re.compile(r"False$|\d|[\w.]*\bFixedLossScale\((?!.*\bskip_nonfinite\b)", re.DOTALL)
_RUN = re.compile(r"strategy\w*\.(?:run|experimental_run_v2)$", re.IGNORECASE)
_SCOPE = re.compile(r"strategy\w*\.(?:run|experimental_run_v2|scope)$", re.IGNORECASE)
_BUILD = re.compile(rb"(?m)^[^#\n]*?\b(\w+)(?:\[[^]\n]*\])?\.build\((?:.*\b(variable|weight))?")
_UNBUILT = (
    "LSC105 on Keras 3 a strategy needs the optimizer's variables: write"
    " `optimizer.build(model.trainable_variables)` in its scope, below the model's first call"
)
_FUNCTION = re.compile(r"\bdef (\w+)\(")
_OWN_COMPILE = re.compile(rb"\bdef compile\(\s*self,\s*(?!optimizer\b)")
_STEPS = (".apply_gradients", ".minimize", ".apply")
# In a line of a block, but not within a statement that is a block itself.
_STOPS = re.compile(r"(?:^|; *)(?:raise\b|(?:(?:sys\.|os\._)?exit|quit)\()")


def find(plan):
    """Yields what this module finds."""
    checks = [_too_large, _unscaled, _guards]
    for check in checks + [_schedules, _unbuilt, _passed_over, _loaded] * plan.is_for_keras_3:
        yield from check(plan)


def _number(text):
    """Returns the number that a literal, or a power, product or shift of two, is; else None."""
    match: Any = _LITERALS.fullmatch(text.strip())
    try:
        one, sign, other = float(match.group(1)), match.group(2), float(match.group(3) or 1)
        return one**other if sign == "**" else one * (2**other if sign == "<<" else other)
    except (AttributeError, ValueError, ArithmeticError):
        return None


def _too_large(plan):
    """Yields the calls that make a loss scale above the largest float16."""
    tree = plan.tree
    if not tree.words & _FLOAT16:  # `mixed_float16` leaves losses in float32.
        return
    for name, chain, call in plan.wrapper_calls():
        given = tree.argument(call, *_FIRST[name]) if name in _FIRST else None
        scale = _number(tree.text(given)) if given else None
        if scale is not None and scale > _LARGEST:
            what = f"LSC101 the loss scale begins at {scale:.16g}, above {_LARGEST}, the largest"
            yield chain, f"{what} float16: begin at 2**15, or cast the loss to float32"


def _unscaled(plan):
    """Yields the places that make an optimizer in a file that scales no loss."""
    tree = plan.tree
    if "apply_gradients" not in tree.methods or not tree.methods & _GRADIENTS:
        return
    is_scaled = any("loss_scale" in chain.names[-1].lower() for chain, _ in tree.calls)
    if is_scaled or tree.attributes.keys() & _SCALE:
        return
    for name, chain, _ in plan.wrapper_calls():
        if name in _OPTIMIZERS:
            advice = "call this optimizer's `compute_gradients` or `minimize`, with Keras"
            advice += " `get_scaled_loss` and `get_unscaled_gradients`"
            yield chain, f"LSC102 nothing in this file scales a loss: {advice}"


def _guards(plan):
    """Yields conditions on the version of TensorFlow behind which something is raised."""
    if not plan.is_about_loss_scaling:
        return
    tree = plan.tree
    for node in tree.branches:
        if not _VERSION.search(tree.text(node.test)):
            continue
        if isinstance(node, cst.If):
            parts: list = [node, *([node.orelse] if isinstance(node.orelse, cst.Else) else [])]
            lines = [tree.text(line) for part in parts for line in part.body.body]
            if not any(map(_STOPS.search, lines)):
                continue
        yield node, "LSC103 this condition on a version ends the program: let your new version pass"


def _schedules(plan):
    """Yields the places that make an optimizer whose `iterations` something follows."""
    tree = plan.tree
    corrects, reads = bool(tree.words & _CORRECT), "iterations" in tree.attributes
    has_schedule = any(_SCHEDULE.search(word) for word in tree.words)
    for chain, call in _keras_wrappers(plan):
        inner = tree.argument(call, 0, "inner_optimizer", "optimizer", "opt")
        scale = tree.argument(call, 1, "dynamic", "loss_scale")
        text, fixed = (tree.text(tree.value(each)) if each else "" for each in (inner, scale))
        plain = _PLAIN.match(text)
        has_number = plain and _NUMBER.match(plain.group(1))
        follows = reads or (has_schedule and not has_number) or (corrects and not plain)
        is_said = tree.argument(call, None, "count_skipped") is not None or _FIXED.match(fixed)
        if follows and not is_said:
            advice = _OF_REWRITE if _REWRITE in str(chain.references) else _COUNT
            yield chain, f"{_UNCOUNTED} {advice} to keep the numbers"


def _keras_wrappers(plan):
    has_keras = any(map(newer_versions.is_optimizer, plan.tree.chains))
    for name, chain, call in plan.wrapper_calls():
        is_keras = has_keras if name == _REWRITE else "contrib" not in str(chain.references)
        if is_keras and name in ("LossScaleOptimizer", _REWRITE):
            yield chain, call


def _unbuilt(plan):
    """Yields the places that make an optimizer whose first step a strategy runs."""
    tree = plan.tree
    called = [chain.text for chain, _ in tree.calls]
    steps = {each.rpartition(".")[0] for each in called if each.endswith(_STEPS)}
    # What is stepped besides the optimizer that Keras gives a model.
    pattern = _SCOPE if steps - {"self.optimizer"} else _RUN
    if not any(map(pattern.search, called)):
        return
    of_model = any(each.endswith(".optimizer") and each != "self.optimizer" for each in steps)
    first = None if _OWN_COMPILE.search(tree.source) else 0
    compiled = [
        tree.text(tree.argument(call, first, "optimizer") or call.func)
        for chain, call in tree.calls
        if chain.names[-1] == "compile" and not of_model
    ]
    wrappers = [(chain, *_names(tree, call)) for chain, call in _keras_wrappers(plan)]
    known = {_last(name) for _, names, _ in wrappers for name in names}
    built, assigned = _built(tree, known), {_last(name) for name, _ in tree.values}
    makers = ["-"]
    for chain, names, returned in wrappers:
        # A parameter or a loop's variable may be any of them, and so may what a function returned.
        is_open = returned > 0 or not names
        others = built.keys() - (known if is_open else assigned)
        is_compiled = any(
            each in names or (not names and each.startswith(chain.text + "(")) for each in compiled
        )
        start, own = tree.start(chain.nodes[0]), set(map(_last, names))
        if not (others or built.keys() & own or (is_compiled and not steps & set(names))):
            yield chain, _UNBUILT
        # The last function that begins above may return it, and not build it before that.
        is_built = any(start < each < returned for name in own for each in built.get(name, ()))
        functions = _FUNCTION.findall(tree.source[:start].decode())
        makers += [chain.text, *functions[-1:] * (is_open and not is_built)]
    makes = re.compile(rf"(?:\w+\.)*(?:{'|'.join(makers)})\(")
    values = [(name, each) for name, each in tree.values if makes.match(tree.text(each))]
    began = {name: tree.start(each) for name, each in values[::-1]}
    for name, value in values:
        start, own = tree.start(value), {_last(name), *(built.keys() - assigned)}
        builds = sorted(place for each in own for place in built.get(each, ()))
        # Built while it was another one's name, and not again.
        is_left = began[name] < min(builds, default=0) and builds[-1] < start
        if is_left and (name not in compiled or name in steps):
            yield value, _UNBUILT


def _built(tree, known=()):
    """Returns a dict: of the names that are built where that is."""
    built: dict = {}
    for match in _BUILD.finditer(tree.source):
        name = match.group(1).decode()
        if match.group(2) or "opt" in name.lower() or name in known:
            built.setdefault(name, []).append(match.start(1))
    return built


def _last(name):
    return name.rpartition(".")[2]


def _names(tree, call):
    """Returns the names that a call's result is assigned to, and where a function returns it."""
    start, names = tree.start(call), []
    for name, value in tree.values * 2:  # And the names that those are assigned to.
        if tree.start(value) <= start < tree.span(value)[1] or tree.text(value) in names:
            names.append(name)
    words = "|".join(map(re.escape, names)).encode()
    returned = re.compile(rb"\breturn\b[^.\n]*\b(?:%s)\b(?![.(])" % words).search(
        tree.source, start
    )
    return names, returned.start() if names and returned else 0


def _passed_over(plan):
    """Yields `apply_gradients` of optimizers that the file defines."""
    for methods in plan.tree.overrides(newer_versions.is_optimizer):
        if plan.is_about_loss_scaling and "apply_gradients" in methods:
            advice = "nothing calls it: override `apply(self, grads, trainable_variables=None)`"
            yield methods["apply_gradients"], f"LSC106 `apply_gradients`: on Keras 3 {advice}"


def _loaded(plan):
    """Yields calls of `load_weights` with a `fit` below them."""
    tree = plan.tree
    called = [(chain.names[-1], tree.start(chain.nodes[0])) for chain, _ in tree.calls]
    last = max((start for name, start in called if name == "fit"), default=0)
    for name, start in called if any(_keras_wrappers(plan)) and not _built(tree) else ():
        if name == "load_weights" and start < last:
            advice = "the model, and `model.optimizer.build(model.trainable_variables)`, above it"
            yield start, f"LSC107 on Keras 3 it skips the optimizer's state: call {advice}"
