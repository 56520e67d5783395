"""Requirements of Keras' own tests for loss-scale optimizers and models, asked of this package's.

One test for each thing they ask that no other file here does; UPSTREAM.md has the whole list.
"""

import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests import keras_homes, modes, replicas
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision

VERSION = keras_homes.VERSION
Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer
EXECUTIONS = ("eager", "function")
RATE = 2.0**-14  # Taken off a float16 one it would leave 1.
BATCH = 4
ONES = np.ones([BATCH, 1], np.float32)


def minimize(opt, home, loss, variable, execution="eager"):
    """One step down the gradient of `loss`, a function of the variable's value."""

    def step():
        opt.minimize(lambda: loss(tf.convert_to_tensor(variable)), [variable])

    (tf.function(step, autograph=False) if execution == "function" else step)()


class StepTest(modes.EagerTestCase):
    @keras_homes.each(EXECUTIONS)
    def test_a_float16_loss_of_a_float32_variable(self, home, execution):
        weight = home.variable(5.0)
        opt = Stable(home.SGD(2.0), initial_scale=2, dynamic_growth_steps=1)
        minimize(opt, home, lambda value: tf.cast(value, "float16"), weight, execution)
        self.assertEqual(number(weight), 3.0)
        self.assertEqual(number(opt.loss_scale), 4.0)

    @keras_homes.each(kind="v2")
    def test_slots_are_found_by_name(self, home):
        weight = home.variable([1.0, 2.0])
        opt = Stable(home.SGD(1.0, momentum=0.5), initial_scale=2)
        minimize(opt, home, lambda value: value, weight)
        self.assertEqual(opt.get_slot_names(), ["momentum"])
        self.assertAllEqual(home.numpy(opt.get_slot(weight, "momentum")), [-1.0, -1.0])
        added = opt.add_slot(weight, "more", "ones")
        self.assertIs(opt.inner_optimizer.get_slot(weight, "more"), added)

    @keras_homes.each(("clipnorm", "clipvalue", "global_clipnorm"), kind=keras_homes.BEFORE_3)
    def test_clipping_changed_between_steps(self, home, name):
        if VERSION < (2, 4):
            self.skipTest("this Keras clips where it computes gradients, before they are tested")
        try:
            inner = home.SGD(2.0, **{name: 2.0})
        except (TypeError, ValueError):
            self.skipTest(f"this Keras has no {name}")
        weight = home.variable(5.0)
        opt = Stable(inner, initial_scale=2, dynamic_growth_steps=1)
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
            opt = Stable(type("Seeing", (home.SGD,), {name: given})(1.0), False, 4.0)
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
    def test_iterations_are_the_inner_optimizers(self, home):
        inner = home.SGD(1.0)
        opt = Stable(inner)
        self.assertIs(opt.iterations, inner.iterations)
        if home.kind == "v2":
            opt = Stable(home.SGD(1.0))
            opt.iterations = 7
            self.assertEqual((opt.iterations, opt.inner_optimizer.iterations), (7, 7))

    @keras_homes.each(kind="v2", since=(2, 4))
    def test_hyperparameters_are_the_inner_optimizers(self, home):
        inner = home.Adam(1.0, beta_1=0.5)
        opt = Stable(inner)
        self.assertIsInstance(opt.beta_1, tf.Variable)
        self.assertEqual(number(opt.beta_1), 0.5)
        opt.beta_1 = 0.25
        self.assertEqual(number(inner.beta_1), 0.25)
        inner.beta_1 = 0.75
        self.assertEqual(number(opt.beta_1), 0.75)
        self.assertIs(opt.beta_1, inner.beta_1)
        for name in ("lr", "learning_rate"):
            self.assertIs(getattr(opt, name), inner.learning_rate)

    @keras_homes.each(kind="current")
    def test_a_variable_becomes_the_inner_optimizers_learning_rate(self, home):
        inner = home.Adam(1.0)
        opt = Stable(inner)
        opt.learning_rate = tf.Variable(0.125)
        self.assertIs(opt.learning_rate, inner.learning_rate)
        self.assertEqual(number(inner.learning_rate), 0.125)

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

        opt = Stable(Outer())
        self.assertEqual(number(opt.learning_rate), 1.0)
        opt.learning_rate = 2.0
        self.assertEqual(number(opt.learning_rate), 2.0)
        self.assertEqual(number(opt.inner_optimizer.inner.learning_rate), 2.0)

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
        minimize(again, home, lambda value: value, weight)
        self.assertEqual((number(weight), number(again.dynamic_counter)), (3.0, 1))


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


@absltest.skipIf(VERSION < (2, 1), "its layers cast no variables by themselves")
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
        self.assertNotIsInstance(own, type("Own", (keras_homes.sibling(Stable, home),), {}))
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
