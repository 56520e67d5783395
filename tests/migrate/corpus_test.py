"""Small programs of users: what is left to a person, and that they train where nothing is.

The first lines of a program in the folder `corpus` say on which TensorFlows it runs as it stands,
and the codes that are reported, in order.
"""

import pathlib
import re
import tempfile

import packaging.specifiers
import pytest
from absl.testing import absltest, parameterized

from tests import forks, processes

SECONDS = 120
FOLDER = pathlib.Path(__file__).with_name("corpus")
PROGRAMS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}


class CorpusTest(parameterized.TestCase):
    def run_program(self, text):
        with tempfile.TemporaryDirectory() as folder:
            program = processes.write(folder, "program.py", text)
            status, _, err = forks.run([program], processes.environment(), folder, SECONDS)
        self.assertEqual(status, 0, err[-3000:])

    @parameterized.named_parameters((re.sub(r"\W", "_", name), name) for name in PROGRAMS)
    def test_it_runs_as_it_stands(self, name):
        tf = pytest.importorskip("tensorflow")
        where = re.search(r"(?m)^# runs on tf(.*)$", PROGRAMS[name]).group(1)
        if not packaging.specifiers.SpecifierSet(where).contains(tf.__version__, True):
            self.skipTest(f"the program is for TensorFlow {where}")
        if "tf_keras" in PROGRAMS[name]:
            pytest.importorskip("tf_keras", reason="the program needs tf_keras")
        self.run_program(PROGRAMS[name])

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
        if found:
            return
        tf = pytest.importorskip("tensorflow")
        if not getattr(tf.keras, "__version__", "").startswith("3."):
            self.skipTest("the program goes to TensorFlow 2.16 and later, with Keras 3")
        if "tf_keras" in PROGRAMS[name]:
            pytest.importorskip("tf_keras", reason="the program needs tf_keras")
        self.run_program(outcome.new.decode())


if __name__ == "__main__":
    absltest.main()
