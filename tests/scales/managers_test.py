"""The loss-scale managers of TensorFlow 1.15: what they compute, own and refuse."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, originals
from tf_lossscale_compat.contrib import mixed_precision as contrib

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1


class Bare(contrib.LossScaleManager):
    """A user's, without the constructor of its base, as on 1.15."""

    def __init__(self):
        pass

    get_loss_scale = update_loss_scale = None


class LossScaleManagerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("get_loss_scale", "update_loss_scale")
    def test_a_subclass_must_define(self, missing):
        methods = {"get_loss_scale": lambda self: 1.0, "update_loss_scale": lambda self, flag: None}
        contrib_manager = type("Whole", (contrib.LossScaleManager,), dict(methods))
        self.assertIsInstance(contrib_manager(), contrib.LossScaleManager)
        del methods[missing]
        partial = type("Partial", (contrib.LossScaleManager,), methods)
        with self.assertRaisesRegex(TypeError, missing):
            partial()


class ExponentialRuleTest(modes.EagerTestCase):
    @parameterized.parameters(
        (True,), (np.bool_(True),), (np.array(True),), (lambda: tf.constant(True),)
    )
    def test_update_is_none_in_eager_mode_and_takes_python_bools(self, flag):
        manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1)
        self.assertIsNone(manager.update_loss_scale(flag() if callable(flag) else flag))
        self.assertEqual(manager.get_loss_scale().numpy(), 16.0)
        self.assertIsNone(manager.update_loss_scale(False))
        self.assertEqual(manager.get_loss_scale().numpy(), np.float32(16.0) * np.float32(0.8))


class ExponentialManagerTest(modes.EagerTestCase):
    @parameterized.parameters(1, 2)
    def test_its_variables_are_named_under_the_enclosing_name_or_variable_scope(self, version):
        homes = [contrib] if originals.contrib() is None else [contrib, originals.contrib()]
        for home in homes:
            with self.subTest(home.__name__), modes.control_flow(version), tf.Graph().as_default():
                self._make_under_scopes(lambda: home.ExponentialUpdateLossScaleManager(8.0, 2))
                names = [variable.op.name for variable in tf1.global_variables()]
                # What TensorFlow 1.15.5 calls them.
                wanted = [
                    "loss_scale",
                    "loss_scale_1",
                    "name/loss_scale",
                    "name/variable/loss_scale",
                    "name/variable/loss_scale_1",
                    "outer/inner/loss_scale",
                    "outer/named/loss_scale",
                    "outer_1/loss_scale",
                    "taken_1/loss_scale",
                ]
                kinds = ("loss_scale", "good_steps", "bad_steps")
                self.assertEqual(
                    names, [name.replace(kinds[0], kind) for name in wanted for kind in kinds]
                )

    def _make_under_scopes(self, make):
        make()
        make()
        with tf1.name_scope("name"):
            make()
            with tf1.variable_scope("variable"):
                make()
                make()
        with tf1.variable_scope("outer"):
            with tf1.variable_scope("inner"):
                make()
            with tf1.name_scope("named"):
                make()
        with tf1.variable_scope("outer", reuse=tf1.AUTO_REUSE):
            make()
        tf1.cond(tf.constant(True), lambda: tf.constant(0), lambda: tf.constant(0), name="taken")
        with tf1.name_scope("taken"):
            make()

    @parameterized.parameters(
        (contrib.ExponentialUpdateLossScaleManager, 8.0, 2),
        (contrib.FixedLossScaleManager, 8.0),
        (Bare,),
    )
    def test_checkpoints_hold_what_a_subclass_adds(self, base, *arguments):
        class Own(base):
            def __init__(self, start):
                base.__init__(self, *arguments)
                self.peak = tf.Variable(start)
                self.inner = contrib.ExponentialUpdateLossScaleManager(start, 2)

        path = tf.train.Checkpoint(manager=Own(64.0)).save(self.get_temp_dir() + "/own")
        restored = Own(2.0)
        tf.train.Checkpoint(manager=restored).restore(path).assert_consumed()
        found = [restored.peak.numpy(), restored.inner.get_loss_scale().numpy()]
        self.assertEqual(found, [64.0, 64.0])

    def test_checkpoints_hold_no_ratio_that_a_user_assigned(self):
        manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2)
        fixed = contrib.FixedLossScaleManager(2.0)
        manager._incr_ratio, fixed._loss_scale = tf.Variable(2.0), tf.Variable(2.0)
        path = tf.train.Checkpoint(m=manager, f=fixed).save(self.get_temp_dir() + "/both")
        saved = [name for name, _ in tf.train.list_variables(path) if name[:2] in ("m/", "f/")]
        names = ("bad_steps", "good_steps", "loss_scale")
        self.assertEqual(saved, [f"m/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in names])

    @parameterized.parameters("graph_v1", "function")
    def test_a_subclass_sets_its_state_by_the_original_names(self, name):
        class Own(contrib.ExponentialUpdateLossScaleManager):
            def __init__(self, *args):
                super().__init__(*args)
                self._loss_scale = tf1.Variable(64.0, trainable=False, name="own_scale")
                self._num_good_steps = tf1.Variable(1, trainable=False, name="own_good")
                self._num_bad_steps = tf1.Variable(1, trainable=False, name="own_bad")

        with modes.entered(name) as mode:
            manager = Own(8.0, 2)
            update = mode.compile(manager.update_loss_scale, modes.scalar(tf.bool))
            self.assertEqual(mode.value(manager.get_loss_scale()), 64.0)
            update(True)
            own = [manager._loss_scale, manager._num_good_steps, manager._num_bad_steps]
            self.assertEqual(list(mode.value(own)), [128.0, 0, 0])
            # Checkpoints hold what it has put there, under the original's names.
            names = ("loss_scale", "good_steps", "bad_steps")
            for found in (manager.variables(), map(manager._lookup_dependency, names)):
                self.assertEqual([id(each) for each in found], [id(each) for each in own])
            manager._loss_scale = 32.0  # Some put a number there, which r1.15 returned as it is.
            self.assertEqual(manager.get_loss_scale(), 32.0)


class BadInputTest(modes.EagerTestCase):
    @parameterized.parameters(([True],), (np.array([True, False]),), ([[False]],))
    def test_a_flag_that_is_no_scalar_is_refused(self, flag):
        manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1)
        with self.assertRaisesRegex(ValueError, "finite_grads"):
            manager.update_loss_scale(flag)
        self.assertEqual([v.numpy() for v in manager.variables()], [8.0, 0, 0])
        with tf.Graph().as_default() as graph:
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1)
            with self.assertRaisesRegex(ValueError, "finite_grads"):
                manager.update_loss_scale(tf.constant(flag))
            self.assertEmpty([op for op in graph.get_operations() if "cond" in op.name])
