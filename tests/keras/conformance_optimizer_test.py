"""Requirements of Keras' own tests for its loss-scale optimizers, asked of this package's.

One test for each thing they ask that no other file here does; UPSTREAM.md has the whole list.
"""

import os
import tempfile

import tensorflow as tf
from absl.testing import absltest

from tests import keras_homes, modes, replicas
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision

VERSION = keras_homes.VERSION
Optimizer = mixed_precision.LossScaleOptimizer
EXECUTIONS = ("eager", "function")
# A config that TensorFlow 2.3 wrote, but for its inner optimizer and loss scale.
SGD_OF_2_3 = {
    "class_name": "SGD",
    "config": {
        "name": "SGD",
        "learning_rate": 2.0,
        "momentum": 0.5,
        "decay": 0.0,
        "nesterov": False,
    },
}


def minimize(opt, home, loss, variable, execution="eager"):
    """One step down the gradient of `loss`, a function of the variable's value."""

    def step():
        opt.minimize(lambda: loss(tf.convert_to_tensor(variable)), [variable])

    (tf.function(step, autograph=False) if execution == "function" else step)()


class StepTest(modes.EagerTestCase):
    @keras_homes.each(EXECUTIONS)
    def test_a_float16_loss_of_a_float32_variable(self, home, execution):
        weight = home.variable(5.0)
        opt = Optimizer(home.SGD(2.0), initial_scale=2, dynamic_growth_steps=1)
        minimize(opt, home, lambda value: tf.cast(value, "float16"), weight, execution)
        self.assertEqual(number(weight), 3.0)
        self.assertEqual(number(opt.loss_scale), 4.0)

    @keras_homes.each(EXECUTIONS)
    def test_slots_gather_unscaled_gradients(self, home, execution):
        weight = home.variable([1.0, 2.0])
        opt = Optimizer(home.SGD(1.0, momentum=1.0), initial_scale=2, dynamic_growth_steps=1)
        for expected, scale in (([0.0, 1.0], 4.0), ([-2.0, -1.0], 8.0)):
            minimize(opt, home, lambda value: value, weight, execution)
            self.assertAllEqual(home.numpy(weight), expected)
            self.assertEqual(number(opt.loss_scale), scale)

    @keras_homes.each(kind="v2")
    def test_slots_are_found_by_name(self, home):
        weight = home.variable([1.0, 2.0])
        opt = Optimizer(home.SGD(1.0, momentum=0.5), initial_scale=2)
        minimize(opt, home, lambda value: value, weight)
        self.assertEqual(opt.get_slot_names(), ["momentum"])
        self.assertAllEqual(home.numpy(opt.get_slot(weight, "momentum")), [-1.0, -1.0])

    @keras_homes.each(("clipnorm", "clipvalue", "global_clipnorm"))
    def test_clipping_changed_between_steps(self, home, name):
        if home.kind == "keras3":
            self.skipTest("Keras 3's own class clips by itself, and not what the inner one applies")
        if VERSION < (2, 4):
            self.skipTest("this Keras clips where it computes gradients, before they are tested")
        try:
            inner = home.SGD(2.0, **{name: 2.0})
        except (TypeError, ValueError):
            self.skipTest(f"this Keras has no {name}")
        weight = home.variable(5.0)
        opt = Optimizer(inner, initial_scale=2, dynamic_growth_steps=1)
        self.assertEqual(getattr(opt, name), 2.0)
        minimize(opt, home, lambda value: value * 4, weight)
        self.assertEqual((number(weight), number(opt.loss_scale)), (1.0, 4.0))
        setattr(opt, name, 3.0)
        minimize(opt, home, lambda value: value * 4, weight)
        self.assertEqual((number(weight), number(opt.loss_scale)), (-5.0, 8.0))
        # What is not finite is skipped, not clipped.
        minimize(opt, home, lambda value: value * float("inf"), weight)
        self.assertEqual((number(weight), number(opt.loss_scale)), (-5.0, 4.0))

    @keras_homes.each(("default", "mirrored_2"))
    def test_the_inner_optimizer_is_given_tensors(self, home, strategy):
        if strategy != "default" and VERSION < (2, 1):
            self.skipTest("Keras on several replicas is tested from TensorFlow 2.1 on")
        seen = []
        name = "apply" if home.kind == "keras3" else "apply_gradients"

        def given(self, gradients, *args, **kwargs):
            gradients = list(gradients)
            seen.extend(g if home.kind == "keras3" else g[0] for g in gradients)
            return getattr(home.SGD, name)(self, gradients, *args, **kwargs)

        strategy = replicas.strategy(strategy)
        with strategy.scope():
            weight = home.variable(5.0)
            opt = Optimizer(type("Seeing", (home.SGD,), {name: given})(1.0), False, 4.0)
            if home.kind != "v2":
                opt.build([weight])

        @tf.function(autograph=False)
        def step():
            replicas.run(strategy, lambda: opt.apply_gradients([(tf.constant(0.5), weight)]))

        step()
        self.assertNotEmpty(seen)
        for gradient in seen:
            self.assertIsInstance(gradient, tf.Tensor)


class FaceTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_kinds_of_numbers(self, home):
        opt = Optimizer(home.SGD(1.0), initial_scale=2, dynamic_growth_steps=3.0)
        self.assertIsInstance(opt.initial_scale, float)
        self.assertIsInstance(opt.dynamic_growth_steps, int)
        fixed = Optimizer(home.SGD(1.0), dynamic=False, initial_scale=2)
        self.assertIsInstance(fixed.initial_scale, float)
        self.assertIsInstance(fixed.loss_scale, tf.Tensor)

    @keras_homes.each(kind="v2")
    def test_iterations_are_the_inner_optimizers(self, home):
        inner = home.SGD(1.0)
        opt = Optimizer(inner)
        opt.iterations = 7
        self.assertEqual((opt.iterations, inner.iterations), (7, 7))

    @keras_homes.each(kind="v2")
    def test_hyperparameters_are_the_inner_optimizers(self, home):
        if VERSION < (2, 4):
            self.skipTest("the older class hands on the learning rate alone")
        inner = home.Adam(1.0, beta_1=0.5)
        opt = Optimizer(inner)
        self.assertIsInstance(opt.beta_1, tf.Variable)
        self.assertEqual(number(opt.beta_1), 0.5)
        opt.beta_1 = 0.25
        self.assertEqual(number(inner.beta_1), 0.25)
        inner.beta_1 = 0.75
        self.assertEqual(number(opt.beta_1), 0.75)
        self.assertIs(opt.beta_1, inner.beta_1)
        opt.lr = 2.0
        self.assertEqual(number(inner.learning_rate), 2.0)
        for name in ("lr", "learning_rate"):
            self.assertIs(getattr(opt, name), inner.learning_rate)

    @keras_homes.each(kind="current")
    def test_a_variable_becomes_the_inner_optimizers_learning_rate(self, home):
        inner = home.Adam(1.0)
        opt = Optimizer(inner)
        opt.learning_rate = tf.Variable(0.125)
        self.assertIs(opt.learning_rate, inner.learning_rate)
        self.assertEqual(number(inner.learning_rate), 0.125)

    @keras_homes.each(kind="v2")
    def test_a_hyperparameter_named_like_an_attribute_stays_inside(self, home):
        class LossScaled(home.SGD):
            def __init__(self):
                super().__init__()
                self._set_hyper("loss_scale", 123.0)

        opt = Optimizer(LossScaled())
        self.assertEqual(number(opt.loss_scale), 2.0**15)
        with self.assertRaises(AttributeError):
            opt.loss_scale = 2.0

    @keras_homes.each()
    def test_other_attributes_are_not_the_inner_optimizers(self, home):
        opt = Optimizer(home.SGD(1.0))
        self.assertIs(opt.inner_optimizer.nesterov, False)
        with self.assertRaisesRegex(AttributeError, "has no attribute 'nesterov'"):
            opt.nesterov  # noqa: B018 (it raises)

    @keras_homes.each()
    def test_dir(self, home):
        names = dir(Optimizer(home.SGD(1.0)))
        for name in ("learning_rate", "lr", "loss_scale", "get_scaled_loss", "minimize"):
            self.assertIn(name, names)
        self.assertNotIn("nesterov", names)

    @keras_homes.each()
    def test_the_learning_rate_of_an_optimizer_within_the_inner_one(self, home):
        class Outer(home.Optimizer):
            def __init__(self):
                super().__init__(name="outer", **self.of_keras_3)
                self.inner = home.SGD(1.0)

            of_keras_3 = {"learning_rate": 0.5} if home.kind == "keras3" else {}

            @property
            def learning_rate(self):
                return self.inner.learning_rate

            @learning_rate.setter
            def learning_rate(self, value):
                self.inner.learning_rate = value

            def get_config(self):
                return {}

        opt = Optimizer(Outer())
        self.assertEqual(number(opt.learning_rate), 1.0)
        opt.learning_rate = 2.0
        self.assertEqual(number(opt.learning_rate), 2.0)
        self.assertEqual(number(opt.inner_optimizer.inner.learning_rate), 2.0)


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
            opt = Optimizer(inner, initial_scale=1.0, dynamic_growth_steps=2) if wrapped else inner
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
    def check(self, opt, home, dynamic):
        self.assertEqual(number(opt.learning_rate), 2.0)
        self.assertEqual(number(opt.inner_optimizer.learning_rate), 2.0)
        self.assertEqual(home.numpy(opt.inner_optimizer.momentum), 0.5)
        self.assertIs(opt.dynamic, dynamic)
        self.assertEqual((opt.initial_scale, number(opt.loss_scale)), (2.0, 2.0))
        self.assertEqual(opt.dynamic_growth_steps, 3 if dynamic else None)
        weight = home.variable(5.0)
        minimize(opt, home, lambda value: value, weight)
        self.assertEqual(number(weight), 3.0)
        if dynamic:
            self.assertEqual(number(opt.dynamic_counter), 1)
        else:
            self.assertIsNone(opt.dynamic_counter)

    def make(self, home, dynamic, cls=None):
        inner = (cls or home.SGD)(2.0, momentum=0.5)
        return Optimizer(inner, dynamic, 2, 3 if dynamic else None)

    @keras_homes.each((True, False))
    def test_an_optimizer_of_its_config(self, home, dynamic):
        opt = self.make(home, dynamic)
        again = type(opt).from_config(opt.get_config())
        self.assertIs(type(again), type(opt))
        self.check(again, home, dynamic)

    @keras_homes.each((True, False))
    def test_an_optimizer_through_that_keras_functions(self, home, dynamic):
        opt = self.make(home, dynamic)
        functions = home.keras.optimizers
        again = functions.deserialize(functions.serialize(opt))
        self.assertIs(type(again), type(opt))
        self.check(again, home, dynamic)

    @keras_homes.each()
    def test_an_inner_optimizer_of_the_users(self, home):
        class Own(home.SGD):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.own = 123

        opt = self.make(home, True, Own)
        functions = home.keras.optimizers
        config = functions.serialize(opt)
        again = functions.deserialize(config, custom_objects={"Own": Own})
        self.assertIsInstance(again.inner_optimizer, Own)
        self.assertEqual(again.inner_optimizer.own, 123)
        self.check(again, home, True)


if __name__ == "__main__":
    absltest.main()
