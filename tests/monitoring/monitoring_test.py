"""`tf_lossscale_compat.monitoring`: summaries and messages of a custom loop and of sessions."""

import json
import os
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from tests import event_files, modes, replicas
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    LossScaleError,
    StepRecord,
    monitoring,
)
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.monitoring import _monitor, _summaries
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1
summary = tf.compat.v2.summary

INF = float("inf")
# The scale grows to its ceiling, comes down to its floor and grows again.
GRADIENTS = [1.0, 1.0, 1.0, INF, 1.0, INF, INF, INF, 1.0, 1.0]


def dynamic():
    return DynamicLossScale(8.0, 2, 2.0, min_loss_scale=2.0, max_loss_scale=16.0)


class Training:
    """An optimizer with this loss scale, and its record."""

    def __init__(self, loss_scale):
        self.weight = tf1.Variable(0.0)
        sgd = tf1.train.GradientDescentOptimizer(0.0)
        self.optimizer = MixedPrecisionLossScaleOptimizer(sgd, loss_scale)
        self.record = StepRecord(self.optimizer)

    def step(self, gradient):
        self.optimizer.apply_gradients([(tf.convert_to_tensor(gradient), self.weight)])


def expected(gradients, low=2.0, high=16.0):
    """Points as of `event_files.points` for each of these steps of `dynamic()` or `manager()`."""
    scale, skipped, run, good, rows = 8.0, 0, 0, 0, []
    for step, grad in enumerate(gradients, 1):
        if np.isfinite(grad):
            run, good = 0, good + 1
            if good == 2:
                scale, good = min(scale * 2, high), 0
        else:
            skipped, run, good, scale = skipped + 1, run + 1, 0, max(scale / 2, low)
        rows.append((step, skipped, run, scale))
    return rows


class Absl(unittest.TestCase):
    """Looks at what goes through `absl.logging`."""

    def setUp(self):
        super().setUp()
        self.logged = []
        for level in ("warning", "debug"):
            patcher = mock.patch.object(logging, level, self._note(level))
            patcher.start()
            self.addCleanup(patcher.stop)

    def _note(self, level):
        return lambda text, *args: self.logged.append((level, text % args if args else text))

    def messages(self, level="warning", word="Loss scale: "):
        return [text for of, text in self.logged if of == level and word in text]


class BoundsTest(modes.EagerTestCase):
    @parameterized.parameters(64, np.float32(64), "64", True, INF)
    def test_loss_scales_of_users(self, value):
        policy = contrib.FixedLossScaleManager(8.0)
        self.assertEqual(_summaries.bounds(policy), {})
        policy.max_loss_scale = value
        known = {"loss_scale/ceiling": 64.0} if value == 64 else {}
        self.assertEqual(_summaries.bounds(policy), known)


class CustomLoopTest(Absl, modes.EagerTestCase):
    def run_loop(self, folder, gradients, function=False):
        training = Training(dynamic())
        writer = summary.create_file_writer(folder)

        def step(gradient):
            training.step(gradient)
            monitoring.write_summaries(training.record, writer=writer)

        if function:
            step = tf.function(step, autograph=False)
        for gradient in gradients:
            step(tf.constant(gradient))
        with writer.as_default():
            summary.flush()

    @parameterized.parameters(False, True)
    def test_files_hold_what_the_run_had(self, function):
        folder = event_files.folder(self)
        self.run_loop(folder, GRADIENTS, function)
        self.assertEqual(event_files.points(folder), expected(GRADIENTS))
        found, steps = event_files.read(folder), range(1, len(GRADIENTS) + 1)
        self.assertEqual(found["floor"], [(step, 2.0) for step in steps])
        self.assertEqual(found["ceiling"], [(step, 16.0) for step in steps])

    def test_default_writer_and_step(self):
        folder = event_files.folder(self)
        record = Training(dynamic()).record
        monitoring.write_summaries(record)  # Nowhere.
        with summary.create_file_writer(folder).as_default():
            monitoring.write_summaries(record, 70)
            monitoring.write_summaries(record, tf.constant(71))
            summary.flush()
        self.assertEqual(event_files.points(folder), [(70, 0, 0, 8.0), (71, 0, 0, 8.0)])

    def test_errors(self):
        with self.assertRaisesRegex(TypeError, "record must be a StepRecord, got 3"):
            monitoring.write_summaries(3)
        record = Training(dynamic()).record
        with self.assertRaisesRegex(TypeError, r"writer must be .* as_default\(\), got 'logs'"):
            monitoring.write_summaries(record, writer="logs")
        with self.assertRaisesRegex(ValueError, "log_every_n_secs must be at least 0, got -1"):
            monitoring.write_summaries(record, log_every_n_secs=-1)
        with tf.Graph().as_default():
            with self.assertRaisesRegex(ValueError, "not made in the graph"):
                monitoring.write_summaries(record)
            record = Training(dynamic()).record
            with self.assertRaisesRegex(ValueError, "step and writer must be None"):
                monitoring.write_summaries(record, 1)

    def test_two_replicas_write_once(self):
        folder = event_files.folder(self)
        strategy = replicas.strategy("mirrored_2")
        with strategy.scope():
            training = Training(dynamic())
        record = training.record
        writer = summary.create_file_writer(folder)

        def replica_step(gradients):
            training.step(replicas.own(gradients))
            monitoring.write_summaries(record, writer=writer)

        @tf.function(autograph=False)
        def step(gradients):
            replicas.run(strategy, replica_step, (gradients,))

        for gradient in GRADIENTS[:6]:
            step(tf.constant([1.0, gradient]))
        with writer.as_default():
            summary.flush()
        self.assertEqual(event_files.points(folder), expected(GRADIENTS[:6]))

    @parameterized.parameters(False, True)
    def test_the_process_that_a_strategy_names_writes(self, writes):
        folder, strategy = event_files.folder(self), replicas.strategy("mirrored_2")
        with strategy.scope():
            record = Training(dynamic()).record
        hook = monitoring.LossScaleHook(record, summary_writer=mock.Mock())
        named = mock.patch.object(type(strategy.extended), "should_save_summary", writes)
        with named, summary.create_file_writer(folder).as_default():
            monitoring.write_summaries(record)
            summary.flush()
            hook.begin()
        self.assertEqual(bool(event_files.read(folder)), writes)
        self.assertEqual(hook._monitor.writer is not None, writes)


class MessagesTest(Absl, modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        self.clock = 1000.0
        patcher = mock.patch.object(_monitor.time, "monotonic", lambda: self.clock)
        patcher.start()
        self.addCleanup(patcher.stop)

    def steps(self, training, gradients, seconds=1.0, every=10.0):
        for gradient in gradients:
            training.step(gradient)
            monitoring.write_summaries(training.record, log_every_n_secs=every)
            self.clock += seconds

    def test_skipped_steps_at_most_once_in_so_many_seconds(self):
        training = Training(DynamicLossScale(2.0**20, 1000))
        first = "1 more step skipped. 1 of 1 steps skipped; step 1 skipped; loss scale "
        then = "9 more steps skipped. 10 of 11 steps skipped; step 10 skipped; loss scale "
        expected = [f"Loss scale: {first}1048576 -> 524288", f"Loss scale: {then}2048 -> 1024"]
        self.steps(training, [INF] * 10)
        self.assertEqual(self.messages(), expected[:1])
        self.steps(training, [1.0])
        self.assertEqual(self.messages(), expected)
        self.steps(training, [1.0] * 20)
        self.assertEqual(self.messages(), expected)

    def test_seconds_are_those_of_each_call(self):
        training = Training(DynamicLossScale(2.0**20, 1000))
        self.steps(training, [INF, INF], every=1000.0)
        self.steps(training, [INF], every=0.0)
        self.assertLen(self.messages(word="more step"), 2)

    def test_what_was_skipped_before_the_first_call_is_no_news(self):
        training = Training(DynamicLossScale(2.0**20, 1000))
        for gradient in (INF, INF, 1.0):
            training.step(gradient)
        self.steps(training, [1.0])
        self.assertEmpty(self.messages())

    def test_growth(self):
        training = Training(dynamic())
        self.steps(training, [1.0, 1.0, 1.0, 1.0])
        self.assertEqual(self.messages("debug"), ["Loss scale: 8 -> 16 by step 2"])

    def test_floor_once_for_each_time_that_it_is_reached(self):
        training = Training(dynamic())  # From 8 to the floor of 2 in two steps.

        def told():
            return [text.split(" It ")[0] for text in self.messages(word="floor")]

        self.steps(training, [INF] * 5)
        self.assertEqual(told(), ["Loss scale: at its floor, 2, by step 2."])
        sentence = "Gradients that overflow at this scale will go on overflowing. Look at"
        self.assertIn(sentence, self.messages(word="floor")[0])
        self.steps(training, [1.0, 1.0, INF, INF])
        self.assertEqual(told()[1:], ["Loss scale: at its floor, 2, by step 8."])

    def test_floor_that_float32_rounds(self):
        self.steps(Training(DynamicLossScale(0.2, 1000, min_loss_scale=0.1)), [INF])
        self.assertLen(self.messages(word="floor"), 1)

    def test_no_floor_where_a_scale_starts_there(self):
        training = Training(DynamicLossScale(2.0, 1000, min_loss_scale=2.0))
        self.steps(training, [1.0, 1.0])
        self.assertEmpty(self.messages())
        self.steps(training, [INF])
        self.assertLen(self.messages(word="floor"), 1)


def managed(*arguments):
    """contrib's optimizer with an exponential manager of these arguments, from 8 on."""
    manager = ExponentialUpdateLossScaleManager(8.0, *arguments)
    return contrib.LossScaleOptimizer(tf1.train.GradientDescentOptimizer(0.0), manager)


class _Run:
    """A graph with an optimizer, its record and a hook."""

    def __init__(self, watch="optimizer", names=False, limit=None, **arguments):
        self.gradient = tf1.placeholder(tf.float32, [])
        variable = tf1.get_variable("w", [])
        optimizer = managed(2, 1, 2, 0.5)
        watched = optimizer if watch == "optimizer" else managed(2)
        self.record = StepRecord(watched, names=names, max_consecutive_skips=limit)
        self.step = tf1.train.get_or_create_global_step()
        self.train = optimizer.minimize(variable * self.gradient, self.step)
        if arguments.get("step") == "global":
            arguments["step"] = self.step
        self.hook = monitoring.LossScaleHook(self.record, **arguments)

    def take(self, gradients, folder=None, hooks=()):
        """Takes these steps in a session that TensorFlow looks after; returns how many it took."""
        with tf1.train.MonitoredTrainingSession(
            hooks=[self.hook, *hooks],
            checkpoint_dir=folder,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        ) as session:
            for gradient in gradients:
                session.run(self.train, {self.gradient: gradient})


def of_manager(gradients):
    return [(0, 0, 0, 8.0), *expected(gradients, low=1.0, high=INF)]


class HookTest(Absl, parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = event_files.folder(self)
        self.addCleanup(tf1.summary.FileWriterCache.clear)

    def run_steps(self, gradients, checkpoints=None, hooks=(), **arguments):
        with tf.Graph().as_default():
            run = _Run(**arguments)
            run.take(gradients, checkpoints, hooks)
        return run

    def test_every_n_steps_and_at_the_end(self):
        with mock.patch.object(
            _monitor.Monitor, "read", autospec=True, side_effect=_monitor.Monitor.read
        ) as reads:
            self.run_steps(GRADIENTS, every_n_steps=4, output_dir=self.folder)
        rows = of_manager(GRADIENTS)
        self.assertEqual(event_files.points(self.folder), [rows[i] for i in (0, 4, 8, 10)])
        found = event_files.read(self.folder)
        self.assertEqual(found["floor"], [(step, 1.0) for step in (0, 4, 8, 10)])
        self.assertNotIn("ceiling", found)
        self.assertEqual(reads.call_count, 4)

    def test_a_session_that_is_restored_from_an_older_checkpoint(self):
        with tf.Graph().as_default():
            run = _Run(every_n_steps=1, output_dir=self.folder, log_every_n_secs=0)
            failed = []

            class Fails(tf1.train.SessionRunHook):
                def after_run(self, context, values):
                    if not failed and context.session.run(run.record.steps) == 2:
                        failed.append(True)
                        raise tf.errors.AbortedError(None, None, "lost")

            run.take([1.0, INF, INF, 1.0], event_files.folder(self), [Fails()])
        # MonitoredTrainingSession runs the step that failed again, from the checkpoint at 0.
        rows = of_manager([1.0, INF]) + of_manager([INF, INF, 1.0])
        self.assertEqual(event_files.points(self.folder), rows)
        self.assertLen(self.messages(word="more step"), 3)

    @parameterized.parameters((3, 50, 3), (None, 15, 15))
    def test_a_stuck_run_ends(self, argument, limit, skipped):
        with self.assertRaisesRegex(LossScaleError, rf"{skipped} steps in a row.*skipped: w;"):
            self.run_steps(
                [1.0] + [np.nan] * 50,
                every_n_steps=7,
                names=True,
                max_consecutive_skips=argument,
                limit=limit,
                output_dir=self.folder,
            )
        last = (skipped + 1, skipped, skipped, 1.0)
        self.assertEqual(event_files.points(self.folder)[-1], last)

    def test_a_stuck_run_in_pieces_ends(self):
        checkpoints = event_files.folder(self)
        options = {"max_consecutive_skips": 10, "every_n_steps": 100}
        # A checkpoint is saved where the global step has moved.
        self.run_steps([1.0] + [np.nan] * 6, checkpoints, **options)
        with self.assertRaisesRegex(LossScaleError, "10 steps in a row"):
            self.run_steps([np.nan] * 6, checkpoints, **options)
        with self.assertRaisesRegex(LossScaleError, "7 steps in a row"):  # After 6 at the start.
            self.run_steps([np.nan], checkpoints, max_consecutive_skips=5)

    def test_a_stuck_run_whose_session_is_lost_again_and_again_ends(self):
        class Loses(tf1.train.SessionRunHook):
            runs = 0

            def after_run(self, context, values):
                self.runs += 1
                if self.runs % 6 == 0:
                    raise tf.errors.UnavailableError(None, None, "lost")

        with self.assertRaisesRegex(LossScaleError, "5 steps in a row"):
            options = {"max_consecutive_skips": 5, "every_n_steps": 100}
            self.run_steps([np.nan] * 40, hooks=[Loses()], **options)

    def test_other_axis_and_writer(self):
        with tf.Graph().as_default():
            writer = tf1.summary.FileWriter(self.folder)
            run = _Run(every_n_steps=1, summary_writer=writer, step="global")
            run.take([1.0, INF, 1.0])
        steps = [step for step, *_ in event_files.points(self.folder)]
        self.assertEqual(steps, [0, 1, 1, 2])

    @parameterized.parameters(
        ({"record": 3}, TypeError, "record must be a StepRecord, got 3"),
        ({"every_n_steps": "10"}, ValueError, "every_n_steps must be a whole number of steps"),
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
        ({"output_dir": 3}, TypeError, "output_dir must be a str or a path, got 3"),
        ({"summary_writer": "x"}, TypeError, "summary_writer must be .* add_summary.*, got 'x'"),
        ({"output_dir": "x", "summary_writer": "y"}, ValueError, "must not both be given"),
        ({"max_consecutive_skips": 0}, ValueError, "max_consecutive_skips must be at least 1"),
        ({"log_every_n_secs": "1"}, ValueError, "log_every_n_secs must be a real number"),
        ({"step": 3}, TypeError, "step must be a scalar integer tensor or variable, got 3"),
        ({"is_chief": "yes"}, TypeError, "is_chief must be a bool, got 'yes'"),
    )
    def test_errors(self, arguments, error, message):
        with tf.Graph().as_default():
            record = StepRecord(managed(2))
            with self.assertRaisesRegex(error, message):
                monitoring.LossScaleHook(**{"record": record, **arguments})

    @parameterized.parameters(
        ({"is_chief": False}, None, False),
        ({}, ("worker", 1), False),
        ({"is_chief": True}, ("worker", 1), True),
        ({}, ("worker", 0), False, "master"),
        ({}, ("worker", 0), True, "ps"),
    )
    def test_the_chief_alone_writes(self, arguments, task, writes, first="chief"):
        config = {}
        if task is not None:
            cluster = {first: ["a:1"], "worker": ["b:1", "c:1"]}
            config["TF_CONFIG"] = json.dumps(
                {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
            )
        with mock.patch.dict(os.environ, config):
            self.run_steps([1.0], output_dir=self.folder, **arguments)
        self.assertEqual(bool(event_files.read(self.folder)), writes)

    def test_says_that_it_sees_nothing(self):
        self.run_steps([1.0, 1.0, 1.0], watch="another", every_n_steps=1)
        self.assertLen(self.messages(word="seen no step"), 1)
        self.run_steps([1.0, 1.0, 1.0], watch="optimizer", every_n_steps=1)
        self.run_steps([INF], watch="optimizer", every_n_steps=1)
        self.run_steps([1.0], watch="another")
        with tf.Graph().as_default():
            run = _Run(watch="another", every_n_steps=1)
            run.train = run.record.steps  # Which trains nothing.
            run.take([1.0, 1.0])
        with tf.Graph().as_default():  # A session that runs nothing, without a global step.
            hook = monitoring.LossScaleHook(StepRecord(managed(2)))
            with tf1.train.MonitoredTrainingSession(hooks=[hook]):
                pass
        self.assertLen(self.messages(word="seen no step"), 2)

    def test_two_writers_of_one_second_have_files_of_their_own(self):
        with mock.patch.object(tf1.summary, "FileWriter") as made:
            for _ in range(2):
                _summaries.file_writer(self.folder)
        self.assertLen({call[1]["filename_suffix"] for call in made.call_args_list}, 2)

    def test_makes_nothing_once_the_graph_is_final(self):
        with tf.Graph().as_default() as graph:
            run = _Run(every_n_steps=1)
            run.hook.begin()
            size = len(graph.get_operations())
            run.hook.begin()
            run.record.steps  # noqa: B018  It finds what there is.
            self.assertLen(graph.get_operations(), size)

    def test_a_record_of_another_graph(self):
        with tf.Graph().as_default():
            record = StepRecord(managed(2))
        with tf.Graph().as_default():
            tf1.train.get_or_create_global_step()
            with self.assertRaisesRegex(ValueError, "not made in the graph"):
                monitoring.LossScaleHook(record).begin()

    def test_a_summary_of_the_graph(self):
        with tf.Graph().as_default():
            run = _Run()
            text = monitoring.write_summaries(run.record)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                for gradient in (1.0, INF):
                    session.run(run.train, {run.gradient: gradient})
                found = tf1.Summary.FromString(session.run(text))
        expected = {"skipped_steps": 1.0, "consecutive_skips": 1.0, "scale": 4.0, "floor": 1.0}
        self.assertEqual(
            {value.tag: value.simple_value for value in found.value},
            {f"loss_scale/{tag}": value for tag, value in expected.items()},
        )
