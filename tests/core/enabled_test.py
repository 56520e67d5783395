"""`enabled=False` on v1 optimizers; steps: tests/differential, Keras: keras_classes_test."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tests import modes
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic_for
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1


def make(which, **kwargs):
    policy = dynamic_for(which, 8.0, 1)
    return OPTIMIZERS[which](momentum(), policy, **kwargs), policy


def momentum():
    return tf1.train.MomentumOptimizer(0.5, 0.5)


class V1Test(parameterized.TestCase):
    @parameterized.parameters(*BOTH)
    def test_the_loss_scale_is_one(self, which):
        with modes.eager_mode():
            opt, _ = make(which, enabled=False)
            policy = opt._loss_scale_manager if which == "contrib" else opt._loss_scale
            scale = policy.get_loss_scale() if which == "contrib" else policy()
            self.assertEqual(float(scale), 1.0)

    @parameterized.parameters(*BOTH)
    def test_what_was_given_is_free_for_another(self, which):
        with modes.eager_mode():
            _, policy = make(which, enabled=False)
            tf_lossscale_compat.apply_if_finite(
                policy, [(momentum(), [(tf.constant(1.0), tf.Variable(1.0))])]
            )

    @parameterized.parameters(*BOTH)
    def test_no_bool(self, which):
        with modes.eager_mode(), self.assertRaisesRegex(TypeError, "enabled must be a bool, got 0"):
            make(which, enabled=0)


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
