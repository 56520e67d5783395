"""The benchmarks measure what they say; how long anything takes is not tested."""

import pathlib
import tempfile
import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import (
    conftest,  # noqa: F401  Puts the clone on the path.
    modes,
)

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    raise unittest.SkipTest("the peers of the benchmarks are those of TensorFlow 2.16 and newer")

from benchmarks import contenders, peak, report, steps, workloads

V1 = ["v1, no loss scale", "tf.compat.v1, dynamic", "ours, v1, dynamic"]


class StepsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("graph", "eager", "jit", "session")
    def test_contenders_are_held_against_their_peers(self, mode):
        rows = steps.measure("10", mode, 2, V1)
        self.assertEqual(list(rows), ["floor"] + V1)
        for name in V1:
            self.assertGreater(rows[name]["milliseconds"], 0)
        ours, peer = rows["ours, v1, dynamic"], rows["tf.compat.v1, dynamic"]
        self.assertEqual(ours["overhead_ratio"], ours["overhead"] / peer["overhead"])
        if mode == "graph":
            self.assertGreater(rows["ours, v1, dynamic"]["trace_seconds"], 0)
        if mode in ("graph", "session"):
            nodes = [rows[name]["nodes"] for name in V1]
            self.assertEqual(ours["nodes_added"], nodes[2] - nodes[0])
            self.assertEqual(peer["nodes_added"], nodes[1] - nodes[0])
            self.assertGreater(ours["nodes_added"], 0)

    def test_every_contender_divides_by_the_scale_and_applies(self):
        setting = steps.Setting("graph", "10")
        moved = []
        for contender in contenders.contenders():
            for variable in setting.variables:
                variable.assign(tf.zeros_like(variable))
            step = steps.Step(contender, setting)
            before = setting.variables[0].numpy()
            step()
            moved.append((setting.variables[0].numpy() - before)[0, 0])
            down = 1 if "no loss scale" in contender.name else contenders.SCALE
            expected = -contenders.RATE * setting.gradients[0].numpy()[0, 0] / down
            self.assertAllClose(moved[-1], expected, rtol=1e-3, atol=0, msg=contender.name)
        self.assertGreater(len(moved), 10)

    @pytest.mark.slow
    def test_peak_memory_shows_the_unscaled_gradients(self):
        held = np.ones(2**28, np.float32)  # What this process has is not to count.
        bytes_of = {name: peak.of("large", "eager", name) for name in (V1[0], V1[2])}
        # 97 MiB of them, beside the scaled ones.
        added = (bytes_of[V1[2]] - bytes_of[V1[0]]) / 2**20
        self.assertBetween(added, 60, 300)
        self.assertLess(bytes_of[V1[0]], 2 * held.nbytes)

    def test_workloads(self):
        sizes = {
            name: sum(int(tf.TensorShape(shape).num_elements()) for shape in shapes)
            for name, shapes in workloads.SHAPES.items()
        }
        self.assertLen(workloads.SHAPES["large"], 161)
        self.assertAllClose(sizes["large"] / 1e6, 25.5, atol=0.1)
        self.assertAllClose(sizes["bert"] / 1e6, 110, atol=1)
        gradients, _ = workloads.gradients("sparse")
        with modes.eager_mode():
            (sparse,) = workloads.as_tensors(gradients, [workloads.EMBEDDING])
        self.assertIsInstance(sparse, tf.IndexedSlices)


class ReportTest(tf.test.TestCase):
    def _results(self, overhead):
        names = [*report.DYNAMIC, *(peer for peer, _ in report.GENERATIONS.values())]
        rows = {
            name: {"milliseconds": 3.0, "overhead": 1.0, "overhead_ratio": 0.1} for name in names
        }
        rows["ours, v1, dynamic"].update(overhead=overhead, overhead_ratio=overhead)
        return {
            (workload, mode): rows
            for workload in ("small", "10", "100", "1000")
            for mode in ("graph", "eager")
        }

    def test_aims_are_met_or_not(self):
        for overhead, verdict in ((0.5, "yes"), (0.7, "no")):
            lines = report.targets(self._results(overhead)).splitlines()
            (line,) = [
                line for line in lines if "ours, v1, dynamic, small, graph: overhead" in line
            ]
            self.assertEndsWith(line, f"| 0.6 | {overhead:.2f} | {verdict} |")
        (line,) = [line for line in report.targets({}, 51.0).splitlines() if "import" in line]
        self.assertEndsWith(line, "| 50 | 51.00 | no |")

    def test_the_summary_has_a_line_for_each_workload_and_mode(self):
        results = {("a", "eager"): {"ours, v1, dynamic": {"overhead": 1.5, "overhead_ratio": 0.25}}}
        head, _, line = report.summary(results).splitlines()
        self.assertTrue(head.startswith("| overhead, ms (to peer) | tf.compat.v1, dynamic"))
        self.assertEqual(line, "| a, eager |  | 1.50 (0.25) |" + "  |" * 5)

    def test_the_table_leaves_out_what_was_not_measured(self):
        lines = report.table({"a": {"milliseconds": 1.5}, "b": {"milliseconds": 2}}).splitlines()
        self.assertEqual(lines[0], "| contender | ms |")
        self.assertEqual(lines[2:], ["| a | 1.50 |", "| b | 2.00 |"])

    def test_the_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib, of the extra bench, is not installed")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "overhead.png")
            report.draw(self._results(0.5), path)
            self.assertEqual(path.read_bytes()[:4], b"\x89PNG")


if __name__ == "__main__":
    tf.test.main()
