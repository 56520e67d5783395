"""`LossScaleCallback` in `fit` of each Keras: logs, stuck runs."""

import contextlib
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes, modes, replicas
from tf_lossscale_compat import FixedLossScaleManager, LossScaleError, StepRecord
from tf_lossscale_compat.keras.callbacks import LossScaleCallback
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer

INF = float("inf")
# What each batch holds: its loss and gradients are finite or not. The scale begins at 8, and grows
# after two steps.
BATCHES = [1.0, 1.0, INF, 1.0, 1.0, 1.0]

# Each Keras with one of its families of optimizers.
KERASES = list({home.keras.__name__: home for home in keras_homes.available()}.values())


class KerasCallbackTest(modes.EagerTestCase):
    def setUp(self):
        super(modes.EagerTestCase, self).setUp()  # In the mode that TensorFlow is in.

    def compiled(self, home, optimizer=None, traced=False, **keywords):
        """A model, and the record of its optimizer."""
        if not traced and tf.executing_eagerly():  # A few steps take less time than a trace.
            keywords.setdefault("run_eagerly", True)
        model = home.dense_model()
        if optimizer is None:
            optimizer = LossScaleOptimizer(home.SGD(0.0), True, 8.0, 2)
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
    def test_logs_hold_what_the_run_had(self, home):
        model, record = self.compiled(home, traced=True)
        seen, sizes = [], []

        def see(epoch, logs):
            seen.append((logs["loss_scale"], logs["loss"]))
            graph = tf.compat.v1.get_default_graph()
            sizes.append(len(graph.get_operations()))  # In eager mode an empty graph.

        later = home.keras.callbacks.LambdaCallback(on_epoch_end=see)
        data = np.ones((1, 3), np.float32), np.ones((1, 2), np.float32)
        callbacks = LossScaleCallback(record), later
        history = self.fit(model, *callbacks, verbose=1, epochs=2, validation_data=data)
        self.assertEqual(history["loss_scale"], [16.0, 32.0])
        self.assertEqual(history["skipped_steps"], [1, 2])
        self.assertEqual([scale for scale, _ in seen], [16.0, 32.0])
        self.assertEqual(*sizes)
        model.evaluate(*data, verbose=0, callbacks=callbacks[:1])
        model.predict(data[0], verbose=0, callbacks=callbacks[:1])

    @parameterized.product(
        home=KERASES,
        case=(
            (2, 1, [1.0, 1.0] + [np.nan] * 20, 1, "4 steps in a row were skipped, since step 3"),
            (100, 1, [np.nan] * 2, 5, "4 steps in a row were skipped, since step 1"),
            (4, 3, [np.nan] * 12, 1, "6 steps in a row"),
        ),
    )
    def test_a_stuck_run_ends(self, home, case):
        """With the step that it looks at, with the epoch, or with several steps taken at once."""
        every_n_steps, at_once, batches, epochs, message = case
        options = {"steps_per_execution": at_once} if at_once > 1 else {}
        if options and keras_homes.VERSION < (2, 4):
            self.skipTest("steps_per_execution came with TensorFlow 2.4")
        model, record = self.compiled(home, traced=True, **options)
        callback = LossScaleCallback(record, every_n_steps, max_consecutive_skips=3)
        with self.assertRaisesRegex(LossScaleError, message):
            self.fit(model, callback, batches=batches, epochs=epochs)
        self.assertEqual(home.numpy(record._finite_steps), batches.count(1.0))

    @parameterized.product(home=KERASES)
    def test_a_stuck_run_of_a_record_with_a_limit(self, home):
        model, record = self.compiled(home)
        record.max_consecutive_skips = 100 if tf.executing_eagerly() else 3
        raises = self.assertRaisesRegex(LossScaleError, "4 steps in a row were skipped")
        # Eagerly the step itself would raise.
        with contextlib.nullcontext() if tf.executing_eagerly() else raises:
            self.fit(model, LossScaleCallback(record, every_n_steps=2), batches=[np.nan] * 9)

    @parameterized.product(home=KERASES)
    def test_makes_a_record_or_finds_it(self, home):
        if not tf.executing_eagerly():
            self.skipTest("in Keras' graph mode the graph is there before any callback is asked")
        callback, records = LossScaleCallback(every_n_steps=2), []
        for _ in range(2):  # A callback may go from model to model.
            model = home.dense_model()
            model.compile(LossScaleOptimizer(home.SGD(0.0), True, 8.0, 2), "mse", run_eagerly=True)
            model.evaluate(np.ones((1, 3)), np.ones((1, 2)), verbose=0)
            self.assertEqual(self.fit(model, callback)["skipped_steps"], [1])
            records.append(callback.record)
        self.assertIsNot(*records)
        again = LossScaleCallback()
        history = self.fit(model, again, initial_epoch=1, epochs=2)
        self.assertEqual(history["skipped_steps"], [2])
        self.assertIs(again.record, callback.record)

    @parameterized.product(home=KERASES)
    def test_where_no_record_can_be_made(self, home):
        model = home.dense_model()
        model.compile(home.SGD(0.0), "mse")
        with self.assertRaisesRegex(TypeError, r"SGD.* Write compile\(.*LossScaleOptimizer\("):
            self.fit(model, LossScaleCallback())
        model = home.dense_model()
        model.compile(LossScaleOptimizer(home.SGD(0.0)), "mse")
        self.fit(model)
        with self.assertRaisesRegex(ValueError, "Make the StepRecord before"):
            self.fit(model, LossScaleCallback())

    @parameterized.product(home=KERASES)
    def test_asks_for_the_logs_of_no_batch(self, home):
        """Or Keras would wait for the device after each step."""
        if keras_homes.VERSION < (2, 5) or home.before(3, 8):
            self.skipTest("this Keras gives all callbacks the same logs")
        model, record = self.compiled(home)
        callback = LossScaleCallback(record)
        if home.kind == "keras3":
            self.assertTrue(home.keras.src.utils.is_default(callback.on_train_batch_end))
            self.assertTrue(home.keras.src.utils.is_default(callback.on_batch_end))
            return
        kinds = []

        def on_train_batch_end(batch, logs=None):
            kinds.extend(type(value).__name__ for value in logs.values())

        with mock.patch.object(callback, "on_train_batch_end", on_train_batch_end):
            self.fit(model, callback)
        self.assertEqual(set(kinds), {"EagerTensor"})

    @parameterized.product(home=KERASES)
    def test_fixed(self, home):
        model, record = self.compiled(home, LossScaleOptimizer(home.SGD(0.0), loss_scale=4))
        history = self.fit(model, LossScaleCallback(record, max_consecutive_skips=1))
        self.assertEqual((history["loss_scale"], history["skipped_steps"]), ([4.0], [0]))

    @parameterized.product(home=KERASES)
    def test_two_replicas(self, home):
        if keras_homes.VERSION < (2, 2):
            self.skipTest("fit there wants each replica a batch of its own")
        strategy = replicas.strategy("mirrored_2")
        options = {"run_eagerly": True} if keras_homes.VERSION >= (2, 5) else {}
        manager = FixedLossScaleManager(4)  # Which has no variable that tells of the strategy.
        for keywords, scale in (({"initial_scale": 8.0}, 4.0), ({"loss_scale": manager}, 4.0)):
            with strategy.scope():
                model = home.dense_model()
                model.compile(LossScaleOptimizer(home.SGD(0.0), **keywords), "mse", **options)
            history = self.fit(model, LossScaleCallback(), batches=[1.0, INF], batch_size=2)
            self.assertEqual((history["loss_scale"], history["skipped_steps"]), ([scale], [1]))

    @parameterized.parameters(
        ({"record": 3}, TypeError, "record must be a StepRecord or None, got 3"),
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
        ({"max_consecutive_skips": 0}, ValueError, "max_consecutive_skips must be at least 1"),
    )
    def test_errors(self, arguments, error, message):
        with self.assertRaisesRegex(error, message):
            LossScaleCallback(**arguments)
