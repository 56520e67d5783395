"""Keras optimizers on several replicas: a NaN on any of them makes all of them skip that step."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import crossed, keras_homes, modes, replicas
from tests.keras_homes import Older, Stable

VERSION = keras_homes.VERSION
SCALE = 2.0**10
NAN = float("nan")


class Unsupported(tf.distribute.Strategy):
    """A strategy of a kind that the package knows nothing of."""

    def __init__(self):
        extended = type(replicas.strategy("one_device").extended)
        super().__init__(extended(self, "/cpu:1"))


@absltest.skipIf(VERSION < (2, 0), "eager Keras of TensorFlow 1.15 knows no strategies")
class SkippingTest(modes.EagerTestCase):
    @keras_homes.each(("mirrored_2", "central_3"))
    def test_nan_on_any_replica(self, home, name):
        if name == "central_3" and (VERSION < (2, 1) or home.before(3, 8)):
            self.skipTest("plain optimizers of this Keras cannot apply there")
        strategy = replicas.strategy(name)
        with strategy.scope():
            weight = home.variable(1.0)
            opt = Stable(home.SGD(0.125, momentum=0.5), initial_scale=SCALE)
            if hasattr(opt, "build"):
                opt.build([weight])

        @tf.function(autograph=False)
        def step(gradients):
            def in_replica():
                opt.apply_gradients([(replicas.own(gradients), weight)], scaled=False)

            replicas.run(strategy, in_replica)

        def values():
            variables = [weight, *home.variables(opt.inner_optimizer), opt.dynamic_scale]
            found = []
            for variable in variables:
                if variable is not opt.iterations:
                    variable = variable if callable(variable.value) else variable.value
                    copies = [each.numpy() for each in replicas.copies(strategy, variable)]
                    self.assertAllEqual(copies, copies[:1] * len(copies))
                    found.append(float(copies[0]))
            return found

        count = strategy.num_replicas_in_sync
        ones = np.ones([count], np.float32)
        step(tf.constant(ones))
        for replica in range(1, count + 1):
            before, bad = values(), ones.copy()
            bad[replica % count] = NAN
            step(tf.constant(bad))
            self.assertEqual(values(), [*before[:-1], before[-1] / 2])
        step(tf.constant(ones))
        self.assertNotEqual(values()[0], before[0])
        self.assertTrue(np.all(np.isfinite(values())))
        self.assertEqual(
            keras_homes.number(opt.iterations), 2 + (count if home.counts_skipped else 0)
        )
        if home.before(3, 5):
            self.assertIn("sums no gradients over replicas", self.warnings()[0])
        else:
            self.assertEmpty(self.warnings())


@absltest.skipIf(VERSION < (2, 0), "eager Keras of TensorFlow 1.15 knows no strategies")
class ContextTest(tf.test.TestCase, parameterized.TestCase):
    @crossed.product(
        home=keras_homes.available(), method=("apply", "apply_gradients"), fixed=(False, True)
    )
    def test_cross_replica_context_raises_a_value_error(self, home, method, fixed):
        strategy = replicas.strategy("mirrored_2")
        with strategy.scope():
            weight = tf.Variable(1.0)
            scale = {"dynamic": False, "initial_scale": SCALE} if fixed else {}
            opt = Stable(home.SGD(0.5, momentum=0.5), **scale)
            made = len(home.variables(opt.inner_optimizer))
            message = rf"LossScaleOptimizer\w*\.{method} was called in a cross-replica context"
            with self.assertRaisesRegex(ValueError, f"{message}.*strategy.run"):
                if method == "apply":
                    opt.apply([tf.constant(1.0)], [weight])
                else:
                    opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertLen(home.variables(opt.inner_optimizer), made)
        self.assertAllEqual([c.numpy() for c in replicas.copies(strategy, weight)], [1.0, 1.0])

    @keras_homes.each(("mirrored_2", "one_device", "central_3"), ("Adam", "SGD"), kind="keras3")
    def test_an_optimizer_that_makes_its_variables_in_a_function(self, home, name, inner):
        if name == "central_3" and home.before(3, 8):
            self.skipTest("plain optimizers of this Keras cannot apply there")
        strategy = replicas.strategy(name)
        with strategy.scope():
            weight = home.variable(1.0)
            opt = Stable(getattr(home, inner)(0.5), initial_scale=SCALE)

        @tf.function(autograph=False)
        def step():
            replicas.run(strategy, lambda: opt.apply([tf.constant(SCALE)], [weight]))

        if name == "mirrored_2" and inner == "Adam" and not home.before(3, 5):
            with self.assertRaisesRegex(ValueError, r"Call optimizer\.build\(.*strategy.scope"):
                step()
            self.assertFalse(opt.built)
            self.assertEqual(keras_homes.number(opt.iterations), 0)
            with strategy.scope():
                opt.build([weight])
        step()
        self.assertLen(opt.inner_optimizer.variables, 4 if inner == "Adam" else 2)
        self.assertEqual(keras_homes.number(opt.iterations), 1)
        self.assertLess(keras_homes.number(weight), 1.0)

    @keras_homes.each(
        ("skip_gradients_aggregation", "experimental_aggregate_gradients", None), kind="keras3"
    )
    def test_gradients_that_a_step_summed_by_itself(self, home, word):
        """With the words of TensorFlow 2.2 to 2.15 that say so; Keras 3 sums them once more."""
        opt, weight = Stable(home.SGD(0.5)), home.variable(1.0)
        pairs = [(tf.constant(1.0), weight)]
        sums = "sums no gradients .*keep" if home.before(3, 5) else "always sums .*delete"
        for value in (True, False):
            args, kwargs = ([], {word: value}) if word else ([value], {})
            message = rf"got also {word or value}\. .*Keras 3\.\d+\.\S+ {sums} your own sum"
            with self.assertRaisesRegex(TypeError, message):
                opt.apply_gradients(pairs, *args, **kwargs)
        with self.assertRaisesRegex(TypeError, r"Write apply_gradients\(zip\(grads, variables"):
            opt.apply_gradients([tf.constant(1.0)], [weight])
        self.assertEqual(keras_homes.number(weight), 1.0)
        self.assertFalse(opt.built)

    @crossed.product(home=keras_homes.available(), public=(Stable, Older))
    def test_unsupported_strategy_raises_when_the_optimizer_is_made(self, home, public):
        optimizer = home.SGD(0.5)
        with Unsupported().scope():
            with self.assertRaisesRegex(ValueError, "does not support Unsupported.*Mirrored"):
                public(optimizer, loss_scale="dynamic")

    @keras_homes.each(kind=keras_homes.BEFORE_3, since=(2, 0))
    def test_a_subclass_switches_the_check_of_the_strategy_off(self, home):
        """As Graphcore's BERT does, for a fixed scale and a strategy of its own."""

        def train(base, strategy, *scale):
            class Own(base):
                def _raise_if_strategy_unsupported(self):
                    pass

            with strategy.scope():
                weight = tf.Variable(1.0)
                opt = Own(home.SGD(0.5), *scale)
            gradient = tf.constant(0.5)
            step = tf.function(lambda: [opt.apply_gradients([(gradient, weight)])][1:])
            replicas.run(strategy, step)
            return float(weight.numpy())

        public = type(Stable(home.SGD(0.5)))
        fixed = (False, SCALE)
        for strategy in (replicas.strategy("one_device"), Unsupported()):
            if hasattr(home.own(), "_raise_if_strategy_unsupported"):
                stable = hasattr(home.keras.mixed_precision, "LossScaleOptimizer")
                self.assertEqual(train(home.own(), strategy, *fixed[0 if stable else 1 :]), 0.75)
            self.assertEqual(train(public, strategy, *fixed), 0.75)
        self.assertEqual(train(public, replicas.strategy("one_device"), True), 0.75)
        with self.assertRaisesRegex(ValueError, "does not support Unsupported"):
            train(public, Unsupported(), True)  # Its replicas could not agree.
