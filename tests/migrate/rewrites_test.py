"""Sources before and after `tf-lossscale migrate`; most of them are in the folder `cases`.

There "# " begins a case, and "#" another one of the same title, which may end with a name that
stands for TensorFlow ("as lib.tf"). Of a case's lines, those with "-" are only before, and those
with "+" only after; "!" tells, at the end, what is left to a person: the place before, and a part
of the code and message, which "$" ends.
"""

import pathlib
import re
import sys
from unittest import mock

import pytest
from absl.testing import parameterized

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tf_lossscale_compat.migrate import _command

LOSS_SCALES = ("LossScale", "FixedLossScale", "DynamicLossScale")
OPTIMIZERS = (
    "MixedPrecisionLossScaleOptimizer",
    "enable_mixed_precision_graph_rewrite",
    "disable_mixed_precision_graph_rewrite",
)
MANAGERS = ("LossScaleManager", "FixedLossScaleManager", "ExponentialUpdateLossScaleManager")
NAMES = {
    # Namespace in TensorFlow: the one here, and its members.
    "contrib.mixed_precision": ("contrib.mixed_precision", (*MANAGERS, "LossScaleOptimizer")),
    "train.experimental": ("train.experimental", LOSS_SCALES + OPTIMIZERS),
    "mixed_precision": ("train.experimental", LOSS_SCALES + OPTIMIZERS),
    "mixed_precision.experimental": ("mixed_precision.experimental", LOSS_SCALES),
}

CONTRIB = "tf.contrib.mixed_precision"
KERAS = "tf_lossscale_compat.keras.mixed_precision"


def cases():
    for path in sorted(pathlib.Path(__file__).with_name("cases").glob("*.diff")):
        parts = re.split("^#", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        for number, part in enumerate(parts):
            title, _, lines = part.partition("\n")
            if title:
                tensorflow_as = re.findall(r", as (\S+)$", title)
            lines = (lines.rstrip() + "\n").splitlines(keepends=True)
            yield f"_{path.stem}_{number}{title}", lines, tensorflow_as


class RewriteTestCase(parameterized.TestCase):
    """Every result is migrated again, which must change nothing."""

    def migrate(self, before, tensorflow_as=()):
        """Returns the new text and what is left to a person."""
        first = _command.migrate_bytes(before.encode(), tensorflow_as)
        compile(first.new, "result", "exec")
        again = _command.migrate_bytes(first.new, tensorflow_as)
        self.assertEqual(again.new, first.new, "a second run changed it again")
        messages = [[each.message for each in run.result.findings] for run in (again, first)]
        self.assertEqual(*messages)
        self.assertEmpty(first.result.failures)
        return first.new.decode(), first.result.findings


class RewritesTest(RewriteTestCase):
    @parameterized.named_parameters(*cases())
    def test_case(self, lines, tensorflow_as):
        source = [line for line in lines if line[0] != "!"]
        before, after = [
            "".join(line[1:] or line for line in source if line[0] != other) for other in "+-"
        ]
        text, findings = self.migrate(before, tensorflow_as)
        self.assertEqual(text, after)
        wanted = [line.rstrip("\n").split(" ", 2)[1:] for line in lines if line[0] == "!"]
        places = [f"{finding.line}:{finding.column}" for finding in findings]
        self.assertEqual(places, [place for place, _ in wanted], findings)
        for finding, (_, part) in zip(findings, wanted):
            self.assertIn(part, f"{finding}$")

    @parameterized.parameters(
        ("import tensorflow as tf", "tf"),
        ("import tensorflow", "tensorflow"),
        ("import tensorflow", "tensorflow.compat.v1"),
        ("import tensorflow as tf", "tf.compat.v2"),
        ("import tensorflow as tf", "tf.compat.v1.compat.v1"),
        ("import tensorflow.compat.v1 as tf", "tf"),
        ("import tensorflow.compat.v2 as tf", "tf"),
        ("from tensorflow.compat import v1 as tf1", "tf1"),
    )
    def test_each_name_whatever_tensorflow_is_called(self, statement, tf):
        before, after = [statement], [statement, "import tf_lossscale_compat"]
        for old, (new, members) in NAMES.items():
            for name in members:
                before.append(f"x = {tf}.{old}.{name}(2**15), {tf}.float16")
                after.append(f"x = tf_lossscale_compat.{new}.{name}(2**15), {tf}.float16")
        self.assertEqual(self.migrate("\n".join(before)), ("\n".join(after), []))

    def test_what_a_lazy_import_brings_is_there_when_it_runs(self):
        before = "def load():\n  global tf\n  import tensorflow as tf\n"
        before += "def make():\n  return tf.train.experimental.FixedLossScale\n"
        namespace = {}
        with mock.patch.dict(sys.modules, tensorflow=mock.Mock(), tf_lossscale_compat=mock.Mock()):
            exec(self.migrate(before)[0], namespace)
            namespace["load"]()
            ours = sys.modules["tf_lossscale_compat"].train.experimental.FixedLossScale
            self.assertIs(namespace["make"](), ours)

    @parameterized.parameters(
        "def f():\n  tf = None\n  def g():\n    nonlocal tf\n    import tensorflow as tf\n"
        "  g()\n  tf.train.experimental.FixedLossScale(8)\n",
        "def f():\n  global contrib\n  from tensorflow import contrib\n\n"
        "def g():\n\n  contrib.mixed_precision.FixedLossScaleManager(8)\n",
    )
    def test_other_imports_for_others_are_reported(self, before):
        text, (*_, finding) = self.migrate(before)
        self.assertEqual((text, finding.line), (before, 7))
        self.assertIn("is imported by a function for others", finding.message)

    def test_an_import_at_the_end_of_a_file_without_line_end(self):
        text, _ = self.migrate(
            "x = lambda: (tf.train.experimental.LossScale, tf)\nimport tensorflow as tf"
        )
        self.assertEndsWith(text, "\nimport tensorflow as tf\nimport tf_lossscale_compat")

    @parameterized.parameters("\n", "\r\n", "\r")
    def test_what_was_looked_at_is_one_line_whatever_ends_it(self, end):
        lines = ["import tensorflow as tf", f"{CONTRIB}.x  # tf-lossscale: checked"]
        _, (finding,) = self.migrate(end.join([*lines, f"{CONTRIB}.y"]))
        self.assertEqual(finding.line, 3)

    @parameterized.parameters(
        ("", []),
        (" LSC212", ["LSC207"]),
        (" LSC207: a stub", ["LSC212"]),
        (" LSC207, LSC212", []),
        (" LSC207 LSC212", []),
        (" LSC999", ["LSC207", "LSC212"]),
        (": LSC212 is fine", []),
    )
    def test_codes_that_were_looked_at(self, codes, left):
        line = f"tf2.train.experimental.DynamicLossScale, {CONTRIB}.x  # tf-lossscale: checked"
        _, findings = self.migrate(f"import tensorflow as tf\n{line}{codes}")
        self.assertEqual([finding.code for finding in findings], left)

    def test_a_call_that_was_looked_at_in_any_of_its_lines(self):
        call = ["OLS(", "    adam", ")", "adam"]
        for number, line in enumerate(call):
            lines = [*call[:number], f"{line}  # tf-lossscale: checked", *call[number + 1 :]]
            lines = [f"from {KERAS} import LossScaleOptimizer as OLS", *lines]
            _, findings = self.migrate("\n".join(lines))
            self.assertEqual([each.code for each in findings], ["LSC104"] * (number == 3))
