"""Migrates one piece of source code, as text."""

import re
from typing import Iterable, List, NamedTuple, Optional, Tuple

from tf_lossscale_compat.migrate import _next, _plan, _tree

# What a file has to hold for there to be anything to do. Parsing is slow, and of a large code base
# hardly any file gets past this.
_LOSS_SCALING = re.compile(rb"mixed_precision|LossScale|loss_?scale|get_(?:un)?scaled_")
_CONTRIB = re.compile(rb"\bcontrib\b")
_TENSORFLOW = re.compile(rb"tensorflow|keras|npu_|\btf\b|tf_lossscale")
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


class Options(NamedTuple):
    """The options of one call; all but `keep_imports` are the same for all of its files."""

    to: tuple = (2, 21)  # The TensorFlow that they go to.
    tensorflow_as: tuple = ()  # Dotted names by which modules hand TensorFlow on.
    contrib: bool = False  # Whether other names of contrib are looked for in all files.
    made: Optional[frozenset] = frozenset()  # By all files, see `_plan.Plan.made`.
    keep_imports: bool = False  # Also what nothing needs, as a notebook's next cell may.
    models: frozenset = frozenset()  # What all files say of them, see `keras_3.models`.
    is_imported: bool = False  # By a file about loss scaling: so it is about that, too.


class Result(NamedTuple):
    """The outcome for one source."""

    text: str  # The new one.
    findings: list = []  # Of `Finding`, in order, without those that a comment marks as checked.
    failures: list = []  # Of `Finding`: what could not be handled; line 0 means the whole file.
    made: frozenset = frozenset()  # See `_plan.Plan.made`.
    has_checks: bool = False  # Whether it depends on what becomes of other files' wrappers.
    facts: list = []  # See `_next.facts`.
    is_about: bool = False  # Whether the file names a class of this package, or will.
    edits: list = []  # Of (start, end, new text), in characters of the text given, in order.


class UnsafeEditError(Exception):
    """The edited source would not parse: a fault of this tool."""


def may_concern(data: bytes, options: Options = Options()) -> bool:  # noqa: B008
    """Returns whether a file's bytes can hold anything to change or to report."""
    words = _LOSS_SCALING.search(data) or (options.contrib and _CONTRIB.search(data))
    return bool((words or options.is_imported) and _TENSORFLOW.search(data))


def migrate(text: str, options: Options = Options()) -> Result:  # noqa: B008
    """Rewrites a source without a byte order mark.

    Raises `_tree.ParseError` for what is no Python 3 code, `UnsafeEditError` for such a result.
    """
    tree = _tree.Tree(text, options.tensorflow_as)
    plan = _plan.Plan(tree, options._replace(made=None))
    own, has_checks = frozenset(plan.made), plan.has_checks
    if has_checks:
        plan = _plan.Plan(tree, options._replace(made=own | (options.made or set())))
    edits = [
        (len(tree.source[:start].decode()), len(tree.source[:end].decode()), new.decode())
        for start, end, new in plan.edits
    ]
    new_text = apply(text, edits)
    if edits:
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
    facts, is_about = _next.facts(plan, findings), plan.is_about_loss_scaling
    return Result(new_text, findings, [], own, has_checks, facts, is_about, edits)


def apply(text: str, edits: Iterable[Tuple[int, int, str]]) -> str:
    """Returns a text with edits, as of `Result`, applied."""
    parts: List[str] = []
    position = 0
    for start, end, new in edits:
        if start < position:
            raise UnsafeEditError("two edits overlap")
        parts += [text[position:start], new]
        position = end
    return "".join([*parts, text[position:]])
