"""Runs `tf-lossscale migrate` over files: shows, checks or writes, and says what is left."""

import contextlib
import difflib
import os
import re
import sys
import traceback
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


def migrate_bytes(data, notebook=None, made=frozenset(), tensorflow_as=()):
    """Rewrites the content of a file.

    Args:
      data: bytes.
      notebook: whether it is a notebook; None to tell by the content.
      made: see `_source.migrate`.
      tensorflow_as: see `_tree.Tree`.

    Returns:
      An `Outcome`. Whatever goes wrong is in its `failures`.
    """
    try:
        if not _source.may_concern(data):
            return Outcome(data, data, [], [])
        text = _files.decode(data)
        if notebook is None:
            notebook = _notebook.is_notebook(text)
        if notebook:
            result = _notebook.migrate(text, made, tensorflow_as)
            failures = result.failures
        else:
            result = _source.migrate(text, made=made, tensorflow_as=tensorflow_as)
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


def as_written(outcome, **options):
    """Returns an outcome with its places where they are after the change."""
    if outcome.new == outcome.old or not (outcome.findings or outcome.failures):
        return outcome
    again = migrate_bytes(outcome.new, **options)
    return outcome._replace(findings=again.findings, failures=again.failures)


class _Run:
    """Counts, and prints as it goes: diffs and names to standard output, the rest to the other."""

    def __init__(self, write, check, tensorflow_as):
        self._tensorflow_as = tensorflow_as
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
        outcome = migrate_bytes(data, **self._options(path))
        self._made |= outcome.made
        if outcome.new == outcome.old and not (
            outcome.findings or outcome.failures or outcome.has_checks
        ):
            return None
        return outcome

    def _options(self, path):
        return {
            "notebook": path.endswith(".ipynb"),
            "made": self._made,
            "tensorflow_as": self._tensorflow_as,
        }

    def act(self, path, outcome):
        """Shows or makes the change of a file, once all files have been looked at."""
        if outcome.has_checks:
            outcome = migrate_bytes(outcome.old, **self._options(path))
        if outcome.new != outcome.old:
            outcome = self._change(path, outcome)
        self.tell(path, outcome)

    def _change(self, path, outcome):
        """Shows or makes a file's change; returns what is left to tell about it."""
        if self._write:
            try:
                _files.replace(path, outcome.old, outcome.new)
            except _files.FileError as error:
                self._fail(path, str(error))
                return outcome
            outcome = as_written(outcome, **self._options(path))
            self._print(sys.stdout, f"rewrote {path}\n")
        elif self._check:
            self._print(sys.stdout, f"would rewrite {path}\n")
        else:
            self._print(sys.stdout, diff(path, outcome.old, outcome.new))
        self.changed += 1
        return outcome

    def tell(self, path, outcome):
        """Prints findings and failures."""
        for finding in outcome.findings:
            self.findings += 1
            self._print(sys.stderr, f"{path}:{finding.line}:{finding.column}: {finding.message}\n")
        for failure in outcome.failures:
            self._fail(path, failure.message, failure.line, failure.column)

    def _fail(self, path, message, line=0, column=0):
        self.failures += 1
        place = f"{path}:{line}:{column}" if line else path
        self._print(sys.stderr, f"{place}: {message}\n")

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


def _progress(files):
    """Returns a context for going over files: with a progress bar, or None where there is none."""
    if len(files) < _MANY_FILES or not sys.stderr.isatty():
        return contextlib.nullcontext()
    try:
        import tqdm
    except ImportError:
        return contextlib.nullcontext()
    return tqdm.tqdm(files, unit="file", file=sys.stderr, leave=False)


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
    lines = difflib.unified_diff(
        _LINE.findall(old.decode("utf-8")),
        _LINE.findall(new.decode("utf-8")),
        f"a/{name}",
        f"b/{name}",
    )
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )


def run(paths, write=False, check=False, exclude=(), tensorflow_as=()):
    """Migrates files and folders, or standard input.

    Args:
      paths: list of str; `["-"]` for standard input.
      write: whether to change files instead of showing a diff.
      check: whether only to name the files that would change.
      exclude: patterns, see `_walk.files`.
      tensorflow_as: see `_source.migrate`.

    Returns:
      The exit code, as in this package's docstring.
    """
    task = _Run(write, check, tensorflow_as)
    if paths == ["-"]:
        outcome = migrate_bytes(sys.stdin.buffer.read(), tensorflow_as=tensorflow_as)
        task.changed = int(outcome.new != outcome.old)
        if not check:
            # What cannot be handled goes through unchanged, so that nothing is lost in a pipe.
            sys.stdout.buffer.write(outcome.new)
            sys.stdout.buffer.flush()
            outcome = as_written(outcome, tensorflow_as=tensorflow_as)
        task.tell("<stdin>", outcome)
    else:
        task.paths(paths, exclude)
        emit(sys.stderr, task.summary())
    return task.exit_code
