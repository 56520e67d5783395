"""A fault planted in the demo's network is named by the record, and by a replay of its batch."""

import tensorflow as tf

from tests import modes, replicas, stepping
from tf_lossscale_compat import DynamicLossScale, StepRecord, demo
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.monitoring import replay

tf1 = tf.compat.v1
STEPS, BAD_STEP, BAD_REPLICA = 504, 500, 1
NAMES = ("hidden/kernel", "hidden/bias", "output/kernel", "output/bias")


@tf.custom_gradient
def _overflows_backward(x, bad):
    """`x`; where `bad`, the gradient that comes back is infinite."""

    def grad(dy):
        return tf1.where(tf.fill(tf.shape(dy), bad), dy + float("inf"), dy), None

    return tf.identity(x), grad


class SeededFaultTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        if stepping.VERSION < (2, 0):
            self.skipTest("strategies of TensorFlow 1.15 train in graphs")

    def _train(self, where):
        """Trains the demo's network on replicas; returns its record and the bad step replayed."""
        strategy = replicas.strategy("mirrored_2")
        digits = demo.load_digits(STEPS, 0)
        with strategy.scope():
            weights = [
                tf.Variable(initial, name=name)
                for initial, name in zip(demo._initial_weights(0), NAMES)
            ]
            opt = contrib.LossScaleOptimizer(
                tf1.train.GradientDescentOptimizer(0.1), DynamicLossScale(1024.0)
            )
        record = StepRecord(opt, names=True)

        def forward(images, labels, bad):
            kernel_1, bias_1, kernel_2, bias_2 = (tf.cast(w, tf.float16) for w in weights)
            hidden = tf.matmul(tf.cast(images, tf.float16), kernel_1, name="hidden/matmul")
            if where == "forward":
                infinite = tf.fill(tf.shape(hidden), tf.constant(float("inf"), tf.float16))
                hidden = tf1.where(tf.fill(tf.shape(hidden), bad), infinite, hidden)
            hidden = tf.nn.relu(tf.add(hidden, bias_1, name="hidden/sum"), name="hidden/relu")
            if where == "backward":
                hidden = _overflows_backward(hidden, bad)
            logits = tf.add(tf.matmul(hidden, kernel_2, name="output/matmul"), bias_2)
            return demo._mean_loss(logits, labels)

        def in_replica(images, labels, bad):
            bad = tf.logical_and(bad, tf.equal(replicas.replica_id(), BAD_REPLICA))
            pairs = opt.compute_gradients(lambda: forward(images, labels, bad), weights)
            opt.apply_gradients(pairs)

        @tf.function(autograph=False)
        def step(images, labels, bad):
            replicas.run(strategy, in_replica, (images, labels, bad))

        for i, batch in enumerate(digits.batches):
            step(
                digits.train_images[batch],
                digits.train_labels[batch],
                tf.constant(i + 1 == BAD_STEP),
            )
        batch = digits.batches[BAD_STEP - 1]
        return record, replay(
            lambda images, labels: forward(images, labels, tf.constant(True)),
            tf.constant(digits.train_images[batch]),
            tf.constant(digits.train_labels[batch]),
            loss_scale=record.last_skip().scale_before,
            show=False,
        )

    def test_in_the_backward_pass(self):
        record, replayed = self._train("backward")
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
        self.assertEqual(replayed.cause, "backward")
        self.assertIsNone(replayed.finite_scale)  # The fault is there at each scale.
        self.assertEqual(replayed.first_nonfinite.kind, "backward")
        bad = [row.name for row in replayed if row.kind == "gradient" and row.nonfinite]
        self.assertEqual(bad, ["hidden/kernel", "hidden/bias"])

    def test_in_the_forward_pass(self):
        record, replayed = self._train("forward")
        skip = record.last_skip()
        self.assertEqual((skip.step, int(record.skipped_steps)), (BAD_STEP, 1))
        self.assertEqual({bad.replica for bad in skip.gradients}, {BAD_REPLICA})
        self.assertEqual(replayed.cause, "forward")
        first = replayed.first_nonfinite
        self.assertEqual(first.kind, "forward")
        self.assertIn("no loss scale helps", replayed.summary())
        order = [row.name for row in replayed if row.kind == "forward"]
        self.assertLess(order.index(first.name), order.index("hidden/sum"))
        self.assertGreater(order.index(first.name), order.index("hidden/matmul"))


if __name__ == "__main__":
    tf.test.main()
