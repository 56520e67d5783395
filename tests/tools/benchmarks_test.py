"""The benchmarks run on something small; what they measure is not tested."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

import pytest
import tensorflow as tf
from absl.testing import absltest

from tests import conftest  # noqa: F401  Puts the clone on the path.

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    raise unittest.SkipTest("the peers of the benchmarks are those of TensorFlow 2.16 and newer")

from benchmarks import __main__ as command
from benchmarks import frames, paired, peak

CONTENDERS = ["v1, no loss scale", "tf.compat.v1, dynamic", "ours, v1, dynamic"]


def run(*arguments):
    """Returns what the command prints, what it writes, and the beginning of its picture."""
    with tempfile.TemporaryDirectory() as folder:
        measured, picture = (pathlib.Path(folder, name) for name in ("x.json", "x.png"))
        files = ("--json", str(measured), "--picture", str(picture))
        rounds = ("--rounds", str(paired.FEWEST))
        with contextlib.redirect_stdout(io.StringIO()) as output:
            command.main(["--workloads", "10", *arguments, *rounds, *files])
        rows = json.loads(measured.read_text(encoding="utf-8"))
        return output.getvalue(), rows, picture.read_bytes()[:4]


class BenchmarksTest(absltest.TestCase):
    def test_steps(self):
        ways = ["graph", "eager", "jit", "session"]
        output, rows, picture = run("--modes", *ways, "--contenders", *CONTENDERS)
        self.assertEqual(picture, b"\x89PNG")
        for mode in ways:
            self.assertIn(f"### 10, {mode}, median of {paired.FEWEST}", output)
            self.assertEqual(list(rows[f"10 {mode}"]), CONTENDERS)
            self.assertIn("overhead_ratio", rows[f"10 {mode}"][CONTENDERS[-1]])

    def test_skipped_steps_around_adam(self):
        _, rows, _ = run("--skipped", "--modes", "graph", "--optimizer", "adam")
        self.assertIn("overhead_to_applied", rows["10 skipped graph"][CONTENDERS[-1]])

    @pytest.mark.slow
    @absltest.skipIf(not sys.platform.startswith("linux"), "peak memory is read from /proc")
    def test_peak_memory(self):
        self.assertGreater(peak.of("10", "eager", CONTENDERS[-1]), 0)

    def test_frames(self):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            frames.main([])
        self.assertRegex(output.getvalue(), r"(?m)^ *\d+ contrib apply_gradients$")


if __name__ == "__main__":
    absltest.main()
