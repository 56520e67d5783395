"""`LossScaleCallback` in `fit` of each Keras: logs, event files, messages, stuck runs."""

import contextlib
import csv
import io
import os
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import event_files, keras_homes, modes, replicas
from tf_lossscale_compat import FixedLossScaleManager, LossScaleError, StepRecord
from tf_lossscale_compat.keras.callbacks import LossScaleCallback
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.monitoring import _monitor

INF = float("inf")
# What each batch holds: its loss and gradients are finite or not.
BATCHES = [1.0, 1.0, INF, 1.0, 1.0, 1.0]
# The scale after each of them, from 8 on, where it grows after two.
SCALES = [8.0, 16.0, 8.0, 8.0, 16.0, 16.0]
ROWS = [
    (0, 0, 0, 8.0),
    *((i + 1, int(i >= 2), int(i == 2), scale) for i, scale in enumerate(SCALES)),
]


# Each Keras with one of its families of optimizers.
KERASES = list({home.keras.__name__: home for home in keras_homes.available()}.values())


class KerasCallbackTest(modes.EagerTestCase):
    def setUp(self):
        super(modes.EagerTestCase, self).setUp()  # In the mode that TensorFlow is in.
        patcher = mock.patch.object(_monitor.logging, "warning", self._note)
        patcher.start()
        self.addCleanup(patcher.stop)
        self.messages = []
        self.folder = event_files.folder(self)

    def _note(self, text, *args):
        self.messages.append(text % args if args else text)

    def compiled(self, home, optimizer=None, traced=False, **keywords):
        """A model whose optimizer has a scale that grows after two steps, and its record."""
        if not traced and tf.executing_eagerly():  # A few steps take less time than a trace.
            keywords.setdefault("run_eagerly", True)
        model = home.dense_model()
        if optimizer is None:
            optimizer = LossScaleOptimizer(home.SGD(0.0), True, 8.0, 2)
        record = None
        if isinstance(optimizer, LossScaleOptimizer):
            record = StepRecord(optimizer)
        model.compile(optimizer, "mse", **keywords)
        return model, record

    def fit(self, model, *callbacks, batches=BATCHES, epochs=1, **keywords):
        """Trains with batches of one; returns the History."""
        x = np.ones((len(batches), 3), np.float32) * np.float32(batches)[:, None]
        keywords = {"verbose": 0, "batch_size": 1, "shuffle": False, **keywords}
        y = np.ones((len(batches), 2), np.float32)
        return model.fit(x, y, callbacks=list(callbacks), epochs=epochs, **keywords).history

    @parameterized.product(home=KERASES)
    def test_files_and_logs_hold_what_the_run_had(self, home):
        callbacks = home.keras.callbacks
        model, record = self.compiled(home, traced=True)
        callback = LossScaleCallback(record, self.folder, every_n_steps=1)
        self.assertIsInstance(callback, callbacks.Callback)
        path = os.path.join(self.folder, "log.csv")
        seen = []
        others = [
            callbacks.CSVLogger(os.path.join(self.folder, "before.csv")),
            callback,
            callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs))),
            callbacks.CSVLogger(path),
        ]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            data = np.ones((1, 3), np.float32), np.ones((1, 2), np.float32)
            history = self.fit(model, *others, verbose=1, epochs=2, validation_data=data)
        scales = [16.0, 32.0]
        self.assertEqual(history["loss_scale"], scales)
        self.assertEqual(history["skipped_steps"], [1, 2])
        self.assertEqual([logs["loss_scale"] for logs in seen], scales)
        with open(path, encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["skipped_steps"] for row in rows], ["1", "2"])
        # TensorFlow 2.2 to 2.4 have the progress bar before all other callbacks.
        if not (2, 2) <= keras_homes.VERSION < (2, 5):
            self.assertRegex(shown.getvalue(), r"loss_scale: 32\.0+ - skipped_steps: 2\.0+")
        points = event_files.points(self.folder)
        self.assertEqual(points[:7], ROWS)
        # The scale does not go on from 8.
        self.assertEqual([row[:2] for row in points[7:10]], [(7, 1), (8, 1), (9, 2)])
        self.assertLen(points, 13)
        self.assertEqual({floor for _, floor in event_files.read(self.folder)["floor"]}, {1.0})
        # One is told of, the other within the minute.
        self.assertLen([text for text in self.messages if "1 more step skipped" in text], 2)

    @parameterized.product(home=KERASES)
    def test_a_stuck_run_ends(self, home):
        model, record = self.compiled(home)
        callback = LossScaleCallback(record, every_n_steps=2, max_consecutive_skips=3)
        with self.assertRaisesRegex(LossScaleError, "4 steps in a row were skipped, since step 3"):
            self.fit(model, callback, batches=[1.0, 1.0] + [np.nan] * 20)
        self.assertEqual(home.numpy(record._finite_steps), 2)

    @parameterized.product(home=KERASES)
    def test_makes_a_record_or_finds_it(self, home):
        if not tf.executing_eagerly():
            self.skipTest("in Keras' graph mode the graph is there before any callback is asked")
        model = home.dense_model()
        model.compile(LossScaleOptimizer(home.SGD(0.0), True, 8.0, 2), "mse", run_eagerly=True)
        callback = LossScaleCallback(every_n_steps=2)
        model.evaluate(np.ones((1, 3)), np.ones((1, 2)), verbose=0)
        self.assertIsNone(callback.record)
        self.assertEqual(self.fit(model, callback)["skipped_steps"], [1])
        self.assertIsInstance(callback, home.keras.callbacks.Callback)
        again = LossScaleCallback()
        history = self.fit(model, again, initial_epoch=1, epochs=2)
        self.assertEqual(history["skipped_steps"], [2])
        self.assertIs(again.record, callback.record)

    @parameterized.product(home=KERASES)
    def test_where_no_record_can_be_made(self, home):
        model, _ = self.compiled(home, home.SGD(0.0))
        with self.assertRaisesRegex(TypeError, "record must be given.*not a loss-scale opt"):
            self.fit(model, LossScaleCallback())
        model = home.dense_model()
        model.compile(LossScaleOptimizer(home.SGD(0.0)), "mse")
        self.fit(model)
        with self.assertRaisesRegex(ValueError, "record must be a StepRecord made before"):
            self.fit(model, LossScaleCallback())

    @parameterized.product(home=KERASES)
    def test_twice_with_one_callback_and_after_an_error(self, home):
        model, record = self.compiled(home)
        callback = LossScaleCallback(record, os.path.join(self.folder, "new", "one"), 1)

        def fail(batch, logs):
            if batch == 2:
                raise KeyError("planted")

        failing = home.keras.callbacks.LambdaCallback()
        failing.on_train_batch_begin = lambda batch, logs=None: fail(batch, logs)
        with self.assertRaisesRegex(KeyError, "planted"):
            self.fit(model, callback, failing)
        points = event_files.points(callback._log_dir)
        self.assertEqual(points[:3], ROWS[:3])
        closed = []
        if callback._monitor.writer is None:  # TensorFlow 2.0 ends training after an error, too.
            closed.append(True)
        else:
            callback._monitor.writer.close = lambda: closed.append(True)
        history = self.fit(model, callback, batches=BATCHES[2:])
        self.assertEqual((closed, callback._monitor.writer), ([True], None))
        self.assertEqual(history["skipped_steps"], [1])
        points = event_files.points(callback._log_dir)
        self.assertEqual([row for row in points if row[0] > 2], ROWS[3:])

    @parameterized.product(home=KERASES)
    def test_several_steps_of_one_execution(self, home):
        if keras_homes.VERSION < (2, 4):
            self.skipTest("steps_per_execution came with TensorFlow 2.4")
        model, record = self.compiled(home, traced=True, steps_per_execution=3)
        history = self.fit(model, LossScaleCallback(record, self.folder, 2))
        self.assertEqual(history["loss_scale"], [16.0])
        self.assertEqual(event_files.points(self.folder), [ROWS[i] for i in (0, 3, 6)])

    @parameterized.product(home=KERASES)
    def test_says_that_it_sees_nothing(self, home):
        if not tf.executing_eagerly():
            self.skipTest("models have no train_step in Keras' graph mode")
        model, record = self.compiled(home)
        another = StepRecord(LossScaleOptimizer(home.SGD(0.0)))
        self.fit(model, LossScaleCallback(another), LossScaleCallback(record), epochs=2)
        self.assertLen([text for text in self.messages if "seen no step" in text], 1)

    @parameterized.product(home=KERASES)
    def test_asks_for_the_logs_of_no_batch(self, home):
        """Or Keras would wait for the device after each step."""
        model, record = self.compiled(home)
        callback = LossScaleCallback(record)
        if home.before(3, 8):
            self.skipTest("this Keras gives all callbacks the same logs")
        if home.kind == "keras3":
            self.assertTrue(home.keras.src.utils.is_default(callback.on_train_batch_end))
            self.assertTrue(home.keras.src.utils.is_default(callback.on_batch_end))
            return
        if not hasattr(home.keras.callbacks.Callback, "_implements_train_batch_hooks"):
            self.skipTest("this Keras gives all callbacks the same logs")
        kinds = []
        end = type(callback).on_train_batch_end

        def on_train_batch_end(self, batch, logs=None):
            kinds.extend(type(value).__name__ for value in logs.values())
            end(self, batch, logs)

        with mock.patch.object(type(callback), "on_train_batch_end", on_train_batch_end):
            self.fit(model, callback)
        self.assertEqual(set(kinds), {"EagerTensor"})

    @parameterized.product(home=KERASES)
    def test_fixed(self, home):
        model, record = self.compiled(home, LossScaleOptimizer(home.SGD(0.0), loss_scale=4))
        callback = LossScaleCallback(record, self.folder, max_consecutive_skips=1)
        history = self.fit(model, callback)
        self.assertEqual((history["loss_scale"], history["skipped_steps"]), ([4.0], [0]))
        self.assertNotIn("floor", event_files.read(self.folder))

    @parameterized.product(home=KERASES)
    def test_two_replicas(self, home):
        if keras_homes.VERSION < (2, 2):
            self.skipTest("fit there wants each replica a batch of its own")
        strategy = replicas.strategy("mirrored_2")
        options = {"run_eagerly": True} if keras_homes.VERSION >= (2, 5) else {}
        with strategy.scope():
            model = home.dense_model()
            model.compile(LossScaleOptimizer(home.SGD(0.0), True, 8.0, 2), "mse", **options)
        callback = LossScaleCallback(log_dir=self.folder, every_n_steps=1)
        batches = [value for pair in BATCHES for value in (1.0, pair)]
        history = self.fit(model, callback, batches=batches, batch_size=2)
        self.assertEqual((history["loss_scale"], history["skipped_steps"]), ([16.0], [1]))
        self.assertEqual(event_files.points(self.folder), ROWS)
        # A fixed scale has no variable that tells of the strategy.
        with strategy.scope():
            model = home.dense_model()
            optimizer = LossScaleOptimizer(home.SGD(0.0), loss_scale=FixedLossScaleManager(4))
            model.compile(optimizer, "mse", **options)
        history = self.fit(model, LossScaleCallback(), batches=[1.0, INF], batch_size=2)
        self.assertEqual((history["loss_scale"], history["skipped_steps"]), ([4.0], [1]))

    @parameterized.parameters(
        ({"record": 3}, TypeError, "record must be a StepRecord, got 3"),
        ({"log_dir": 3}, TypeError, "log_dir must be a str or a path, got 3"),
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
        ({"max_consecutive_skips": 0}, ValueError, "max_consecutive_skips must be at least 1"),
        ({"log_every_n_secs": -1}, ValueError, "log_every_n_secs must be at least 0"),
    )
    def test_errors(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            LossScaleCallback(**arguments)
