"""The benchmarks run on something small; what they measure is not tested."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import pytest
import tensorflow as tf
from absl.testing import absltest

from tests import conftest  # noqa: F401  Puts the clone on the path.

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    raise unittest.SkipTest("the peers of the benchmarks are those of TensorFlow 2.16 and newer")

from benchmarks import __main__ as command
from benchmarks import paired

CONTENDERS = ["v1, no loss scale", "tf.compat.v1, dynamic", "ours, v1, dynamic"]


def run(*arguments):
    """Returns what the command prints, and the beginning of its picture."""
    with tempfile.TemporaryDirectory() as folder:
        picture = pathlib.Path(folder, "x.png")
        options = ("--rounds", str(paired.FEWEST), "--picture", str(picture))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            command.main(["--workloads", "10", *arguments, *options])
        return output.getvalue(), picture.read_bytes()[:4]


class BenchmarksTest(absltest.TestCase):
    @pytest.mark.slow
    def test_steps(self):
        ways = ["graph", "eager", "jit", "session"]
        output, picture = run("--modes", *ways, "--contenders", *CONTENDERS)
        self.assertEqual(picture, b"\x89PNG")
        row = r"\| {} \| \d.*\]"  # With an interval.
        for mode in ways:
            _, _, table = output.partition(f"### 10, {mode}, median of {paired.FEWEST}\n\n")
            header, _, _, *rows = table.split("\n")[:5]
            self.assertStartsWith(header, "| contender | ms | overhead ms | to peer |")
            for name, line in zip(CONTENDERS[1:], rows):
                self.assertRegex(line, row.format(name))

    @pytest.mark.slow
    def test_skipped_steps_around_adam(self):
        output, _ = run("--skipped", "--modes", "graph", "--optimizer", "adam")
        self.assertIn("| applied ms | applied overhead ms |", output)
