"""`enabled=False` leaves v1 optimizers to themselves; Keras wrappers: keras_classes_test."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_lossscale_compat
from tests import modes
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1


def make_contrib(opt, **kwargs):
    policy = contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1)
    return contrib.LossScaleOptimizer(opt, policy, **kwargs), policy.variables()[0]


def make_mixed(opt, **kwargs):
    policy = experimental.DynamicLossScale(8.0, 1)
    optimizer = experimental.MixedPrecisionLossScaleOptimizer(opt, policy, **kwargs)
    return optimizer, policy._current_loss_scale


MAKERS = {"contrib": make_contrib, "mixed": make_mixed}


def momentum():
    return tf1.train.MomentumOptimizer(0.5, 0.5)


class V1Test(parameterized.TestCase):
    @parameterized.product(make=sorted(MAKERS), mode_name=(*modes.GRAPH, "eager", "function"))
    def test_steps_are_those_of_the_wrapped_optimizer(self, make, mode_name):
        with modes.entered(mode_name) as mode:
            weights, state = [], []
            for wrapped in (True, False):
                opt = momentum()
                if wrapped:
                    opt, scale = MAKERS[make](opt, enabled=False)
                    state = [scale]
                weights.append(tf1.Variable([[1.0], [2.0]]))
                self.steps(mode, opt, weights[-1])
            got, wanted = mode.value(weights)
            np.testing.assert_array_equal(got, wanted)
            self.assertTrue(np.isnan(got).any())
            self.assertEqual(mode.value(state), [8.0])

    def steps(self, mode, opt, weight):
        def step(factor):
            def loss():
                rows = tf.gather(weight, [0, 0, 1])
                return tf.reduce_sum(rows * rows) * factor

            pairs = opt.compute_gradients(
                loss if tf.executing_eagerly() or mode.name in modes.IMMEDIATE else loss(),
                var_list=[weight],
            )
            self.assertIsInstance(pairs[0][0], tf.IndexedSlices)
            return opt.apply_gradients(pairs)

        step = mode.compile(step, modes.scalar())
        for factor in (1.0, 0.5, np.nan):
            step(factor)

    @parameterized.product(make=sorted(MAKERS), mode_name=(*modes.GRAPH, "eager", "function"))
    def test_minimize_is_that_of_the_wrapped_optimizer(self, make, mode_name):
        with modes.entered(mode_name) as mode:
            opt, _ = MAKERS[make](momentum(), enabled=False)
            weights = [tf1.Variable([[1.0], [2.0]]) for _ in range(2)]
            for each, weight in zip((opt, momentum()), weights):
                self.minimize(mode, each, weight)
            got, wanted = mode.value(weights)
            np.testing.assert_array_equal(got, wanted)

    def minimize(self, mode, opt, weight):
        def step(row):
            def loss():
                return tf.reduce_sum(tf.gather(weight, [row]) ** 2)

            graph = mode.name in modes.GRAPH
            return opt.minimize(loss() if graph else loss, var_list=[weight])

        step = mode.compile(step, modes.scalar(tf.int32))
        for row in (0, 1, 1):  # Momentum leaves rows alone that a sparse gradient has none for.
            step(row)

    @parameterized.parameters(*MAKERS)
    def test_the_loss_scale_is_one(self, make):
        with modes.eager_mode():
            opt, _ = MAKERS[make](momentum(), enabled=False)
            policy = opt._loss_scale_manager if make == "contrib" else opt._loss_scale
            scale = policy.get_loss_scale() if make == "contrib" else policy()
            self.assertEqual(float(scale), 1.0)

    @parameterized.parameters(*MAKERS)
    def test_what_was_given_is_free_for_another(self, make):
        with modes.eager_mode():
            loss_scale = experimental.DynamicLossScale(8.0)
            cls = {
                "contrib": contrib.LossScaleOptimizer,
                "mixed": experimental.MixedPrecisionLossScaleOptimizer,
            }[make]
            cls(momentum(), loss_scale, enabled=False)
            tf_lossscale_compat.apply_if_finite(
                loss_scale, [(momentum(), [(tf.constant(1.0), tf.Variable(1.0))])]
            )

    @parameterized.parameters(*MAKERS)
    def test_no_bool(self, make):
        with modes.eager_mode(), self.assertRaisesRegex(TypeError, "enabled must be a bool, got 0"):
            MAKERS[make](momentum(), enabled=0)


class TogetherTest(parameterized.TestCase):
    def test_all_are_applied_and_nothing_moves(self):
        with modes.eager_mode():
            loss_scale = experimental.DynamicLossScale(8.0, 1)
            one, other = tf.Variable(1.0), tf.Variable(1.0)
            sgd = tf1.train.GradientDescentOptimizer(1.0)
            pairs = [(sgd, [(tf.constant(1.0), one)]), (sgd, [(tf.constant(np.nan), other)])]
            tf_lossscale_compat.apply_if_finite(loss_scale, pairs, enabled=False)
            self.assertEqual((one.numpy(), float(loss_scale)), (0.0, 8.0))
            self.assertTrue(np.isnan(other.numpy()))
            tf_lossscale_compat.apply_if_finite(loss_scale, pairs)
            self.assertEqual((one.numpy(), float(loss_scale)), (0.0, 4.0))
            with self.assertRaisesRegex(TypeError, "enabled must be a bool, got None"):
                tf_lossscale_compat.apply_if_finite(loss_scale, pairs, enabled=None)


if __name__ == "__main__":
    absltest.main()
