"""Each command of the benchmarks runs on something small; what they measure is not tested."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import conftest  # noqa: F401  Puts the clone on the path.

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    raise unittest.SkipTest("the peers of the benchmarks are those of TensorFlow 2.16 and newer")

from benchmarks import __main__ as command
from benchmarks import growth, migrate_files, paired, peak

CONTENDERS = ["v1, no loss scale", "tf.compat.v1, dynamic", "ours, v1, dynamic"]
BENCHMARKS = pathlib.Path(command.__file__).resolve().parent
SMALL = ("--rounds", str(paired.FEWEST), "--contenders", *CONTENDERS)


class BenchmarksTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        ("applied", ("--modes", "graph", "eager", "jit", "session"), "jit"),
        ("skipped", ("--modes", "graph", "--skipped"), "skipped graph"),
        ("adam", ("--modes", "graph", "--optimizer", "adam"), "graph"),
        ("the_way_of_a_gpu", ("--modes", "graph", "session", "--dry-run"), "session"),
    )
    def test_steps(self, arguments, mode):
        with tempfile.TemporaryDirectory() as folder:
            measured, picture = (pathlib.Path(folder, name) for name in ("x.json", "x.png"))
            files = ("--json", str(measured), "--picture", str(picture))
            with contextlib.redirect_stdout(io.StringIO()) as output:
                command.main(["--workloads", "10", *arguments, *SMALL, *files])
            rows = json.loads(measured.read_text(encoding="utf-8"))[f"10 {mode}"]
            self.assertTrue(picture.read_bytes().startswith(b"\x89PNG"))
        self.assertIn(f"### 10, {mode}, median of {paired.FEWEST}", output.getvalue())
        for name in CONTENDERS:
            self.assertLen(rows[name]["seconds"], paired.FEWEST)

    @parameterized.parameters(*growth.KINDS)
    @pytest.mark.slow
    def test_growth(self, kind):
        rows = growth.measure(kind, 2, paired.FEWEST, CONTENDERS, ["10"])["10", f"2 {kind}"]
        self.assertEqual(list(rows), CONTENDERS)

    @pytest.mark.slow
    def test_peak_memory(self):
        if not sys.platform.startswith("linux"):
            self.skipTest("peak memory is read from /proc")
        self.assertGreater(peak.of("10", "eager", CONTENDERS[-1]), 0)

    def test_files_to_migrate(self):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            with mock.patch.object(sys, "argv", ["migrate_files", str(BENCHMARKS)]):
                migrate_files.main()
        measured = json.loads(output.getvalue())
        self.assertGreater(measured["files"], 0)
        self.assertEqual(measured["not_handled"], 0)


if __name__ == "__main__":
    tf.test.main()
