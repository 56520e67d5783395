"""A planted fault is named: its gradients by the record, its operation by TensorFlow's checks."""

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tests import keras_homes, modes, replicas, stepping
from tf_lossscale_compat import DynamicLossScale, StepRecord
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1
STEPS, BAD_STEP, BAD_REPLICA = 24, 20, 1
NAMES = ("hidden/kernel", "hidden/bias", "output/kernel", "output/bias")


@tf.custom_gradient
def overflows_backward(x, limit):
    """`x`; the gradient that comes back is infinite where it is as large as `limit`."""

    def grad(dy):
        too_large = tf.cast(tf.abs(dy), tf.float32) >= limit
        return tf1.where(too_large, tf.fill(tf.shape(dy), dy.dtype.max) * 2, dy), None

    return tf.identity(x), grad


def first_bad(loss_of, variables, scale):
    """TensorFlow's report of the first operation with a bad output, as docs/watching.md does."""

    @tf.function(autograph=False)
    def gradients():
        with tf.GradientTape() as tape:
            loss = loss_of() * scale
        return tape.gradient(loss, variables)

    tf.debugging.enable_check_numerics()
    try:
        gradients()
    except tf.errors.InvalidArgumentError as error:
        return error.message
    finally:
        tf.debugging.disable_check_numerics()
    return None


class EagerTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        if stepping.VERSION < (2, 1):
            self.skipTest("enable_check_numerics is of TensorFlow 2.1 and later")

    def assert_found(self, where, loss_of, variables, scale, name):
        """The operation is named at this scale, and at half of it if the scale does not matter."""
        found = first_bad(loss_of, variables, scale)
        self.assertIn(name, found)
        self.assertIn("seeded_fault_test.py", found)  # Where it was made.
        self.assertEqual("gradient_tape/" in found, where == "backward")
        half = first_bad(loss_of, variables, scale / 2)
        if where == "forward":
            self.assertIn(name, half)
        else:
            self.assertIsNone(half)

    @keras_homes.each(["forward", "backward"])
    def test_in_a_nested_model(self, home, where):
        layers = home.keras.layers

        class Planted(layers.Layer):
            def call(self, x):
                return x * 6e4 * 2.0 if where == "forward" else tf.square(x)

        eighth = home.keras.initializers.Constant(0.125)
        with home.policy("mixed_float16"):
            encoder = home.model(
                layers.Dense(2, kernel_initializer=eighth, name="before"),
                Planted(name="planted"),
                layers.Dense(64, kernel_initializer="ones", name="after"),
                inputs=(8,),
            )
            model = home.model(encoder, inputs=(8,))
        weights = model.trainable_variables
        inputs = tf.ones([1, 8])

        def loss_of():
            return tf.reduce_sum(tf.cast(model(inputs, training=True), tf.float32))

        # Back through `after` come 64 times the scale, through the square twice that: 65536.
        self.assert_found(where, loss_of, list(map(as_variable, weights)), 512.0, "/planted")

    def _train(self, where):
        """Trains a network on replicas; returns its record, and looks for the fault."""
        strategy = replicas.strategy("mirrored_2")
        digits, random = datasets.load_digits(), np.random.RandomState(0)
        pixels, labels = (digits.data / 8 - 1).astype(np.float32), digits.target.astype(np.int32)
        batches = random.randint(0, len(labels), (STEPS, 32))
        shapes = ((64, 64), (64,), (64, 10), (10,))
        with strategy.scope():
            weights = [
                tf.Variable((random.randn(*shape) / 8).astype(np.float32), name=name)
                for shape, name in zip(shapes, NAMES)
            ]
            opt = MixedPrecisionLossScaleOptimizer(
                tf1.train.GradientDescentOptimizer(0.1), DynamicLossScale(1024.0)
            )
        record = StepRecord(opt, names=True)

        def forward(images, labels, bad):
            kernel_1, bias_1, kernel_2, bias_2 = (tf.cast(w, tf.float16) for w in weights)
            hidden = tf.matmul(tf.cast(images, tf.float16), kernel_1, name="hidden/matmul")
            if where == "forward":
                factor = tf1.where(bad, tf.float16.max, 1.0)
                hidden = tf.multiply(hidden, tf.cast(factor, tf.float16), name="fault")
            hidden = tf.nn.relu(tf.add(hidden, bias_1, name="hidden/sum"), name="hidden/relu")
            if where == "backward":
                with tf1.name_scope("fault"):
                    hidden = overflows_backward(hidden, tf1.where(bad, 0.0, tf.float32.max))
            logits = tf.add(tf.matmul(hidden, kernel_2, name="output/matmul"), bias_2)
            return tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )

        def in_replica(images, labels, bad):
            bad = tf.logical_and(bad, tf.equal(replicas.replica_id(), BAD_REPLICA))
            pairs = opt.compute_gradients(lambda: forward(images, labels, bad), weights)
            opt.apply_gradients(pairs)

        @tf.function(autograph=False)
        def step(images, labels, bad):
            replicas.run(strategy, in_replica, (images, labels, bad))

        for i, batch in enumerate(batches):
            step(pixels[batch], labels[batch], tf.constant(i + 1 == BAD_STEP))
        batch = batches[BAD_STEP - 1]
        scale = record.last_skip().scale_before
        found = first_bad(
            lambda: forward(
                tf.constant(pixels[batch]), tf.constant(labels[batch]), tf.constant(True)
            ),
            weights,
            scale,
        )
        return record, found

    def test_in_the_backward_pass_of_a_loop(self):
        record, found = self._train("backward")
        skip = record.last_skip()
        self.assertEqual((int(record.steps), int(record.skipped_steps)), (STEPS, 1))
        self.assertEqual(
            (skip.step, skip.scale_before, skip.scale_after), (BAD_STEP, 1024.0, 512.0)
        )
        # What lies behind the fault, on the way back, is not finite; what lies before it is.
        self.assertEqual({bad.name for bad in skip.gradients}, {"hidden/kernel", "hidden/bias"})
        self.assertEqual({bad.replica for bad in skip.gradients}, {BAD_REPLICA})
        self.assertIn(f"step {BAD_STEP} skipped: hidden/kernel (", record.report())
        self.assertIn(f"on replica {BAD_REPLICA})", record.report())
        self.assertRegex(found, r"seeded_fault_test.py \(L\d+\) grad\n")  # Where it was made.

    def test_in_the_forward_pass_of_a_loop(self):
        record, found = self._train("forward")
        skip = record.last_skip()
        self.assertEqual((skip.step, int(record.skipped_steps)), (BAD_STEP, 1))
        self.assertEqual({bad.replica for bad in skip.gradients}, {BAD_REPLICA})
        self.assertIn("node fault/", found)


def as_variable(variable):
    """The variables that a tape differentiates by: of Keras 3's TensorFlow's inside."""
    return getattr(variable, "value", variable) if hasattr(variable, "path") else variable


class SessionTest(tf.test.TestCase):
    def _found(self, where, scale):
        with tf.Graph().as_default(), tf1.Session() as session:
            weight = tf1.get_variable("weight", [], initializer=tf1.ones_initializer())
            scaling = tf1.placeholder(tf.float32, [])
            hidden = tf.cast(weight, tf.float16) * 1.0
            with tf1.name_scope("fault"):
                if where == "forward":
                    hidden *= 300.0
                hidden = tf.square(hidden)
            with tf1.name_scope("after"):
                loss = tf.cast(hidden, tf.float32) * scaling
            grads = tf1.gradients(loss, [weight])
            checked = tf1.add_check_numerics_ops()
            session.run(tf1.global_variables_initializer())
            try:
                session.run([grads, checked], {scaling: scale})
            except tf.errors.InvalidArgumentError as error:
                return error.message
            return None

    def test_in_the_forward_pass(self):
        for scale in (8192.0, 4096.0):
            self.assertRegex(self._found("forward", scale), r"\bfault/Square:0 : Tensor had Inf")

    def test_in_the_backward_pass(self):
        self.assertRegex(self._found("backward", 32768.0), r"gradients/fault/\S+ : Tensor had Inf")
        self.assertIsNone(self._found("backward", 16384.0))
