"""The demo: what its runs come to, what it shows and what it writes."""

import contextlib
import functools
import io
import os
import tempfile
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests import forks, modes, processes
from tf_lossscale_compat._tools import cli, demo

FLOAT32 = "float32"
UNSCALED = "float16 unscaled"
CONTRIB_FIXED = "float16 contrib FixedLossScaleManager"
CONTRIB_DYNAMIC = "float16 contrib ExponentialUpdateLossScaleManager"
FIXED = "float16 FixedLossScale"
DYNAMIC = "float16 DynamicLossScale"
SCALED = (CONTRIB_FIXED, CONTRIB_DYNAMIC, FIXED, DYNAMIC)
NAMES = (FLOAT32, UNSCALED, *SCALED)
# A fifth of the default: enough for the runs to part ways and for the scales to grow once.
STEPS = 240


def train(steps, seed, on_step=None):
    with modes.eager_mode():
        return demo.train(steps, seed, on_step)


@functools.lru_cache(maxsize=None)
def trained():
    """Returns what `demo.train` returns for `STEPS` steps, {name: run}; it trains once only."""
    return {run.name: run for run in train(STEPS, seed=0)}


def made_up(name="made up", **changes):
    history = [
        demo.Step(loss=2.0, scale=16.0, zero_share=0.5, applied=False),
        demo.Step(loss=1.0, scale=8.0, zero_share=0.25, applied=True),
    ]
    run = demo.Run(name, 0.875, 1.5, 0.25, 8.0, 1, 2.25, history)
    return run._replace(**changes)


class DigitsTest(absltest.TestCase):
    def test_a_fifth_is_held_back_and_nothing_is_lost(self):
        from sklearn import datasets

        digits = demo.load_digits(steps=50, seed=3)
        self.assertEqual(digits.test_images.shape, (359, 64))
        self.assertEqual(digits.train_images.shape, (1438, 64))
        images = np.concatenate([digits.test_images, digits.train_images])
        labels = np.concatenate([digits.test_labels, digits.train_labels])
        table = np.column_stack([images * 8 + 8, labels])
        original = datasets.load_digits()
        expected = np.column_stack([original.data, original.target])
        self.assertEqual(sorted(map(tuple, table)), sorted(map(tuple, expected)))

    def test_batches_are_of_the_training_images_only(self):
        digits = demo.load_digits(steps=500, seed=0)
        self.assertEqual(digits.batches.shape, (500, demo.BATCH_SIZE))
        self.assertEqual((digits.batches.min(), digits.batches.max()), (0, 1437))

    def test_the_seed_decides_on_order_and_batches(self):
        first, again, other = (demo.load_digits(5, seed) for seed in (1, 1, 2))
        np.testing.assert_equal(first, again)
        self.assertFalse(np.array_equal(first.test_images, other.test_images))
        self.assertFalse(np.array_equal(first.batches, other.batches))


class TrainingTest(parameterized.TestCase):
    def test_there_are_six_runs(self):
        self.assertEqual(tuple(trained()), NAMES)

    def test_float32_learns_the_digits(self):
        self.assertGreater(trained()[FLOAT32].accuracy, 0.93)
        self.assertLess(trained()[FLOAT32].loss, 0.15)

    def test_float16_without_loss_scaling_underflows_and_fails(self):
        run = trained()[UNSCALED]
        self.assertGreater(run.zero_gradient_share, 0.6)
        self.assertLess(run.accuracy, trained()[FLOAT32].accuracy - 0.1)
        self.assertGreater(run.loss, 0.4)

    @parameterized.parameters(*SCALED)
    def test_with_loss_scaling_float16_is_as_good_as_float32(self, name):
        run, reference = trained()[name], trained()[FLOAT32]
        self.assertLess(run.zero_gradient_share, 0.02)
        # The dynamic runs are some tens of steps behind, which counts more here than at the end.
        self.assertAlmostEqual(run.accuracy, reference.accuracy, delta=0.02)
        self.assertAlmostEqual(run.loss, reference.loss, delta=0.03)

    def test_both_generations_of_fixed_scale_train_alike(self):
        first, second = trained()[CONTRIB_FIXED], trained()[FIXED]
        self.assertAlmostEqual(first.loss, second.loss, delta=0.01)
        self.assertAlmostEqual(first.accuracy, second.accuracy, delta=0.01)

    @parameterized.parameters((FLOAT32, 1.0), (UNSCALED, 1.0), (CONTRIB_FIXED, 2.0**12))
    def test_other_runs_skip_nothing_and_keep_their_scale(self, name, scale):
        run = trained()[name]
        self.assertEqual((run.skipped_steps, run.final_scale), (0, scale))
        self.assertEqual({step.scale for step in run.history}, {scale})
        self.assertTrue(all(step.applied for step in run.history))

    @parameterized.parameters((CONTRIB_DYNAMIC, 2), (DYNAMIC, 1))
    def test_dynamic_scales_come_down_by_skipping(self, name, steps_per_halving):
        history = trained()[name].history
        # From 2**32 to 2**15: the scale is cast to float16, in which 2**16 is infinite.
        descent = 17 * steps_per_halving
        scales = [2.0 ** (32 - step // steps_per_halving) for step in range(descent)]
        self.assertEqual([step.scale for step in history[:descent]], scales)
        self.assertFalse(any(step.applied for step in history[:descent]))
        self.assertEqual(history[descent].scale, 2.0**15)
        self.assertTrue(history[descent].applied)

    @parameterized.parameters((CONTRIB_DYNAMIC, 2), (DYNAMIC, 1))
    def test_dynamic_scales_try_to_grow_and_recover(self, name, steps_per_halving):
        run = trained()[name]
        start = 17 * steps_per_halving + demo.GROWTH_STEPS
        growth = run.history[start : start + steps_per_halving]
        self.assertEqual({(step.scale, step.applied) for step in growth}, {(2.0**16, False)})
        self.assertEqual(run.final_scale, 2.0**15)
        self.assertEqual(run.skipped_steps, 18 * steps_per_halving)

    @parameterized.parameters(*NAMES)
    def test_skipped_steps_change_no_weights(self, name):
        self.enter_context(modes.eager_mode())
        training = demo.trainings()[name]
        training.start(demo._initial_weights(0))
        digits = demo.load_digits(1, 0)
        before = training.logits(digits.test_images)
        step = training.step(digits.train_images[:8], digits.train_labels[:8])
        after = training.logits(digits.test_images)
        self.assertEqual(step.applied, name not in (CONTRIB_DYNAMIC, DYNAMIC))
        self.assertEqual(not np.array_equal(before, after), step.applied)

    def test_the_share_of_zeros_is_the_mean_over_applied_steps(self):
        for run in trained().values():
            shares = [step.zero_share for step in run.history if step.applied]
            self.assertAlmostEqual(run.zero_gradient_share, np.mean(shares))
            self.assertEqual(run.skipped_steps, STEPS - len(shares))

    def test_the_same_seed_gives_the_same_numbers(self):
        # A shorter training sees the first batches of a longer one.
        for run in train(40, 0):
            self.assertEqual(run.history, trained()[run.name].history[:40])

    def test_another_seed_gives_others_and_each_step_is_announced(self):
        names = []
        for run in train(2, 1, names.append):
            self.assertNotEqual(run.history[0].loss, trained()[run.name].history[0].loss)
            self.assertNotEqual(run.history[1].loss, trained()[run.name].history[1].loss)
        self.assertEqual(names, [name for name in NAMES for _ in range(2)])


class OutputTest(absltest.TestCase):
    def test_cross_entropy(self):
        logits = np.array([[0, 0], [1000, 0], [0, np.log(3)]], np.float32)
        loss = demo._cross_entropy(logits, np.array([1, 0, 1]))
        self.assertAlmostEqual(loss, (np.log(2) + 0 + np.log(4 / 3)) / 3, places=6)

    def test_table_has_a_line_for_each_run_and_units(self):
        head, _, first, second = demo.table([made_up(), made_up("b")]).split("\n")
        self.assertEqual(
            [column.strip() for column in head.split("  ") if column],
            ["run", "accuracy, %", "loss, nats", "zero gradients, %"]
            + ["final scale", "skipped, steps", "time, s"],
        )
        self.assertEqual(first.split()[2:], ["87.50", "1.5000", "25.0", "8", "1", "2.2"])
        self.assertEqual(len(first), len(second))

    def test_conclusion_is_made_of_the_runs_numbers(self):
        runs = [made_up(accuracy=0.97), made_up(accuracy=0.45, zero_gradient_share=0.713)]
        scaled = [
            made_up(accuracy=0.96, zero_gradient_share=0.001),
            made_up(accuracy=0.95, zero_gradient_share=0.002),
            made_up(accuracy=0.94, zero_gradient_share=float("nan"), skipped_steps=2),
        ]
        self.assertEqual(
            demo.conclusion(runs + scaled),
            "Unscaled, 71.3% of the entries of float16 gradients are zero: accuracy 45.0%, where "
            "float32 has 97.0%.\n"
            "With a loss scale at most 0.2% are zero: accuracy 94.0% to 96.0%.",
        )
        self.assertIn(
            "With a loss scale all steps were skipped", demo.conclusion(runs + scaled[2:])
        )

    def test_picture_has_the_loss_the_scale_and_the_skipped_steps(self):
        losses, scales = demo.draw([made_up("one"), made_up("two", accuracy=0.25)]).axes
        self.assertIn("loss", losses.get_ylabel())
        self.assertEqual(("loss scale", "log"), (scales.get_ylabel(), scales.get_xscale()))
        self.assertEqual(list(losses.get_lines()[0].get_ydata()), [2.0, 1.0])
        lines, labels = scales.get_legend_handles_labels()
        self.assertEqual(list(lines[0].get_ydata()), [16.0, 8.0])
        self.assertEqual(
            [label.strip() for label in labels],
            [
                "one, accuracy 87.5% (1 skipped from step 1 on)",
                "two, accuracy 25.0% (1 skipped from step 1 on)",
            ],
        )
        colors = [[line.get_color() for line in lines] for lines in (lines, losses.get_lines())]
        self.assertEqual([["C0", "C1"]] * 2, colors)

    def test_one_infinite_loss_does_not_spoil_the_rest_of_the_curve(self):
        history = [demo.Step(loss, 1.0, 0.0, True) for loss in [np.inf] + [1.0] * 79]
        losses = demo.draw([made_up(history=history)]).axes[0].get_lines()[0].get_ydata()
        self.assertEqual([np.inf, np.inf, 1.0, 1.0], list(losses[:4]))


class CommandTest(absltest.TestCase):
    def test_progress_table_conclusion_and_picture(self):
        """The whole command in another process, which must not come to need Keras."""
        folder = self.enter_context(tempfile.TemporaryDirectory())
        program = (
            "import sys, tensorflow; before = set(sys.modules)\n"
            "from tf_lossscale_compat._tools import cli\n"
            "code = cli.main(sys.argv[1:])\n"
            "print('new modules:', *sorted(set(sys.modules) - before))\n"
            "sys.exit(code)"
        )
        picture, logs = os.path.join(folder, "a.png"), os.path.join(folder, "logs")
        status, out, err = forks.run(
            ["-c", program, "demo", "--steps", "3", "--plot", picture, "--logdir", logs],
            processes.environment(PYTHONIOENCODING="utf-8"),
            os.getcwd(),
            240,
        )
        self.assertEqual(status, 0, err[-3000:])
        shown, _, modules = out.partition("new modules:")
        rows = {line[:50].strip(): line[50:].split() for line in shown.splitlines()}
        # After three steps the dynamic runs have skipped them all: there is no share to report.
        self.assertEqual(["nan", "5.36871e+08", "3"], rows[DYNAMIC][2:5])
        self.assertEqual(["nan", "2.14748e+09", "3"], rows[CONTRIB_DYNAMIC][2:5])
        self.assertContainsSubset(NAMES, rows)
        *_, unscaled, scaled, where, following = shown.splitlines()
        self.assertStartsWith(unscaled, "Unscaled, ")
        self.assertStartsWith(scaled, "With a loss scale at most ")
        self.assertEqual(f"Picture: {picture}", where)
        self.assertEqual(f"Next: tf-lossscale plot {logs} -o loss_scale.png", following)
        for module in modules.split():
            self.assertNotRegex(module, r"^(tf_keras|keras|tensorflow\.(python\.)?keras)(\.|$)")

        # The progress bar: what runs, and how far it has come.
        self.assertIn("18/18", err)
        self.assertIn(DYNAMIC, err)
        with open(picture, "rb") as file:
            self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")

    def test_without_options_it_writes_a_picture_among_temporary_files(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        out = io.StringIO()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            with modes.eager_mode(), mock.patch.object(tempfile, "tempdir", folder):
                self.assertEqual(cli.main(["demo", "--steps", "1"]), 0)
        (inner,) = os.listdir(folder)
        *_, where, following = out.getvalue().splitlines()
        self.assertEqual("Picture: " + os.path.join(folder, inner, "demo.png"), where)
        self.assertEqual(["demo.png"], os.listdir(os.path.join(folder, inner)))
        self.assertStartsWith(
            following, "Next: tf-lossscale demo --logdir logs && tf-lossscale plot"
        )
