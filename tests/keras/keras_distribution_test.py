"""Keras optimizers on several replicas: a NaN on any of them makes all of them skip that step.

Two replicas share each batch: the first gets its first half. After each step every copy of weights,
slots, counters and loss scale is looked at, and all have to be equal.
"""

import functools

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import crossed, keras_homes, replicas
from tf_lossscale_compat import ExponentialUpdateLossScaleManager
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer, experimental

VERSION = keras_homes.VERSION
SCALE = 2.0**10
NAN = float("nan")
BATCH = 4
FINITE = np.ones([BATCH, 3], np.float32)
# Tracing a function under MirroredStrategy takes 5 seconds on TensorFlow 2.4.
SLOW = VERSION == (2, 4)


def with_nan(replica):
    """A batch with a NaN in the half of one replica of two."""
    batch = FINITE.copy()
    batch[BATCH // 2 * replica] = NAN
    return batch


class Unsupported(tf.distribute.Strategy):
    """A strategy of a kind that the package knows nothing of."""

    def __init__(self):
        extended = type(replicas.strategy("one_device").extended)
        super().__init__(extended(self, "/cpu:1"))


class Training:
    """A model that is trained a batch at a time by one of several kinds of steps."""

    def __init__(self, home, strategy, make):
        self.home, self.strategy = home, strategy
        with strategy.scope():
            self.model = home.dense_model()
            self.opt = make(home.SGD(0.125, momentum=0.5))
            if hasattr(self.opt, "build"):
                self.opt.build(self.model.trainable_variables)
            self.model.compile(self.opt, loss="mse")
        self._step = tf.function(self._custom_step)

    def fit(self, batch):
        # The strategy deals the batch out to the replicas in order.
        self.model.fit(
            batch, np.zeros([BATCH, 2]), batch_size=BATCH, epochs=1, shuffle=False, verbose=0
        )

    def unscaling_step(self, batch):
        """`get_scaled_loss`, `get_unscaled_gradients`, `apply_gradients`."""
        self._step(tf.constant(batch), False)

    def applying_step(self, batch):
        """`scale_loss`, `apply`."""
        self._step(tf.constant(batch), True)

    def _custom_step(self, batch, applies):
        weights = self.model.trainable_variables

        def replica_step():
            share = BATCH // self.strategy.num_replicas_in_sync
            own = tf.slice(batch, [share * replicas.replica_id(), 0], [share, -1])
            scale = self.opt.scale_loss if applies else self.opt.get_scaled_loss
            with tf.GradientTape() as tape:
                loss = scale(tf.reduce_sum(self.model(own) ** 2) / BATCH)
            gradients = tape.gradient(loss, weights)
            if applies:
                self.opt.apply(gradients, weights)
            else:
                gradients = self.opt.get_unscaled_gradients(gradients)
                self.opt.apply_gradients(zip(gradients, weights))

        replicas.run(self.strategy, replica_step)

    def variables(self):
        """State that a step changes but for iterations: weights and slots, scale and counters."""
        variables = self.home.variables(self.opt.inner_optimizer)
        variables = [v for v in variables if v is not self.opt.iterations]
        policy = getattr(self.opt, "_loss_scale", None)
        manager = getattr(policy, "manager", None)
        state = manager.variables() if manager else [policy.current_loss_scale, policy.good_steps]
        return [*self.model.trainable_variables, *variables], state

    def values(self):
        """The values of both groups of variables; fails if a replica holds another one."""
        groups = []
        for group in self.variables():
            groups.append([])
            for variable in group:
                copies = self.copies(variable)
                for copy in copies[1:]:
                    np.testing.assert_array_equal(copy, copies[0], variable.name)
                groups[-1].append(copies[0])
        return groups

    def iterations(self):
        (iterations,) = {int(copy) for copy in self.copies(self.opt.iterations)}
        return iterations

    def copies(self, variable):
        """The value of a variable, of Keras or not, on each replica."""
        variable = variable if callable(variable.value) else variable.value
        # Copied, because steps may write where what numpy() returns is.
        return [np.array(copy.numpy()) for copy in replicas.copies(self.strategy, variable)]


def dynamic(optimizer):
    return LossScaleOptimizer(optimizer, initial_scale=SCALE, dynamic_growth_steps=3)


def managed(optimizer):
    manager = ExponentialUpdateLossScaleManager(SCALE, 3, 1, decr_ratio=0.5)
    return experimental.LossScaleOptimizer(optimizer, manager)


@absltest.skipIf(VERSION < (2, 0), "eager Keras of TensorFlow 1.15 knows no strategies")
class SkippingTest(tf.test.TestCase, parameterized.TestCase):
    def check_steps(self, training, step, faults):
        """Takes a step with each fault, each followed by one that applies."""
        step(FINITE)  # Makes the slots of older optimizers.
        for applied, fault in enumerate(faults, 1):
            trained, policy = training.values()
            step(fault)
            now_trained, now_policy = training.values()
            self.assertAllEqual(flat(now_trained), flat(trained))
            self.assertEqual([float(v) for v in now_policy[:2]], [float(policy[0]) / 2, 0])
            step(FINITE)
            after, after_policy = training.values()
            self.assertAllEqual([float(v) for v in after_policy[:2]], [now_policy[0], 1])
            counted = applied if training.home.counts_skipped else 0
            self.assertEqual(training.iterations(), applied + 1 + counted)
            for old, new in zip(trained[:2], after[:2]):
                self.assertNotAllClose(old, new)
            self.assertTrue(np.all(np.isfinite(flat(after))))

    @parameterized.product(
        home=keras_homes.available(),
        case=(
            ("mirrored_2", "fit"),
            ("mirrored_2", "applying_step"),
            ("central_3", "unscaling_step"),
        ),
    )
    def test_nan_on_any_replica(self, home, case):
        strategy, kind = case
        if SLOW and kind == "applying_step":
            self.skipTest("few cases where tracing is slow")
        if strategy == "central_3" and VERSION < (2, 1):
            self.skipTest("Keras of TensorFlow 2.0 makes no variables there")
        if strategy == "central_3" and home.before(3, 8):
            self.skipTest("plain optimizers of this Keras cannot apply there")
        strategy = replicas.strategy(strategy)
        training = Training(home, strategy, dynamic)
        faults = [with_nan(1)] if SLOW else [with_nan(1), with_nan(0)]
        self.check_steps(training, getattr(training, kind), faults)

    @parameterized.product(home=keras_homes.available())
    def test_nan_with_a_manager(self, home):
        training = Training(home, replicas.strategy("mirrored_2"), managed)
        self.check_steps(training, training.unscaling_step, [with_nan(1)])

    # One family: those of steps of one's own are in keras_steps_test.
    @parameterized.product(home=keras_homes.available()[:1])
    def test_replicas_sum_to_what_one_device_computes(self, home):
        if home.before(3, 5):
            self.skipTest("plain optimizers of this Keras sum nothing over replicas")
        results = []
        for name in ("mirrored_2", "one_device"):
            training = Training(home, replicas.strategy(name), dynamic)
            for _ in range(2):
                training.fit(FINITE)
            trained, policy = training.values()
            results.append(flat(trained + policy))
        self.assertAllClose(*results, rtol=1e-6)


def flat(values):
    return np.concatenate([np.ravel(np.asarray(value, np.float64)) for value in values])


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
            opt = LossScaleOptimizer(home.SGD(0.5, momentum=0.5), **scale)
            made = len(home.variables(opt.inner_optimizer))
            with self.assertRaisesRegex(ValueError, "cross-replica context.*strategy.run"):
                if method == "apply":
                    opt.apply([tf.constant(1.0)], [weight])
                else:
                    opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertLen(home.variables(opt.inner_optimizer), made)
        self.assertAllEqual([c.numpy() for c in replicas.copies(strategy, weight)], [1.0, 1.0])

    @crossed.product(home=keras_homes.available(), public=(LossScaleOptimizer, experimental))
    def test_unsupported_strategy_raises_when_the_optimizer_is_made(self, home, public):
        strategy = Unsupported()
        if public is experimental:
            public = functools.partial(experimental.LossScaleOptimizer, loss_scale="dynamic")
        optimizer = home.SGD(0.5)
        with strategy.scope():
            with self.assertRaisesRegex(ValueError, "does not support Unsupported.*Mirrored"):
                public(optimizer)

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

        public = type(LossScaleOptimizer(home.SGD(0.5)))
        fixed = (False, SCALE)
        for strategy in (replicas.strategy("one_device"), Unsupported()):
            if hasattr(home.own(), "_raise_if_strategy_unsupported"):
                stable = hasattr(home.keras.mixed_precision, "LossScaleOptimizer")
                self.assertEqual(train(home.own(), strategy, *fixed[0 if stable else 1 :]), 0.75)
            self.assertEqual(train(public, strategy, *fixed), 0.75)
        self.assertEqual(train(public, replicas.strategy("one_device"), True), 0.75)
        with self.assertRaisesRegex(ValueError, "does not support Unsupported"):
            train(public, Unsupported(), True)  # Its replicas could not agree.


class Keras3OwnTest(tf.test.TestCase, parameterized.TestCase):
    @keras_homes.each(kind="keras3")
    def test_a_nan_on_the_second_replica_only(self, home):
        """Keras 3's own class lets it through; a failure here says that it is mended."""
        training = Training(home, replicas.strategy("mirrored_2"), home.own())
        training.applying_step(with_nan(1))
        weights = [training.copies(each) for each in training.model.trainable_variables]
        self.assertFalse(np.all(np.isfinite(flat(weights))))
