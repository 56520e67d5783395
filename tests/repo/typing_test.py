"""mypy and pyright find every wrong line of `tests/typing/`, and complain of no other.

A wrong line ends with `# error:`, what mypy calls the mistake, and what pyright calls it; where
versions of a checker differ there are several names, separated by commas.

Whether TensorFlow's types (`types-tensorflow`) are there depends on the environment, and what is
expected does not. With TF_LOSSSCALE_TYPES set to "without" or "with" nothing is skipped, and the
environment must be like that.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

from absl.testing import parameterized

from tests import forks

try:
    from importlib import metadata
except ImportError:  # Python 3.7
    import importlib_metadata as metadata

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "typing"
NAMES = sorted(path.name for path in PROGRAMS.glob("*.py"))
# The fewest wrong lines that a program has, so that a broken reader of comments shows.
FEWEST = 5
WANTED = os.environ.get("TF_LOSSSCALE_TYPES", "")
HAS_STUBS = importlib.util.find_spec("tensorflow-stubs") is not None

MARK = re.compile(r"# error: (?P<mypy>\S+) (?P<pyright>\S+)$")

MYPY = """
[mypy]
strict = True
python_version = 3.10
{path}
[mypy-tensorflow.*,numpy.*,keras.*]
ignore_missing_imports = True
# What is wrong inside of the package is not for its users to see.
[mypy-tf_lossscale_compat.*]
follow_imports = silent
"""
PYRIGHT = {
    "typeCheckingMode": "standard",
    "pythonVersion": "3.10",
    "reportMissingImports": False,
    "reportMissingModuleSource": False,
}


def wrong_lines(text):
    """Returns {number of a line: {checker: names of its mistake}}."""
    marked = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = MARK.search(line)
        if match:
            marked[number] = {
                key: set(names.split(",")) for key, names in match.groupdict().items()
            }
    return marked


def installed():
    """Returns the clone where the package is not installed, also not by `pip install -e`."""
    try:
        metadata.distribution("tf_lossscale_compat")
    except metadata.PackageNotFoundError:
        return ROOT
    return None


def run(command, folder):
    """Runs a checker in `folder`; returns what it printed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    status, out, err = forks.alone(["-m", *command], environment, str(folder), 280)
    # Both end with 1 where they have found mistakes.
    if status not in (0, 1):
        raise RuntimeError(out + err)
    return out


def run_mypy(folder):
    """Returns [(file, line, name of the mistake, message)]."""
    path = installed()
    config = folder / "mypy.ini"
    config.write_text(MYPY.format(path=f"mypy_path = {path}" if path else ""), encoding="utf-8")
    options = ["--config-file", str(config), "--cache-dir", str(folder / "cache")]
    output = run(["mypy", *options, "--output=json", *NAMES], folder)
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [
        (each["file"], each["line"], each["code"], each["message"])
        for each in found
        if each["severity"] == "error"
    ]


def run_pyright(folder):
    """Returns [(file, line, name of the mistake, message)]."""
    path = installed()
    config = folder / "pyrightconfig.json"
    settings = {**PYRIGHT, "extraPaths": [str(path)]} if path else PYRIGHT
    config.write_text(json.dumps({**settings, "include": NAMES}), encoding="utf-8")
    options = ["--project", str(config), "--pythonpath", sys.executable]
    output = run(["pyright", *options, "--outputjson"], folder)
    return [
        (
            pathlib.Path(each["file"]).name,
            each["range"]["start"]["line"] + 1,
            each.get("rule", ""),
            each["message"],
        )
        for each in json.loads(output[output.index("{") :])["generalDiagnostics"]
        if each["severity"] == "error"
    ]


class TypingTest(parameterized.TestCase):
    found: dict = {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if WANTED and WANTED != ("with" if HAS_STUBS else "without"):
            raise AssertionError(
                f"TF_LOSSSCALE_TYPES is {WANTED!r}, and types-tensorflow are "
                + ("installed." if HAS_STUBS else "not installed.")
            )

    def mistakes(self, checker):
        """Returns what a checker says of all programs, {file: [(line, name, message)]}."""
        if importlib.util.find_spec(checker) is None:
            if WANTED:
                self.fail(f"{checker} is not installed")
            raise unittest.SkipTest(f"{checker} is not installed")
        if checker not in self.found:
            with tempfile.TemporaryDirectory() as folder:
                # A folder with nothing else in it, as a user's has.
                folder = pathlib.Path(folder).resolve()
                for name in NAMES:
                    text = (PROGRAMS / name).read_text(encoding="utf-8")
                    (folder / name).write_text(text, encoding="utf-8")
                by_file = {}
                for file, *rest in {"mypy": run_mypy, "pyright": run_pyright}[checker](folder):
                    by_file.setdefault(file, []).append(tuple(rest))
                self.found[checker] = by_file
        return self.found[checker]

    @parameterized.parameters("mypy", "pyright")
    def test_only_the_programs_are_complained_of(self, checker):
        self.assertLessEqual(set(self.mistakes(checker)), set(NAMES))

    @parameterized.parameters(*itertools.product(("mypy", "pyright"), NAMES))
    def test_wrong_lines_and_no_others_are_found(self, checker, name):
        marked = wrong_lines((PROGRAMS / name).read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(marked), FEWEST)
        found = self.mistakes(checker).get(name, [])
        problems = [
            f"{name}:{line}: {message} [{rule}]"
            for line, rule, message in found
            if rule not in marked.get(line, {checker: ()})[checker]
        ]
        missed = sorted(set(marked) - {line for line, _, _ in found})
        problems += [f"{name}:{line}: nothing found" for line in missed]
        self.assertEmpty(problems, "\n" + "\n".join(problems))
