"""State that is shared, replaced, wrapped or asked for early."""

import functools
import os
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic_for, sgd, state_of
from tf_lossscale_compat import ExponentialUpdateLossScaleManager, FixedLossScale
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


class Failing(tf1.train.GradientDescentOptimizer):
    """Cannot apply what it is given."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        (grad, _), *_ = grads_and_vars
        with tf.control_dependencies([tf.debugging.assert_less(grad, 0.0)]):
            return super().apply_gradients(grads_and_vars, global_step, name)


class CountsUpdates(contrib.LossScaleManager):
    """A user's, which takes no notice of the flag."""

    def __init__(self):
        self.steps = tf1.Variable(0, trainable=False, use_resource=True)

    def variables(self):
        return [None, self.steps]

    def get_loss_scale(self):
        return tf.constant(8.0)

    def update_loss_scale(self, finite_grads):
        return self.steps.assign_add(1)


class OrderTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(  # XLA drops assertions.
        name=(*modes.GRAPH, "eager", "function"),
        make=(lambda: dynamic_for("contrib"), CountsUpdates),
    )
    def test_a_step_that_fails_leaves_the_scale(self, name, make):
        with modes.entered(name) as mode:
            weight, manager = tf1.Variable(1.0), make()
            _, good_steps = state_of(manager)
            opt = contrib.LossScaleOptimizer(Failing(1.0), manager)
            step = mode.compile(lambda grad: opt.apply_gradients([(grad, weight)]), modes.scalar())
            step(-1.0)
            self.assertEqual(mode.value(good_steps), 1)
            for _ in range(5):
                with self.assertRaises(tf.errors.InvalidArgumentError):
                    step(1.0)
            self.assertEqual(mode.value(good_steps), 1)


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


class ReadTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(False, True)
    def test_an_imported_graph_has_another_managers_scale(self, use_resource):
        def manager(value):
            with tf1.variable_scope("", use_resource=use_resource):
                return ExponentialUpdateLossScaleManager(value, 3)

        with tf.Graph().as_default():
            manager(8.0).get_loss_scale()
            exported = tf1.train.export_meta_graph()
        self.assertEmpty([key for key in exported.collection_def if "lossscale" in key])
        with tf.Graph().as_default() as graph, tf1.Session() as session:
            tf1.train.import_meta_graph(exported, import_scope="old")
            mine = manager(1024.0)
            tensor = mine.get_loss_scale()
            self.assertNotStartsWith(tensor.name, "old/")
            session.run(mine.variables()[0].initializer)
            self.assertEqual(session.run(tensor), 1024.0)
            self.assertIs(mine.get_loss_scale(), tensor)
            self.assertIs(tensor.graph, graph)


class ReferencesTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.product(optimizer=BOTH, mode=modes.GRAPH)
    def test_a_scale_that_was_read_stays_when_the_variable_moves(self, optimizer, mode):
        # The second optimizer's loss is scaled after the first has moved the scale, its gradients
        # are divided by what was read before, if reading gave but the variable's memory.
        with modes.entered(mode) as entered:
            manager = ExponentialUpdateLossScaleManager(8.0, 1, 1, 2.0, 0.5)
            first, second = tf1.Variable(1.0), tf1.Variable(1.0)
            make = OPTIMIZERS[optimizer]
            step = make(sgd(0.25), manager).minimize(first * 1.0, var_list=[first])
            with tf.control_dependencies([step]):
                seen = tf1.convert_to_tensor(first) if mode == "graph_v2" else first.read_value()
            batch = tf1.placeholder_with_default(1, [])
            loss = second * (1.0 + 0.0 * seen) * tf.ones([batch])
            step = make(sgd(0.25), manager).minimize(loss, var_list=[second])
            for wanted in (0.75, 0.5, 0.25):
                entered.run(step)
                self.assertEqual(entered.value([first, second]), [wanted, wanted])


def keras(loss_scale):
    opt = tf.keras.optimizers.SGD(0.1)
    return keras_mixed_precision.LossScaleOptimizer(opt, loss_scale=loss_scale)


class OwnersTest(modes.EagerTestCase):
    def test_a_fixed_scale_that_a_subclass_moves_is_not_shared(self):
        class Moving(FixedLossScale):
            def update(self, grads):
                self._loss_scale_value *= 2
                return None, True

        scale = Moving(4.0)
        opt = keras(scale)
        with self.assertRaisesRegex(ValueError, "drives another optimizer"):
            keras(scale)
        del opt
        keras(scale)

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
