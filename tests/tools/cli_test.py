"""The command line: exit codes, messages, imports."""

import contextlib
import importlib
import io
import platform
from unittest import mock

from absl.testing import parameterized

import tf_lossscale_compat
from tf_lossscale_compat import migrate
from tf_lossscale_compat._tools import cli


def call(*arguments):
    """Runs the command in this process; returns exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(arguments))
    return code, out.getvalue(), err.getvalue()


class MainTest(parameterized.TestCase):
    def test_help_has_the_first_line_of_each_commands_docstring(self):
        code, out, _ = call("--help")
        self.assertEqual(code, 0)
        self.assertIn("usage: tf-lossscale", out)
        for name, (module_name, summary) in cli.COMMANDS.items():
            module = importlib.import_module(f"tf_lossscale_compat.{module_name}")
            self.assertEqual(summary, module.__doc__.splitlines()[0])
            self.assertRegex(out, rf"(?m)^ +{name}\s+{summary.split()[0]}")
            self.assertIn(module.__doc__.splitlines()[-1], call(name, "--help")[1])

    def test_version_names_what_a_report_of_a_fault_needs(self):
        code, out, _ = call("--version")
        self.assertEqual(code, 0)
        told = dict(line.split(" ") for line in out.splitlines())
        self.assertEqual(told["tf_lossscale_compat"], tf_lossscale_compat.__version__)
        self.assertEqual(told["Python"], platform.python_version())
        for name in ("TensorFlow", "NumPy"):
            self.assertEqual(told[name], importlib.import_module(name.lower()).__version__)

    @parameterized.parameters(
        ([], "usage: tf-lossscale"),
        (["train"], "'train'"),
        (["migrate"], "usage: tf-lossscale migrate"),
    )
    def test_bad_call(self, arguments, message):
        code, out, err = call(*arguments)
        self.assertEqual((2, ""), (code, out))
        self.assertIn(message, err)

    def test_interruption_ends_without_a_traceback(self):
        with mock.patch.object(migrate, "run", side_effect=KeyboardInterrupt):
            code, _, err = call("migrate", "x")
        self.assertEqual(code, 130)
        self.assertIn("interrupted", err)
