"""Users' ways with Keras loss-scale optimizers, on this package's and on that Keras' own."""

import numpy as np
import tensorflow as tf

from tests import keras_homes, modes, originals
from tf_lossscale_compat.keras import mixed_precision

tf1 = tf.compat.v1

GRADIENTS = [1.0, 2.0, np.inf, 1.0, 0.5, np.nan, 0.25, 1.0]


def own_is_used_likewise(home):
    """Returns whether that Keras' own class has the methods and reads its state eagerly."""
    return home.kind != "keras3" and not originals.IS_TF1


def make(home, own, inner):
    """A loss-scale optimizer around `inner`: this package's, or that Keras' own."""
    if not own:
        return mixed_precision.LossScaleOptimizer(inner, True, 2.0**4, 2)
    if hasattr(home.keras.mixed_precision, "LossScaleOptimizer"):
        cls = home.own()
        if home.name == "current" and hasattr(home.keras.optimizers, "legacy"):
            cls = getattr(home.keras.mixed_precision, "LossScaleOptimizerV3", cls)
        return cls(inner, dynamic=True, initial_scale=2.0**4, dynamic_growth_steps=2)
    loss_scale = originals.experimental().DynamicLossScale(2.0**4, 2)
    return home.own()(inner, loss_scale)


def scale_of(opt):
    scale = opt.loss_scale
    return float(scale() if callable(scale) else scale)


class KerasHabitsTest(modes.EagerTestCase):
    def check(self, home, habit, steps):
        """Runs the habit with both; returns what it recorded, the same for both."""
        history = habit(home, lambda inner: make(home, False, inner))
        if own_is_used_likewise(home):
            theirs = habit(home, lambda inner: make(home, True, inner))
            np.testing.assert_array_equal(history, theirs)
        self.assertLen(history, steps)
        self.assertTrue(np.all(np.isfinite(history)))
        return history

    @keras_homes.each()
    def test_accumulation_in_two_functions(self, home):
        # Scaled gradients are summed in one function, unscaled and applied in another.
        def habit(home, wrap):
            opt, weight, total = wrap(home.SGD(0.125)), home.variable(1.0), tf.Variable(0.0)

            @tf.function(autograph=False)
            def add(factor):
                with tf.GradientTape() as tape:
                    loss = opt.get_scaled_loss(tf.convert_to_tensor(weight) * factor)
                total.assign_add(tape.gradient(loss, [weight])[0])

            @tf.function(autograph=False)
            def apply():
                grads = opt.get_unscaled_gradients([total / 2.0])
                opt.apply_gradients(zip(grads, [weight]))

            opt.apply_gradients([(tf.constant(0.0), weight)])  # Makes the variables.
            history = []
            for first, second in zip(GRADIENTS[::2], GRADIENTS[1::2]):
                total.assign(0.0)
                add(tf.constant(first))
                add(tf.constant(second))
                apply()
                history.append([home.numpy(weight).item(), scale_of(opt)])
            return history

        history = self.check(home, habit, 4)
        # Of four sums, the second and the third are not finite.
        self.assertEqual([weight for weight, _ in history], [0.8125, 0.8125, 0.8125, 0.734375])

    @keras_homes.each(kind="v2")
    def test_names_of_variables_that_a_graphs_step_makes(self, home):
        # `tf.compat.v1.train.Saver` finds them in checkpoints by their names.
        def names(own, version):
            with tf.Graph().as_default(), modes.control_flow(version):
                weight = tf1.get_variable("weight", initializer=1.0, use_resource=True)
                tf.cond(tf.equal(weight, 1.0), tf.no_op, tf.no_op)  # Of the user's, numbered first.
                opt = make(home, own, home.Adam(0.125))
                opt.apply_gradients(zip(opt.get_gradients(2.0 * weight, [weight]), [weight]))
                return sorted(variable.op.name for variable in tf1.global_variables())

        for version in (1, 2):
            ours = names(False, version)
            if version == 1 and keras_homes.VERSION >= (2, 0):
                self.assertIn("cond_2/Adam/iter", ours)  # The scale's own conditional is cond_1.
            self.assertEqual(ours, names(True, version))

    @keras_homes.each(kind="v2")
    def test_names_of_variables_that_a_functions_step_makes(self, home):
        def names(own):
            weight, opt = tf.Variable(1.0, name="weight"), make(home, own, home.Adam(0.125))

            @tf.function(autograph=False)
            def step():
                with tf.GradientTape() as tape:
                    loss = opt.get_scaled_loss(2.0 * weight)
                grads = opt.get_unscaled_gradients(tape.gradient(loss, [weight]))
                opt.apply_gradients(zip(grads, [weight]))

            step()
            return [variable.name for variable in home.variables(opt)]

        if not own_is_used_likewise(home):
            self.skipTest("that Keras' own class is used otherwise")
        self.assertEqual(names(False), names(True))
