"""Runs `tf-lossscale migrate` over files: shows, checks or writes, and says what is left."""

import ast
import difflib
import os
import re
import sys
import traceback
import warnings
from typing import NamedTuple

from tf_lossscale_compat.migrate import _files, _notebook, _source, _tree, _walk

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_LOOK_FIRST = (
    "before training, check that the loss scale is logged and moves as before: a check for the"
    " optimizer's class that none of these files shows may have turned loss scaling off\n"
)
# From here on a progress bar is worth its line.
_MANY_FILES = 200


class Outcome(NamedTuple):
    """What became of one file.

    Attributes:
      old, new: bytes, before and after; the same where nothing changes.
      findings: list of `_source.Finding`, for a person.
      failures: list of the same, for what could not be handled; line 0 means the whole file.
      made, has_checks: see `_source.Result`.
    """

    old: bytes
    new: bytes
    findings: list
    failures: list
    made: frozenset = frozenset()
    has_checks: bool = False


def _failed(data, message, line=0, column=0):
    return Outcome(data, data, [], [_source.Finding(line, column, message)])


def migrate_bytes(data, notebook=None, made=frozenset()):
    """Rewrites the content of a file.

    Args:
      data: bytes.
      notebook: whether it is a notebook; None to tell by the content.
      made: see `_source.migrate`.

    Returns:
      An `Outcome`. Whatever goes wrong is in its `failures`.
    """
    try:
        if not _source.may_concern(data):
            return _unconcerned(data, notebook)
        text = _files.decode(data)
        if notebook is None:
            notebook = _notebook.is_notebook(text)
        if notebook:
            result = _notebook.migrate(text, made)
            failures = result.failures
        else:
            result = _source.migrate(text, made=made)
            failures = []
        new = data if result.text == text else _files.encode(result.text, data)
        return Outcome(data, new, result.findings, failures, result.made, result.has_checks)
    except (_files.FileError, _notebook.NotebookError) as error:
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


def _unconcerned(data, notebook):
    """The outcome of a file with nothing to change; whether it is Python 3 is said all the same."""
    if not notebook and _source.mentions_tensorflow(data):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(data)
        except (SyntaxError, ValueError) as error:
            if _source.PYTHON_2.search(data):
                line, column = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
                return _failed(data, f"does not parse as Python 3: {error}", line, column)
        except (RecursionError, MemoryError):
            pass
    return Outcome(data, data, [], [])


def as_written(outcome, notebook=None, made=frozenset()):
    """Returns an outcome with its places where they are after the change."""
    if outcome.new == outcome.old or not (outcome.findings or outcome.failures):
        return outcome
    again = migrate_bytes(outcome.new, notebook, made)
    return outcome._replace(findings=again.findings, failures=again.failures)


class _Run:
    """Counts, and prints as it goes: diffs and names to standard output, the rest to the other."""

    def __init__(self, write, check):
        self._write = write
        self._check = check
        self.files = 0
        self.changed = 0
        self.findings = 0
        self.failures = 0
        self._made: frozenset = frozenset()
        self._progress = None

    def look(self, path):
        """Looks at a file; returns its outcome so far, None if there is none."""
        self.files += 1
        try:
            data = _files.read(path)
        except _files.FileError as error:
            self._fail(path, str(error))
            return None
        outcome = migrate_bytes(data, path.endswith(".ipynb"))
        self._made |= outcome.made
        if outcome.new == outcome.old and not (
            outcome.findings or outcome.failures or outcome.has_checks
        ):
            return None
        return outcome

    def act(self, path, outcome):
        """Shows or makes the change of a file, once all files have been looked at."""
        notebook = path.endswith(".ipynb")
        if outcome.has_checks:
            outcome = migrate_bytes(outcome.old, notebook, self._made)
        if outcome.new != outcome.old:
            outcome = self._change(path, outcome, notebook)
        self.tell(path, outcome)

    def _change(self, path, outcome, notebook):
        """Shows or makes a file's change; returns what is left to tell about it."""
        if self._write:
            try:
                _files.replace(path, outcome.old, outcome.new)
            except _files.FileError as error:
                self._fail(path, str(error))
                return outcome
            outcome = as_written(outcome, notebook, self._made)
            self._out(f"rewrote {path}\n")
        elif self._check:
            self._out(f"would rewrite {path}\n")
        else:
            self._out(diff(path, outcome.old, outcome.new))
        self.changed += 1
        return outcome

    def tell(self, path, outcome):
        """Prints findings and failures."""
        for finding in outcome.findings:
            self.findings += 1
            self._err(f"{path}:{finding.line}:{finding.column}: {finding.message}\n")
        for failure in outcome.failures:
            self._fail(path, failure.message, failure.line, failure.column)

    def _fail(self, path, message, line=0, column=0):
        self.failures += 1
        place = f"{path}:{line}:{column}" if line else path
        self._err(f"{place}: {message}\n")

    def unlisted(self, error):
        """Takes the error of a folder that cannot be listed."""
        self._fail(error.filename, f"cannot be read: {error.strerror}")

    def paths(self, paths, exclude):
        """Goes over files and folders, each file once."""
        seen = set()
        found = []
        for path in paths:
            failures = self.failures
            files = list(_walk.files(path, exclude, self.unlisted))
            if not files and self.failures == failures:
                self._fail(path, "holds no *.py, *.pyi or *.ipynb file to look at")
            for file in files:
                target = os.path.realpath(file)
                if target not in seen:
                    seen.add(target)
                    found.append(file)
        outcomes = []
        # A check for a class belongs to the wrapper that it checks, wherever that is made: all
        # files are looked at before any is changed.
        with _progress(found) as self._progress:
            for file in self._progress or found:
                outcome = self.look(file)
                if outcome is not None:
                    outcomes.append((file, outcome))
        self._progress = None
        for file, outcome in outcomes:
            self.act(file, outcome)

    def _out(self, text):
        self._print(sys.stdout, text)

    def _err(self, text):
        self._print(sys.stderr, text)

    def _print(self, stream, text):
        if self._progress is not None:
            self._progress.clear()
        emit(stream, text)

    def summary(self):
        done = "rewritten" if self._write else "to rewrite"
        last = _LOOK_FIRST if self._write and self.changed else ""
        return (
            f"{_count(self.files, 'file')} looked at, {self.changed} {done},"
            f" {_count(self.findings, 'place')} left to a person,"
            f" {self.failures} not handled\n{last}"
        )

    @property
    def exit_code(self):
        if self.failures:
            return 2
        return 1 if self.findings or (self._check and self.changed) else 0


class _NoProgress:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        pass


def _progress(files):
    if len(files) < _MANY_FILES or not sys.stderr.isatty():
        return _NoProgress()
    try:
        import tqdm
    except ImportError:
        return _NoProgress()
    return tqdm.tqdm(files, unit="file", file=sys.stderr, leave=False)


def _count(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def emit(stream, text):
    """Writes text to a standard stream in UTF-8, with the line ends that it has."""
    stream.flush()
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(text)
    else:
        buffer.write(text.encode("utf-8", "surrogateescape"))
        buffer.flush()


def diff(path, old, new):
    """Returns a unified diff that `patch -p1` and `git apply` take."""
    name = os.path.normpath(path).replace(os.sep, "/").lstrip("/")
    lines = difflib.unified_diff(
        _LINE.findall(old.decode("utf-8")),
        _LINE.findall(new.decode("utf-8")),
        f"a/{name}",
        f"b/{name}",
    )
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def run(paths, write=False, check=False, exclude=()):
    """Migrates files and folders, or standard input.

    Args:
      paths: list of str; `["-"]` for standard input.
      write: whether to change files instead of showing a diff.
      check: whether only to name the files that would change.
      exclude: patterns, see `_walk.files`.

    Returns:
      The exit code, as in this package's docstring.
    """
    task = _Run(write, check)
    if paths == ["-"]:
        outcome = migrate_bytes(_stdin())
        task.changed = int(outcome.new != outcome.old)
        if not check:
            # What cannot be handled goes through unchanged, so that nothing is lost in a pipe.
            _write_bytes(outcome.new)
            outcome = as_written(outcome)
        task.tell("<stdin>", outcome)
    else:
        task.paths(paths, exclude)
        emit(sys.stderr, task.summary())
    return task.exit_code


def _stdin():
    buffer = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read().encode("utf-8") if buffer is None else sys.stdin.buffer.read()


def _write_bytes(data):
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode("utf-8", "surrogateescape"))
    else:
        sys.stdout.flush()
        buffer.write(data)
        buffer.flush()
