"""`enabled=False` leaves v1 optimizers to themselves; Keras wrappers: keras_classes_test."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic_for, loss_of, state_of

tf1 = tf.compat.v1


def make(which, **kwargs):
    policy = dynamic_for(which, 8.0, 1)
    return OPTIMIZERS[which](momentum(), policy, **kwargs), policy


def momentum():
    return tf1.train.MomentumOptimizer(0.5, 0.5)


class V1Test(parameterized.TestCase):
    @crossed.product(
        which=BOTH, mode_name=(*modes.GRAPH, "eager", "function"), minimizes=(False, True)
    )
    def test_steps_are_those_of_the_wrapped_optimizer(self, which, mode_name, minimizes):
        with modes.entered(mode_name) as mode:
            wrapped, policy = make(which, enabled=False)
            weights = [tf1.Variable([[1.0], [2.0]]) for _ in range(2)]
            for opt, weight in zip((wrapped, momentum()), weights):
                self.steps(mode, opt, weight, minimizes)
            got, wanted = mode.value(weights)
            np.testing.assert_array_equal(got, wanted)
            self.assertTrue(np.isnan(got).any())
            self.assertEqual(mode.value(state_of(policy)[0]), 8.0)

    def steps(self, mode, opt, weight, minimizes):
        def step(row, factor):
            loss = loss_of(lambda: factor * tf.reduce_sum(tf.gather(weight, [row, row]) ** 2))
            if minimizes:
                return opt.minimize(loss, var_list=[weight])
            pairs = opt.compute_gradients(loss, var_list=[weight])
            self.assertIsInstance(pairs[0][0], tf.IndexedSlices)
            return opt.apply_gradients(pairs)

        step = mode.compile(step, modes.scalar(tf.int32), modes.scalar())
        # Momentum leaves rows alone that a sparse gradient has none for.
        for row, factor in ((0, 1.0), (1, 0.5), (1, np.nan)):
            step(row, factor)

    @parameterized.parameters(*BOTH)
    def test_the_loss_scale_is_one_and_what_was_given_is_free_for_another(self, which):
        with modes.eager_mode():
            opt, given = make(which, enabled=False)
            policy = opt._loss_scale_manager if which == "contrib" else opt._loss_scale
            scale = policy.get_loss_scale() if which == "contrib" else policy()
            self.assertEqual(float(scale), 1.0)
            OPTIMIZERS[which](momentum(), given)

    @parameterized.parameters(*BOTH)
    def test_the_loss_scale_stays(self, which):
        with modes.eager_mode():
            opt, policy = make(which, enabled=False)
            name = "_loss_scale_manager" if which == "contrib" else "_loss_scale"
            setattr(opt, name, getattr(opt, name))
            with self.assertRaisesRegex(ValueError, "made with enabled=False is 1 and cannot"):
                setattr(opt, name, policy)

    def test_a_loss_scale_that_is_none(self):
        with modes.eager_mode():
            opt = OPTIMIZERS["mixed"](momentum(), None, enabled=False)
            self.assertEqual(float(opt._loss_scale()), 1.0)

    def test_no_bool(self):
        for which in BOTH:
            with modes.eager_mode(), self.assertRaisesRegex(TypeError, "must be a bool, got 0"):
                make(which, enabled=0)
