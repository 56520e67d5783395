"""Runs `tf-lossscale migrate` over files: shows, checks or writes, and says what is left.

`_walk` finds the files and `_files` replaces them. `_source` rewrites a source, which `_tree`
parses. `_plan` calls `rewrites` (the namespaces that moved) and `checks` (what a person must
decide).
"""

import difflib
import json
import os
import re
import sys
import traceback
from typing import NamedTuple, Optional, Sequence

from tf_lossscale_compat.migrate import _files, _source, _tree, _walk

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_JUPYTEXT = "jupytext --warn-only --pipe-fmt py:percent --pipe 'tf-lossscale migrate -'"


class Outcome(NamedTuple):
    """The outcome for one file: its bytes before and after, and a `_source.Result`."""

    old: bytes
    new: bytes
    result: _source.Result


def _failed(data, message, line=0, column=0):
    failure = _source.Finding(line, column, message)
    return Outcome(data, data, _source.Result("", [], [failure], b"LossScaleOptimizer" in data))


def migrate_bytes(data: bytes, tensorflow_as: Sequence[str] = ()) -> Outcome:
    """Rewrites a file's content; the failures of the outcome hold every error."""
    try:
        if not _source.may_concern(data):
            return Outcome(data, data, _source.Result(""))
        text = _files.decode(data)
        result = _source.migrate(text, tensorflow_as)
        new = data if result.text == text else _files.encode(result.text, data)
        return Outcome(data, new, result)
    except _files.FileError as error:
        return _failed(data, str(error))
    except _tree.ParseError as error:
        return _failed(data, f"does not parse as Python 3: {error}", error.line, error.column)
    except RecursionError:
        return _failed(data, "is nested too deeply")
    except Exception as error:
        # One file, of thousands, must not keep the others from being done.
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _failed(
            data,
            f"is left as it is because of a fault of this tool, please report it:"
            f" {type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})",
        )


class Run:
    """One call: counts, prints diffs and names to standard output, the rest to standard error.

    It changes files (`write`), names those that would change (`check`), or shows diffs. With
    `as_json` standard output is one list of places and nothing else.
    """

    def __init__(self, write, check, tensorflow_as, as_json=False):
        self._write = write
        self._check = check
        self._tensorflow_as = tensorflow_as
        self._places: Optional[list] = [] if as_json else None
        self._held: list = []  # Of (path, finding), until all files are known.
        self._makes_one = False  # A file makes a loss-scale optimizer.
        self.files = self.changed = self.findings = self.failures = 0

    def do(self, path):
        """Shows or makes the change of a file."""
        self.files += 1
        try:
            if path.endswith(".ipynb"):
                raise _files.FileError(f"is a notebook: write `{_JUPYTEXT} {path}`")
            outcome = migrate_bytes(_files.read(path), self._tensorflow_as)
        except _files.FileError as error:
            self._fail(path, str(error))
            return
        if outcome.new != outcome.old:
            self.changed += 1
            if self._write:
                try:
                    _files.replace(path, outcome.old, outcome.new)
                except _files.FileError as error:
                    self.changed -= 1
                    self._fail(path, str(error))
                else:
                    self._say(f"rewrote {path}\n")
                    # For places after the change.
                    outcome = migrate_bytes(outcome.new, self._tensorflow_as)
            elif self._check:
                self._say(f"would rewrite {path}\n")
            else:
                self._say(diff(path, outcome.old, outcome.new))
        self.report(path, outcome.result)

    def _say(self, text):
        if self._places is None:
            emit(sys.stdout, text)

    def pipe(self, data):
        """Migrates standard input to standard output."""
        outcome = migrate_bytes(data, self._tensorflow_as)
        self.changed = int(outcome.new != outcome.old)
        if not self._check and self._places is None:
            # What cannot be handled goes through unchanged, so that nothing is lost in a pipe.
            sys.stdout.buffer.write(outcome.new)
            sys.stdout.buffer.flush()
            outcome = migrate_bytes(outcome.new, self._tensorflow_as)
        self.report("<stdin>", outcome.result)
        self._end()

    def report(self, path, result):
        """Prints findings and failures."""
        self._makes_one |= result.makes_one
        for finding in result.findings:
            if finding.code == "LSC105":  # Another file may make what this one wants.
                self._held.append((path, finding))
            else:
                self._place(path, finding)
        for failure in result.failures:
            self._fail(path, failure.message, failure.line, failure.column)

    def _fail(self, path, message, line=0, column=0):
        self.failures += 1
        self._place(path, _source.Finding(line, column, message))

    def _place(self, path, finding):
        self.findings += bool(finding.code)  # A failure has none.
        if self._places is not None:
            self._places.append({"path": path, **finding._asdict()})
            return
        place = f"{path}:{finding.line}:{finding.column}" if finding.line else path
        emit(sys.stderr, f"{place}: {finding}\n")

    def _end(self):
        for path, finding in () if self._makes_one else self._held:
            self._place(path, finding)
        if self._places is not None:
            emit(sys.stdout, json.dumps(self._places, indent=2) + "\n")

    def paths(self, paths, exclude):
        """Goes over files and folders, each file once; `exclude` as of `_walk.files`."""

        def unlisted(error):
            self._fail(error.filename, f"cannot be read: {error.strerror}")

        found: dict = {}  # {whose name it is: the first path to it}.
        for path in paths:
            failures = self.failures
            files = list(_walk.files(path, exclude, unlisted))
            if not files and self.failures == failures:
                self._fail(path, "holds no *.py or *.pyi file to look at")
            for file in files:
                found.setdefault(os.path.realpath(file), file)
        for file in found.values():
            self.do(file)
        self._end()
        done = "rewritten" if self._write else "to rewrite"
        emit(
            sys.stderr,
            f"{_count(self.files, 'file')} looked at, {self.changed} {done},"
            f" {_count(self.findings, 'place')} left to a person, {self.failures} not handled\n",
        )

    @property
    def exit_code(self):
        """The exit code; the docstring of `migrate` lists them."""
        if self.failures:
            return 2
        return 1 if self.findings or (self._check and self.changed) else 0


def _count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def emit(stream, text):
    """Writes text to a standard stream in UTF-8, with the line ends that it has."""
    stream.flush()
    stream.buffer.write(text.encode("utf-8", "surrogateescape"))
    stream.buffer.flush()


def diff(path, old, new):
    """Returns a unified diff that `patch -p1` and `git apply` take."""
    name = os.path.normpath(path).replace(os.sep, "/").lstrip("/")
    before, after = (_LINE.findall(each.decode("utf-8")) for each in (old, new))
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
