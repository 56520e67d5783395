"""Checkpoints and SavedModels that TensorFlow 2.2 wrote; see tests/data/write_keras_2_2.py."""

import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests import keras_homes, modes
from tests.keras import beside
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "keras_2_2"
VERSION = keras_homes.VERSION
# Keras' own class has read the loss scale and slots of such files ever since, but not this count.
ITERATIONS = 0 if VERSION >= (2, 4) else 4


def stable(inner):
    return mixed_precision.LossScaleOptimizer(inner, initial_scale=8.0)


def older(inner):
    return mixed_precision.experimental.LossScaleOptimizer(inner, "dynamic")


def wrappers(home):
    """This package's, and Keras' own where it reads its counter in the same way."""
    return [stable, older] + ([beside.own(home)] if VERSION >= (2, 4) else [])


class Of22Test(modes.EagerTestCase):
    def check(self, home, opt, variable, steps, slot):
        self.assertEqual((float(opt.loss_scale), int(opt.dynamic_counter)), (64.0, 1 + steps))
        self.assertEqual(int(opt.iterations), max(ITERATIONS, 1 - steps) + steps)
        inner = getattr(opt, "inner_optimizer", None) or opt._optimizer
        self.assertAllEqual(inner.get_slot(variable, "momentum").numpy(), slot)
        self.assertEqual(float(home.numpy(inner.learning_rate)), 1.0)

    @keras_homes.each([False, True], kind="v2")
    def test_checkpoint(self, home, deferred):
        for wrap in wrappers(home):
            opt, variable = wrap(home.SGD(1.0, momentum=1.0)), tf.Variable([1.0, 2.0])
            pair = [(tf.constant([0.0, 0.0]), variable)]
            checkpoint = tf.train.Checkpoint(opt=opt, var=variable)
            if not deferred:
                opt.apply_gradients(pair)
            checkpoint.restore(str(FOLDER / "checkpoint"))
            self.assertAllEqual(variable.numpy(), [-4.0, -0.5])
            if deferred:  # Slots are restored as they are made.
                opt.apply_gradients(pair)
            self.check(home, opt, variable, int(deferred), [-2.0, -1.0])

    @keras_homes.each(kind="v2")
    def test_state_in_a_saved_model(self, home):
        # `load_model` takes Keras' own class, whatever is given as custom_objects.
        slots = []
        for wrap in wrappers(home):
            opt, layer = (
                wrap(home.SGD(0.5, momentum=1.0)),
                home.keras.layers.Dense(1, use_bias=False),
            )
            layer.build([None, 1])
            opt.apply_gradients([(tf.constant([[0.0]]), layer.kernel)])
            checkpoint = tf.train.Checkpoint(optimizer=opt, **{"layer_with_weights-0": layer})
            checkpoint.restore(str(FOLDER / "saved_model" / "variables" / "variables"))
            inner = getattr(opt, "inner_optimizer", None) or opt._optimizer
            slots.append(inner.get_slot(layer.kernel, "momentum").numpy().tolist())
            self.assertEqual((float(opt.loss_scale), int(opt.dynamic_counter)), (64.0, 2))
        self.assertNotEqual(slots[0], [[0.0]])
        self.assertEqual(slots, [slots[0]] * len(slots))

    @keras_homes.each(("stable", "older"), (False, True))
    def test_weights_are_read_before_and_after_the_variables_are_made(self, home, wrap, made):
        if home.kind == "keras3" or VERSION < (2, 0):
            self.skipTest("Keras 3 reads no weights of that format, and TensorFlow 1 none of 2.2")
        keras = home.keras
        opt = {"stable": stable, "older": older}[wrap](home.SGD(1.0, momentum=1.0))
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
        model.compile(opt, "mse")
        if made:
            model.fit(np.ones([1, 1]), np.ones([1, 1]), verbose=0)
        model.load_weights(str(FOLDER / "saved_model" / "variables" / "variables"))
        if not made:  # A step that is skipped makes them and moves no weight.
            model.fit(np.full([1, 1], np.inf), np.ones([1, 1]), verbose=0)
        expected = (64.0, 2) if made else (32.0, 0)
        self.assertEqual((number(opt.loss_scale), number(opt.dynamic_counter)), expected)
        kernel = model.weights[0]
        self.assertAllEqual(kernel.numpy(), [[0.0]])
        if home.kind == "v2":  # Later optimizers keep their slots elsewhere, whatever is around.
            slot = opt.inner_optimizer.get_slot(kernel, "momentum")
            self.assertAllEqual(slot.numpy(), [[-1.0]])

    @keras_homes.each(kind="v2")
    def test_saved_model_loads(self, home):
        try:
            model = home.keras.models.load_model(str(FOLDER / "saved_model"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if VERSION >= (2, 2):
                raise
            self.skipTest(f"this Keras reads none of a newer version's: {error}")
        opt = mixed_precision.LossScaleOptimizer.from_config(model.optimizer.get_config())
        self.assertEqual(opt.initial_scale, 32.0)
        self.assertEqual(opt.dynamic_growth_steps, 3)


if __name__ == "__main__":
    absltest.main()
