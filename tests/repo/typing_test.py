"""mypy and pyright find every wrong line of `tests/typing/`, and complain of no other.

A wrong line ends with `# error:`, what mypy calls the mistake, and what pyright calls it. `nox -s
types` runs this without and with TensorFlow's types; the package has to be installed.
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import parameterized

PROGRAMS = sorted((pathlib.Path(__file__).resolve().parents[1] / "typing").glob("*.py"))
MARK = re.compile(r"# error: (?P<mypy>\S+) (?P<pyright>\S+)$")
MYPY = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", "--output=json"]
PYRIGHT = ["--outputjson", f"--pythonpath={sys.executable}"]


def run(*command):
    """Returns what a checker prints of the programs, run in an empty folder, as a user's is."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", *command, *map(str, PROGRAMS)]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, timeout=600)
    if done.returncode not in (0, 1):  # Both end with 1 where they have found mistakes.
        raise RuntimeError(done.stdout.decode())
    return done.stdout.decode()


def run_mypy():
    """Yields (file, line, name of the mistake, message)."""
    for each in map(json.loads, run("mypy", "--python-version=3.10", *MYPY).splitlines()):
        if each["severity"] == "error":
            yield each["file"], each["line"], each["code"], each["message"]


def run_pyright():
    """Yields (file, line, name of the mistake, message)."""
    output = run("pyright", "--pythonversion=3.10", *PYRIGHT)
    for each in json.loads(output[output.index("{") :])["generalDiagnostics"]:
        rule, line = each.get("rule", ""), each["range"]["start"]["line"] + 1
        if each["severity"] == "error" and rule != "reportMissingImports":
            yield each["file"], line, rule, each["message"]


class TypingTest(parameterized.TestCase):
    @parameterized.parameters(("mypy", run_mypy), ("pyright", run_pyright))
    def test_wrong_lines_and_no_others_are_found(self, checker, check):
        if importlib.util.find_spec(checker) is None:
            self.skipTest(f"{checker} is not installed")
        marked = {}
        for path in PROGRAMS:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if MARK.search(line):
                    marked[str(path), number] = MARK.search(line)[checker].split(",")
        self.assertGreater(len(marked), 25)
        found = list(check())
        self.assertEqual([each for each in found if each[2] not in marked.get(each[:2], ())], [])
        self.assertEqual(set(marked) - {each[:2] for each in found}, set())
