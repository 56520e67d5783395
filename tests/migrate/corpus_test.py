"""Small programs of users: what is left to a person, and that they train where nothing is.

The first lines of a program in the folder `corpus` say on which TensorFlows it runs as it stands,
and for each `--to` the codes that are reported, in order.
"""

import json
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


def code(name, text):
    """Returns a program's Python, of a notebook without what is IPython's."""
    if name.endswith(".py"):
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
    return re.sub("(?m)^[%!].*", "", "\n".join(cells))


GOALS = [
    (
        f"_{re.sub(r'[.]', '_', name)}_{to.replace('.', '_')}",
        name,
        to,
        [*re.findall("LSC[0-9]+", codes)],
    )
    for name, text in PROGRAMS.items()
    for to, codes in re.findall(r"(?m)^# to ([\d.]+): (.*)$", code(name, text))
]


class CorpusTest(parameterized.TestCase):
    def run_program(self, name, text):
        with tempfile.TemporaryDirectory() as folder:
            program = processes.write(folder, "program.py", code(name, text))
            status, _, err = forks.run([program], processes.environment(), folder, SECONDS)
        self.assertEqual(status, 0, err[-3000:])

    @parameterized.named_parameters((re.sub(r"\W", "_", name), name) for name in PROGRAMS)
    def test_it_runs_as_it_stands(self, name):
        tf = pytest.importorskip("tensorflow")
        where = re.search(r"(?m)^# runs on tf(.*)$", code(name, PROGRAMS[name])).group(1)
        if not packaging.specifiers.SpecifierSet(where).contains(tf.__version__, True):
            self.skipTest(f"the program is for TensorFlow {where}")
        if "tf_keras" in PROGRAMS[name]:
            pytest.importorskip("tf_keras", reason="the program needs tf_keras")
        self.run_program(name, PROGRAMS[name])

    @parameterized.named_parameters(*GOALS)
    @pytest.mark.slow
    def test_it_runs_where_nothing_is_left(self, name, to, codes):
        pytest.importorskip(
            "libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)"
        )
        from tf_lossscale_compat.migrate import _command, _source

        version = tuple(map(int, to.split(".")))
        outcome = _command.migrate_bytes(PROGRAMS[name].encode(), None, _source.Options(version))
        self.assertEqual(([each.code for each in outcome.result.findings]), codes)
        self.assertEqual(outcome.result.failures, [])
        if codes:
            return
        tf = pytest.importorskip("tensorflow")
        major = [each.split(".")[:2] for each in (tf.__version__, to)]
        if major[0] != major[1] and not (version >= (2, 16) and hasattr(tf.keras, "KerasTensor")):
            self.skipTest(f"the program goes to TensorFlow {to}")
        if "tf_keras" in PROGRAMS[name]:
            pytest.importorskip("tf_keras", reason="the program needs tf_keras")
        self.run_program(name, outcome.new.decode())


if __name__ == "__main__":
    absltest.main()
