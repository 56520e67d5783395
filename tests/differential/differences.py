"""Differences on purpose: where a page of docs/ says that the package differs from the original.

What differs and is not in `ENTRIES` is a fault. `met` counts how often each entry was needed; one
that no run meets is to be removed.
"""

import collections
import dataclasses
import typing

from tests import keras_homes
from tests.differential import history
from tests.differential.v1_side import elements

met = collections.Counter()


@dataclasses.dataclass(frozen=True)
class Entry:
    """One difference: the page, a piece of the line that says it, and when it applies."""

    page: str
    says: str
    applies: typing.Callable


def v1(difference):
    return difference.program["family"] in ("contrib", "mixed", "scales", "managers")


def keras3(difference):
    return difference.program["family"].startswith("keras3")


def after_a_step(difference):
    """True if a step was built in the graph before this action, or is in it."""
    before = difference.program["actions"][: difference.index + 1]
    return any(a[0] in history.STEPS for a in before)


def in_step(difference):
    return difference.action[0] in history.STEPS


def has_float16(difference):
    """Returns if a gradient is of float16, whose reciprocal takes operations of its own."""
    specs = [v for of_one in difference.program["variables"] for v in of_one]
    return any(spec["dtype"] == "float16" for spec in specs)


def few_more(difference):
    """Returns how many operations more a step may have: of few gradients, sparse or in float16."""
    if not v1(difference):  # Keras 2 tests what it aggregates in a conditional of its own.
        return 24
    variables = [v for of_one in difference.program["variables"] for v in of_one]
    taken_apart = [v for v in variables if v["kind"] == "rows" or v["dtype"] == "float16"]
    return 3 + 9 * sum(v["partitions"] for v in taken_apart)


def scale_above_2_126(difference):
    """True if the scale was above 2**126, of which one over it is zero.

    Or it was no number at all, which gradients without elements do not show. In graphs the side of
    the original skips such a step, too, but with these gradients and in a loop.
    """
    program = difference.program
    if program["family"] not in ("contrib", "mixed", "modelled"):
        return False
    empty = not all(any(map(elements, of_one)) for of_one in program["variables"])
    other = empty or program["inside"] == "while" or difference.action[0] == "gradients"
    if program["place"].startswith("graph") and not other:
        return False
    given = [program["scale"][1][0], *(a[1] for a in program["actions"] if a[0] == "set")]
    shown = empty or difference.action[0] == "gradients"
    return any(shown if isinstance(each, str) else each > 2.0**126 for each in given)


def faults_before(difference):
    """Returns what was wrong in the steps up to a difference."""
    before = difference.program["actions"][: difference.index + 1]
    steps = [[a[-1]] if a[0] == "step" else a[1] for a in before if a[0] in ("step", "fit")]
    return [fault for faults in steps for fault in faults if fault]


def original_failed(difference, *errors):
    """Returns if the original failed, and the package not, or later, by a kernel that XLA lacks."""
    if difference.key != "error" or difference.original not in errors:
        return False
    said = difference.messages[1]
    return not difference.package or "No registered" in said or "not compilable" in said


def squared_by_xla(difference):
    """True if gradients in float16 were clipped by a norm, which takes their square, under XLA."""
    program = difference.program
    before = program["actions"][: difference.index + 1]
    return (
        program["place"] == "jit"
        and program["family"] in ("v2 stable", "current stable")
        and not program["scale"][0]
        and any(v["dtype"] == "float16" for v in program["variables"] or ())
        and any(action[1] == "clipped" for action in before if action[0] in ("step", "many"))
    )


def scale_left_bounds(difference):
    """Keras 3's own scale falls below 1, or rises to infinity."""
    seen = {"dynamic_scale": difference.original}
    seen = difference.original if difference.key == "scales" else [seen]
    if not keras3(difference) or difference.key not in ("scales", "dynamic_scale"):
        return False
    return any(not 1 <= each.get("dynamic_scale", 1) < 2.0**128 for each in seen)


ENTRIES = {
    "dtypes": Entry(
        "differences.md",
        "`MixedPrecisionLossScaleOptimizer` takes losses and gradients of any float dtype",
        lambda d: (
            d.program["family"] == "mixed"
            and original_failed(d, "TypeError", "InvalidArgumentError")
            and any(v["dtype"] != "float32" for vs in d.program["variables"] for v in vs)
        ),
    ),
    "dtypes_of_keras_2_0": Entry(
        "differences.md",
        "losses and gradients of other dtypes than float32 in 2.0",
        lambda d: (
            d.program["family"] == "v2 experimental"
            and keras_homes.VERSION == (2, 0)
            and original_failed(d, "TypeError", "InvalidArgumentError", "ValueError")
            and any(v["dtype"] != "float32" for v in d.program["variables"] or ())
        ),
    ),
    "asked": Entry(
        "differences.md",
        "`variables()`, `get_slot` and the like answer for the wrapped optimizer",
        lambda d: v1(d) and d.action[0] == "ask",
    ),
    "operations_of_a_step": Entry(
        "from-contrib.md",
        "has another number of operations than contrib's, mostly a smaller one",
        lambda d: (
            d.key == "operations"
            and (in_step(d) or (d.action[0] == "gradients" and has_float16(d)))
            and d.package <= d.original + few_more(d)
        ),
    ),
    "random_after_a_step": Entry(
        "from-contrib.md",
        "made **after** it draw other numbers",
        lambda d: v1(d) and d.action[0] == "draw" and d.key == "value" and after_a_step(d),
    ),
    "names_after_a_step": Entry(
        "from-contrib.md",
        "has another number of operations than contrib's, mostly a smaller one",
        lambda d: (
            v1(d)
            and (
                (d.action[0] == "read" and d.key == "name" and after_a_step(d))
                or (d.key == "grad_names" and has_float16(d))
            )
        ),
    ),
    "made_in_a_skipped_step": Entry(
        "differences.md",
        "| makes their variables in the first step that is applied | in the first step |",
        lambda d: (
            keras_homes.VERSION < (2, 11)
            and d.program["family"] == "current stable"
            and bool(faults_before(d))
            and (d.key == "names" or "cannot recognize variable" in d.messages[1])
        ),
    ),
    "averages_of_2_10": Entry(
        "differences.md",
        "`use_ema=True` in `fit` of 2.9 and 2.10",
        lambda d: (
            d.program["family"] == "current stable"
            and original_failed(d, "AttributeError")
            and "moving_average" in d.messages[0]
        ),
    ),
    "experimental_configs": Entry(
        "differences.md",
        "| configs of the experimental class in TensorFlow 2.4 and 2.5 |",
        lambda d: "experimental" in d.program["family"] and d.action[0] == "config",
    ),
    "fetched_loss_scale": Entry(
        "keras.md",
        "`optimizer.loss_scale` can be used like a tensor, too.",
        lambda d: (
            "experimental" in d.program["family"]
            and d.action[0] in ("read", "fetch")
            # Keras' tensor is one operation for each read.
            and (
                (d.key, d.original) in (("error", "TypeError"), ("error", "RuntimeError"))
                or (d.key, d.original, d.package) == ("operations", 1, 0)
            )
        ),
    ),
    "returned_by_a_loss_scale": Entry(
        "from-train-experimental.md",
        "| `DynamicLossScale.update(grads)` |",
        lambda d: d.program["family"] == "scales" and in_step(d) and d.key == "returned",
    ),
    "reciprocal": Entry(
        "differences.md",
        "go on with zero gradients. This package skips such a step, so the scale comes down.",
        lambda d: scale_above_2_126(d) and d.theme in ("state", "numbers", "names", "kept"),
    ),
    "sums_of_rows": Entry(
        "differences.md",
        "If a sparse gradient has several values for one row, their sum is tested, too",
        lambda d: (  # Newer ones test rows before they add them.
            keras_homes.VERSION > (2, 10)
            and any(fault[0] in ("half", "huge") for fault in faults_before(d))
        ),
    ),
    "squared_by_xla": Entry(
        "differences.md",
        "| float16 gradients whose square is taken, as by `tf.clip_by_norm`, with a fixed scale",
        lambda d: d.theme in ("state", "numbers") and squared_by_xla(d),
    ),
    "nadam_of_keras_3": Entry(
        "differences.md",
        "| a `Nadam` inside | files are without its `_u_product`",
        lambda d: (
            keras3(d)
            and d.program["optimizer"][0] == "Nadam"
            and (d.key == "names" or d.action[0] in ("checkpoint", "file"))
        ),
    ),
    "both_ways": Entry(
        "differences.md",
        "one optimizer for `fit` and for a step that calls `get_unscaled_gradients`",
        lambda d: (
            keras3(d)
            and (d.key, d.original, d.package) == ("error", None, "ValueError")
            and "scaled=" in d.messages[1]
        ),
    ),
    "one_replica_of_keras_3": Entry(
        "keras.md",
        "| a NaN on one GPU (replica), not the first, of a `MirroredStrategy` | **reaches",
        lambda d: keras3(d) and any(fault[3] for fault in faults_before(d)),
    ),
    "lowered_period_of_keras_3": Entry(
        "differences.md",
        "| you lower `dynamic_growth_steps` below the count of finite steps so far",
        lambda d: (
            keras3(d)
            and d.theme == "state"
            and any(
                a[0] == "attribute" and a[1][0] == "dynamic_growth_steps"
                for a in d.program["actions"][: d.index]
            )
        ),
    ),
    "accumulated_float16_of_keras_3": Entry(
        "differences.md",
        "`gradient_accumulation_steps` with float16 variables in a step that calls",
        lambda d: (
            keras3(d)
            and original_failed(d, "InvalidArgumentError")
            and "gradient_accumulation_steps" in d.program["optimizer"][1]
            and any(v["dtype"] == "float16" for v in d.program["variables"] or ())
        ),
    ),
    "bounds_of_keras_3": Entry(
        "keras.md",
        "| the scale falls | without a floor, to 0 in the end | not below 1;",
        scale_left_bounds,
    ),
}


def on_purpose(difference):
    """The name of the entry that a difference falls under, or None."""
    for name, entry in ENTRIES.items():
        if entry.applies(difference):
            met[name] += 1
            return name
    return None
