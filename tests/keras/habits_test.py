"""Warnings, returned values and fetches that users of Keras' own classes are used to."""

import numpy as np
import tensorflow as tf

from tests import keras_homes, modes
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision

Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer
tf1 = tf.compat.v1
VERSION = keras_homes.VERSION


class HabitsTest(modes.EagerTestCase):
    def told(self, home, use=lambda opt: None, scaled=None, **options):
        """Returns the warnings where gradients are applied after `use(opt)`, as they are."""
        opt, variable = Stable(home.SGD(0.25), **options), tf.Variable(1.0)
        use(opt)
        before = len(self.warnings())
        for _ in range(2):
            opt.apply_gradients([(tf.constant(1.0), variable)], scaled=scaled)
        self.assertEqual(variable.numpy(), 0.5)
        return self.warnings()[before:]

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_warns_once_where_nothing_was_scaled_or_said(self, home):
        def both(opt):
            opt.get_unscaled_gradients([opt.get_scaled_loss(tf.constant(2.0))])

        warnings = self.told(home)
        if VERSION >= (2, 4):  # Where Keras' own class warns, too.
            (warning,) = warnings
            self.assertIn("neither get_scaled_loss nor get_unscaled_gradients", warning)
        else:
            self.assertEmpty(warnings)
        for quiet in ({"use": both}, {"scaled": False}, {"enabled": False}):
            self.assertEmpty(self.told(home, **quiet))

    @keras_homes.each(kind="v2")
    def test_a_model_with_nothing_to_train_is_fitted(self, home):
        def counts(wrap):
            opt = wrap(home.SGD(1.0))
            dense = home.keras.layers.Dense(2, trainable=False)
            model = home.model(dense, inputs=(3,))
            model.compile(opt, "mse")
            model.fit(np.ones([4, 3]), np.ones([4, 2]), batch_size=4, verbose=0)
            opt.apply_gradients([])
            counter = getattr(opt, "dynamic_counter", None)
            return number(opt.iterations), None if counter is None else number(counter)

        ours = counts(lambda inner: Stable(inner, initial_scale=8.0))
        own = counts(home.wrapped_in_own)
        self.assertEqual(ours, own if own[1] is not None else (own[0], ours[1]))

    @keras_homes.each(kind="current")
    def test_apply_gradients_in_a_branch(self, home):
        opt, variable = Stable(home.SGD(1.0)), tf.Variable(1.0)
        pair = [(tf.constant(0.5), variable)]
        self.assertIsNone(opt.apply_gradients(pair, scaled=False))

        @tf.function
        def step(ready):
            tf.cond(ready, lambda: opt.apply_gradients(pair, scaled=False), lambda: None)

        step(tf.constant(False))
        self.assertEqual(variable.numpy(), 0.5)
        step(tf.constant(True))
        self.assertEqual(variable.numpy(), 0.0)

    @keras_homes.each(kind="v2")
    def test_a_session_fetches_the_experimental_loss_scale(self, home):
        with tf.Graph().as_default(), tf1.Session() as session:
            opt = Older(home.SGD(1.0), "dynamic")
            session.run(tf1.global_variables_initializer())
            self.assertEqual(session.run(opt.loss_scale), 2.0**15)
            fixed = Older(home.SGD(1.0), 8.0)
            self.assertEqual(session.run({"scale": fixed.loss_scale}), {"scale": 8.0})
