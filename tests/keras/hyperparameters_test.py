"""Hyperparameters are read and set through the wrapper, as that Keras' own class does it."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests import keras_homes, modes
from tests.keras import beside
from tf_lossscale_compat.keras import mixed_precision

VERSION = keras_homes.VERSION
CLIPS = {"clipnorm": 0.5, "clipvalue": 0.25, "global_clipnorm": 0.125}
NEW = {
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "jit_compile": False,
    "weight_decay": 0.25,
}


def step(opt, variable):
    opt.apply_gradients([(tf.constant([3.0, 4.0]), variable)])


class HyperparametersTest(modes.EagerTestCase):
    @keras_homes.each(sorted(CLIPS), kind="v2")
    def test_legacy_clipping_is_read_and_set_of_the_inner_optimizer(self, home, name):
        inner = home.SGD(1.0)
        if not hasattr(inner, name):
            self.skipTest("this Keras has it only where it was given")
        opts = [mixed_precision.LossScaleOptimizer(inner)]
        if VERSION >= (2, 4):
            opts.append(beside.own(home)(home.SGD(1.0)))
        for opt in opts:
            self.assertIsNone(getattr(opt, name))
            setattr(opt, name, CLIPS[name])
            self.assertEqual(getattr(opt, name), CLIPS[name])
            self.assertEqual(getattr(opt.inner_optimizer, name), CLIPS[name])
        variables = [tf.Variable([0.0, 0.0]) for _ in opts]
        for opt, variable in zip(opts, variables):
            step(opt, variable)
        self.assertLess(float(tf.norm(variables[0])), 1.0)
        self.assertAllEqual(variables[0], variables[-1])

    @keras_homes.each(sorted({**CLIPS, **NEW}), kind="current")
    def test_new_familys_are_read_and_set_of_the_inner_optimizer(self, home, name):
        opt = mixed_precision.LossScaleOptimizer(home.SGD(1.0))
        if not hasattr(opt.inner_optimizer, name):
            self.skipTest("this Keras does not have it yet")
        value = {**CLIPS, **NEW}[name]
        self.assertEqual(getattr(opt, name), getattr(opt.inner_optimizer, name))
        setattr(opt, name, value)
        self.assertEqual(getattr(opt.inner_optimizer, name), value)
        self.assertEqual(getattr(opt, name), value)

    @keras_homes.each()
    def test_what_the_inner_optimizer_lacks(self, home):
        if home.kind == "keras3":
            self.skipTest("another test's")
        opt = mixed_precision.LossScaleOptimizer(home.SGD(1.0))
        lacks = "use_ema" if home.kind == "v2" else "beta_1"
        self.assertFalse(hasattr(opt, lacks))
        with self.assertRaises(AttributeError):
            getattr(opt, lacks)

    @keras_homes.each()
    def test_variables_are_the_inner_optimizers(self, home):
        if home.kind == "keras3":
            self.skipTest("Keras 3's own class has its own as well")
        opts = [mixed_precision.LossScaleOptimizer(home.SGD(1.0, momentum=0.5))]
        fails = VERSION < (2, 0)  # Where Keras' own class raises an AttributeError.
        if not (fails or (VERSION < (2, 11) and home.kind == "current")):  # That one has none.
            opts.append(beside.own(home)(home.SGD(1.0, momentum=0.5)))
        counts = []
        for opt in opts:
            step(opt, tf.Variable([0.0, 0.0]))
            found = home.variables(opt)
            inner = home.variables(opt.inner_optimizer if opt is opts[0] else opt._optimizer)
            self.assertEqual([id(each) for each in found], [id(each) for each in inner])
            counts.append(len(found))
            if home.kind == "v2":
                self.assertEqual([id(each) for each in opt.weights], [id(each) for each in inner])
                self.assertAllEqual(opt.get_weights()[1], [3.0 * -1, 4.0 * -1])
                self.assertEqual(opt.get_slot_names(), ["momentum"])
                opt.set_weights([np.int64(5), np.float32([1.0, 2.0])])
                self.assertEqual(int(opt.iterations), 5)
                with self.assertRaises(ValueError):
                    opt.set_weights([np.int64(5)])
        self.assertLen(set(counts), 1)

    @keras_homes.each()
    def test_weights_of_before_hold_the_loss_scale_too(self, home):
        if home.kind == "keras3":
            self.skipTest("they still do")
        opt = mixed_precision.LossScaleOptimizer(home.SGD(1.0))
        step(opt, tf.Variable([0.0, 0.0]))
        inner = [home.numpy(variable) for variable in home.variables(opt)]
        opt.set_weights([*inner, 64.0, 7])
        self.assertEqual(float(opt.loss_scale), 64.0)
        self.assertEqual(int(opt.dynamic_counter), 7)


class WrappedTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_types_of_errors(self, home):
        if home.kind == "keras3" or VERSION < (2, 4):
            self.skipTest("another test's, or a class that refuses neither")
        for wrap in (mixed_precision.LossScaleOptimizer, beside.own(home)):
            inner = home.SGD(1.0)
            outer = wrap(inner)
            with self.assertRaises(TypeError):
                mixed_precision.LossScaleOptimizer(outer)
            with self.assertRaises(ValueError):
                if VERSION >= (2, 5) or wrap is mixed_precision.LossScaleOptimizer:
                    mixed_precision.LossScaleOptimizer(inner)
                else:
                    raise ValueError("TensorFlow 2.4's own leaves no mark")


if __name__ == "__main__":
    absltest.main()
