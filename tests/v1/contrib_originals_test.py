"""Objects of TensorFlow 1.15's own contrib, given to this package's optimizers."""

import tensorflow as tf

from tests import originals
from tf_lossscale_compat import loss_scale
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1


class _Manager:
    """Has the methods of a manager, and no base class of this package's."""

    def __init__(self):
        self.flags = tf1.Variable(0, trainable=False)

    def get_loss_scale(self):
        return tf.constant(4.0)

    def update_loss_scale(self, finite_grads):
        return self.flags.assign_add(tf.cast(finite_grads, tf.int32))


class ManagersTest(tf.test.TestCase):
    def _train(self, make_manager, feeds):
        """Weights, and the scale, after steps by `MixedPrecisionLossScaleOptimizer`."""
        with tf.Graph().as_default(), tf1.Session() as session:
            weight, x = tf1.Variable([8.0]), tf1.placeholder(tf.float32, [])
            manager = make_manager()
            inner = tf1.train.GradientDescentOptimizer(1.0)
            train = MixedPrecisionLossScaleOptimizer(inner, manager).minimize(weight[0] * x)
            session.run(tf1.global_variables_initializer())
            for value in feeds:
                session.run(train, {x: value})
            scale = session.run(manager.get_loss_scale())
            return session.run(weight).tolist(), float(scale)

    def test_one_of_no_class_of_this_package_drives_the_optimizer(self):
        self.assertEqual(self._train(_Manager, (1.0, float("nan"), 2.0)), ([5.0], 4.0))

    def test_contribs_own_managers_drive_the_optimizer(self):
        if originals.contrib() is None:
            self.skipTest("TensorFlow 2 has no contrib")
        contrib = originals.contrib()
        for make, scale in (
            (lambda: contrib.FixedLossScaleManager(8.0), 8.0),
            (lambda: contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1, 2.0, 0.5), 16.0),
        ):
            self.assertEqual(self._train(make, (1.0, float("nan"), 2.0)), ([5.0], scale))

    def test_what_lacks_a_method_is_refused(self):
        class HalfAManager:
            def get_loss_scale(self):
                return tf.constant(4.0)

        with self.assertRaisesRegex(ValueError, "Cannot make a loss scale"):
            loss_scale.get(HalfAManager())


if __name__ == "__main__":
    tf.test.main()
