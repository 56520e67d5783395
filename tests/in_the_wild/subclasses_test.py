"""Users' subclasses of managers, loss scales and optimizers, on this package and on the original.

Written anew after what public code does; see each case. Where the installed TensorFlow has the
original, it runs the same lines and every number has to be the same.
"""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tests import modes, originals
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
GRADIENTS = [1.0, np.inf, 1.0, 1.0, np.nan, np.inf, 0.5, 0.25, 1.0, 1.0, 2.0, np.inf, 1.0]


def steps_in_session(make, gradients=GRADIENTS):
    """Takes a step for each gradient; returns the weight and what to read after each.

    `make` is a function that makes an optimizer and a list of what to read.
    """
    with modes.entered("graph_v1") as mode:
        weight = tf1.get_variable("weight", initializer=1.0)
        optimizer, read = make()
        gradient = tf1.placeholder(tf.float32, [])
        (pair,) = optimizer.compute_gradients(weight * gradient, var_list=[weight])
        step = optimizer.apply_gradients([pair])
        history = []
        for value in gradients:
            mode.run(step, {gradient: value})
            history.append([float(number) for number in mode.run([weight, *read])])
        return history


class CaseTest(modes.EagerTestCase):
    def check(self, make, namespaces, expected=None):
        """Runs `make(namespace)` on this package and on TensorFlow's own, if there is one."""
        history, *theirs = [steps_in_session(lambda: make(api)) for api in namespaces]
        for each in theirs:
            np.testing.assert_array_equal(history, each)
        if expected is not None:
            self.assertEqual(history[-1], expected)
        return history


# This package's, and TensorFlow's own where it has one.
CONTRIB = [api for api in (contrib, originals.contrib()) if api is not None]
EXPERIMENTAL = [api for api in (experimental, originals.experimental()) if api is not None]


def sgd():
    return tf1.train.GradientDescentOptimizer(0.125)


class ManagerTest(CaseTest):
    def test_update_of_nested_conditionals_with_reset_stats(self):
        # Backs off to a floor of its own and grows by another rule, in r1.15's own building blocks.
        def make(api):
            class Floored(api.ExponentialUpdateLossScaleManager):
                def __init__(self, floor, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self._floor = floor

                def update_loss_scale(self, finite_grads):
                    def change(scale):
                        with tf.control_dependencies([tf1.assign(self._loss_scale, scale)]):
                            return tf.group(self._reset_stats())

                    def grow():
                        return change(self._loss_scale * self._incr_ratio)

                    def shrink():
                        lower = self._loss_scale * self._decr_ratio
                        return change(tf.maximum(self._floor, lower))

                    def finite():
                        return tf1.cond(
                            self._num_good_steps + 1 >= self._incr_every_n_steps,
                            grow,
                            lambda: tf.group(tf1.assign_add(self._num_good_steps, 1)),
                        )

                    def not_finite():
                        return tf1.cond(
                            self._num_bad_steps + 1 >= self._decr_every_n_nan_or_inf,
                            shrink,
                            lambda: tf.group(
                                tf1.assign_add(self._num_bad_steps, 1),
                                tf1.assign(self._num_good_steps, 0),
                            ),
                        )

                    return tf1.cond(finite_grads, finite, not_finite)

            manager = Floored(16.0, 64.0, 3, 2, 2.0, 0.25)
            state = [manager._loss_scale, manager._num_good_steps, manager._num_bad_steps]
            return api.LossScaleOptimizer(sgd(), manager), state

        history = self.check(make, CONTRIB, [1.0 - 0.125 * 8.75, 32.0, 1.0, 1.0])
        self.assertEqual(sorted({row[1] for row in history}), [16.0, 32.0, 64.0])

    def test_variables_of_the_manager(self):
        def make(api):
            class WithVariables(api.ExponentialUpdateLossScaleManager):
                def variables(self):
                    return [self._loss_scale, self._num_good_steps, self._num_bad_steps]

            class Optimizer(api.LossScaleOptimizer):
                def variables(self):
                    return self._opt.variables() + self._loss_scale_manager.variables()

            optimizer = Optimizer(sgd(), WithVariables(8.0, 2, 1, 2.0, 0.5))
            return optimizer, optimizer.variables()

        self.check(make, CONTRIB, [1.0 - 0.125 * 8.75, 4.0, 1.0, 0.0])

    def test_optimizer_constructor_that_calls_no_other(self):
        def make(api):
            class Own(api.LossScaleOptimizer):
                def __init__(self, opt, manager):
                    self._opt = opt
                    self._loss_scale_manager = manager

            manager = api.ExponentialUpdateLossScaleManager(8.0, 2, 1, 2.0, 0.5)
            return Own(sgd(), manager), [manager.get_loss_scale()]

        self.check(make, CONTRIB, [1.0 - 0.125 * 8.75, 4.0])

    def test_optimizer_constructor_that_sets_nothing(self):
        class Own(contrib.LossScaleOptimizer):
            def __init__(self, opt):
                self._opt = opt

        pairs = [(tf.constant(1.0), tf.Variable(1.0))]
        for use in (tf_lossscale_compat.StepRecord, lambda opt: opt.apply_gradients(pairs)):
            with self.assertRaisesRegex(RuntimeError, r"Own has no loss scale yet: call super\(\)"):
                use(Own(sgd()))


class RefusedTest(parameterized.TestCase):
    """Private methods of the originals that no step of this package calls."""

    @parameterized.parameters(
        (contrib.ExponentialUpdateLossScaleManager, "_reset_stats"),
        (contrib.LossScaleOptimizer, "_down_scale"),
        (experimental.MixedPrecisionLossScaleOptimizer, "_apply_gradients"),
        (experimental.MixedPrecisionLossScaleOptimizer, "_distributed_apply"),
        (experimental.MixedPrecisionLossScaleOptimizer, "_doing_dynamic_loss_scaling"),
        (experimental.MixedPrecisionLossScaleOptimizer, "_scale_grad"),
        (experimental.MixedPrecisionLossScaleOptimizer, "_scale_loss"),
        (experimental.MixedPrecisionLossScaleOptimizer, "_unscale_grads"),
    )
    def test_an_override_is(self, cls, name):
        instead = "compute_gradients or apply_gradients"
        if name == "_reset_stats":
            instead = "update_loss_scale"
        named = f"Own overrides {name}, .*Override {instead} instead"
        own = {name: lambda self, *args: None}
        mixin, later = type("Mixin", (), own), type(cls)("Later", (cls,), {})
        for bases, attributes in ((cls,), own), ((later,), own), ((mixin, cls), {}):
            with self.assertRaisesRegex(TypeError, named):
                type(cls)("Own", bases, attributes)
        type(cls)("Own", (cls, mixin), {})  # The original's would be called, too.

    def test_a_name_that_only_the_other_original_has_is_not(self):
        def own(self):
            return "mine"

        class Own(contrib.LossScaleOptimizer):
            _scale_loss = own

        class Other(experimental.MixedPrecisionLossScaleOptimizer):
            _down_scale = own

        with modes.entered("graph_v1"):
            self.assertEqual(Own(sgd(), contrib.FixedLossScaleManager(8.0))._scale_loss(), "mine")
            self.assertEqual(Other(sgd(), 8.0)._down_scale(), "mine")


class LossScaleTest(CaseTest):
    @parameterized.parameters(None, "mine")
    def test_fixed_steps_and_wrapped_optimizers_that_take_keywords_alone(self, name):
        class Keywords(tf1.train.GradientDescentOptimizer):
            def compute_gradients(self, **kwargs):
                return super().compute_gradients(**kwargs)

        for api in EXPERIMENTAL:
            with modes.entered("graph_v1") as mode:
                weight = tf1.get_variable("weight", initializer=1.0)
                optimizer = api.MixedPrecisionLossScaleOptimizer(Keywords(0.5), 8.0)
                optimizer.minimize(weight * 0.5, name=name)
                (step,) = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
                self.assertEqual(step.name, name or "GradientDescent")
                mode.run(step)
                self.assertEqual(mode.value(weight), 0.75)

    def test_bounds_and_two_weights(self):
        def make(api):
            class Bounded(api.DynamicLossScale):
                def __init__(self, *args, **kwargs):
                    super().__init__(*args, **kwargs)
                    self.min_loss_scale = 4.0
                    self.max_loss_scale = 16.0
                    self._overflows = self._add_weight("overflows", 0, tf.int64)
                    self._seen = self._add_weight("seen", 0, tf.int64)

                def update(self, grads):
                    update, should_apply = super().update(grads)
                    count = tf.cast(tf.logical_not(should_apply), tf.int64)
                    more = [self._overflows.assign_add(count).op, self._seen.assign_add(1).op]
                    with tf.control_dependencies([update, *more]):
                        scale = tf.clip_by_value(self(), self.min_loss_scale, self.max_loss_scale)
                        bound = self._current_loss_scale.assign(scale)
                    return tf.group(update, bound, *more), should_apply

            loss_scale = Bounded(8.0, 2)
            optimizer = api.MixedPrecisionLossScaleOptimizer(sgd(), loss_scale)
            return optimizer, [loss_scale(), loss_scale._overflows, loss_scale._seen]

        history = self.check(make, EXPERIMENTAL)
        self.assertEqual(history[-1][2:], [4.0, 13.0])
        self.assertLessEqual({row[1] for row in history}, {4.0, 8.0, 16.0})

    def test_public_names_of_their_own(self):
        def make(api):
            class Named(api.DynamicLossScale):
                @property
                def current_loss_scale(self):
                    return self._current_loss_scale * 1000.0

                @property
                def good_steps(self):
                    return None

            loss_scale = Named(8.0, 2)
            optimizer = api.MixedPrecisionLossScaleOptimizer(sgd(), loss_scale)
            return optimizer, [loss_scale(), loss_scale._num_good_steps]

        self.check(make, EXPERIMENTAL, [1.0 - 0.125 * 8.75, 4.0, 1.0])

    def test_state_of_their_own_under_the_names_of_r2_0(self):
        def make(api):
            class Own(api.DynamicLossScale):
                def __init__(self, *args):
                    super().__init__(*args)
                    self._current_loss_scale = tf1.get_variable(
                        "own_scale", initializer=64.0, trainable=False, use_resource=True
                    )
                    self._num_good_steps = tf1.get_variable(
                        "own_steps",
                        initializer=tf.constant(1, tf.int64),
                        trainable=False,
                        use_resource=True,
                    )

            loss_scale = Own(8.0, 4)
            optimizer = api.MixedPrecisionLossScaleOptimizer(sgd(), loss_scale)
            return optimizer, [loss_scale(), loss_scale._num_good_steps]

        self.check(make, EXPERIMENTAL, [1.0 - 0.125 * 8.75, 8.0, 1.0])
