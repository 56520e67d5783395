"""Ratios, periods and scales that are tensors or variables, as r1.15's managers take them."""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, numpy_model, originals, stepping
from tf_lossscale_compat import DynamicLossScale, FixedLossScaleManager
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib import mixed_precision

tf1 = tf.compat.v1

FLAGS = (True, True, False, False, True, False, True, True)


def _variable(value):
    return tf1.Variable(value, trainable=False)


# What makes (initial scale, periods, ratios) of (number, int, number).
KINDS = {
    "tensors": (tf.constant, tf.constant, tf.constant),
    "variables": (float, _variable, _variable),
    "arrays": (np.array, np.array, np.array),
}


def _manager(namespace, kind):
    start, period, ratio = KINDS[kind]
    return namespace.ExponentialUpdateLossScaleManager(
        start(8.0), period(2), period(2), ratio(3.0), ratio(0.7)
    )


def _scales(mode, namespace, kind):
    """The loss scale after each step."""
    with stepping.entered(mode) as entered:
        manager = _manager(namespace, kind)

        def step(finite):
            update = manager.update_loss_scale(finite)
            return stepping.then(update, lambda: tf.identity(manager.get_loss_scale()))

        call = entered.compile(step, tf.TensorSpec([], tf.bool))
        if mode in modes.GRAPH:
            # Of the original, a read under a dependency may be one from before it.
            scales = []
            for flag in FLAGS:
                call(flag)
                scales.append(entered.value(manager.get_loss_scale()))
            return scales
        return [call(flag) for flag in FLAGS]


def _expected():
    model = numpy_model.ExponentialModel(8.0, 2, 2, 3.0, 0.7)
    for finite in FLAGS:
        model.step(finite)
        yield model.state[0]


class TensorArgumentsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*itertools.product(modes.ALL, sorted(KINDS)))
    def test_a_manager_takes_them(self, mode, kind):
        self.assertEqual(_scales(mode, mixed_precision, kind), list(_expected()))

    @parameterized.parameters(*itertools.product(("graph_v1", "graph_v2", "eager"), sorted(KINDS)))
    def test_numbers_are_the_originals(self, mode, kind):
        if originals.contrib() is None:
            self.skipTest("TensorFlow 2 has no contrib")
        ours, theirs = (
            _scales(mode, each, kind) for each in (mixed_precision, originals.contrib())
        )
        self.assertEqual(ours, theirs)

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_training_with_a_ratio_that_is_changed(self, mode):
        with stepping.entered(mode) as entered:
            weight, ratio = _variable([8.0]), _variable(2.0)
            manager = mixed_precision.ExponentialUpdateLossScaleManager(4.0, 1, 1, ratio, 0.5)
            inner = tf1.train.GradientDescentOptimizer(1.0)
            opt = mixed_precision.LossScaleOptimizer(inner, manager)
            train = entered.compile(
                lambda: opt.minimize(lambda: tf.reduce_sum(weight), var_list=[weight])
            )
            scales = []
            for new in (3.0, 5.0):
                train()
                scales.append(entered.value(tf.identity(manager.get_loss_scale())))
                if mode in modes.GRAPH:
                    entered.run(ratio.assign(new))
                else:
                    ratio.assign(new)
            self.assertEqual(scales, [8.0, 24.0])
            self.assertAllEqual(entered.value(tf.identity(weight)), [6.0])

    @parameterized.parameters(
        ("incr_ratio", [2.0], tf.float32, ValueError),
        ("incr_ratio", 2, tf.int32, TypeError),
        ("decr_ratio", 0.5, tf.float64, TypeError),
        ("incr_every_n_steps", 2, tf.int64, TypeError),
        ("decr_every_n_nan_or_inf", 2.0, tf.float32, TypeError),
        ("init_loss_scale", 8, tf.int32, TypeError),
    )
    def test_of_another_dtype_or_shape_they_are_refused(self, name, value, dtype, error):
        with tf.Graph().as_default():
            arguments = {"init_loss_scale": 8.0, "incr_every_n_steps": 2}
            arguments[name] = tf.constant(value, dtype)
            with self.assertRaisesRegex(error, name):
                mixed_precision.ExponentialUpdateLossScaleManager(**arguments)
            self.assertEmpty(tf1.global_variables())

    def test_what_eager_tensors_hold_is_checked(self):
        with modes.eager_mode():
            for scale in (tf.constant(0.5), _variable(0.5), np.array(0.5)):
                with self.assertRaisesRegex(ValueError, "loss_scale must be at least 1"):
                    FixedLossScaleManager(scale)
            with self.assertRaisesRegex(ValueError, "incr_ratio"):
                mixed_precision.ExponentialUpdateLossScaleManager(
                    8.0, 1, incr_ratio=tf.constant(float("nan"))
                )

    def test_a_fixed_manager_and_a_dynamic_loss_scale_take_what_holds_a_number(self):
        with modes.eager_mode():
            for make in (tf.constant, _variable, np.array):
                self.assertEqual(FixedLossScaleManager(make(8.0)).get_loss_scale().numpy(), 8.0)
                config = DynamicLossScale(make(8.0), make(2), make(3.0)).get_config()
                self.assertEqual(
                    config,
                    {"initial_loss_scale": 8.0, "increment_period": 2, "multiplier": 3.0},
                )
        with tf.Graph().as_default():
            with self.assertRaisesRegex(TypeError, "loss_scale must be a real number"):
                FixedLossScaleManager(tf.constant(8.0))
            with self.assertRaisesRegex(ValueError, "multiplier must be a real number"):
                DynamicLossScale(multiplier=tf.constant(2.0))

    def test_a_manager_of_variables_has_no_config(self):
        with modes.eager_mode():
            for kind, has_config in (("variables", False), ("tensors", True)):
                loss_scale = loss_scale_lib.get(_manager(mixed_precision, kind))
                if has_config:
                    self.assertEqual(loss_scale.get_config()["config"]["incr_every_n_steps"], 2)
                else:
                    with self.assertRaisesRegex(NotImplementedError, "of tensors has no config"):
                        loss_scale.get_config()
