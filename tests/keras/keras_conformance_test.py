"""Requirements of Keras' own tests for loss-scale optimizers and models, asked of this package's.

One test for each thing they ask that no other file here does; UPSTREAM.md has the whole list.
"""

import os
import tempfile

import tensorflow as tf
from absl.testing import absltest

from tests import keras_homes, modes
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision

VERSION = keras_homes.VERSION
Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer


def minimize(opt, loss, variable):
    """One step down the gradient of `loss`, a function of the variable's value."""
    opt.minimize(lambda: loss(tf.convert_to_tensor(variable)), [variable])


class StepTest(modes.EagerTestCase):
    @keras_homes.each(kind="v2")
    def test_slots_are_found_by_name(self, home):
        weight = home.variable([1.0, 2.0])
        opt = Stable(home.SGD(1.0, momentum=0.5), initial_scale=2)
        minimize(opt, lambda value: value, weight)
        self.assertEqual(opt.get_slot_names(), ["momentum"])
        self.assertAllEqual(home.numpy(opt.get_slot(weight, "momentum")), [-1.0, -1.0])
        added = opt.add_slot(weight, "more", "ones")
        self.assertIs(opt.inner_optimizer.get_slot(weight, "more"), added)


class FaceTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_iterations_are_the_inner_optimizers(self, home):
        inner = home.SGD(1.0)
        opt = Stable(inner)
        self.assertIs(opt.iterations, inner.iterations)
        if home.kind == "v2":
            opt = Stable(home.SGD(1.0))
            opt.iterations = 7
            self.assertEqual((opt.iterations, opt.inner_optimizer.iterations), (7, 7))

    @keras_homes.each(kind="v2")
    def test_a_hyperparameter_named_like_an_attribute_stays_inside(self, home):
        class LossScaled(home.SGD):
            def __init__(self):
                super().__init__()
                self._set_hyper("loss_scale", 123.0)

        opt = Stable(LossScaled())
        self.assertEqual(number(opt.loss_scale), 2.0**15)
        with self.assertRaises(AttributeError):
            opt.loss_scale = 2.0

    @keras_homes.each()
    def test_other_attributes_are_not_the_inner_optimizers(self, home):
        opt = Stable(home.SGD(1.0))
        self.assertIs(opt.inner_optimizer.nesterov, False)
        # Others that neither has.
        lacks = {"v2": ["use_ema"], "current": ["beta_1"], "keras3": []}[home.kind]
        for name in ("nesterov", *lacks):
            with self.assertRaisesRegex(AttributeError, f"has no attribute '{name}'"):
                getattr(opt, name)

    @keras_homes.each()
    def test_dir(self, home):
        names = dir(Stable(home.SGD(1.0)))
        for name in ("learning_rate", "lr", "loss_scale", "get_scaled_loss", "minimize"):
            self.assertIn(name, names)
        self.assertNotIn("nesterov", names)

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_variables_are_the_inner_optimizers(self, home):
        opts = [Stable(home.SGD(1.0, momentum=0.5))]
        fails = VERSION < (2, 0)  # Where Keras' own class raises an AttributeError.
        if not (fails or (VERSION < (2, 11) and home.kind == "current")):  # That one has none.
            opts.append(home.wrapped_in_own(home.SGD(1.0, momentum=0.5)))
        counts = []
        for opt in opts:
            opt.apply_gradients([(tf.constant([3.0, 4.0]), tf.Variable([0.0, 0.0]))])
            found = home.variables(opt)
            inner = home.variables(opt.inner_optimizer if opt is opts[0] else opt._optimizer)
            self.assertEqual([id(each) for each in found], [id(each) for each in inner])
            counts.append(len(found))
            if home.kind == "v2":
                self.assertEqual([id(each) for each in opt.weights], [id(each) for each in inner])
                self.assertAllEqual(opt.get_weights()[1], [3.0 * -1, 4.0 * -1])
        self.assertLen(set(counts), 1)


class CheckpointTest(modes.EagerTestCase):
    @keras_homes.each((True, False), (True, False))
    def test_with_and_without_the_wrapper(self, home, saves, restores):
        """Also a variable that the inner optimizer has beside its slots; twice, with slots made."""
        if saves != restores and (home.kind == "keras3" or VERSION < (2, 4)):
            self.skipTest("this Keras' own class keeps an inner optimizer in another place")

        class Counting(home.SGD):
            def __init__(self):
                super().__init__(1.0, momentum=1.0)
                self.own = tf.Variable(0.0)
                if hasattr(self, "_track_trackable"):
                    self._track_trackable(self.own, "own")

        def make(wrapped):
            inner, weight = Counting(), home.variable(2.0)
            if home.kind != "v2":
                inner.build([weight])
            opt = Stable(inner, initial_scale=1.0, dynamic_growth_steps=2) if wrapped else inner
            return inner, opt, weight, tf.train.Checkpoint(optimizer=opt, weight=weight)

        def step(opt, weight):
            pairs = [(tf.constant(1.0), weight)]
            opt.apply_gradients(pairs, **({} if opt is inner else {"scaled": False}))

        inner, opt, weight, checkpoint = make(saves)
        step(opt, weight)
        inner.own.assign(3.0)
        path = checkpoint.save(os.path.join(tempfile.mkdtemp(), "c"))
        inner, opt, weight, checkpoint = make(restores)
        status = checkpoint.restore(path)
        self.assertEqual((number(weight), number(opt.iterations)), (1.0, 1))
        if restores:
            self.assertEqual(number(opt.dynamic_counter), 1 if saves else 0)
        step(opt, weight)
        self.assertEqual((number(weight), number(opt.iterations)), (-1.0, 2))
        self.assertEqual(number(inner.own), 3.0)
        if saves == restores:
            status.assert_consumed()
        checkpoint.restore(path)
        step(opt, weight)
        self.assertEqual((number(weight), number(opt.iterations)), (-1.0, 2))


class ConfigTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_an_inner_optimizer_of_the_users(self, home):
        class Own(home.SGD):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.own = 123

        functions = home.keras.optimizers
        config = functions.serialize(Stable(Own(2.0, momentum=0.5), initial_scale=2))
        again = functions.deserialize(config, custom_objects={"Own": Own})
        self.assertIsInstance(again.inner_optimizer, Own)
        self.assertEqual(again.inner_optimizer.own, 123)
        weight = home.variable(5.0)
        minimize(again, lambda value: value, weight)
        self.assertEqual((number(weight), number(again.dynamic_counter)), (3.0, 1))


@absltest.skipIf(VERSION < (2, 1), "its layers cast no variables by themselves")
class MixedPrecisionModelTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_what_compile_wraps_is_an_instance(self, home):
        # Custom steps ask so before they scale the loss.
        with home.policy("mixed_float16"):
            models = [home.dense_model(), home.dense_model()]
            ours = Stable(home.SGD(1.0))
            for model, opt in zip(models, (ours, home.SGD(1.0))):
                model.compile(opt, "mse")
        self.assertIs(models[0].optimizer, ours)
        own = models[1].optimizer
        self.assertIn("LossScaleOptimizer", type(own).__name__)
        self.assertIsInstance(own, Stable)
        self.assertIsInstance(own, Older)
        self.assertNotIsInstance(own, type("Own", (keras_homes.sibling(Stable, home),), {}))
        self.assertNotIsInstance(home.SGD(1.0), Stable)
        self.assertNotIsInstance(ours, Older)
