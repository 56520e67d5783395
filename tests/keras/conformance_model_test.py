"""Requirements of Keras' own tests for models that its loss-scale optimizers train.

One test for each thing they ask that no other file here does; UPSTREAM.md has the whole list.
"""

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests import keras_homes, modes
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision

Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer
RATE = 2.0**-14  # Taken off a float16 one it would leave 1.
BATCH = 4
ONES = np.ones([BATCH, 1], np.float32)


def gain(home, gradients=None, **weight):
    """A layer that multiplies by one weight; it notes in `gradients` what comes back."""

    @tf.custom_gradient
    def watched(x):
        def gradient(dy):
            gradients.append(dy)
            return dy

        return tf.identity(x), gradient

    class Gain(home.keras.layers.Layer):
        def build(self, shape):
            self.gain = self.add_weight(name="gain", shape=(), initializer="ones", **weight)

        def call(self, x):
            y = x * tf.convert_to_tensor(self.gain)
            return y if gradients is None else watched(y)

    return Gain()


def compiled(home, opt, layer, run_eagerly=False):
    """A model of the layer alone under the policy `mixed_float16`."""
    model = home.model(layer, inputs=(1,))
    options = {"jit_compile": False} if home.kind == "keras3" else {}
    model.compile(opt, lambda true, pred: tf.reduce_mean(pred), run_eagerly=run_eagerly, **options)
    return model


def fit(model):
    model.fit(ONES, ONES, batch_size=BATCH, verbose=0)


@absltest.skipIf(keras_homes.VERSION < (2, 1), "its layers cast no variables by themselves")
class MixedPrecisionModelTest(modes.EagerTestCase):
    @keras_homes.each((False, True))
    def test_float32_weights_move_by_less_than_float16_can_hold(self, home, run_eagerly):
        with home.policy("mixed_float16"):
            opt = Stable(home.SGD(RATE), dynamic=False, initial_scale=8)

            class Itself(home.keras.regularizers.Regularizer):
                def __call__(self, weight):
                    return tf.convert_to_tensor(weight)

            layer = gain(home, regularizer=Itself())
            model = compiled(home, opt, layer, run_eagerly)
            fit(model)
        # The regularizer's gradient of 1 is scaled with that of the loss.
        self.assertEqual(home.numpy(layer.gain).dtype, np.float32)
        self.assertEqual(number(home.numpy(layer.gain)), 1 - 2 * RATE)
        self.assertIs(model.optimizer, opt)  # Keras wraps others under this policy.

    @keras_homes.each()
    def test_what_compile_wraps_is_an_instance(self, home):
        # Custom steps ask so before they scale the loss.
        with home.policy("mixed_float16"):
            model = compiled(home, home.SGD(1.0), gain(home))
        own = model.optimizer
        self.assertIn("LossScaleOptimizer", type(own).__name__)
        self.assertIsInstance(own, Stable)
        self.assertIsInstance(own, Older)
        self.assertNotIsInstance(own, type("Own", (Stable,), {}))
        self.assertNotIsInstance(home.SGD(1.0), Stable)
        ours = Stable(home.SGD(1.0))
        self.assertNotIsInstance(ours, Older)

    @keras_homes.each()
    def test_layers_see_the_scaled_gradient_in_float16(self, home):
        gradients = []
        with home.policy("mixed_float16"):
            opt = Stable(home.SGD(1.0), dynamic=False, initial_scale=8)
            layer = gain(home, gradients)
            fit(compiled(home, opt, layer, run_eagerly=True))
        (gradient,) = gradients
        self.assertEqual(gradient.dtype, tf.float16)
        np.testing.assert_array_equal(gradient.numpy(), np.full([BATCH, 1], 8 / BATCH))
        self.assertEqual(number(home.numpy(layer.gain)), 0)
