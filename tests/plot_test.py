"""`tf-lossscale plot`: what it reads from event files, what it draws, and what it refuses.

Runs wherever TensorBoard and matplotlib are, which the extra `test` installs on every TensorFlow of
the matrix; without them the tests about reading or drawing are skipped and say so.
"""

import contextlib
import io
import os
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import modes
from tf_lossscale_compat import _summary_tags, cli, demo, plot

tf1 = tf.compat.v1
SCALE = _summary_tags.SCALE
SKIPPED = _summary_tags.SKIPPED_STEPS
CONSECUTIVE = _summary_tags.CONSECUTIVE_SKIPS
FLOOR = _summary_tags.FLOOR
CEILING = _summary_tags.CEILING
PNG = b"\x89PNG\r\n\x1a\n"


def call(*arguments):
    """Runs the command in this process; returns exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["plot", *arguments])
    return code, out.getvalue(), err.getvalue()


def write(folder, *events, suffix=""):
    """Writes one event file as TensorFlow 1 does; an event is (step, {tag: value})."""
    with tf.Graph().as_default():
        writer = tf1.summary.FileWriter(folder, filename_suffix=suffix)
    for step, values in events:
        summary = tf1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        writer.add_summary(summary, step)
    writer.close()


def write_tensors(folder, *events):
    """The same as TensorFlow 2 does."""
    with modes.eager_mode():
        writer = tf.compat.v2.summary.create_file_writer(folder)
        with writer.as_default():
            for step, values in events:
                for tag, value in values.items():
                    tf.compat.v2.summary.scalar(tag, value, step=step)
        writer.close()


def scales(first, *values):
    return [(first + index, {SCALE: value}) for index, value in enumerate(values)]


def made_up(name="run", scale=(8.0, 4.0), steps=None, skipped=(), consecutive=(), **bounds):
    """A `plot.Run`, at the steps 1, 2, ... if no others are given."""

    def series(values):
        at = range(1, len(values) + 1) if steps is None else steps[: len(values)]
        return plot.Series(np.array(at, np.int64), np.array(values, np.float64))

    bounds = [series(bounds.get(name, ())) for name in ("floor", "ceiling")]
    return plot.Run(name, series(scale), series(skipped), series(consecutive), *bounds)


class FolderTest(parameterized.TestCase):
    """With a folder of its own, which `path` leads into."""

    needs = ("tensorboard", "matplotlib")

    def setUp(self):
        super().setUp()
        for module in self.needs:
            pytest.importorskip(module, reason=f"needs {module}, see the extra `plot`")
        self.folder = self.enter_context(tempfile.TemporaryDirectory())

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def points(self, tag=SCALE, *parts):
        """What is read of the only run there is: [(step, value), ...]."""
        (run,) = plot.read([self.path(*parts)])
        series = run[1 + _summary_tags.ALL.index(tag)]
        return list(zip(series.steps.tolist(), series.values.tolist()))


class ReadTest(FolderTest):
    needs = ("tensorboard",)

    @parameterized.parameters(write, write_tensors)
    def test_summaries_of_both_generations(self, writing):
        first = {SCALE: 1024.0, SKIPPED: 1, CONSECUTIVE: 1, FLOOR: 2.0, CEILING: 2.0**100}
        second = {SCALE: 512.0, SKIPPED: 2, CONSECUTIVE: 2}
        writing(self.folder, (1, first), (2, second))
        (run,) = plot.read([self.folder])
        values = [series.values.tolist() for series in run[1:]]
        self.assertEqual([[1024.0, 512.0], [1, 2], [1, 2], [2.0], [2.0**100]], values)
        steps = [series.steps.tolist() for series in run[1:]]
        self.assertEqual([[1, 2], [1, 2], [1, 2], [1], [1]], steps)

    def test_whole_numbers_and_what_is_no_scalar(self):
        with modes.eager_mode():
            writer = tf.compat.v2.summary.create_file_writer(self.folder)
            with writer.as_default():
                for value in (tf.constant(7, tf.int64), tf.constant([1.0, 2.0]), tf.constant("x")):
                    tf.compat.v2.summary.write(SKIPPED, value, step=1)
                tf.compat.v2.summary.write(SCALE, tf.constant([16.0], tf.float64), step=1)
            writer.close()
        self.assertEqual([(1, 7.0)], self.points(SKIPPED))
        self.assertEqual([(1, 16.0)], self.points())

    def test_nothing_is_sampled_away(self):
        write(self.folder, *scales(0, *range(1, 3001)))
        self.assertLen(self.points(), 3000)

    def test_restart_from_an_older_checkpoint(self):
        write(self.folder, *scales(1, 1, 2, 3, 4, 5, 6), suffix=".z")
        # Its name sorts before the other's where both are of one second.
        write(self.folder, *scales(3, 30, 40), suffix=".a")
        self.assertEqual([(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)], self.points())

    def test_restart_that_goes_on_where_it_was(self):
        write(self.folder, *scales(1, 1, 2), suffix=".1")
        write(self.folder, *scales(5, 5), suffix=".2")
        write(self.folder, (5, {"another": 1.0}), (9, {SCALE: 9}), suffix=".3")
        self.assertEqual([(1, 1.0), (2, 2.0), (5, 5.0), (9, 9.0)], self.points())

    def test_restart_at_the_last_step(self):
        write(self.folder, *scales(1, 1, 2), suffix=".1")
        write(self.folder, *scales(2, 20), suffix=".2")
        self.assertEqual([(1, 1.0), (2, 20.0)], self.points())

    def test_restart_within_one_file(self):
        write(self.folder, *scales(1, 1, 2, 3, 4), *scales(2, 20, 30))
        self.assertEqual([(1, 1.0), (2, 20.0), (3, 30.0)], self.points())

    def test_all_that_was_measured_is_dropped_together(self):
        write(self.folder, *[(step, {SCALE: 1, SKIPPED: step}) for step in (1, 2, 3)], suffix=".1")
        write(self.folder, (2, {SCALE: 2}), suffix=".2")
        self.assertEqual([(1, 1.0)], self.points(SKIPPED))

    def test_a_global_step_that_stands_still_while_steps_are_skipped(self):
        write(self.folder, *[(0, {SCALE: scale}) for scale in (8, 4, 2)], (1, {SCALE: 2}))
        self.assertEqual([(0, 8.0), (0, 4.0), (0, 2.0), (1, 2.0)], self.points())

    def test_bounds_are_written_again_after_a_restart(self):
        write(self.folder, (0, {FLOOR: 1}), *scales(0, 1, 2, 3, 4, 5), suffix=".1")
        write(self.folder, (3, {FLOOR: 2}), *scales(3, 3, 4), suffix=".2")
        self.assertEqual([(0, 1.0), (3, 2.0)], self.points(FLOOR))
        self.assertLen(self.points(), 5)

    def test_a_new_start_without_a_bound(self):
        write(self.folder, (0, {FLOOR: 1}), *scales(0, 1, 2), suffix=".1")
        write(self.folder, *scales(0, 3), suffix=".2")
        self.assertEqual([], self.points(FLOOR))

    def test_a_bound_at_an_earlier_step_takes_no_scale_away(self):
        write(self.folder, *scales(1, 1, 2), (0, {FLOOR: 1}))
        self.assertLen(self.points(), 2)

    def test_bounds_of_a_restart_within_one_file_stay(self):
        write(self.folder, (0, {FLOOR: 1}), *scales(0, 1, 2, 3), (1, {FLOOR: 2}), *scales(1, 9))
        self.assertEqual([(0, 1.0), (1, 2.0)], self.points(FLOOR))

    def test_interrupted_write(self):
        write(self.folder, *scales(1, 1, 2, 3))
        (name,) = os.listdir(self.folder)
        with open(self.path(name), "rb+") as file:
            file.truncate(os.path.getsize(self.path(name)) - 5)
        with self.assertLogs("absl", "WARNING") as logs:
            self.assertEqual([(1, 1.0), (2, 2.0)], self.points())
        self.assertRegex(
            logs.output[0], f"{name}: what comes after .* event, [0-9]+ of [0-9]+ bytes"
        )

    def test_no_warning_about_a_whole_file(self):
        write(self.folder, *scales(1, 1, 2, 3))
        with mock.patch.object(plot.logging, "warning") as warning:
            self.points()
        warning.assert_not_called()

    def test_empty_file_and_folder_with_such_a_name(self):
        write(self.folder, *scales(1, 1))
        open(self.path("events.out.tfevents.0.empty"), "wb").close()
        os.mkdir(self.path("events.out.tfevents.folder"))
        self.assertEqual([(1, 1.0)], self.points())

    def test_records_that_are_no_events(self):
        path = self.path("x.tfevents")
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(b"\xff\xff\xff")
        with self.assertRaisesRegex(plot.LogError, "tfevents' is no event file"):
            plot.read([self.folder])

    def test_names_of_runs(self):
        for parts in (["a b"], ["deep", "run"], ["deep"]):
            write(self.path("logs", *parts), *scales(1, 1))
        names = [run.name for run in plot.read([self.path("logs")])]
        self.assertEqual(["a b", "deep", os.path.join("deep", "run")], names)

    def test_names_where_the_folder_itself_is_a_run(self):
        write(self.path("logs"), *scales(1, 1))
        self.assertEqual(["logs"], [run.name for run in plot.read([self.path("logs") + os.sep])])
        write(self.path("logs", "logs"), *scales(1, 1))
        names = [run.name for run in plot.read([self.path("logs")])]
        self.assertEqual(["logs", os.path.join("logs", "logs")], names)

    def test_runs_of_the_same_name_in_two_folders(self):
        write(self.path("x", "run"), *scales(1, 1))
        write(self.path("y", "run"), *scales(1, 2))
        runs = plot.read([self.path("y"), self.path("x")])
        names = [os.path.join("y", "run"), os.path.join("x", "run")]
        self.assertEqual(names, [run.name for run in runs])
        self.assertEqual([[2.0], [1.0]], [run.scale.values.tolist() for run in runs])

    def test_a_folder_that_is_named_twice_is_read_once(self):
        write(self.path("logs", "run"), *scales(1, 1))
        os.symlink(self.path("logs"), self.path("link"))
        os.symlink(self.path("logs", "run"), self.path("another"))
        for again in (["link"], ["logs", "run"], ["another"]):
            self.assertLen(plot.read([self.path("logs"), self.path(*again)]), 1, again)

    def test_folder_with_other_signs_in_its_name(self):
        name = "a[1]* $x$ _ü"
        write(self.path(name, name), *scales(1, 4))
        self.assertEqual([name], [run.name for run in plot.read([self.path(name)])])

    def test_a_run_without_a_loss_scale_beside_one_with(self):
        write(self.path("train"), *scales(1, 1))
        write(self.path("validation"), (1, {"loss": 1.0}))
        self.assertEqual(["train"], [run.name for run in plot.read([self.folder])])


class DrawTest(FolderTest):
    needs = ("matplotlib",)

    def legend(self, picture):
        (legend,) = picture.legends
        return [text.get_text() for text in legend.get_texts()]

    def marks(self, axes, marker):
        """The points of all marks of a kind, {color: [(x, y), ...]}."""
        lines = [line for line in axes.get_lines() if line.get_marker() == marker]
        return {line.get_color(): list(zip(*line.get_data())) for line in lines}

    def test_scale_over_steps_on_a_logarithmic_axis(self):
        picture = plot.draw([made_up(scale=[32, 16, 16], steps=[5, 10, 15])])
        (axes,) = picture.axes
        line = axes.get_lines()[0]
        self.assertEqual([5, 10, 15], line.get_xdata().tolist())
        self.assertEqual([32, 16, 16], line.get_ydata().tolist())
        # A scale holds until the next point.
        self.assertEqual("steps-post", line.get_drawstyle())
        self.assertEqual("log", axes.get_yscale())
        self.assertEqual(2, axes.yaxis.get_transform().base)
        self.assertEqual((8.0, 64.0), axes.get_ylim())
        axes.set_xlim(5, 6)
        self.assertEqual({0.0}, set(axes.get_xticks() % 1))
        self.assertEqual(("step", "loss scale"), (axes.get_xlabel(), axes.get_ylabel()))
        self.assertEqual(["run"], self.legend(picture))

    def test_skipped_steps_are_marked_in_both_places(self):
        runs = [made_up("a", skipped=[0, 0]), made_up("b", scale=[8, 4, 2], skipped=[1, 1, 2])]
        picture = plot.draw(runs)
        above, below = picture.axes
        self.assertEqual({"C1": [(1, 8.0), (3, 2.0)]}, self.marks(above, "x"))
        self.assertEqual({"C1": [(1, 0), (3, 0)]}, self.marks(below, "|"))
        legend = self.legend(picture)
        self.assertEqual(["a (0 skipped)", "b (2 skipped)"], legend[:2])
        self.assertStartsWith(legend[2], "skipped: this step")

    def test_marks_at_a_step_that_stands_still(self):
        run = made_up(scale=[8, 4, 2, 2], steps=[0, 0, 0, 1], skipped=[1, 2, 3, 3])
        above = plot.draw([run]).axes[0]
        self.assertEqual([(0, 8.0), (0, 4.0), (0, 2.0)], self.marks(above, "x")["C0"])

    def test_a_total_between_the_points_of_the_scale(self):
        run = made_up(scale=[8, 4], steps=[10, 20])
        totals = plot.Series(np.array([5, 12, 20]), np.array([1.0, 2.0, 3.0]))
        above = plot.draw([run._replace(skipped_steps=totals)]).axes[0]
        self.assertEqual([(5, 8.0), (12, 8.0), (20, 4.0)], self.marks(above, "x")["C0"])

    @parameterized.parameters(
        ([1, 2, 3], [0, 1, 1], (), [0, 1, 0], 1),
        ([1, 2, 3], [1, 2, 2], (), [1, 1, 0], 2),
        ([100, 200, 300], [34, 34, 36], (), [34, 0, 2], 36),  # The start is in the first interval.
        ([50], [3], (), [3], 3),
        ([100, 149], [15, 15], (), [15, 0], 15),
        # The logs begin in the middle: of the first total only what is of that step counts.
        ([901, 902, 903], [34, 35, 35], (), [0, 1, 0], 1),
        ([901, 902, 903], [34, 35, 35], (2, 3, 0), [2, 1, 0], 3),
        # A restart without the checkpoint that had the total.
        ([1, 2, 3, 4], [5, 6, 2, 3], (), [5, 1, 2, 1], 9),
        ([1, 2, 3], [0, float("nan"), 1], (), [0, 1], 1),
    )
    def test_where_and_how_many_steps_were_skipped(self, steps, totals, consecutive, rises, number):
        run = made_up(steps=steps, skipped=totals, consecutive=consecutive)
        series, skipped = plot.skips(run)
        self.assertEqual((rises, number), (series.values.tolist(), skipped))

    def test_bounds_are_dashed_from_where_they_are_written_to_the_end(self):
        run = made_up(scale=[8, 4, 4], steps=[10, 20, 30], floor=[1, 2], ceiling=[64])
        picture = plot.draw([run])
        (axes,) = picture.axes
        dashed = [line for line in axes.get_lines() if line.is_dashed()]
        self.assertLen(dashed, 2)
        self.assertEqual([10, 20, 30], dashed[0].get_xdata().tolist())
        self.assertEqual([1, 2, 2], dashed[0].get_ydata().tolist())
        self.assertEqual([64, 64], dashed[1].get_ydata().tolist())
        self.assertEqual((0.5, 128.0), axes.get_ylim())
        self.assertEqual(["run", "floor and ceiling"], self.legend(picture))

    def test_what_has_no_place_on_the_axis_is_a_gap_and_is_counted(self):
        nan, inf = float("nan"), float("inf")
        values = [8, nan, 4, inf, 0, -1, 2, 2]
        picture = plot.draw([made_up(scale=values, ceiling=[inf], floor=[0.0])])
        (axes,) = picture.axes
        line = axes.get_lines()[0]
        np.testing.assert_array_equal([8, nan, 4, nan, nan, nan, 2, 2], line.get_ydata())
        # A point alone between gaps has no line, so it gets a dot.
        self.assertEqual({"C0": [(1, 8), (3, 4)]}, self.marks(axes, "."))
        self.assertEqual(["run (4 of 8 scales not finite or not above zero)"], self.legend(picture))

    def test_no_scale_that_can_be_drawn(self):
        with self.assertRaisesRegex(plot.LogError, "no loss scale above zero"):
            plot.draw([made_up(scale=[0, float("nan")])])

    def test_runs_of_one_scale_are_all_seen(self):
        picture = plot.draw([made_up(str(index)) for index in range(25)])
        lines = [line for line in picture.axes[0].get_lines() if line.get_marker() == "None"]
        self.assertLen(lines, 25)
        looks = {(line.get_color(), line.get_zorder()) for line in lines}
        self.assertLen(looks, 25)
        solid = [line.get_zorder() for line in lines if not line.is_dashed()]
        others = [line.get_zorder() for line in lines if line.is_dashed()]
        self.assertLess(max(solid), min(others))

    @parameterized.parameters(
        ("_hidden", "_hidden"),
        ("a$b$c", r"a\$b\$c"),
        ("two\nlines", "two?lines"),
        ("\udcff", "?"),
        ("x" * 300, "x" * 39 + "…" + "x" * 40),
    )
    def test_name_is_shown_as_it_is(self, name, shown):
        picture = plot.draw([made_up(name)])
        self.assertEqual([shown], self.legend(picture))
        plot.save(picture, self.path("x.png"))

    def test_very_many_points(self):
        count = 2 * 10**5
        scale = 2.0 ** np.random.RandomState(0).randint(0, 30, count)
        run = made_up(scale=scale, skipped=np.arange(count) // 7)
        plot.save(plot.draw([run]), self.path("x.png"))

    def test_the_size_is_what_is_asked_for(self):
        self.assertEqual([4, 3], plot.draw([made_up()], (4, 3)).get_size_inches().tolist())


class CommandTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.logs = self.path("logs")
        write(self.logs, *scales(1, 1, 2))
        self.output = self.path("plot.png")

    def read_output(self):
        with open(self.output, "rb") as file:
            return file.read()

    def refused(self, *arguments):
        """The message of a call that is refused before logs are read."""
        with mock.patch.object(plot, "read", side_effect=AssertionError):
            code, out, err = call(*arguments)
        self.assertEqual((2, ""), (code, out))
        self.assertIn("usage: tf-lossscale plot", err)
        return err

    def failed(self, *logdirs):
        code, out, err = call(*logdirs, "-o", self.output)
        self.assertEqual((1, ""), (code, out))
        self.assertStartsWith(err, "tf-lossscale plot: ")
        self.assertFalse(os.path.exists(self.output))
        return err

    @parameterized.parameters((".png", PNG), (".PNG", PNG), (".svg", b"<?xml"), (".pdf", b"%PDF"))
    def test_formats(self, ending, start):
        self.output = self.path("plot" + ending)
        self.assertEqual((0, "", ""), call(self.logs, "--output", self.output))
        self.assertStartsWith(self.read_output(), start)
        self.assertCountEqual(["logs", "plot" + ending], os.listdir(self.folder))

    def test_size(self):
        widths = []
        for size in ("5x4", "10x4"):
            self.assertEqual(0, call(self.logs, "-o", self.output, "--size", size)[0])
            widths.append(int.from_bytes(self.read_output()[16:20], "big"))
        self.assertAlmostEqual(500, widths[1] - widths[0], delta=60)

    @parameterized.parameters("10", "0x5", "10x101", "axb", "10 x 5", "nanx5", "-3x5")
    def test_bad_size(self, size):
        err = self.refused(self.logs, "-o", self.output, f"--size={size}")
        self.assertIn("--size: must be WIDTHxHEIGHT in inches", err)

    def test_what_is_missing_in_the_call(self):
        self.assertIn("-o", self.refused(self.logs))
        self.assertIn("LOGDIR", self.refused("-o", self.output))

    @parameterized.parameters("plot", "plot.jpg", "png", "plot.png.txt", "")
    def test_unknown_ending(self, name):
        err = self.refused(self.logs, "-o", name)
        self.assertIn(f"must end in .png, .svg, .pdf, got {name!r}", err)

    def test_what_cannot_be_written(self):
        os.mkdir(self.path("folder.png"))
        for path in (self.path("missing", "plot.png"), self.path("folder.png")):
            self.assertIn(f"cannot write {path!r}", self.refused(self.logs, "-o", path))

    @parameterized.parameters(
        (["matplotlib"],), (["tensorboard"],), (["matplotlib", "tensorboard"],)
    )
    def test_what_is_not_installed(self, missing):
        with mock.patch.dict(sys.modules, dict.fromkeys(missing)):
            err = self.refused(self.logs, "-o", self.output)
        self.assertIn(f"needs {' and '.join(missing)}, which the extra `plot` installs", err)
        self.assertIn("'tf_lossscale_compat[plot]', with the path of a checkout or wheel", err)

    def test_no_such_folder(self):
        missing = self.path("missing")
        self.assertIn(f"no folder {missing!r}", self.failed(self.logs, missing))

    def test_empty_name(self):
        self.assertIn("no folder ''", self.failed(""))

    def test_folder_that_cannot_be_read(self):
        os.makedirs(self.path("link"))
        os.symlink(self.path("nowhere"), self.path("link", "events.out.tfevents.1"))
        self.assertIn(f"cannot read {self.path('link')!r}: ", self.failed(self.path("link")))

    @absltest.skipUnless(sys.platform == "linux", "other systems' names are Unicode")
    def test_folder_whose_name_is_no_unicode(self):
        write(self.path("odd", "run"), *scales(1, 1))
        os.rename(self.path("odd", "run"), os.fsencode(self.path("odd")) + b"/\xff")
        code, out, err = call(self.path("odd"), "-o", self.output)
        if code:
            self.assertStartsWith(err, "tf-lossscale plot: cannot read")
        self.assertNotIn("Traceback", out + err)

    def test_file_instead_of_a_folder(self):
        path = self.path("logs", os.listdir(self.logs)[0])
        self.assertIn(f"{path!r} is no folder", self.failed(path))

    def test_empty_folder(self):
        os.makedirs(self.path("empty", "inner"))
        err = self.failed(self.logs, self.path("empty"))
        self.assertIn(f"no event files in {self.path('empty')!r}", err)

    def test_other_tags(self):
        write(self.path("other"), (1, {"loss": 1.0, "accuracy": 0.5, SKIPPED: 3}))
        err = self.failed(self.path("other"))
        self.assertIn(f"{self.path('other')!r} holds no scalar {SCALE!r}", err)
        self.assertIn(f"the tags in it are 'accuracy', 'loss', {SKIPPED!r}\n", err)

    def test_many_other_tags(self):
        write(self.path("other"), (1, {f"tag{index:02}": 1.0 for index in range(20)}))
        err = self.failed(self.path("other"))
        self.assertIn("'tag11' and 8 more", err)
        self.assertNotIn("tag12", err)

    def test_no_summaries(self):
        write(self.path("other"), (1, {}))
        self.assertIn("there are no summaries in it", self.failed(self.path("other")))

    def test_nothing_to_draw(self):
        write(self.path("nan"), *scales(1, float("nan")))
        self.assertIn("no loss scale above zero and finite", self.failed(self.path("nan")))

    def test_existing_picture_stays_until_the_new_one_is_whole(self):
        for name in ("replace", "draw"):
            with open(self.output, "wb") as file:
                file.write(b"old")
            if name == "replace":
                patch = mock.patch.object(os, "replace", side_effect=OSError("disk full"))
            else:
                patch = mock.patch.object(plot, "draw", side_effect=OSError("disk full"))
            with patch:
                code, _, err = call(self.logs, "-o", self.output)
            self.assertEqual(1, code)
            self.assertIn("disk full", err)
            self.assertEqual(b"old", self.read_output())
            self.assertCountEqual(["logs", "plot.png"], os.listdir(self.folder))

    def test_picture_that_a_link_leads_to(self):
        with open(self.output, "wb"):
            pass
        os.symlink("plot.png", self.path("link.png"))
        self.assertEqual(0, call(self.logs, "-o", self.path("link.png"))[0])
        self.assertTrue(os.path.islink(self.path("link.png")))
        self.assertStartsWith(self.read_output(), PNG)

    def test_a_link_at_the_name_of_a_temporary_file_is_not_followed(self):
        """As somebody may put one in a folder that both can write to."""
        with open(self.path("victim"), "wb") as file:
            file.write(b"theirs")
        os.symlink("victim", self.path(f".plot.png.{os.getpid()}.tmp"))
        self.assertEqual(0, call(self.logs, "-o", self.output)[0])
        with open(self.path("victim"), "rb") as file:
            self.assertEqual(b"theirs", file.read())
        self.assertFalse(os.path.islink(self.output))

    def test_a_link_that_leads_nowhere_makes_no_file(self):
        os.symlink("elsewhere.png", self.path("link.png"))
        self.assertIn("leads nowhere", call(self.logs, "-o", self.path("link.png"))[2])
        self.assertFalse(os.path.exists(self.path("elsewhere.png")))

    def test_a_pictures_permissions_stay(self):
        with open(self.output, "wb"):
            pass
        os.chmod(self.output, 0o640)
        call(self.logs, "-o", self.output)
        self.assertEqual(os.stat(self.output).st_mode & 0o777, 0o640)

    def test_permissions_are_the_usual_ones(self):
        with open(self.path("usual"), "wb"):
            pass
        call(self.logs, "-o", self.output)
        modes = [os.stat(path).st_mode for path in (self.path("usual"), self.output)]
        self.assertEqual(modes[0], modes[1])


class DemoLogsTest(FolderTest):
    """The demo's logs hold what its runs had."""

    def test_logs_of_a_short_demo(self):
        with modes.eager_mode():
            without = demo.train(20)
            runs = demo.train(20, logdir=self.folder)
        self.assertEqual([run.history for run in without], [run.history for run in runs])
        read = {run.name: run for run in plot.read([self.folder])}
        self.assertCountEqual([run.name for run in runs], read)
        for run in runs:
            logged = read[run.name]
            for series in logged[1:4]:
                self.assertEqual(list(range(1, 21)), series.steps.tolist())
            self.assertEqual([step.scale for step in run.history], logged.scale.values.tolist())
            skipped = [not step.applied for step in run.history]
            self.assertEqual(np.cumsum(skipped).tolist(), logged.skipped_steps.values.tolist())
            self.assertEqual(run.skipped_steps, plot.skips(logged)[1])
            dynamic = "Exponential" in run.name or "Dynamic" in run.name
            self.assertEqual([1.0] if dynamic else [], logged.floor.values.tolist())
            self.assertEqual([], logged.ceiling.values.tolist())
        # It skips 17 steps and applies three.
        consecutive = read["float16 DynamicLossScale"].consecutive_skips.values.tolist()
        self.assertEqual([*range(1, 18), 0, 0, 0], consecutive)
        plot.save(plot.draw(list(read.values())), self.path("x.png"))


if __name__ == "__main__":
    absltest.main()
