"""Migrates Jupyter notebooks: in each cell, edits the JSON lines from the first change to the last.

The cells of a notebook are one program, so that an import in one cell is known in the others. What
is IPython's and not Python's (`%magic`, `!command`, `%%cell` magics, `?help`) is masked by as many
characters of Python that say nothing.
"""

import bisect
import itertools
import json
import re
from typing import Any, Dict, NamedTuple, Optional

from tf_lossscale_compat.migrate import _source, _tree

# Cell magics whose body is Python and runs in the notebook's namespace.
_PYTHON_CELLS = {"capture", "prun", "time", "timeit"}
_CELL_MAGIC = re.compile(r"\s*%%(\w*)")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ENDS = re.compile(r"\r\n|\r|\n")
_MAGIC = re.compile(r"(?P<kept>[ \t]*)(?:[%!?]|[\w.]+\?{1,2}\s*$|[/,;]\s*\w)")
_ASSIGNED = re.compile(r"(?P<kept>[\w.,\[\] \t]+=[ \t]*)[%!].*")
# Comments, strings of several lines, which may be open at the end, other strings, and brackets.
_TOKEN = re.compile(
    r"#[^\r\n]*|(\"\"\"|''')(?:\\.|.)*?(?:\1|(?P<open>\Z))"
    r"|([\"'])(?:\\(?:\r\n|.)|(?!\3)[^\r\n])*\3?|[()\[\]{}]",
    re.DOTALL,
)
_INDENT = re.compile(r"(?:[ \t]*(?:\r\n|\r|\n))*(?P<indent>[ \t]*)")


class NotebookError(ValueError):
    """The file is not a notebook that can be handled; the message says why."""


class _Cell(NamedTuple):
    number: int
    pieces: list  # Of `_Piece`.
    glue: Optional[str]  # What stands between two strings of its list; None where it is one string.

    @property
    def whole(self):
        return "".join(self.pieces)

    @property
    def indent(self):
        """The blanks before a cell's first line, which IPython takes away from all of its lines."""
        match = _INDENT.match(self.whole)
        return match.group("indent") if match else ""

    @property
    def source(self):
        """The source as IPython runs it."""
        return re.sub(rf"^{self.indent}", "", self.whole, flags=re.MULTILINE)

    def place(self, offset):
        """Returns where in the whole text a place of the source is."""
        if not self.indent:
            return offset
        before = self.whole.split("\n")[: self.source.count("\n", 0, offset) + 1]
        gone = sum(each.startswith(self.indent) for each in before)
        return offset + gone * len(self.indent)


def is_notebook(text: str) -> bool:
    """Returns whether a text is a notebook's JSON and not Python."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        document = json.loads(text)
    except ValueError:
        return False
    return isinstance(document, dict) and ("cells" in document or "worksheets" in document)


def migrate(text: str, options: _source.Options) -> _source.Result:
    """Rewrites the code cells of a notebook's JSON; otherwise as `_source.migrate`.

    Places are those in the JSON, and messages name the cell. Raises `NotebookError`.
    """
    try:
        document = _Decoder().decode(text)
    except ValueError as error:
        raise NotebookError(f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise NotebookError("is no notebook")
    if not _is_python(document):
        return _source.Result(text)
    cells = _cells(document, text)
    masked, failures = [], []
    for cell in cells:
        source = _mask(cell.source)
        try:
            _tree.parse(source)
        except _tree.ParseError as error:
            message = f"does not parse: {error}"
            failures.append(_located(text, cell, error.line, error.column, message))
            source = _blank(source)
        # Cells that do not end their last line are distinguished by this.
        masked.append(source + "\n")
    program = "".join(masked)
    if not _source.may_concern(program.encode("utf-8", "replace"), options):
        return _source.Result(text, failures=failures)
    try:
        result = _source.migrate(program, options._replace(keep_imports=True))
    except _tree.ParseError as error:
        raise NotebookError(f"its cells do not parse together: {error}") from None
    starts = [0, *itertools.accumulate(map(len, masked))]
    lines = [0, *itertools.accumulate(len(_ENDS.findall(source)) for source in masked)]
    findings = []
    for finding in result.findings:
        number = bisect.bisect_left(lines, finding.line) - 1
        line = finding.line - lines[number]
        place = _located(text, cells[number], line, finding.column, finding.message)
        findings.append(place._replace(code=finding.code))
    edits = _json_edits(text, cells, starts, result.edits)
    return result._replace(text=_source.apply(text, edits), findings=findings, failures=failures)


def _is_python(document):
    metadata = _get(document, "metadata", dict)
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        language = _get(_get(metadata, key, dict), name, str)
        if language:
            return language.lower() in ("python", "python3", "ipython")
    return True


class _Piece(str):
    """A JSON string, with where it is in the JSON."""

    start: int
    end: int


class _Decoder(json.JSONDecoder):
    """Makes a `_Piece` of each string that is a value."""

    def __init__(self):
        super().__init__()
        self.parse_string = self._piece
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    @staticmethod
    def _piece(text, begin, strict):
        value, end = json.decoder.scanstring(text, begin, strict)  # type: ignore[attr-defined]
        piece = _Piece(value)
        piece.start, piece.end = begin - 1, end  # With the quotation marks.
        return piece, end


def _cells(document, text):
    """Returns the code cells of a notebook, with the places of their source strings."""
    found = []
    lists = [_get(document, "cells", list)]  # Up to format 3 a worksheet has them.
    lists += [_get(sheet, "cells", list) for sheet in _get(document, "worksheets", list)]
    for number, cell in enumerate(itertools.chain(*lists), 1):
        if _get(cell, "cell_type", str) != "code":
            continue
        whole = _get(cell, "source", str) or _get(cell, "input", str)
        pieces = [whole] if whole else _get(cell, "source", list) or _get(cell, "input", list)
        if pieces and all(isinstance(piece, _Piece) for piece in pieces):
            start = pieces[0].start
            glue = None if whole else text[text.rindex("[", 0, start) + 1 : start]
            found.append(_Cell(number, pieces, glue))
    return found


def _get(value, key, kind):
    """Returns the value of a key of a JSON object; an empty `kind` if it has another type."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, kind) else kind()


def _blank(text):
    """Returns a comment of the same shape, line by line."""
    return re.sub(r"[^\r\n]", "#", text)


def _mask(source):
    """Returns a cell's source with IPython's own code replaced, character for character."""
    lines, result = _LINE.findall(source), []
    magic = _CELL_MAGIC.match(source)
    if magic:
        if magic.group(1) not in _PYTHON_CELLS:
            return _blank(source)
        count = len(_ENDS.findall(magic.group())) + 1
        result, lines = [_blank(line) for line in lines[:count]], lines[count:]
    goes_on = False
    for line in lines:
        command: Any = _ASSIGNED.match(line) or _MAGIC.match(line)
        if not goes_on and (not command or _is_open("".join(result))):
            result.append(line)
            continue
        kept = "" if goes_on else command.group("kept") + "0"  # A number says nothing.
        result.append(kept + _blank(line[len(kept) :]))
        goes_on = line.rstrip("\r\n").endswith("\\")  # A command goes on behind a backslash.
    return "".join(result)


def _is_open(source):
    """Returns whether the next line is inside of brackets or a string, or goes on a line."""
    depth = 0
    for token in _TOKEN.finditer(source):
        if token.group("open") is not None:
            return True
        depth = max(depth + (token.group() in "([{") - (token.group() in ")]}"), 0)
    return depth > 0 or "".join(source.splitlines()[-1:]).endswith("\\")


def _json_edits(text, cells, starts, edits):
    """Turns edits of the program into edits of those strings of the JSON that change."""
    own: Dict[int, list] = {}
    for start, end, new in edits:
        number = bisect.bisect_right(starts, start) - 1
        own.setdefault(number, []).append((start - starts[number], end - starts[number], new))
    result = []
    for number, cell_edits in sorted(own.items()):
        cell = cells[number]
        cell_edits = [
            (cell.place(start), cell.place(end), re.sub("(?<=\n)", cell.indent, new))
            for start, end, new in cell_edits
        ]
        value = _source.apply(cell.whole, cell_edits)
        values = [value] if cell.glue is None else _LINE.findall(value) or [""]
        # From the first line that changes to the last, one at least of either.
        first = _common(cell.pieces, values)
        first = min(first, len(cell.pieces) - 1, len(values) - 1)
        kept = _common(cell.pieces[:first:-1], values[:first:-1])
        place = cell.pieces[first].start, cell.pieces[-1 - kept].end
        ascii_only = text[slice(*place)].isascii()
        changed = values[first : len(values) - kept]
        literals = [json.dumps(each, ensure_ascii=ascii_only) for each in changed]
        result.append((*place, ("," + (cell.glue or "")).join(literals)))
    return result


def _common(one, other):
    """Returns how many elements at the start are the same."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def _located(text, cell, line, column, message):
    """Returns a `_source.Finding` of a cell's source, at its place in the JSON."""
    lines = [*_LINE.findall(cell.whole), ""]
    line = min(line, len(lines))
    if lines[line - 1].startswith(cell.indent):
        column += len(cell.indent)
    offset = sum(map(len, lines[: line - 1])) + min(column - 1, len(lines[line - 1]))
    for piece in cell.pieces:
        if offset <= len(piece):
            break
        offset -= len(piece)
    ascii_only = text[piece.start : piece.end].isascii()
    before = json.dumps(piece[:offset], ensure_ascii=ascii_only)
    place = piece.start + len(before) - 1
    return _source.Finding(
        text.count("\n", 0, place) + 1,
        place - text.rfind("\n", 0, place),
        f"{message} (cell {cell.number}, line {line})",
    )
