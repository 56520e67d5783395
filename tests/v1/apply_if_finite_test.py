"""One loss scale for several optimizers: all of them apply or none, and the scale moves once."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tests import crossed, keras_homes, modes, replicas
from tests.v1_optimizers import sgd
from tf_lossscale_compat import ExponentialUpdateLossScaleManager, FixedLossScale
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train.experimental import (
    DynamicLossScale,
    LossScale,
    MixedPrecisionLossScaleOptimizer,
)

tf1 = tf.compat.v1
VALUES = ((1.0, 1.0), (np.nan, 1.0), (1.0, np.inf), (2.0, 1.0))


class Recording(LossScale):
    """Looks at gradients, and never wants the second step."""

    def __init__(self):
        self.seen = []
        self.steps = self._add_weight("steps", 0, tf.int32)

    def __call__(self):
        return 4.0

    def update(self, grads):
        self.seen.append(len(tf.nest.flatten(grads)))
        with tf.control_dependencies([self.steps.assign_add(1)]):
            return tf.no_op() if not tf.executing_eagerly() else None, self.steps < 2

    def get_config(self):
        return {}


class ApplyIfFiniteTest(modes.EagerTestCase):
    @crossed.product(
        name=("graph_v1", "graph_v2", "function", "jit"),
        case=(
            (lambda: DynamicLossScale(8.0, 100, 2.0), [8, 4, 2, 2]),
            (lambda: ExponentialUpdateLossScaleManager(8.0, 100, 1, decr_ratio=0.5), [8, 4, 2, 2]),
            (lambda: FixedLossScale(8.0), [8, 8, 8, 8]),
        ),
    )
    def test_all_apply_or_none_and_the_scale_moves_once(self, name, case):
        make, scales = case
        with modes.entered(name) as mode:
            first, second = (tf1.Variable(8.0, name=name) for name in ("first", "second"))
            policy, optimizers = make(), (sgd(), tf1.train.MomentumOptimizer(0.5, 0.5))

            def step(x, y):
                return tf_lossscale_compat.apply_if_finite(
                    policy,
                    [
                        (optimizers[0], [(x, first)]),
                        (optimizers[1], iter([(None, first), (y, second)])),
                    ],
                )

            call = mode.compile(step, modes.scalar(), modes.scalar())
            read, seen = getattr(policy, "get_loss_scale", policy), []
            for values in VALUES:
                call(*values)
                seen.append([float(value) for value in mode.value([first, second, read()])])
        weights = [[7, 7.5], [7, 7.5], [7, 7.5], [5, 6.75]]
        self.assertEqual(seen, [[*each, scale] for each, scale in zip(weights, scales)])

    def test_a_users_loss_scale_is_given_all_gradients_and_may_refuse(self):
        var, scale = tf1.Variable(8.0), Recording()
        for value in (1.0, 1.0, np.nan):
            tf_lossscale_compat.apply_if_finite(
                scale,
                [(sgd(), [(tf.constant(value), var)]), (sgd(), [(tf.constant(1.0), var)] * 2)],
            )
        self.assertEqual(scale.seen, [3, 3, 3])
        self.assertEqual(float(var.numpy()), 5.0)

    @parameterized.named_parameters(keras_homes.named())
    def test_keras_and_v1_optimizers_mixed(self, home):
        if home.kind == "keras3":
            keras_variable = home.keras.Variable(8.0)
        else:
            keras_variable = tf.Variable(8.0)
        variable = tf.Variable(8.0)
        scale = DynamicLossScale(8.0, 100, 2.0)
        optimizers = home.SGD(0.5, momentum=0.5), sgd()

        def step(x, y):
            tf_lossscale_compat.apply_if_finite(
                scale,
                [(optimizers[0], [(x, keras_variable)]), (optimizers[1], [(y, variable)])],
            )

        call = tf.function(step, autograph=False)
        for values in VALUES:
            call(*[tf.constant(value) for value in values])
        self.assertEqual(float(tf.convert_to_tensor(keras_variable).numpy()), 6.25)
        self.assertEqual(float(variable.numpy()), 6.0)
        self.assertEqual([float(scale().numpy()), int(scale.good_steps.numpy())], [2.0, 1])

    @parameterized.named_parameters(keras_homes.named())
    def test_nothing_is_made_where_no_step_can_be_taken(self, home):
        with modes.eager_mode(), replicas.strategy("mirrored_2").scope():
            scale, optimizer = DynamicLossScale(8.0), home.SGD(0.5, momentum=0.5)
            pairs = [(tf.constant(1.0), home.variable(8.0))]
            before = len(home.variables(optimizer))
            with self.assertRaisesRegex(
                ValueError, "apply_if_finite was called in a cross-replica"
            ):
                tf_lossscale_compat.apply_if_finite(scale, [(optimizer, pairs)])
            self.assertEqual(len(home.variables(optimizer)), before)

    @parameterized.named_parameters(keras_homes.named())
    def test_nothing_is_applied_where_an_optimizer_does_not_know_a_variable(self, home):
        if home.kind == "v2":
            self.skipTest("an OptimizerV2 takes any variable")
        scale, first = DynamicLossScale(8.0), tf.Variable(1.0)
        known, other = home.variable(1.0), home.variable(1.0)
        optimizer = home.SGD(0.5, momentum=0.5)
        with tf.init_scope():
            optimizer.build([known])
        grad = tf.constant(1.0)
        unbuilt = home.SGD(0.5, momentum=0.5)
        pairs = [(sgd(), [(grad, first)]), (unbuilt, [(grad, home.variable(1.0))])]
        pairs.append((optimizer, [(grad, known), (grad, other)]))
        before = len(home.variables(unbuilt))
        with self.assertRaisesRegex(ValueError, "built for other variables than"):
            tf_lossscale_compat.apply_if_finite(scale, pairs)
        self.assertEqual(len(home.variables(unbuilt)), before)
        values = [float(tf.convert_to_tensor(each).numpy()) for each in (first, known, other)]
        self.assertEqual(values, [1.0, 1.0, 1.0])
        self.assertEqual(int(scale.good_steps.numpy()), 0)
        if home.kind == "keras3":  # Its optimizers refuse those without a gradient, too.
            return
        pairs[2] = (optimizer, [(grad, known), (None, other)])
        tf_lossscale_compat.apply_if_finite(scale, pairs)
        self.assertEqual(float(tf.convert_to_tensor(known).numpy()), 0.5)

    @parameterized.named_parameters(keras_homes.named())
    def test_an_optimizer_that_is_given_twice_is_built_for_all_its_variables(self, home):
        scale, optimizer = DynamicLossScale(8.0), home.SGD(0.5, momentum=0.5)
        variables = [home.variable(1.0), home.variable(1.0)]
        pairs = [(optimizer, [(tf.constant(1.0), each)]) for each in [*variables, variables[0]]]
        tf_lossscale_compat.apply_if_finite(scale, pairs)
        values = [float(tf.convert_to_tensor(each).numpy()) for each in variables]
        self.assertEqual(values, [-0.25, 0.5])
        self.assertEqual(int(scale.good_steps.numpy()), 1)

    def test_bad_arguments(self):
        var, grad = tf.Variable(1.0), tf.constant(1.0)
        scale = DynamicLossScale(8.0)
        apply = tf_lossscale_compat.apply_if_finite
        config = {"class_name": "DynamicLossScale", "config": {}}
        for bad in (8.0, "dynamic", None, config, set()):  # A dict has `update`, too.
            with self.assertRaisesRegex(TypeError, "loss_scale must be"):
                apply(bad, [(sgd(), [(grad, var)])])
        of_others = type("NPULossScaleOptimizer", (type(sgd()),), {})(1.0)  # A vendor's.
        with self.assertRaisesRegex(ValueError, "has a loss scale of its own"):
            apply(scale, [(of_others, [(grad, var)])])
        wrapped = contrib.LossScaleOptimizer(sgd(), contrib.FixedLossScaleManager(8.0))
        with self.assertRaisesRegex(ValueError, "has a loss scale of its own"):
            apply(scale, [(sgd(), [(grad, var)]), (wrapped, [(grad, var)])])
        with self.assertRaisesRegex(ValueError, "no gradient for"):
            apply(scale, [(sgd(), [(grad, var)]), (sgd(), [(None, var)])])
        with self.assertRaisesRegex(ValueError, "no optimizer"):
            apply(scale, [])
        with self.assertRaisesRegex(TypeError, "optimizers_and_gradients must hold pairs"):
            apply(scale, sgd())
        for bad in (sgd(), (sgd(), [grad], [var])):
            with self.assertRaisesRegex(TypeError, "must hold pairs .*in a pair's place"):
                apply(scale, [(sgd(), [(grad, var)]), bad])
        for bad in (None, "sgd", type(sgd())):
            with self.assertRaisesRegex(TypeError, "must hold pairs .*in an optimizer's place"):
                apply(scale, [(sgd(), [(grad, var)]), (bad, [(grad, var)])])
        self.assertEqual([float(var.numpy()), int(scale.good_steps.numpy())], [1.0, 0])

    @parameterized.named_parameters(keras_homes.named())
    def test_an_optimizer_that_no_session_can_run_is_not_built(self, home):
        if home.kind == "v2":
            self.skipTest("an OptimizerV2 makes operations")
        scale, optimizer = DynamicLossScale(8.0), home.SGD(0.5, momentum=0.5)
        variable, made = home.variable(1.0), len(home.variables(optimizer))
        with tf.Graph().as_default():
            pairs = [(optimizer, [(tf.constant(1.0), variable)])]
            with self.assertRaisesRegex(ValueError, "makes no operation for a Session"):
                tf_lossscale_compat.apply_if_finite(scale, pairs)
        self.assertLen(home.variables(optimizer), made)
        MixedPrecisionLossScaleOptimizer(sgd(), scale)  # Nothing claims it.

    @parameterized.parameters(True, False)
    def test_optimizer_without_an_operation_in_a_graph_for_a_session(self, enabled):
        optimizer = mock.Mock(spec=["apply_gradients"], **{"apply_gradients.return_value": None})
        with tf.Graph().as_default():
            pairs = [(tf.constant(1.0), tf1.Variable(1.0))]
            with self.assertRaisesRegex(ValueError, "makes no operation for a Session"):
                tf_lossscale_compat.apply_if_finite(
                    DynamicLossScale(8.0), [(optimizer, pairs)], enabled=enabled
                )
