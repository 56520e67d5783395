"""Optimizers whose `iterations`, which count no skipped step on Keras 3, decide on numbers."""

import re

from tf_lossscale_compat.migrate import rewrites

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
KERAS_2 = re.compile(rb"(?:import|from) tf_keras\b|TF_USE_LEGACY_KERAS")
# An optimizer of Keras that is no loss-scale optimizer.
_OPTIMIZER = re.compile(
    r"(?:(?:tensorflow\.|tf_)?keras|tensorflow_addons)\.optimizers\.(?:.*\.)?(?!LossScale)[A-Z]\w+$"
)
_SCHEDULE = re.compile(r"schedules$|^learningrateschedule$")
# Of Keras' optimizers whose step depends on `iterations` the names, and those of others.
_CORRECT = {"adam", "adamw", "adamax", "nadam", "adafactor"}
_PLAIN = re.compile(r"[\w.]*\b(?:SGD|RMSprop|Adagrad|Adadelta|Ftrl|Lion)\((.*)\)$", re.DOTALL)
# What gives such a one a rate that is no schedule, also where the file has one for a callback.
_NUMBER = re.compile(r"(?:learning_rate=|lr=)?[\d.]|$")
_FIXED = re.compile(r"False$|\d|[\w.]*\bFixedLossScale\((?!.*\bskip_nonfinite\b)", re.DOTALL)


def find(plan):
    """Yields the places that make an optimizer whose `iterations` something follows."""
    tree = plan.tree
    if KERAS_2.search(tree.source):
        return
    corrects, reads = bool(tree.words & _CORRECT), "iterations" in tree.attributes
    has_schedule = any(_SCHEDULE.search(word) for word in tree.words)
    imported = [name for chain in tree.chains for _, name in chain.imported]
    has_keras = any(_OPTIMIZER.match(rewrites.canonical(name)) for name in imported)
    for name, chain, call in plan.wrapper_calls():
        is_keras = has_keras if name == _REWRITE else "contrib" not in str(chain.references)
        if not is_keras or name not in ("LossScaleOptimizer", _REWRITE):
            continue
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
