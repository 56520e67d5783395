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

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import modes
from tf_lossscale_compat._tools import cli, plot
from tf_lossscale_compat.monitoring import _summaries

tf1 = tf.compat.v1
SCALE = _summaries.SCALE
SKIPPED = _summaries.SKIPPED_STEPS
CONSECUTIVE = _summaries.CONSECUTIVE_SKIPS
FLOOR = _summaries.FLOOR
CEILING = _summaries.CEILING
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


def made_up(scale=(8.0, 4.0), skipped=(), consecutive=(), floor=(), ceiling=(), steps=None):
    """The points of a run, at the steps 1, 2, ... if no others are given."""
    columns = (scale, skipped, consecutive, floor, ceiling)
    return {
        tag: list(zip(steps or range(1, 1 + len(values)), values))
        for tag, values in zip(_summaries.TAGS, columns)
    }


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

    def points(self, tag=SCALE):
        """Returns what is read of the only run there is: [(step, value), ...]."""
        (points,) = plot.read_runs([self.folder]).values()
        return points[tag]


class ReadTest(FolderTest):
    needs = ("tensorboard",)

    @parameterized.parameters(write, write_tensors)
    def test_summaries_of_both_generations(self, writing):
        first = {SCALE: 1024.0, SKIPPED: 1, CONSECUTIVE: 1, FLOOR: 2.0, CEILING: 2.0**100}
        second = {SCALE: 512.0, SKIPPED: 2, CONSECUTIVE: 2}
        writing(self.folder, (1, first), (2, second))
        expected = made_up([1024.0, 512.0], [1, 2], [1, 2], [2.0], [2.0**100])
        self.assertEqual({self.folder: expected}, plot.read_runs([self.folder]))

    def test_whole_numbers_and_arrays_of_one(self):
        with modes.eager_mode():
            writer = tf.compat.v2.summary.create_file_writer(self.folder)
            with writer.as_default():
                tf.compat.v2.summary.write(SKIPPED, tf.constant(7, tf.int64), step=1)
                tf.compat.v2.summary.write(SCALE, tf.constant([16.0], tf.float64), step=1)
            writer.close()
        self.assertEqual(([(1, 7.0)], [(1, 16.0)]), (self.points(SKIPPED), self.points()))

    def test_of_very_many_points_a_sample_is_read(self):
        with mock.patch.object(plot, "MAX_POINTS", 100):
            write(self.folder, *[(step, {SCALE: 1, SKIPPED: step}) for step in range(1000)])
            self.assertLen(self.points(), 100)
            self.assertEqual((999, 999.0), self.points(SKIPPED)[-1])

    @parameterized.parameters(
        # The name of the second file sorts before that of the first.
        ([(1, 1), (2, 2), (3, 3), (4, 4)], [(3, 30), (4, 40)], [(1, 1), (2, 2), (3, 30), (4, 40)]),
        ([(1, 1), (2, 2), (3, 3)], [(2, 20)], [(1, 1), (2, 20)]),
        ([(1, 1), (2, 2)], [(5, 5)], [(1, 1), (2, 2), (5, 5)]),
        # A global step stands still while steps are skipped.
        ([(0, 8), (0, 4), (0, 2)], [(1, 2)], [(0, 8), (0, 4), (0, 2), (1, 2)]),
    )
    def test_restart_from_a_checkpoint(self, first, second, expected):
        write(self.folder, *[(step, {SCALE: value}) for step, value in first], suffix=".z")
        write(self.folder, *[(step, {SCALE: value}) for step, value in second], suffix=".a")
        self.assertEqual(expected, self.points())

    def test_runs_are_the_folders_with_a_loss_scale(self):
        for parts in (["a b"], ["deep", "run"], ["deep"]):
            write(self.path("logs", *parts), *scales(1, 1))
        write(self.path("logs", "validation"), (1, {"loss": 1.0}))
        expected = [self.path("logs", *parts) for parts in (["a b"], ["deep"], ["deep", "run"])]
        self.assertEqual(expected, list(plot.read_runs([self.path("logs")])))
        again = [self.path("logs"), self.path("logs", "deep")]
        self.assertEqual(expected, list(plot.read_runs(again)))


class SkipsTest(parameterized.TestCase):
    @parameterized.parameters(
        # (steps, totals, in a row up to there, [(step, number)])
        ([1, 2, 3], [0, 1, 1], [0, 1, 0], [(2, 1)]),
        ([1, 2, 3], [1, 2, 2], [1, 2, 0], [(1, 1), (2, 1)]),
        # Nothing is known of what came before the first point, but that it was skipped itself.
        ([100, 200, 300], [34, 34, 36], [0, 0, 0], [(300, 2)]),
        ([200, 210], [50, 51], [0, 1], [(210, 1)]),
        ([200], [51], [3], [(200, 1)]),
        ([200], [51], [0], []),
        ([200], [51], [], []),
        # A start without the checkpoint that had the total.
        ([1, 2, 3, 4], [5, 6, 2, 3], [0, 1, 2, 3], [(2, 1), (3, 1), (4, 1)]),
        # Where the step stands still, the first of its points is the first.
        ([0, 0, 0, 1], [0, 1, 2, 2], [0, 1, 2, 0], [(0, 1), (0, 1)]),
        ([1, 2, 3], [0, float("nan"), 1], [0, 0, 0], []),
    )
    def test_only_what_the_points_say(self, steps, totals, consecutive, expected):
        points = made_up(steps=steps, skipped=totals, consecutive=consecutive)
        self.assertEqual(expected, plot.skips_by_step(points))


class DrawTest(FolderTest):
    needs = ("matplotlib",)

    def drawn(self, **runs):
        from matplotlib import figure

        axes = figure.Figure().subplots()
        plot.draw(axes, runs)
        return axes

    def lines(self, axes):
        return axes.get_legend_handles_labels()[0]

    def legend(self, axes):
        return [text.get_text().strip() for text in axes.get_legend().get_texts()]

    def test_scale_over_steps_on_a_logarithmic_axis(self):
        axes = self.drawn(run=made_up([32, 16, 16], steps=[5, 10, 15]))
        (line,) = self.lines(axes)
        self.assertEqual(([5, 10, 15], [32, 16, 16]), tuple(map(list, line.get_data())))
        self.assertEqual("steps-post", line.get_drawstyle())  # A scale holds until the next point.
        self.assertEqual(("log", 2), (axes.get_yscale(), axes.yaxis.get_transform().base))
        self.assertIn("step", axes.get_xlabel())
        self.assertEqual("loss scale", axes.get_ylabel())
        self.assertEqual(["run"], self.legend(axes))

    def test_skipped_steps_are_marked_and_counted(self):
        axes = self.drawn(
            a=made_up(skipped=[0, 0]),
            b=made_up([8, 4, 2], skipped=[1, 1, 2], consecutive=[1, 0, 1]),
        )
        marks = [line for line in axes.get_lines() if line.get_marker() == "|"]
        self.assertEqual([[], [1, 3]], [list(line.get_xdata()) for line in marks])
        self.assertEqual("C1", marks[1].get_color())
        self.assertFalse(marks[1].get_clip_on())
        labels = ["a (0 skipped from step 1 on)", "b (2 skipped from step 1 on)"]
        self.assertEqual(labels, self.legend(axes))

    def test_bounds_are_dashed_from_the_first_point_to_the_last(self):
        inf = float("inf")
        run = made_up([8, 4, 4], floor=[2, 2], ceiling=[64], steps=[10, 20, 30])
        axes = self.drawn(run=run, other=made_up(floor=[0.0], ceiling=[inf]))
        segments = [each.get_segments()[0].tolist() for each in axes.collections]
        self.assertEqual([[[10, 2], [30, 2]], [[10, 64], [30, 64]]], segments)

    def test_what_has_no_place_on_the_axis_is_left_out_and_counted(self):
        axes = self.drawn(run=made_up([8, float("nan"), 4, float("inf"), 0, -1, 2]))
        (line,) = self.lines(axes)
        self.assertEqual(([1, 3, 7], [8, 4, 2]), tuple(map(list, line.get_data())))
        label = "run (4 scales left out: not finite or not above zero)"
        self.assertEqual([label], self.legend(axes))

    def test_a_single_point_is_seen(self):
        markers = [
            line.get_marker() for line in self.lines(self.drawn(a=made_up([8]), b=made_up()))
        ]
        self.assertEqual(".", markers[0])
        self.assertNotEqual(".", markers[1])

    def test_runs_of_one_scale_are_all_seen(self):
        lines = self.lines(self.drawn(**{str(index): made_up() for index in range(25)}))
        looks = {(line.get_color(), line.get_zorder(), line.get_linestyle()) for line in lines}
        self.assertLen(looks, 25)
        solid = [line.get_zorder() for line in lines if line.get_linestyle() == "-"]
        others = [line.get_zorder() for line in lines if line.get_linestyle() != "-"]
        self.assertLess(max(solid), min(others))

    def test_names_are_shown_as_they_are(self):
        names = ("_hidden", "a$b$c", "two\nlines", "\udcff", "x" * 300)
        axes = self.drawn(**{name: made_up() for name in names})
        shown = ["_hidden", r"a\$b\$c", "two?lines", "?", "x" * 80]
        self.assertEqual(shown, self.legend(axes))
        plot.save(axes.figure, self.path("x.png"))


class CommandTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.logs = self.path("logs")
        write(self.logs, *scales(1, 1, 2))
        self.output = self.path("plot.png")

    def read(self, name="plot.png"):
        with open(self.path(name), "rb") as file:
            return file.read()

    def failed(self, *logdirs):
        code, out, err = call(*logdirs, "-o", self.output)
        self.assertEqual((1, ""), (code, out))
        self.assertStartsWith(err, "tf-lossscale plot: ")
        self.assertCountEqual(set(os.listdir(self.folder)) - {"other"}, ["logs"])
        return err

    @parameterized.parameters((".png", PNG), (".PNG", PNG), (".svg", b"<?xml"), (".pdf", b"%PDF"))
    def test_formats(self, ending, start):
        name = "plot" + ending
        self.assertEqual((0, "", ""), call(self.logs, "--output", self.path(name)))
        self.assertStartsWith(self.read(name), start)
        self.assertCountEqual(["logs", name], os.listdir(self.folder))

    def test_picture_in_the_current_folder(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.assertEqual((0, "", ""), call("logs", "-o", "plot.png"))
        self.assertStartsWith(self.read(), PNG)

    @parameterized.parameters(
        ["-o plot.jpg LOGS", "must be a .png, .svg or .pdf .*, got 'plot.jpg'"],
        ["-o no/such/plot.png LOGS", "in a folder that can be written to, got 'no/such/plot.png'"],
        ["LOGS", "-o"],
        ["-o plot.png", "LOGDIR"],
    )
    def test_bad_call(self, arguments, message):
        code, out, err = call(*arguments.replace("LOGS", self.logs).split())
        self.assertEqual((2, ""), (code, out))
        self.assertRegex(err, f"usage: tf-lossscale plot(?s:.*){message}")

    @parameterized.parameters("matplotlib", "tensorboard.backend.event_processing")
    def test_what_is_not_installed(self, missing):
        with mock.patch.dict(sys.modules, {missing: None}):
            code, _, err = call(self.logs, "-o", self.output)
        self.assertEqual(2, code)
        self.assertRegex(err, f"{missing}.*; the extra `plot` has it")
        self.assertIn("'tf_lossscale_compat[plot]', with the path of a checkout or wheel", err)

    @parameterized.parameters(
        [],
        [(1, {"loss": 1.0})],
        scales(1, float("nan"), -1),
    )
    def test_nothing_to_draw(self, *events):
        os.mkdir(self.path("other"))
        if events:
            write(self.path("other"), *events)
        message = f"{self.path('other')!r} has no finite {SCALE!r} above zero"
        self.assertIn(message, self.failed(self.logs, self.path("other")))

    def test_a_folder_that_does_not_exist(self):
        message = f"{self.path('other')!r} does not exist"
        self.assertIn(message, self.failed(self.logs, self.path("other")))

    def test_records_that_are_no_events(self):
        os.mkdir(self.path("other"))
        with tf.io.TFRecordWriter(self.path("other", "x.tfevents")) as writer:
            writer.write(b"\xff\xff\xff")
        self.assertIn(f"cannot read {self.path('other')!r}: ", self.failed(self.path("other")))

    def test_existing_picture_stays_until_the_new_one_is_whole(self):
        from matplotlib import figure

        with open(self.output, "wb") as file:
            file.write(b"old")
        for owner, name in ((os, "replace"), (figure.Figure, "savefig")):
            with mock.patch.object(owner, name, side_effect=OSError("disk full")):
                code, _, err = call(self.logs, "-o", self.output)
            self.assertEqual((1, "tf-lossscale plot: disk full\n"), (code, err))
            self.assertEqual(b"old", self.read())
            self.assertCountEqual(["logs", "plot.png"], os.listdir(self.folder))

    def test_a_link_is_replaced_and_not_written_through(self):
        os.symlink("victim", self.output)
        self.assertEqual(0, call(self.logs, "-o", self.output)[0])
        self.assertFalse(os.path.islink(self.output))
        self.assertStartsWith(self.read(), PNG)
        self.assertFalse(os.path.exists(self.path("victim")))

    @parameterized.parameters(0o640, None)
    def test_permissions_are_those_of_before_or_the_usual_ones(self, mode):
        with open(self.path("usual"), "wb"):
            pass
        if mode is not None:
            os.chmod(self.path("usual"), mode)
            os.rename(self.path("usual"), self.output)
        call(self.logs, "-o", self.output)
        wanted = mode or os.stat(self.path("usual")).st_mode & 0o777
        self.assertEqual(wanted, os.stat(self.output).st_mode & 0o777)
