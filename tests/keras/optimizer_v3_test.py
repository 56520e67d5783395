"""On the optimizers of tf.keras in TensorFlow 2.11 to 2.15, which `tf_keras` has, too."""

import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat as package
from tests import keras_homes, modes
from tests.keras_homes import Older, Stable, arrays, number


class OptimizerV3Test(modes.EagerTestCase):
    @keras_homes.each(kind="current")
    def test_a_branch_beside_none(self, home):
        """Accumulation by hand: the step returns nothing, and so does the other branch."""
        inner, variable = home.SGD(1.0), home.variable()
        opt = Stable(inner, initial_scale=8.0)
        inner.build([variable])

        @tf.function
        def step(take):
            grads = opt.get_unscaled_gradients([tf.constant(2.0)])
            tf.cond(take, lambda: opt.apply_gradients(zip(grads, [variable])), lambda: None)

        for take in (False, True):
            step(tf.constant(take))
        self.assertEqual(number(opt.iterations), 1)
        self.assertAllEqual(arrays([variable]), [0.75])

    @parameterized.parameters(False, True)
    def test_no_optimizers_of_dtensor(self, on_a_mesh):
        if not (2, 10) <= keras_homes.VERSION < (2, 16):
            self.skipTest("tf.keras.dtensor came with 2.10 and went with 2.16")
        options = {}
        if on_a_mesh:
            dtensor = tf.experimental.dtensor
            options["mesh"] = dtensor.create_mesh([("batch", 1)], devices=["CPU:0"])
        inner = tf.keras.dtensor.experimental.optimizers.SGD(0.1, **options)
        if not (on_a_mesh or keras_homes.VERSION < (2, 11)):  # Nothing else is of DTensor there.
            Stable(inner)
            return
        policy = package.DynamicLossScale()
        for make in (lambda: Stable(inner), lambda: Older(inner, policy)):
            with self.assertRaisesRegex(TypeError, "optimizer must not be an .* of tf.keras.dt"):
                make()
        Older(tf.keras.optimizers.SGD(0.1), policy)
