"""Faults that a training run would not notice: each has to be right, or to raise an error.

Without Keras; Keras' optimizers are tested elsewhere.
"""

import itertools
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, replicas, stepping
from tests.v1_optimizers import (
    BOTH,
    OPTIMIZERS,
    OwnManager,
    dynamic,
    dynamic_for,
    exponential,
    fixed_for,
    moved,
    sgd,
    state_of,
    wrapped_in,
)
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    FixedLossScale,
    FixedLossScaleManager,
)
from tf_lossscale_compat import loss_scale as loss_scale_lib

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")


class Given(tf1.train.GradientDescentOptimizer):
    """Gradient descent on gradients that it is given; applies even what others refuse."""

    def __init__(self, grads=None):
        super().__init__(1.0)
        self.grads = grads
        self.applied = []

    def compute_gradients(self, loss, var_list=None, **_):
        return list(zip(self.grads, var_list))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        self.applied.append(list(grads_and_vars))
        moved = [variable.assign_add(tf.ones_like(variable)) for _, variable in self.applied[-1]]
        return None if tf.executing_eagerly() else tf.group(*moved)


class CopiesTest(parameterized.TestCase, tf.test.TestCase):
    """State made under `strategy.scope()` and updated from outside: copies never differ."""

    @crossed.parameters(*itertools.product(("mirrored_2", "central_3"), replicas.EXECUTIONS[:2]))
    def test_values_per_replica_outside_of_the_scope_are_taken_right_or_refused(self, name, mode):
        strategy, count = replicas.strategy(name), replicas.REPLICAS[name]
        with replicas.executing(mode, strategy, inside=False) as execution:
            with strategy.scope():
                loss_scale, manager = dynamic(), exponential()

            def by_gradients(factors):
                loss_scale.update([replicas.run(strategy, replicas.own, (factors,))])

            def by_flags(factors):
                flags = (tf.math.is_finite(factors),)
                manager.update_loss_scale(replicas.run(strategy, replicas.own, flags))

            for update, state in (
                (by_gradients, [loss_scale.current_loss_scale, loss_scale.good_steps]),
                (by_flags, manager.variables()[:2]),
            ):
                call, wanted = execution.compile(update, tf.TensorSpec([count], tf.float32)), (8, 0)
                for last in (NAN, 1.0):
                    try:
                        call(np.array([1.0] * (count - 1) + [last], np.float32))
                        wanted = moved(wanted, np.isfinite(last))
                    except ValueError:  # TensorFlow's, which takes no such value there.
                        pass
                    for copies, value in zip(execution.values(state), wanted):
                        self.assertAllEqual(copies, [value] * len(copies))


class SubnormalTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("graph_v1", "eager")
    def test_the_smallest_normal_scale_is_taken_and_stays(self, mode):
        smallest = float(np.finfo(np.float32).tiny)
        with modes.entered(mode) as entered:
            loss_scale = DynamicLossScale(
                2 * smallest, 1, 2.0, min_loss_scale=smallest, max_loss_scale=4 * smallest
            )

            def update(factor):
                return stepping.then(loss_scale.update([factor])[0], loss_scale)

            call = entered.compile(update, modes.scalar())
            scales = [call(factor) for factor in (NAN, NAN, NAN, 1.0, 1.0, 1.0)]
            manager = ExponentialUpdateLossScaleManager(smallest, 2)
            scales.append(entered.value(manager.get_loss_scale()))
        expected = np.array([1, 1, 1, 2, 4, 4, 1], np.float32) * np.float32(smallest)
        self.assertAllEqual(scales, expected)


class ReciprocalTest(modes.EagerTestCase):
    """Gradients are multiplied with one over the scale, which may be zero in their dtype."""

    @crossed.parameters(*itertools.product(BOTH, modes.ALL))
    def test_steps_are_skipped_until_the_scale_has_come_down(self, optimizer, mode):
        scale = 2.0**127

        def make():
            weight = tf1.Variable(np.zeros(2, np.float32), use_resource=True)
            policy = dynamic_for(optimizer, scale)
            return OPTIMIZERS[optimizer](Given(), policy), weight, state_of(policy)[0]

        def step(state, grad):
            opt, weight, scale = state
            wrapped_in(opt).grads = [grad]
            update = opt.minimize(lambda: tf.constant(1.0), var_list=[weight])
            return stepping.then(update, lambda: [weight.read_value(), scale.read_value()])

        inputs = [(np.array([2.0, 0.0], np.float32),)] * 4
        *_, (weight, last) = stepping.run(mode, make, step, inputs)
        # To processors that take 2**-127 for zero, as these do.
        zero = (tf.constant(2.0**-126) * 0.5).numpy() == 0
        skips = int(zero or mode != "eager")
        self.assertEqual((weight[0], float(last)), (4 - skips, scale / 2**skips))

    @parameterized.parameters(*BOTH)
    def test_a_users_manager_comes_down_too(self, optimizer):
        with modes.entered("graph_v2") as entered:
            manager = OwnManager(2.0**127, 2000, 1, 2, 0.5)
            subject = manager if optimizer == "contrib" else loss_scale_lib.get(manager)
            opt = OPTIMIZERS[optimizer](Given([tf.ones([2])]), subject)
            weight = tf1.Variable([0.0, 0.0], use_resource=True)
            step = entered.compile(lambda: opt.minimize(tf.constant(1.0), var_list=[weight]))
            step()
            values = entered.value([weight, manager.get_loss_scale()])
        self.assertAllEqual(values[0], [0.0, 0.0])
        self.assertEqual(values[1], 2.0**126)

    @parameterized.parameters(*BOTH)
    def test_fixed_scales_whose_reciprocal_is_zero_are_refused(self, optimizer):
        opt = OPTIMIZERS[optimizer](Given(), fixed_for(optimizer, 2.0**126))
        name = {"contrib": "_loss_scale_manager", "mixed": "_loss_scale"}[optimizer]
        before = getattr(opt, name)
        refused = [FixedLossScaleManager(2.0**127)]
        if optimizer == "mixed":
            refused.append(FixedLossScale(2.0**127))
        for loss_scale in refused:
            with self.assertRaisesRegex(ValueError, r"at most 2\*\*126, got 1.70"):
                OPTIMIZERS[optimizer](Given(), loss_scale)
            assigned = loss_scale if optimizer == "contrib" else loss_scale_lib.get(loss_scale)
            with self.assertRaisesRegex(ValueError, r"at most 2\*\*126, got 1.70"):
                setattr(opt, name, assigned)
        self.assertIs(getattr(opt, name), before)


@unittest.skipUnless(
    hasattr(tf.debugging, "enable_check_numerics"), "this TensorFlow checks no numbers"
)
class CheckNumericsTest(modes.EagerTestCase):
    """With every number checked, healthy steps raise nothing."""

    def setUp(self):
        super().setUp()
        tf.debugging.enable_check_numerics()
        self.addCleanup(tf.debugging.disable_check_numerics)

    def results(self, mode, step, number):
        with modes.entered(mode) as entered:
            step = entered.compile(step)
            return [step() for _ in range(number)]

    @crossed.product(optimizer=BOTH, mode=modes.IMMEDIATE[:2])
    def test_optimizers(self, optimizer, mode):
        weight = tf1.Variable(1.0, use_resource=True)
        opt = OPTIMIZERS[optimizer](sgd(), dynamic_for(optimizer, period=2))

        def step():
            opt.minimize(lambda: 3.0 * weight, var_list=[weight])
            return tf.identity(weight)

        self.assertEqual(self.results(mode, step, 4), [-2.0, -5.0, -8.0, -11.0])

    @crossed.product(
        make=(
            lambda: tf.fill([2**19], 3e19),  # The sum of whose squares overflows.
            lambda: tf.IndexedSlices(tf.constant([[3e38], [3e38]]), tf.constant([0, 1])),
        ),
        mode=modes.IMMEDIATE[:2],
    )
    def test_tested_in_one_pass(self, make, mode):
        policy = dynamic()
        self.assertEqual(self.results(mode, lambda: policy.update([make()])[1], 3), [True] * 3)
        self.assertEqual(float(policy), 16.0)
