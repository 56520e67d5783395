"""Small programs of users: what is left to a person, and that they train where nothing is.

The first lines of a program in the folder `corpus` say on which TensorFlows it runs as it stands,
the codes that are reported, in order, and on which TensorFlows it runs then if there is none.
"""

import pathlib
import re
import tempfile

import packaging.specifiers
import pytest
from absl.testing import parameterized

from tests import forks, processes

SECONDS = 120
FOLDER = pathlib.Path(__file__).with_name("corpus")
PROGRAMS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}


class CorpusTest(parameterized.TestCase):
    def run_program(self, name, text, what):
        tf = pytest.importorskip("tensorflow")
        where = re.search(rf"(?m)^# {what} on tf(.*)$", text).group(1)
        if not packaging.specifiers.SpecifierSet(where).contains(tf.__version__, True):
            self.skipTest(f"the program is for TensorFlow {where}")
        if "tf_keras" in PROGRAMS[name]:
            pytest.importorskip("tf_keras", reason="the program needs tf_keras")
        with tempfile.TemporaryDirectory() as folder:
            program = processes.write(folder, "program.py", text)
            status, _, err = forks.run([program], processes.environment(), folder, SECONDS)
        self.assertEqual(status, 0, err[-3000:])

    @parameterized.named_parameters((re.sub(r"\W", "_", name), name) for name in PROGRAMS)
    def test_it_runs_as_it_stands(self, name):
        self.run_program(name, PROGRAMS[name], "runs")

    @parameterized.named_parameters((re.sub(r"\W", "_", name), name) for name in PROGRAMS)
    @pytest.mark.slow
    def test_it_runs_where_nothing_is_left(self, name):
        pytest.importorskip(
            "libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)"
        )
        from tf_lossscale_compat.migrate import _command

        codes = re.search(r"(?m)^# left to a person: (.*)$", PROGRAMS[name]).group(1)
        outcome = _command.migrate_bytes(PROGRAMS[name].encode())
        found = [each.code for each in outcome.result.findings]
        self.assertEqual(" ".join(found) or "nothing", codes)
        self.assertEqual(outcome.result.failures, [])
        if not found:
            self.run_program(name, outcome.new.decode(), "then runs")
