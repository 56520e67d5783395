"""Users' ways with Keras loss-scale optimizers, on this package's and on that Keras' own."""

import numpy as np
import tensorflow as tf

from tests import keras_homes, modes, originals
from tf_lossscale_compat.keras import mixed_precision

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

    @keras_homes.each()
    def test_an_optimizer_of_ones_own_inside(self, home):
        # Gradients are centred in apply_gradients (Keras 3: apply), where they are unscaled, and
        # their means kept as numbers. Skipped steps do not come there.
        means = []

        def centred(grads):
            means.extend(float(tf.reduce_mean(grad)) for grad in grads)
            return [grad - tf.reduce_mean(grad) for grad in grads]

        class Centred(home.SGD):
            def apply_gradients(self, grads_and_vars, *args, **kwargs):
                grads, variables = zip(*grads_and_vars)
                return super().apply_gradients(zip(centred(grads), variables), *args, **kwargs)

        class CentredKeras3(home.SGD):
            def apply(self, grads, trainable_variables=None):
                return super().apply(centred(grads), trainable_variables)

        def habit(home, wrap):
            cls = CentredKeras3 if home.kind == "keras3" else Centred
            opt, weight = wrap(cls(0.125)), home.variable([1.0, 2.0])
            history = []
            for factor in GRADIENTS:
                with tf.GradientTape() as tape:
                    value = tf.convert_to_tensor(weight) * [1.0, 3.0]
                    loss = opt.get_scaled_loss(tf.reduce_sum(value) * factor)
                grads = opt.get_unscaled_gradients(tape.gradient(loss, [weight]))
                opt.apply_gradients(zip(grads, [weight]))
                history.append([*home.numpy(weight).tolist(), scale_of(opt)])
            return history

        history = self.check(home, habit, len(GRADIENTS))
        self.assertEqual(means[:6], [2.0, 4.0, 2.0, 1.0, 0.5, 2.0])
        self.assertIn(len(means), (6, 12))
        # The gradients' mean is taken away, so that the sum stays.
        self.assertEqual({first + second for first, second, _ in history}, {3.0})

    @keras_homes.each()
    def test_variables_are_called_and_read(self, home):
        opt = make(home, False, home.SGD(0.125))
        opt.apply_gradients([(tf.constant(0.0), home.variable(1.0))])
        opt.dynamic_counter.assign(7)
        for variables in (
            (opt.variables, opt.variables()) if home.kind != "v2" else (opt.variables(),)
        ):
            values = [home.numpy(variable).tolist() for variable in variables]
            # Those of tf.keras' families are the inner optimizer's alone, as with Keras' own.
            self.assertEqual(7 in values, home.kind == "keras3")
