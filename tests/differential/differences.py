"""Differences on purpose: where a page of docs/ says that the package differs from the original.

What differs and is not in `ENTRIES` is a fault. `met` counts how often each entry was needed; one
that no run meets is to be removed.
"""

import collections
import dataclasses
import typing

from tests.differential import history

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
    return any(a[0] in ("step", "fetch", "finalize", "both", "threads") for a in before)


def in_step(difference):
    return difference.action[0] in history.STEPS


def few_more(difference):
    """Returns how many operations more a step may have: of few gradients, sparse or in float16."""
    variables = [v for of_one in difference.program.get("variables", []) for v in of_one]
    odd = sum(v["kind"] == "rows" or v["dtype"] == "float16" for v in variables)
    # Keras 2 tests what it aggregates in a conditional of its own.
    return 3 + 9 * odd if v1(difference) else 24


def scale_of_2_127(difference):
    """True if the scale was 2**127, of which one over it is zero.

    Or it was no number at all, which gradients without elements do not show.
    """
    if not v1(difference):
        return False
    program, largest = difference.program, 2.0**127
    empty = all(0 in v["shape"] for of_one in program.get("variables", []) for v in of_one)
    odd = [["set", largest]] + [["set", "nan"], ["set", "inf"]] * empty
    return program["scale"][1][0] == largest or any(each in program["actions"] for each in odd)


def original_failed(difference, *errors):
    return difference.key == "error" and difference.original in errors and not difference.package


def scale_left_bounds(difference):
    """Keras 3's own scale falls below 1, or rises to infinity."""
    scale = difference.original if difference.key == "dynamic_scale" else None
    return keras3(difference) and scale is not None and not 1 <= scale < 2.0**128


ENTRIES = {
    "none_gradients": Entry(
        "differences.md",
        "`None` gradients are carried through by contrib's optimizer.",
        lambda d: (
            d.program["family"] == "contrib"
            and original_failed(d, "ValueError")
            and any(v["kind"] == "unused" for vs in d.program["variables"] for v in vs)
        ),
    ),
    "dtypes": Entry(
        "differences.md",
        "`MixedPrecisionLossScaleOptimizer` takes losses and gradients of any float dtype",
        lambda d: (
            d.program["family"] == "mixed"
            and original_failed(d, "TypeError", "InvalidArgumentError")
            and any(v["dtype"] != "float32" for vs in d.program["variables"] for v in vs)
        ),
    ),
    "asked": Entry(
        "differences.md",
        "`variables()`, `get_slot` and the like answer for the wrapped optimizer",
        lambda d: v1(d) and d.action[0] == "ask",
    ),
    "operations_of_a_step": Entry(
        "from-contrib.md",
        "consists of fewer operations than contrib's in most cases. It has a few more if gradients",
        lambda d: d.key == "operations" and in_step(d) and d.package <= d.original + few_more(d),
    ),
    "random_after_a_step": Entry(
        "from-contrib.md",
        "made **after** it draw other numbers",
        lambda d: v1(d) and d.action[0] == "draw" and d.key == "value" and after_a_step(d),
    ),
    "names_after_a_step": Entry(
        "from-contrib.md",
        "consists of fewer operations than contrib's in most cases. It has a few more if gradients",
        lambda d: v1(d) and d.action[0] == "read" and d.key == "name" and after_a_step(d),
    ),
    "experimental_configs": Entry(
        "differences.md",
        "| configs of the experimental class in TensorFlow 2.4 and 2.5 |",
        lambda d: "experimental" in d.program["family"] and d.action[0] == "config",
    ),
    "fetched_loss_scale": Entry(
        "from-keras.md",
        "TensorFlow 2.4's was a tensor, so the object stands for its value, too.",
        lambda d: (
            "experimental" in d.program["family"]
            and d.action[0] in ("read", "fetch")
            and original_failed(d, "TypeError")
        ),
    ),
    "returned_by_a_manager": Entry(
        "from-contrib.md",
        "| `ExponentialUpdateLossScaleManager.update_loss_scale(finite)` |",
        lambda d: d.program["family"] == "managers" and in_step(d) and d.key == "returned",
    ),
    "returned_by_a_loss_scale": Entry(
        "from-train-experimental.md",
        "| `DynamicLossScale.update(grads)` |",
        lambda d: d.program["family"] == "scales" and in_step(d) and d.key == "returned",
    ),
    "reciprocal": Entry(
        "troubleshooting.md",
        "go on with zero gradients. This package skips such a step, and the scale comes down.",
        lambda d: scale_of_2_127(d) and d.theme in ("state", "numbers", "names"),
    ),
    "nadam_of_keras_3": Entry(
        "from-keras.md",
        "| a `Nadam` inside | files are without its `_u_product`",
        lambda d: (
            keras3(d)
            and d.program["optimizer"][0] == "Nadam"
            and (d.key == "names" or d.action[0] in ("checkpoint", "file"))
        ),
    ),
    "bounds_of_keras_3": Entry(
        "from-keras.md",
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
