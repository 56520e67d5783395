"""The benchmarks measure what they say; how long anything takes is not tested."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

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

from benchmarks import __main__ as command
from benchmarks import contenders, growth, launches, paired, peak, report, steps, workloads

V1 = ["v1, no loss scale", "tf.compat.v1, dynamic", "ours, v1, dynamic"]
ROUNDS = paired.FEWEST


class StepsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("graph", "eager", "jit", "session")
    def test_contenders_are_held_against_their_peers(self, mode):
        rows = steps.measure("10", mode, ROUNDS, V1)
        self.assertEqual(list(rows), ["floor"] + V1)
        for name in V1:
            self.assertLen(rows[name]["seconds"], ROUNDS)
            self.assertGreater(rows[name]["milliseconds"], 0)
        base, peer, ours = (rows[name] for name in V1)
        expected = 1e3 * np.median(np.subtract(ours["seconds"], base["seconds"]))
        self.assertAllClose(ours["overhead"].value, expected)
        difference = ours["overhead"].value - peer["overhead"].value
        self.assertAllClose(ours["overhead_difference"].value, difference)
        if mode == "graph":
            self.assertGreater(min(ours["trace_seconds"]), 0)
        if mode in ("graph", "session"):
            self.assertEqual(ours["nodes_added"], ours["nodes"] - base["nodes"])
            self.assertEqual(peer["nodes_added"], peer["nodes"] - base["nodes"])
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
            down = 1 if contender.is_baseline else contenders.SCALE
            expected = -contenders.RATE * setting.gradients[0].numpy()[0, 0] / down
            self.assertAllClose(moved[-1], expected, rtol=1e-3, atol=0, msg=contender.name)
        self.assertGreater(len(moved), 10)

    def test_steps_go_through_what_users_call(self):
        setting = steps.Setting("eager", "10")
        for contender in contenders.contenders():
            optimizer = contender.make()
            called = type(optimizer[1] if contender.generation == "v1" else optimizer)
            name = "apply" if contender.generation == "keras3" else "minimize"
            original = getattr(called, name)
            with self.subTest(contender.name), mock.patch.object(
                called, name, autospec=True, side_effect=original
            ) as spy:
                contender.apply(optimizer, setting.gradients, setting.variables)
                spy.assert_called()

    def test_the_loss_of_v1_is_computed(self):
        given, _ = next(iter(contenders.contenders())).make()
        loss = mock.Mock()
        given.compute_gradients(loss)
        loss.assert_called_once_with()

    @parameterized.parameters("graph", "eager", "session")
    def test_skipped_steps_are_skipped_and_applied_ones_beside_them_are_not(self, mode):
        setting = steps.Setting(mode, "10")
        turns = steps.Turns(setting, mode, [*V1, "ours, v1, fixed"], skipped=True)
        self.assertEqual(list(turns.steps), V1)
        self.assertEqual(list(turns.applied), V1[1:])

        def moves(step):
            def value():
                last = setting.variables[-1]
                return setting.session.run(last) if mode == "session" else last.numpy()

            before = value()
            step()
            self.assertAllInSet(np.isfinite(value()), [True])
            return bool((value() != before).any())

        self.assertTrue(moves(turns.steps[V1[0]]))
        for name in V1[1:]:
            self.assertFalse(moves(turns.steps[name]), name)
            self.assertTrue(moves(turns.applied[name]), name)

    def test_skipped_steps_are_measured_in_the_rounds_of_applied_ones(self):
        rows = steps.measure("10", "skipped graph", ROUNDS, V1)
        base, _, ours = (rows[name] for name in V1)
        self.assertNotIn("applied_seconds", base)
        self.assertLen(ours["applied_seconds"], ROUNDS)
        expected = 1e3 * np.median(np.subtract(ours["applied_seconds"], base["seconds"]))
        self.assertAllClose(ours["applied_overhead"].value, expected)
        self.assertIn("overhead_to_applied", ours)
        self.assertIn("overhead_difference", ours)
        text = "overhead to that of an applied step"
        self.assertIn(text, report.targets({("10", "skipped graph"): rows}))

    def test_a_gradient_that_is_not_finite(self):
        sparse, _ = workloads.gradients("sparse")
        dense, _ = workloads.gradients("10")
        for gradient in (sparse[0], dense[-1]):
            changed = workloads.not_finite(gradient)
            before, after = (g[0] if isinstance(g, tuple) else g for g in (gradient, changed))
            self.assertEqual(np.isinf(after).sum(), 1)
            self.assertTrue(np.isinf(after.flat[-1]))
            self.assertTrue(np.isfinite(before).all())

    def test_rounds_go_on_until_all_is_sure_or_the_time_is_over(self):
        asked = []

        def is_sure(rows):
            asked.append(len(rows[V1[0]]["seconds"]))
            return len(asked) == 3

        rows = steps.measure("10", "eager", 8, V1[:1], is_sure=is_sure, limit_seconds=60)
        self.assertEqual(asked, [8, 8 + ROUNDS, 8 + 2 * ROUNDS])
        self.assertLen(rows[V1[0]]["seconds"], asked[-1])
        del asked[:]
        steps.measure("10", "eager", 8, V1[:1], is_sure=is_sure)
        self.assertEqual(asked, [])

    def test_what_cannot_do_it_is_left_out_and_said(self):
        broken = contenders.Contender("broken", "v1", mock.Mock(side_effect=KeyError("why")), None)
        known = contenders.contenders()
        with mock.patch.object(contenders, "contenders", lambda optimizer: [broken, known[0]]):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                turns = steps.Turns(steps.Setting("eager", "10"), "here")
        self.assertEqual(list(turns.steps), [known[0].name])
        self.assertEqual(turns.failures, ["broken (here): KeyError('why')"])
        self.assertIn(turns.failures[0], errors.getvalue())

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


def figure(value, low=None, high=None):
    """A figure with this interval, or without one."""
    return paired.Figure(value, None if low is None else np.array([low, value, high]))


class PairedTest(parameterized.TestCase):
    def test_the_interval_of_a_median(self):
        found = paired.median(range(101))
        self.assertEqual(found.value, 50)
        low, high = found.interval
        # By the binomial distribution: the 41st and the 61st of them.
        self.assertBetween(low, 38, 42)
        self.assertBetween(high, 58, 62)
        self.assertEqual(found.interval, paired.median(range(101)).interval)

    def test_what_is_the_same_in_all_rounds_has_no_width(self):
        for value in (0.0, 2.0, -1.0):
            self.assertEqual(paired.median([value] * 9).interval, (value, value))

    def test_few_rounds_tell_nothing(self):
        self.assertIsNone(paired.median([1.0] * (paired.FEWEST - 1)).interval)
        self.assertIsNotNone(paired.median([1.0] * paired.FEWEST).interval)

    def rows(self, **overheads):
        """Rows of made-up rounds, milliseconds over a baseline that is all noise."""
        noise = np.random.RandomState(1).uniform(1, 100, 40)
        rows = {name: {"seconds": (noise + more) / 1e3} for name, more in overheads.items()}
        rows["base"] = {"seconds": noise / 1e3}
        for name, row in rows.items():
            row.update(baseline="base", peer="peer" if name == "ours" else None)
        return rows

    def test_rounds_are_compared_with_themselves(self):
        rows = self.rows(ours=1.0, peer=4.0)
        paired.compare(rows)
        np.testing.assert_allclose(rows["ours"]["overhead"].interval, 1)
        np.testing.assert_allclose(rows["ours"]["overhead_ratio"].interval, 0.25)
        np.testing.assert_allclose(rows["ours"]["overhead_difference"].interval, -3)
        self.assertNotIn("overhead", rows["base"])

    def test_a_ratio_is_of_the_same_draws(self):
        overhead = np.random.RandomState(2).uniform(1, 9, 40)
        rows = self.rows(ours=overhead / 2, peer=overhead)
        paired.compare(rows, seed=3)
        low, high = rows["peer"]["overhead"].interval
        self.assertLess(low, high)
        np.testing.assert_allclose(rows["ours"]["overhead_ratio"].interval, 0.5)

    def test_other_rounds_are_drawn_otherwise(self):
        values = np.arange(40.0)
        seeds = [paired.seed_of("small", mode) for mode in ("graph", "eager")]
        one, other = (paired.median(values, seed).samples for seed in seeds)
        self.assertLess(abs(np.corrcoef(one, other)[0, 1]), 0.2)

    def test_no_ratio_to_what_may_be_nothing(self):
        around_zero = np.linspace(-1, 1, 40)
        for peer in (0.0, -1.0, around_zero):
            rows = self.rows(ours=2.0, peer=peer)
            paired.compare(rows)
            self.assertIsNone(rows["ours"]["overhead_ratio"])
            self.assertGreater(rows["ours"]["overhead_difference"].interval[0], 0)

    def test_less_than_nothing_has_a_negative_ratio(self):
        rows = self.rows(ours=-1.0, peer=2.0)
        paired.compare(rows)
        np.testing.assert_allclose(rows["ours"]["overhead_ratio"].interval, -0.5)

    def test_resamples_in_which_the_other_is_nothing_are_far_out(self):
        samples = np.concatenate([[0.0, -1.0], np.ones(98)])
        own = paired.Figure(1.0, np.ones(100))
        low, high = own.over(paired.Figure(1.0, samples)).interval
        self.assertEqual((low, high), (1.0, 1.0))
        samples = np.concatenate([[0.0], np.ones(39)])
        self.assertIsNone(own.over(paired.Figure(1.0, samples[:1])))

    def test_without_intervals_there_are_still_the_figures(self):
        ratio = figure(1.0).over(figure(2.0))
        self.assertEqual((ratio.value, ratio.interval), (0.5, None))
        self.assertIsNone(figure(1.0).over(figure(-2.0)))
        self.assertIsNone(figure(1.0).over(figure(0.0)))

    def test_the_smallest_in_each_resample(self):
        one = paired.Figure(2.0, np.array([1.0, 3.0]))
        other = paired.Figure(1.5, np.array([2.0, 2.0]))
        found = paired.smallest([one, other])
        self.assertEqual(found.value, 1.5)
        self.assertEqual(list(found.samples), [1.0, 2.0])

    @parameterized.parameters(
        (0.9, 0.8, 1.0, "yes"),
        (0.9, 0.8, 1.049, "yes"),
        (0.9, 0.8, 1.05, "cannot tell"),
        (1.01, 0.9, 1.02, "cannot tell"),
        (1.2, 1.01, 1.3, "no"),
        (1.2, 1.0, 1.3, "cannot tell"),
        (1.0, 1.0, 1.0, "yes"),
        (1.01, 1.01, 1.01, "no"),
        (-3.0, -4.0, -2.0, "yes"),
        (0.5, None, None, "cannot tell"),
    )
    def test_verdicts(self, value, low, high, expected):
        self.assertEqual(paired.verdict(figure(value, low, high), 1.0), expected)

    def test_no_verdict_without_a_ratio(self):
        self.assertEqual(paired.verdict(None, 1.0), "cannot tell")

    def test_what_is_counted_is_exact(self):
        self.assertEqual(paired.verdict(paired.Figure.exact(164 / 328), 0.5), "yes")
        self.assertEqual(paired.verdict(paired.Figure.exact(0.501), 0.5), "no")

    def test_traces_and_counts_are_compared(self):
        rows = self.rows(ours=1.0, peer=1.0)
        for name, (nodes, seconds) in {"base": (10, 1), "peer": (30, 3), "ours": (15, 1.5)}.items():
            rows[name].update(nodes=nodes, trace_seconds=[seconds] * 7)
        paired.compare(rows)
        self.assertEqual(rows["ours"]["nodes_added"], 5)
        self.assertEqual(rows["ours"]["nodes_added_ratio"].value, 0.25)
        self.assertEqual(rows["ours"]["trace_added_ratio"].interval, (0.25, 0.25))


class ReportTest(parameterized.TestCase, tf.test.TestCase):
    def _rows(self, **others):
        """Rows with a peer of each generation, which takes 1 ms, and ours, which take 0.1."""
        rows = {
            name: {"milliseconds": 3.0, "overhead": figure(1.0, 1.0, 1.0)} for name in report.PEERS
        }
        for peer, ours in report.GENERATIONS.values():
            for name in ours:
                tenth = figure(0.1, 0.09, 0.11)
                rows[name] = {"milliseconds": 2.0, "overhead": tenth, "overhead_ratio": tenth}
                rows[name].update(peer=peer, overhead_difference=tenth - rows[peer]["overhead"])
        rows["ours, v1, dynamic"].update(others)
        return rows

    def _results(self, **others):
        return {
            (workload, mode): self._rows(**others)
            for workload in ("small", "10", "100", "1000")
            for mode in ("graph", "eager")
        }

    def _line(self, lines, text):
        (line,) = [line for line in lines.splitlines() if text in line]
        return line

    def test_aims_are_met_or_not_or_cannot_be_told(self):
        for low, value, high, verdict in (
            (0.4, 0.5, 0.62, "yes"),
            (0.61, 0.7, 0.8, "no"),
            (0.4, 0.5, 0.7, "cannot tell"),
        ):
            lines = report.targets(self._results(overhead=figure(value, low, high)))
            line = self._line(lines, "ours, v1, dynamic, small, graph: overhead to the best")
            expected = f"| 0.6 | {value:.2f} [{low:.2f}, {high:.2f}] | {verdict} |"
            self.assertEndsWith(line, expected)
        lines = report.targets({}, figure(51.0, 50.5, 53.0))
        self.assertEndsWith(self._line(lines, "import"), "| 50 | 51.00 [50.50, 53.00] | no |")

    def test_each_is_held_against_its_own_peer(self):
        lines = report.targets(self._results(overhead=figure(1.2, 1.1, 1.3)))
        line = self._line(lines, "ours, v1, dynamic, small, graph: overhead to its peer's")
        self.assertEndsWith(line, "| 1.0 | 1.20 [1.10, 1.30] | no |")

    def test_of_peers_whose_overhead_may_be_nothing_the_difference_is_said(self):
        results = self._results()
        for name in report.PEERS:
            results["small", "graph"][name]["overhead"] = figure(0.05, -0.05, 0.15)
        line = self._line(
            report.targets(results), "ours, v1, dynamic, small, graph: overhead to the best"
        )
        self.assertRegex(line, r"\| 0.6 \| \+0.05 \[-?0.\d\d, 0.\d\d\] ms \| cannot tell \|$")

    def test_the_best_peer_is_the_best_in_each_resample(self):
        results = self._results(overhead=figure(0.5, 0.5, 0.5))
        row = results["small", "graph"]
        for name, ends in zip(report.PEERS, ([1.0, 2.0], [2.0, 1.0], [3.0, 3.0])):
            row[name]["overhead"] = paired.Figure(1.5, np.array([ends[0], 1.0, ends[1]]))
        line = self._line(
            report.targets(results), "ours, v1, dynamic, small, graph: overhead to the best"
        )
        # Half of the best in each resample, which takes 1; and 1.5 is the best median of all.
        self.assertEndsWith(line, "| 0.6 | 0.33 | yes |")

    def test_skipped_steps_are_held_against_applied_ones(self):
        applied = figure(1.0, 0.9, 1.1)
        for overhead, cell, verdict in (
            (figure(-2.0, -2.1, -1.9), "-2.00 [-2.33, -1.73]", "yes"),
            (figure(0.8, 0.7, 0.9), "0.80 [0.78, 0.82]", "no"),
        ):
            rows = self._rows(overhead=overhead, applied_overhead=applied)
            results = {("small", "skipped graph"): {V1[2]: rows[V1[2]]}}
            line = self._line(report.targets(results), "skipped graph")
            self.assertEndsWith(line, f"| 0.5 | {cell} | {verdict} |")
            self.assertTrue(report.is_sure("small", "skipped graph", {V1[2]: rows[V1[2]]}))
        rows[V1[2]]["applied_overhead"] = figure(0.1, -0.1, 0.3)
        self.assertFalse(report.is_sure("small", "skipped graph", {V1[2]: rows[V1[2]]}))

    def _growth(self, kind, overhead):
        """Results in which ours take `overhead(count, gradients)`."""
        results = {}
        for workload, gradients in zip(growth.WORKLOADS, (10, 161)):
            for other, count in growth.SETTINGS:
                if other == kind:
                    took = overhead(count, gradients)
                    row = {"overhead": figure(took, took, took)}
                    results[workload, growth.mode(kind, count)] = {V1[2]: row}
        return report.targets(results).splitlines()[2:]

    def test_growth_with_replicas_may_be_linear(self):
        few, more = self._growth("replicas", lambda count, gradients: count * (1 + gradients))
        beside = "to 8 times that with 1 replica | 1.5 | 1.00 | yes |"
        self.assertEndsWith(few, f"8 replicas: overhead of 10 gradients {beside}")
        self.assertEndsWith(more, f"8 replicas: overhead of 161 gradients over that of 10 {beside}")

    def test_growth_that_is_no_more_linear_is_seen(self):
        # A fixed part that grows with the square: few gradients show it.
        few, more = self._growth(
            "replicas", lambda count, gradients: 100 * count**2 + count * gradients
        )
        self.assertEndsWith(few, "| no |")
        self.assertEndsWith(more, "| 1.00 | yes |")
        # As if each gradient were reduced over all replicas by each of them.
        few, more = self._growth("workers", lambda count, gradients: count**2 * gradients)
        self.assertIn("4 workers: overhead of 161 gradients over that of 10 to 2 times", more)
        self.assertEndsWith(more, "| 1.5 | 2.00 | no |")

    def test_growth_of_what_takes_nothing_cannot_be_told(self):
        few, more = self._growth("replicas", lambda count, gradients: 0.0)
        for line in (few, more):
            self.assertEndsWith(line, "| +0.00 ms | cannot tell |")

    def test_what_is_above_its_peer_is_listed(self):
        results = {("small", "graph"): self._rows()}
        self.assertEqual(report.above_peers(results), "- none")
        rows = results["small", "graph"]
        rows[V1[2]]["overhead_difference"] = figure(0.2, 0.1, 0.3)
        rows["ours, keras3, dynamic"]["overhead_difference"] = figure(0.1, -0.1, 0.3)
        rows["ours, v1, recorded"] = {**rows[V1[2]], "peer": V1[2]}
        self.assertEqual(
            report.above_peers(results).splitlines(),
            [
                "- above: ours, v1, dynamic, small, graph: +0.20 [0.10, 0.30] ms",
                "- cannot tell: ours, keras3, dynamic, small, graph: +0.10 [-0.10, 0.30] ms",
            ],
        )

    def test_the_summary_has_a_line_for_each_workload_and_mode(self):
        row = {"overhead": figure(1.5, 1.4, 1.6), "overhead_ratio": figure(0.25, 0.2, 0.3)}
        head, _, line = report.summary({("a", "eager"): {"ours, v1, dynamic": row}}).splitlines()
        self.assertTrue(head.startswith("| overhead, ms (to peer) | tf.compat.v1, dynamic"))
        self.assertEqual(line, "| a, eager |  | 1.50 (0.25 [0.20, 0.30]) |" + "  |" * 5)
        row.update(overhead_ratio=None, overhead_difference=figure(-0.1, -0.2, 0.1))
        line = report.summary({("a", "eager"): {"ours, v1, dynamic": row}}).splitlines()[2]
        self.assertEqual(line, "| a, eager |  | 1.50 (-0.10 [-0.20, 0.10] ms) |" + "  |" * 5)

    def test_the_table_leaves_out_what_was_not_measured(self):
        lines = report.table({"a": {"milliseconds": 1.5}, "b": {"milliseconds": 2}}).splitlines()
        self.assertEqual(lines[0], "| contender | ms |")
        self.assertEqual(lines[2:], ["| a | 1.50 |", "| b | 2.00 |"])

    def test_the_table_has_ratios_with_their_intervals(self):
        rows = {
            "a": {"overhead": figure(1.0, 0.9, 1.1), "overhead_ratio": figure(0.88, 0.84, 0.93)},
            "b": {
                "overhead": figure(0.1),
                "overhead_ratio": None,
                "overhead_difference": figure(0.125, -0.1, 0.2),
            },
        }
        lines = report.table(rows).splitlines()
        self.assertEqual(lines[0], "| contender | overhead ms | to peer |")
        self.assertEqual(lines[2], "| a | 1.00 [0.90, 1.10] | 0.88 [0.84, 0.93] |")
        self.assertEqual(lines[3], "| b | 0.10 [?] | +0.12 [-0.10, 0.20] ms |")

    def test_the_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("matplotlib, of the extra bench, is not installed")
        results = self._results()
        with tempfile.TemporaryDirectory() as folder:
            heights = []
            for name in ("without", "with"):
                path = pathlib.Path(folder, name + ".png")
                report.draw(results, path)
                data = path.read_bytes()
                self.assertEqual(data[:4], b"\x89PNG")
                heights.append(int.from_bytes(data[20:24], "big"))
                for workload in growth.WORKLOADS:
                    for setting in growth.SETTINGS:
                        results[workload, growth.mode(*setting)] = self._rows()
            self.assertGreater(heights[1], 1.5 * heights[0])


class LaunchesTest(tf.test.TestCase):
    def test_kernels_are_counted_in_the_streams_of_gpus(self):
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        space = xplane_pb2.XSpace()
        for plane_name, line_name, events in (
            ("/device:GPU:0", "Stream #13(Compute)", ["void Mul<float>", "Add", "MemcpyD2D", "x"]),
            ("/device:GPU:0", "Stream #14(MemcpyH2D)", ["MemcpyH2D", "Memset 0"]),
            ("/device:GPU:0", "XLA Ops", ["fusion"]),
            ("/host:CPU", "Stream", ["Add:AddV2", "Wait"]),
        ):
            plane = space.planes.add(name=plane_name)
            line = plane.lines.add(name=line_name)
            for number, event in enumerate(events):
                plane.event_metadata[number].name = event
                line.events.add(metadata_id=number)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(FileNotFoundError):
                launches.count(folder, launches.KERNELS)
            path = pathlib.Path(folder, "plugins", "host.xplane.pb")
            path.parent.mkdir()
            path.write_bytes(space.SerializeToString())
            self.assertEqual(launches.count(folder, launches.KERNELS), 3)
            self.assertEqual(launches.count(folder, launches.OPERATIONS), 1)

    def test_operations_of_a_step_are_counted(self):
        @tf.function(autograph=False)
        def function(value):
            for _ in range(3):
                value = tf.cumsum(value)
            return value

        value = tf.constant([1.0, 2.0])
        function(value)
        for step, number in ((lambda: function(value), 3), (lambda: tf.exp(tf.exp(value)), 2)):
            self.assertEqual(launches.per_step(step, launches.OPERATIONS), number)


class CommandTest(tf.test.TestCase):
    def _run(self, *argv):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            command.main(argv)
        return output.getvalue()

    def _plan(self, *argv):
        return command.plan_of(command.arguments(argv))

    def test_options_compose(self):
        argv = ("--workloads", "small", "--modes", "graph")
        self.assertEqual(self._plan(*argv, "--rounds", "40"), [("small", "graph", 40)])
        self.assertEqual(self._plan(*argv, "--skipped"), [("small", "skipped graph", 30)])
        self.assertEqual(self._plan(*argv, "--growth"), [("small", "graph", 30)])
        self.assertEqual(self._plan("--growth"), [])
        self.assertEqual(self._plan("--growth", "--skipped")[0], ("large", "skipped graph", 30))
        self.assertLen(self._plan(), len(command.PLAN))
        self.assertEqual({rounds for *_, rounds in self._plan("--dry-run")}, {command.DRY_ROUNDS})

    def test_without_a_gpu_one_is_asked_for_in_vain(self):
        for argv, text in (
            (["--device", "gpu"], "there is no GPU"),
            (["--dry-run", "--growth"], "--growth is of logical CPUs"),
            (["--workloads", "nothing"], "no such workload: nothing"),
            (["--growth", "--optimizer", "adam"], "--growth and --peaks are of sgd, not of adam"),
        ):
            errors = io.StringIO()
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(errors):
                with mock.patch.object(tf.config, "list_physical_devices", lambda kind: []):
                    command.arguments(argv)
            self.assertIn(text, errors.getvalue())

    def test_another_optimizer(self):
        made = []
        taken = steps.Step.__init__

        def noted(step, contender, *args):
            taken(step, contender, *args)
            made.append(contender.make())

        argv = ("--workloads", "10", "--modes", "graph", "--rounds", "1", "--optimizer", "adam")
        names = [*V1, "ours, keras3, dynamic", "ours, tf_keras, dynamic"]
        with mock.patch.object(steps.Step, "__init__", noted):
            self._run(*argv, "--contenders", *names)
        self.assertGreaterEqual(len(made), len(V1))
        for optimizer in made:
            inner = optimizer[0] if isinstance(optimizer, tuple) else optimizer
            inner = getattr(inner, "inner_optimizer", inner)
            self.assertTrue(any(cls.__name__.endswith("Adam") for cls in type(inner).__mro__))

    def test_paired_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "measured.json")
            argv = ("--workloads", "10", "--modes", "eager", "--rounds", str(ROUNDS))
            output = self._run(*argv, "--contenders", *V1, "--json", str(path))
            measured = json.loads(path.read_text(encoding="utf-8"))
        self.assertIn(f"### 10, eager, median of {ROUNDS}", output)
        self.assertRegex(output, r"\| 10, eager \| .* \| \S+ \(.*\[.*\].*\) \|")
        row = measured["10 eager"][V1[2]]
        self.assertLen(row["seconds"], ROUNDS)
        low, high = row["overhead"]["interval"]
        self.assertLessEqual(low, row["overhead"]["value"])
        self.assertLessEqual(row["overhead"]["value"], high)
        self.assertNotIn("launches", row)

    def test_the_dry_run_goes_the_way_of_a_gpu(self):
        waits = mock.patch.object(
            tf.test.experimental, "sync_devices", side_effect=tf.test.experimental.sync_devices
        )
        with waits as wait, tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "measured.json")
            argv = ("--dry-run", "--workloads", "10", "--modes", "graph", "session")
            output = self._run(*argv, "--contenders", *V1, "--json", str(path))
            measured = json.loads(path.read_text(encoding="utf-8"))
        wait.assert_called()
        self.assertIn("| launches | launches added |", output)
        for mode in ("graph", "session"):
            rows = measured[f"10 {mode}"]
            self.assertLen(rows[V1[0]]["seconds"], command.DRY_ROUNDS)
            # One for each variable at least, and what decides beside it.
            self.assertGreater(rows[V1[0]]["launches"], 10)
            self.assertGreater(rows[V1[2]]["launches_added"], 10)


# A run that makes one contender's step and says no more.
_HANGS = 'import time; print(\'{"making": "x"}\', flush=True); time.sleep(600)'


class GrowthTest(tf.test.TestCase):
    def test_what_says_nothing_is_ended(self):
        start = time.monotonic()
        with self.assertRaisesRegex(growth.FailedError, "nothing was heard for 0.5 s") as raised:
            growth._outcome([sys.executable, "-c", _HANGS], [None, {}], 0.5)
        self.assertEqual(raised.exception.last, "x")
        self.assertLess(time.monotonic() - start, 60)

    def test_what_ends_early_is_told_with_its_last_words(self):
        code = "import os, sys, time; 'TF_CONFIG' not in os.environ and time.sleep(600); "
        code += "sys.exit('why')"
        with self.assertRaisesRegex(growth.FailedError, "ended early(.|\n)*why"):
            growth._outcome([sys.executable, "-c", code], [None, {"task": 1}], 60)

    def test_runs_end_with_the_process_that_started_them(self):
        code = "from benchmarks import growth; growth._end_with_parent()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            env=growth._environment(None),
            timeout=120,
        )
        self.assertEqual(done.returncode, 1)

    def test_a_contender_at_which_processes_hang_is_left_out(self):
        asked = []

        def run(kind, count, rounds, names, sizes, limit):
            asked.append(list(names))
            if "b" in names:
                raise growth.FailedError("hangs", "b")
            return {"10": {name: {"seconds": [1.0]} for name in names}}

        errors = io.StringIO()
        with mock.patch.object(growth, "_run", run), contextlib.redirect_stderr(errors):
            results = growth.measure("workers", 2, 1, ["a", "b", "c"])
        self.assertEqual(asked, [["a", "b", "c"], ["a", "c"]])
        self.assertEqual(list(results["10", "2 workers"]), ["a", "c"])
        self.assertIn("b (2 workers): hangs", errors.getvalue())
        for last in (None, "b"):  # In the rounds; with nothing left.
            error = growth.FailedError("ended", last)
            with mock.patch.object(growth, "_run", side_effect=error):
                with self.assertRaises(growth.FailedError):
                    growth.measure("workers", 2, 1, ["b"])

    def test_other_ports_are_tried_where_one_is_taken(self):
        configs = []

        def outcome(argv, given, limit):
            configs.append(given)
            if len(configs) < 3:
                raise growth.FailedError("Could not start gRPC server", None)
            return {}

        with mock.patch.object(growth, "_outcome", outcome):
            growth.measure("workers", 2, 1, ["a"])
        self.assertLen({json.dumps(each) for each in configs}, 3)
        self.assertEqual([each["task"]["index"] for each in configs[0]], [0, 1])

    def test_what_is_measured_by_itself(self):
        names = growth._names()
        self.assertContainsSubset([*V1, "ours, contrib, exponential"], names)
        self.assertFalse([name for name in names if "fixed" in name or "recorded" in name])

    @pytest.mark.slow
    def test_two_replicas(self):
        self._measured("replicas", "2 replicas")

    @pytest.mark.slow
    def test_two_workers(self):
        self._measured("workers", "2 workers")

    def _measured(self, kind, mode):
        results = growth.measure(kind, 2, ROUNDS, V1, ["10"])
        self.assertEqual(list(results), [("10", mode)])
        for rows in results.values():
            self.assertEqual(list(rows), V1)
            self.assertLen(rows[V1[2]]["seconds"], ROUNDS)
            self.assertIsNotNone(rows[V1[2]]["overhead"].interval)


if __name__ == "__main__":
    tf.test.main()
