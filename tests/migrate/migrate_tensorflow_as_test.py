"""Modules that hand TensorFlow on, as `from deepmd.env import tf` does: named by the user."""

from absl.testing import absltest, parameterized

from tests import rewriting
from tests.migrate.migrate_command_test import FolderTestCase, call
from tf_lossscale_compat.migrate import _source

NAME = "deepmd.tf.env.tf"
OURS = "tf_lossscale_compat.train.experimental.DynamicLossScale"


class TensorFlowAsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("from deepmd.tf.env import tf", "tf"),
        ("from deepmd.tf.env import default, tf as tensorflow", "tensorflow"),
        ("from ..env import tf", "tf"),
        ("from deepmd.tf import env", "env.tf"),
        ("import deepmd.tf.env", "deepmd.tf.env.tf"),
        ("import deepmd.tf.env as env", "env.tf"),
    )
    def test_the_name_is_tensorflow(self, statement, tf):
        before = f"{statement}\nscale = {tf}.train.experimental.DynamicLossScale()\n"
        result = _source.migrate(rewriting.text_of(before), _source.Options(tensorflow_as=(NAME,)))
        # The import stays: that module may do more than hand TensorFlow on.
        self.assertEqual(
            result.text, f"{statement}\nimport tf_lossscale_compat\nscale = {OURS}()\n"
        )
        self.assertEmpty(result.findings)

    @parameterized.parameters(
        "from deepmd.tf.environment import tf",
        "from ..other import tf",
        "from . import tf",
        "from deepmd.tf.env import other as tf",
    )
    def test_other_names_are_not(self, statement):
        before = f"{statement}\ntf.train.experimental.DynamicLossScale()\n"
        result = _source.migrate(before, _source.Options(tensorflow_as=(NAME,)))
        self.assertEqual(result.text, before)
        (finding,) = result.findings
        self.assertIn("(say so by --tensorflow-as): if it is TensorFlow", finding.message)


class CommandTest(FolderTestCase):
    def test_option(self):
        before = "from deepmd.tf.env import tf\ntf.train.experimental.DynamicLossScale()\n"
        self.write("a.py", before)
        code, out, _ = call(self.folder)
        self.assertEqual((code, out), (1, b""))
        self.assertEqual(call(self.folder, "--write", "--tensorflow-as", NAME)[0], 0)
        self.assertIn(OURS, self.read("a.py").decode())
        code, out, _ = call("-", "--tensorflow-as", NAME, stdin=before.encode())
        self.assertEqual((code, out), (0, self.read("a.py")))

    @parameterized.parameters("tf", "", "deepmd/tf/env.py", ".env.tf")
    def test_no_dotted_name(self, name):
        self.write("a.py", "")
        code, _, err = call(self.folder, "--tensorflow-as", name)
        self.assertEqual(code, 2)
        self.assertIn(
            f"--tensorflow-as takes a dotted name such as deepmd.env.tf, not {name!r}", err
        )


if __name__ == "__main__":
    absltest.main()
