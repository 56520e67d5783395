"""docs/hints.md: the tool reports what its diffs begin with, and what they end with runs.

What steps show on Keras 3 is held to numbers of Keras 2 in tests/keras/hint_steps_test.py.
"""

import pathlib
import re
import tempfile

import pytest
from absl.testing import absltest, parameterized

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tests import forks, processes
from tf_lossscale_compat import migrate
from tf_lossscale_compat.migrate import _source

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/hints.md").read_text(encoding="utf-8")
SECTIONS = [
    (text.split("\n")[0], diff)
    for text in re.split("(?m)^## ", PAGE)
    for diff in re.findall(r"(?ms)^```diff\n(.*?)^```$", text)
]
SECONDS = 300
HEAD = """\
import tensorflow as tf
import tf_lossscale_compat
from tf_lossscale_compat.keras import mixed_precision
"""
# What the diffs take for granted.
SETUP = """
import tempfile
import numpy as np
tf.keras.mixed_precision.set_global_policy("float32")
folder, x, y = tempfile.mkdtemp(), np.eye(4, dtype="float32"), np.ones([4, 1], "float32")
weight, sgd = tf.Variable(1.0), tf.keras.optimizers.SGD(0.5)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile(sgd, "mse")
batches = lambda: (pair for pair in [(x, y)] * 2)
import os
"""
# Steps, of which those of hint_steps.py are made, and what is for Keras 2.
NOT_ALONE = ("LSC401", "LSC402", "LSC411")


def side(diff, other):
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != other)


def codes(text):
    return {finding.code for finding in _source.migrate(text).findings}


class PageTest(parameterized.TestCase):
    def test_every_code_has_a_section(self):
        folder = pathlib.Path(migrate.__file__).parent
        sources = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
        said = set(re.findall(r"[\"'(]LSC\d+ ", "".join(sources)))
        shown = dict.fromkeys(code for code, _ in SECTIONS)
        self.assertEqual([*shown], sorted(code[1:-1] for code in said))

    @parameterized.parameters(*SECTIONS)
    def test_the_tool_reports_it_before_and_not_after(self, code, diff):
        self.assertIn(code, codes(HEAD + side(diff, "+")))
        self.assertNotIn(code, codes(HEAD + side(diff, "-")))


class RunTest(parameterized.TestCase):
    def test_what_they_end_with(self):
        tf = pytest.importorskip("tensorflow")
        if not hasattr(tf.keras, "__version__") or not tf.keras.__version__.startswith("3."):
            self.skipTest("the page is about going to TensorFlow 2.16 and newer, with Keras 3")
        parts = [HEAD]
        for code, diff in SECTIONS:
            if code not in NOT_ALONE:
                parts.append(f"{SETUP}{side(diff, '-')}\n")
        with tempfile.TemporaryDirectory() as folder:
            program = processes.write(folder, "hints.py", "\n".join(parts))
            status, _, errors = forks.run([program], processes.environment(), folder, SECONDS)
        self.assertEqual(status, 0, errors[-3000:])


if __name__ == "__main__":
    absltest.main()
