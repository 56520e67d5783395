"""Migrates one piece of source code, as text."""

import re
from typing import NamedTuple, Sequence

from tf_lossscale_compat.migrate import _plan, _tree
from tf_lossscale_compat.migrate.checks import plain_optimizers

# What a file has to hold for there to be anything to do. Parsing is slow, and of a large code base
# hardly any file gets past this.
_LOSS_SCALING = re.compile(rb"mixed_precision|LossScale|loss_?scale|get_(?:un)?scaled_")
_TENSORFLOW = re.compile(rb"tensorflow|keras|\btf\b|tf_lossscale")
# In a line of a call whose findings a person has checked: those of the codes after it, or all.
_CHECKED = re.compile(rb"#.*\btf-lossscale: checked\b((?:[ ,]+LSC\d+)*)")


class Finding(NamedTuple):
    """Something left to a person: line and column count from 1, columns in characters."""

    line: int
    column: int
    message: str
    code: str = ""

    def __str__(self):
        return f"{self.code} {self.message}".strip()


class Result(NamedTuple):
    """The outcome for one source."""

    text: str  # The new one.
    findings: list = []  # Of `Finding`, in order, without those that a comment marks as checked.
    failures: list = []  # Of `Finding`: what could not be handled; line 0 means the whole file.
    makes_one: bool = False  # The file may make a loss-scale optimizer, for steps of other files.


class UnsafeEditError(Exception):
    """The edited source would not parse: a fault of this tool."""


def may_concern(data: bytes) -> bool:
    """Returns whether a file's bytes can hold anything to change or to report."""
    return bool(_LOSS_SCALING.search(data) and _TENSORFLOW.search(data))


def migrate(text: str, tensorflow_as: Sequence[str] = ()) -> Result:
    """Rewrites a source without a byte order mark.

    `tensorflow_as` has the dotted names by which modules hand TensorFlow on. Raises
    `_tree.ParseError` for what is no Python 3 code, `UnsafeEditError` for such a result.
    """
    tree = _tree.Tree(text, tensorflow_as)
    plan = _plan.Plan(tree)
    new_text = _apply(tree.source, plan.edits).decode("utf-8")
    if plan.edits:
        try:
            _tree.parse(new_text)
        except _tree.ParseError as error:
            raise UnsafeEditError(f"the result would not parse: {error}") from error
    findings, ends = [], {tree.start(call): tree.span(call)[1] for _, call in tree.calls}
    for offset, sentence in plan.findings:
        line, column = tree.position(offset)
        code, _, message = sentence.partition(" ")
        last, _ = tree.position(ends.get(offset, offset))
        checked = filter(None, map(_CHECKED.search, tree.lines[line - 1 : last]))
        if all(each.group(1) and code.encode() not in each.group(1) for each in checked):
            findings.append(Finding(line, column, message, code))
    return Result(new_text, findings, makes_one=plain_optimizers.makes_one(plan))


def _apply(source, edits):
    """Returns a source with edits, as of `_plan.Plan`, applied."""
    parts, position = [], 0
    for start, end, new in edits:
        if start < position:
            raise UnsafeEditError("two edits overlap")
        parts += [source[position:start], new]
        position = end
    return b"".join([*parts, source[position:]])
