"""A loss scale or manager as optimizers use it: overridden, replaced, owned by one of them."""

import functools
import os
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tests import modes
from tests.v1_optimizers import OPTIMIZERS, dynamic_for, sgd, state_of
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision as keras_mixed_precision
from tf_lossscale_compat.train.experimental import (
    DynamicLossScale,
    MixedPrecisionLossScaleOptimizer,
)

tf1 = tf.compat.v1


class WrappedMethodsTest(modes.EagerTestCase):
    """An override is called, whatever it copies from the method that it stands for."""

    def test_update_made_with_functools_wraps(self):
        calls = []

        class Refusing(DynamicLossScale):
            @functools.wraps(DynamicLossScale.update)
            def update(self, grads):
                calls.append(grads)
                return super().update(grads)[0], False

        weight = tf.Variable(1.0)
        opt = MixedPrecisionLossScaleOptimizer(sgd(), Refusing(8.0))
        opt.minimize(lambda: weight * weight, var_list=[weight])
        self.assertLen(calls, 1)
        self.assertEqual(float(weight.numpy()), 1.0)

    @parameterized.parameters("class", "instance")
    def test_update_put_in_the_place_of_this_packages(self, where):
        scale, weight = DynamicLossScale(8.0), tf.Variable(1.0)
        target = DynamicLossScale if where == "class" else scale
        with mock.patch.object(target, "update", return_value=(None, False)) as update:
            opt = MixedPrecisionLossScaleOptimizer(sgd(), scale)
            opt.minimize(lambda: weight * weight, var_list=[weight])
        update.assert_called_once()
        self.assertEqual(float(weight.numpy()), 1.0)


class ReplacedTest(modes.EagerTestCase):
    @parameterized.parameters(("contrib", "_loss_scale_manager"), ("mixed", "_loss_scale"))
    def test_checkpoints_hold_the_loss_scale_in_force(self, optimizer, name):
        opt = OPTIMIZERS[optimizer](sgd(), dynamic_for(optimizer, 64.0))
        path = tf1.train.Checkpoint(opt=opt)
        replacement = dynamic_for(optimizer, 4.0)
        setattr(opt, name, replacement)
        self.assertIs(getattr(opt, name), replacement)
        path = tf1.train.Checkpoint(opt=opt).save(os.path.join(self.get_temp_dir(), "saved"))
        saved = tf.train.load_checkpoint(path)
        scale = "current_loss_scale" if optimizer == "mixed" else "loss_scale/loss_scale"
        (key,) = [key for key in saved.get_variable_to_shape_map() if scale in key]
        self.assertEqual(saved.get_tensor(key), 4.0)
        weight = tf.Variable(1.0)
        opt.minimize(lambda: weight * weight, var_list=[weight])
        self.assertEqual(int(state_of(replacement)[1].numpy()), 1)


def keras(loss_scale):
    opt = tf.keras.optimizers.SGD(0.1)
    return keras_mixed_precision.LossScaleOptimizer(opt, loss_scale=loss_scale)


class OwnersTest(modes.EagerTestCase):
    @parameterized.parameters("mixed", "contrib")
    def test_v1_optimizers_share_what_is_not_of_a_keras_one(self, which):
        taken, shared = dynamic_for(which), dynamic_for(which)
        owner = keras(taken)
        opts = [OPTIMIZERS[which](sgd(), shared) for _ in range(2)]
        name = "_loss_scale" if which == "mixed" else "_loss_scale_manager"
        for refused in (
            lambda: OPTIMIZERS[which](sgd(), taken),
            lambda: setattr(opts[0], name, taken),
            lambda: keras(taken),
        ):
            with self.assertRaisesRegex(ValueError, "drives another optimizer, a Keras one"):
                refused()
        self.assertIs(getattr(opts[0], name), shared)
        del owner
        setattr(opts[0], name, taken)

    def test_managers_with_slots(self):
        class Slots:
            __slots__ = ()

            def get_loss_scale(self):
                return tf.constant(8.0)

            def update_loss_scale(self, finite_grads):
                return None

        weight = tf.Variable(1.0)
        opt = contrib.LossScaleOptimizer(sgd(0.25), Slots())
        opt.minimize(lambda: weight * weight, var_list=[weight])
        self.assertEqual(float(weight.numpy()), 0.5)
