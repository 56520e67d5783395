"""The command line: exit codes, messages, imports."""

import contextlib
import io
import platform
from unittest import mock

import numpy as np
import packaging.version
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tf_lossscale_compat import __main__ as command
from tf_lossscale_compat import migrate


def call(*arguments):
    """Runs the command in this process; returns exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command.main(list(arguments))
    return code, out.getvalue(), err.getvalue()


class MainTest(parameterized.TestCase):
    def test_help_has_the_first_line_of_the_commands_docstring(self):
        code, out, _ = call("--help")
        self.assertEqual(code, 0)
        self.assertIn("usage: tf-lossscale", out)
        summary, *_, last = migrate.__doc__.splitlines()
        self.assertIn(f"migrate {summary}", " ".join(out.split()))
        self.assertIn(last, call("migrate", "--help")[1])

    def test_version_names_what_a_report_of_a_fault_needs(self):
        code, out, _ = call("--version")
        self.assertEqual(code, 0)
        told = dict(line.split(" ") for line in out.splitlines())
        self.assertEqual(told["tf_lossscale_compat"], tf_lossscale_compat.__version__)
        self.assertEqual(told["Python"], platform.python_version())
        version = str(packaging.version.Version(tf.__version__))  # A nightly's has a hyphen.
        self.assertIn(version, told.values())  # Of several distributions.
        self.assertEqual(told["numpy"], np.__version__)

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
