"""Policies of one generation, and of users, where the optimizer of the other expects its own."""

import json

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras.mixed_precision import experimental as keras_experimental
from tf_lossscale_compat.train import experimental

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

STEPS = (1.0, np.nan, 1.0, 1.0, -np.inf, np.inf, 1.0)
FINITE = [bool(np.isfinite(value)) for value in STEPS]


class CondManager(contrib.LossScaleManager):
    """A user's manager: doubles after a finite step, halves after any other, by `tf.cond`."""

    def __init__(self, returns):
        self._returns = returns
        self.scale = tf1.Variable(64.0, trainable=False, name="users_scale")
        self.steps = tf1.Variable(0, trainable=False, name="users_steps")

    def get_loss_scale(self):
        return self.scale  # r1.15's own manager returned its variable.

    def _branch(self, factor, steps):
        def branch():
            # A reference variable is read here, before it is assigned to.
            updates = [self.scale.assign(self.scale * factor), self.steps.assign_add(steps)]
            if self._returns == "operation":
                return tf.group(*updates)
            with tf.control_dependencies(updates if not tf.executing_eagerly() else []):
                return tf.identity(1.0)

        return branch

    def update_loss_scale(self, finite_grads):
        update = tf1.cond(finite_grads, self._branch(2.0, 1), self._branch(0.5, 100))
        return None if self._returns == "none" else update

    @staticmethod
    def expected(flags):
        """The state after steps that were finite or not."""
        scale, steps = 64.0, 0
        for finite in flags:
            scale, steps = (scale * 2.0, steps + 1) if finite else (scale * 0.5, steps + 100)
        return [scale, steps]


class AssignAddManager(contrib.LossScaleManager):
    """A user's manager that returns what `assign_add` returned."""

    def __init__(self):
        self.steps = tf1.Variable(0.0, trainable=False, name="users_steps")

    def get_loss_scale(self):
        return tf.constant(8.0) + self.steps

    def update_loss_scale(self, finite_grads):
        return self.steps.assign_add(tf.cast(finite_grads, tf.float32) + 1.0)


class DuckManager:
    """Has the methods of a manager and is none."""

    def get_loss_scale(self):
        return 8.0

    def update_loss_scale(self, finite_grads):
        return None


class CondLossScale(experimental.LossScale):
    """A user's loss scale: triples or halves by `tf.cond`, and counts by `assign_add`."""

    def __init__(self, start=64.0):
        super().__init__()
        self._start = start
        self.scale = self._add_weight("scale", start, tf.float32)
        self.calls = self._add_weight("calls", 0, tf.int64)

    def __call__(self):
        return tf.identity(self.scale)

    def update(self, grads):
        finite = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(grad)) for grad in tf.nest.flatten(grads)]
        )

        def branch(factor):
            def assign():
                update = tf.group(self.scale.assign(self.scale * factor), self.calls.assign_add(1))
                return update if not tf.executing_eagerly() else None

            return assign

        if tf.executing_eagerly():
            branch(3.0 if finite else 0.5)()
            return None, finite
        return tf1.cond(finite, branch(3.0), branch(0.5)), finite

    def get_config(self):
        return {"start": self._start}

    @staticmethod
    def expected(flags):
        scale = 64.0
        for finite in flags:
            scale *= 3.0 if finite else 0.5
        return [scale, len(flags)]


class PlainLossScale(experimental.LossScale):
    """A user's loss scale without state, which left the constructor of its base uncalled."""

    def __init__(self):
        pass

    def __call__(self):
        return tf.constant(4.0)

    def update(self, grads):
        return None if tf.executing_eagerly() else tf.no_op(), True

    def get_config(self):
        return {}


def dynamic_model(flags, scale, period, multiplier=2.0):
    good = 0
    for finite in flags:
        if finite:
            good += 1
            if good >= period:
                scale, good = scale * multiplier, 0
        else:
            scale, good = max(1.0, scale / multiplier), 0
    return [scale, good]


def trained(mode, opt):
    """Trains a variable by `opt` on `STEPS`; returns it with a global step."""
    var = tf1.Variable(0.0)
    global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)

    def train(factor):
        # A tensor in graphs for a Session: TensorFlow's tapes know no reference variables.
        loss = factor * var if mode.name in modes.GRAPH else lambda: factor * var
        return opt.minimize(loss, global_step, var_list=[var])

    step = mode.compile(train, modes.scalar())
    for value in STEPS:
        step(value)
    return var, global_step


def sgd():
    return tf1.train.GradientDescentOptimizer(1.0)


CONTRIB, MIXED = contrib.LossScaleOptimizer, experimental.MixedPrecisionLossScaleOptimizer


class LossScaleAsManagerTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_a_dynamic_loss_scale(self, name):
        with modes.entered(name) as mode:
            loss_scale = experimental.DynamicLossScale(16.0, 2)
            opt = contrib.LossScaleOptimizer(sgd(), loss_scale)
            var, global_step = trained(mode, opt)
            self.assertEqual(list(mode.value([var, global_step])), [-4.0, 4])
            self.assertEqual(
                list(mode.value([loss_scale.current_loss_scale, loss_scale.good_steps])),
                dynamic_model(FINITE, 16.0, 2),
            )
            self.assertEqual(
                [id(v) for v in opt.variables()],
                [id(loss_scale.current_loss_scale), id(loss_scale.good_steps)],
            )

    @parameterized.parameters(*modes.ALL)
    def test_its_scale_multiplies_the_loss(self, name):
        with modes.entered(name) as mode:
            seen = []

            class Recorder:
                def compute_gradients(self, loss, **kwargs):
                    seen.append(loss() if callable(loss) else loss)
                    return []

                def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                    raise NotImplementedError

            loss_scales = [experimental.DynamicLossScale(16.0, 2), 8, "dynamic", CondLossScale(2)]
            opts = [contrib.LossScaleOptimizer(Recorder(), of) for of in loss_scales]

            def losses():
                del seen[:]
                for opt in opts:
                    opt.compute_gradients(lambda: tf.constant(3.0))
                return list(seen)

            self.assertAllEqual(mode.compile(losses)(), [48.0, 24.0, 3.0 * 2**15, 6.0])

    @parameterized.parameters(*modes.ALL)
    def test_a_fixed_loss_scale_skips_as_all_of_contrib_does(self, name):
        with modes.entered(name) as mode:
            opt = contrib.LossScaleOptimizer(sgd(), experimental.FixedLossScale(8.0))
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
            self.assertEqual(opt.variables(), [])

    @parameterized.parameters(
        (8,), (8.0,), (np.float16(8),), (np.int64(8),), (True,),
        ({"class_name": "FixedLossScale", "config": {"loss_scale_value": 8.0}},),
    )  # fmt: skip
    def test_a_number_or_config_of_a_fixed_loss_scale(self, identifier):
        value = 1.0 if identifier is True else 8.0
        for name in ("graph_v1", "eager"):
            with modes.entered(name) as mode:
                opt = contrib.LossScaleOptimizer(sgd(), identifier)
                manager = opt._loss_scale_manager
                self.assertIsInstance(manager, contrib.LossScaleManager)
                self.assertEqual(mode.value(manager.get_loss_scale()), value)
                self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
                self.assertEqual(mode.value(manager.get_loss_scale()), value)

    @parameterized.parameters(
        ("dynamic", 2.0**15),
        (
            {
                "class_name": "DynamicLossScale",
                "config": {"initial_loss_scale": 32, "increment_period": 9, "multiplier": 2},
            },
            32.0,
        ),
    )
    def test_dynamic_or_a_config_of_a_dynamic_loss_scale(self, identifier, start):
        for name in ("graph_v2", "function"):
            with modes.entered(name) as mode:
                opt = contrib.LossScaleOptimizer(sgd(), identifier)
                self.assertIsInstance(opt._loss_scale_manager, contrib.LossScaleManager)
                self.assertEqual(mode.value(opt._loss_scale_manager.get_loss_scale()), start)
                self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
                self.assertEqual(list(mode.value(opt.variables())), dynamic_model(FINITE, start, 9))

    @parameterized.parameters(*modes.ALL)
    def test_a_loss_scale_of_the_users(self, name):
        with modes.entered(name) as mode:
            loss_scale = CondLossScale()
            opt = contrib.LossScaleOptimizer(sgd(), loss_scale)
            var, global_step = trained(mode, opt)
            self.assertEqual(list(mode.value([var, global_step])), [-4.0, 4])
            self.assertEqual(
                list(mode.value([loss_scale.scale, loss_scale.calls])),
                CondLossScale.expected(FINITE),
            )
            self.assertLen(opt.variables(), 2)

    @crossed.parameters(*[(n, cls) for n in ("graph_v1", "eager") for cls in (0, 1)])
    def test_a_loss_scale_whose_base_was_not_constructed(self, name, which):
        with modes.entered(name) as mode:
            opt = (CONTRIB, MIXED)[which](sgd(), PlainLossScale())
            var, global_step = tf1.Variable(0.0), tf1.Variable(0, dtype=tf.int64)
            mode.compile(lambda: opt.apply_gradients([(tf.constant(2.0), var)], global_step))()
            self.assertEqual(list(mode.value([var, global_step])), [-2.0, 1])
            self.assertEqual(opt.variables(), [])

    @parameterized.parameters(*modes.ALL)
    def test_contrib_skips_what_is_not_finite_though_a_users_says_otherwise(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(1.0)
            opt = CONTRIB(sgd(), PlainLossScale())
            step = mode.compile(lambda grad: opt.apply_gradients([(grad, var)]), modes.scalar())
            step(float("nan"))
            self.assertEqual(mode.value(var), 1.0)
            step(2.0)
            self.assertEqual(mode.value(var), -1.0)

    @parameterized.parameters(*modes.ALL)
    def test_its_manager_is_updated_by_a_flag(self, name):
        with modes.entered(name) as mode:
            loss_scale = experimental.DynamicLossScale(16.0, 2)
            manager = contrib.LossScaleOptimizer(sgd(), loss_scale)._loss_scale_manager
            update = mode.compile(manager.update_loss_scale, modes.scalar(tf.bool))
            for count, finite in enumerate(FINITE, 1):
                update(finite)
                self.assertEqual(
                    list(mode.value(manager.variables())), dynamic_model(FINITE[:count], 16.0, 2)
                )

    def test_a_checkpoint_of_the_optimizer_holds_the_loss_scale(self):
        prefix = self.get_temp_dir() + "/adapted"
        with modes.entered("eager") as mode:
            opt = contrib.LossScaleOptimizer(sgd(), experimental.DynamicLossScale(16.0, 2))
            trained(mode, opt)
            path = tf.train.Checkpoint(optimizer=opt).save(prefix)
            keys = [key for key, _ in tf.train.list_variables(path)]
            for weight in ("current_loss_scale", "good_steps"):
                key = "optimizer/loss_scale/{}/.ATTRIBUTES/VARIABLE_VALUE".format(weight)
                self.assertIn(key, keys)
            # The optimizer of r2.0 reads it.
            other = experimental.MixedPrecisionLossScaleOptimizer(
                sgd(), experimental.DynamicLossScale(2.0, 2)
            )
            status = tf.train.Checkpoint(optimizer=other).restore(path)
            status.assert_existing_objects_matched()
            self.assertEqual(list(mode.value(other.variables())), dynamic_model(FINITE, 16.0, 2))


class ManagerAsLossScaleTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_get_makes_a_loss_scale_that_runs_the_policy_of_a_manager(self, name):
        with modes.entered(name) as mode:
            manager = contrib.ExponentialUpdateLossScaleManager(64.0, 2, 2, 2, 0.25)
            loss_scale = loss_scale_lib.get(manager)
            self.assertIsInstance(loss_scale, experimental.LossScale)
            call = mode.compile(loss_scale)

            def update(value):
                grads = {"first": [tf.stack([1.0, value])], "second": None}
                returned, should_apply = loss_scale.update(grads)
                if name == "eager":
                    self.assertIsNone(returned)
                else:
                    self.assertIsInstance(returned, (tf.Tensor, tf.Operation))
                if name in modes.GRAPH:
                    with tf.control_dependencies([returned]):
                        return tf.identity(should_apply)
                return should_apply

            step = mode.compile(update, modes.scalar())
            scales = []
            for value, finite in zip(STEPS, FINITE):
                self.assertEqual(step(value), finite)
                scales.append(float(call()))
            self.assertEqual(scales, [64.0, 64.0, 64.0, 128.0, 128.0, 32.0, 32.0])
            self.assertEqual(list(mode.value(manager.variables())), [32.0, 1, 0])

    @parameterized.parameters(*modes.ALL)
    def test_an_exponential_manager_in_the_optimizer_of_r2(self, name):
        with modes.entered(name) as mode:
            manager = contrib.ExponentialUpdateLossScaleManager(64.0, 2, 2, 2, 0.25)
            opt = experimental.MixedPrecisionLossScaleOptimizer(sgd(), manager)
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
            self.assertEqual(list(mode.value(manager.variables())), [32.0, 1, 0])
            self.assertEqual([id(v) for v in opt.variables()], [id(v) for v in manager.variables()])

    @parameterized.parameters(*modes.ALL)
    def test_a_fixed_manager_keeps_its_way_of_skipping(self, name):
        with modes.entered(name) as mode:
            opt = experimental.MixedPrecisionLossScaleOptimizer(
                sgd(), contrib.FixedLossScaleManager(8.0)
            )
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])

    def test_a_manager_there_and_back_is_itself(self):
        manager = contrib.FixedLossScaleManager(8.0)
        with tf.Graph().as_default():
            loss_scale = loss_scale_lib.get(manager)
            opt = contrib.LossScaleOptimizer(sgd(), loss_scale)
            self.assertIs(opt._loss_scale_manager, manager)
            self.assertIs(loss_scale_lib.get(loss_scale), loss_scale)

    def test_its_config_makes_the_same_manager(self):
        arguments = {
            "init_loss_scale": 64.0,
            "incr_every_n_steps": 5,
            "decr_every_n_nan_or_inf": 3,
            "incr_ratio": 4.0,
            "decr_ratio": 0.5,
        }
        for manager in (
            contrib.FixedLossScaleManager(8.0),
            contrib.ExponentialUpdateLossScaleManager(**arguments),
        ):
            with tf.Graph().as_default():
                config = loss_scale_lib.serialize(loss_scale_lib.get(manager))
                again = loss_scale_lib.get(json.loads(json.dumps(config)))
                self.assertIs(type(again.manager), type(manager))
                self.assertEqual(loss_scale_lib.serialize(again), config)
        self.assertEqual(config["config"]["config"], arguments)

    def test_a_manager_of_the_users_own_has_no_config(self):
        class Policy(contrib.FixedLossScaleManager):
            pass

        loss_scale = loss_scale_lib.get(Policy(8.0))
        with self.assertRaisesRegex(NotImplementedError, "Policy has no config: save weights"):
            loss_scale.get_config()
        with self.assertRaisesRegex(NotImplementedError, "Policy has no config: save weights"):
            loss_scale_lib.serialize(loss_scale)

    @parameterized.named_parameters(keras_homes.named())
    def test_a_manager_of_the_users_own_drives_a_keras_optimizer(self, home):
        class Policy(contrib.ExponentialUpdateLossScaleManager):
            pass

        with modes.eager_mode():
            for enabled in (True, False):
                variable = home.variable(1.0)
                opt = keras_experimental.LossScaleOptimizer(
                    home.SGD(0.5), Policy(8.0, 100, 1), enabled=enabled
                )
                for grad in (8.0, float("nan") if enabled else 8.0):
                    opt.apply_gradients([(tf.constant(grad), variable)], scaled=True)
                self.assertEqual(float(home.numpy(variable)), 0.5 if enabled else -7.0)
                self.assertAlmostEqual(float(opt.loss_scale()), 6.4 if enabled else 1.0, places=6)
                with self.assertRaisesRegex(NotImplementedError, "Policy has no config: save"):
                    opt.get_config()

    def test_a_config_of_no_manager_is_refused(self):
        for name in ("Policy", "FixedLossScaleManager"):
            config = {"class_name": "ManagerLossScale", "config": {"class_name": name}}
            with self.assertRaisesRegex(ValueError, "names no loss-scale manager.*" + name):
                loss_scale_lib.get(config)

    def test_a_checkpoint_of_the_optimizer_holds_the_manager(self):
        prefix = self.get_temp_dir() + "/adapted"
        with modes.entered("eager") as mode:
            opt = experimental.MixedPrecisionLossScaleOptimizer(
                sgd(), contrib.ExponentialUpdateLossScaleManager(64.0, 2, 2, 2, 0.25)
            )
            trained(mode, opt)
            path = tf.train.Checkpoint(optimizer=opt).save(prefix)
            manager = contrib.ExponentialUpdateLossScaleManager(2.0, 2)
            other = experimental.MixedPrecisionLossScaleOptimizer(sgd(), manager)
            status = tf.train.Checkpoint(optimizer=other).restore(path)
            status.assert_existing_objects_matched()
            self.assertEqual(list(mode.value(manager.variables())), [32.0, 1, 0])


class ThirdPartyTest(tf.test.TestCase, parameterized.TestCase):
    @crossed.parameters(
        *[
            (name, which, returns)
            for name in modes.ALL
            for which in (0, 1)
            for returns in ("operation", "tensor", "none")
            if returns != "none" or name not in modes.GRAPH
        ]
    )
    def test_a_manager_that_updates_by_cond_and_assign_add(self, name, which, returns):
        with modes.entered(name) as mode:
            manager = CondManager(returns)
            opt = (CONTRIB, MIXED)[which](sgd(), manager)
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
            self.assertEqual(
                list(mode.value([manager.scale, manager.steps])), CondManager.expected(FINITE)
            )

    @crossed.parameters(*[(name, which) for name in modes.ALL for which in (0, 1)])
    def test_a_manager_that_returns_what_assign_add_returned(self, name, which):
        with modes.entered(name) as mode:
            manager = AssignAddManager()
            opt = (CONTRIB, MIXED)[which](sgd(), manager)
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
            self.assertEqual(mode.value(manager.steps), len(STEPS) + sum(FINITE))

    @parameterized.parameters(*modes.GRAPH)
    def test_a_manager_may_return_none_in_graph_mode(self, name):
        with modes.entered(name) as mode:
            opt = contrib.LossScaleOptimizer(sgd(), DuckManager())
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])

    @parameterized.parameters(*modes.ALL)
    def test_the_two_methods_of_a_manager_are_enough(self, name):
        with modes.entered(name) as mode:
            manager = DuckManager()
            opt = contrib.LossScaleOptimizer(sgd(), manager)
            self.assertIs(opt._loss_scale_manager, manager)
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
            self.assertEqual(opt.variables(), [])

    @parameterized.parameters(*modes.GRAPH)
    def test_one_run_of_a_users_manager_is_one_step(self, name):
        with modes.entered(name) as mode:
            manager = CondManager("tensor")
            opt = contrib.LossScaleOptimizer(sgd(), manager)
            var = tf1.Variable(0.0)
            step = mode.compile(lambda grad: opt.apply_gradients([(grad, var)]), modes.scalar())
            flags = [index % 2 == 0 for index in range(200)]
            for finite in flags:
                step(1.0 if finite else np.nan)
            self.assertEqual(
                list(mode.value([manager.scale, manager.steps, var])),
                CondManager.expected(flags) + [-100.0],
            )

    @parameterized.parameters(*modes.ALL)
    def test_a_loss_scale_in_the_optimizer_of_r2(self, name):
        with modes.entered(name) as mode:
            loss_scale = CondLossScale()
            opt = experimental.MixedPrecisionLossScaleOptimizer(sgd(), loss_scale)
            self.assertEqual(list(mode.value(list(trained(mode, opt)))), [-4.0, 4])
            self.assertEqual(
                list(mode.value([loss_scale.scale, loss_scale.calls])),
                CondLossScale.expected(FINITE),
            )


class BadInputTest(tf.test.TestCase, parameterized.TestCase):
    def _refused(self, make, error, *words):
        with tf.Graph().as_default() as graph:
            with self.assertRaises(error) as raised:
                make()
            self.assertIs(type(raised.exception), error)
            for word in words:
                self.assertIn(word, str(raised.exception))
            self.assertEmpty(graph.get_operations())
            self.assertEmpty(tf1.global_variables())
        with modes.eager_mode(), modes.creations() as created:
            with self.assertRaises(error):
                make()
            self.assertEmpty(created)

    @parameterized.parameters((None,), (object(),), ([8.0],), (8j,), (np.array([8.0]),))
    def test_what_is_no_manager_and_no_loss_scale_is_refused(self, identifier):
        self._refused(
            lambda: contrib.LossScaleOptimizer(sgd(), identifier),
            TypeError, "loss_scale_manager", repr(identifier),
        )  # fmt: skip

    @parameterized.parameters(
        (contrib.FixedLossScaleManager,),
        (contrib.ExponentialUpdateLossScaleManager,),
        (experimental.DynamicLossScale,),
    )
    def test_a_class_in_place_of_an_instance_is_refused(self, cls):
        self._refused(
            lambda: contrib.LossScaleOptimizer(sgd(), cls), TypeError, "loss_scale_manager"
        )

    @parameterized.parameters(
        ("8", "'8'"),
        ("Dynamic", "'Dynamic'"),
        ("", "''"),
        ({}, "{}"),
        ({"class_name": "FixedLossScale"}, "FixedLossScale"),
        ({"class_name": "Unheard", "config": {}}, "Unheard"),
    )
    def test_a_string_or_dict_that_names_no_loss_scale_is_refused(self, identifier, word):
        self._refused(lambda: contrib.LossScaleOptimizer(sgd(), identifier), ValueError, word)

    @parameterized.parameters(
        (0.5, "at least 1"), (0, "at least 1"), (-8, "at least 1"), (np.float32(0.1), "at least 1"),
        (float("nan"), "finite"), (float("inf"), "finite"), (1e39, "finite"), (10**400, "finite"),
    )  # fmt: skip
    def test_a_number_that_is_no_scale_is_refused(self, value, word):
        for cls in (CONTRIB, MIXED):
            self._refused(lambda: cls(sgd(), value), ValueError, word, repr(value))

    @parameterized.parameters((object(),), ("8",), ([8.0],), (8j,), ({},))
    def test_what_no_loss_scale_can_be_got_from_is_refused(self, identifier):
        self._refused(lambda: loss_scale_lib.get(identifier), ValueError)
        self._refused(lambda: MIXED(sgd(), identifier), ValueError)

    def test_a_flag_for_a_loss_scale_that_needs_gradients_is_refused(self):
        with modes.eager_mode():
            manager = CONTRIB(sgd(), CondLossScale())._loss_scale_manager
            with self.assertRaisesRegex(ValueError, "CondLossScale.* needs the gradients"):
                manager.update_loss_scale(True)

    def test_an_unsupported_opt_is_refused_before_a_loss_scale_is_made(self):
        for cls, error in ((CONTRIB, TypeError), (MIXED, ValueError)):
            for opt in (None, object(), "sgd", tf1.train.GradientDescentOptimizer):
                self._refused(lambda: cls(opt, "dynamic"), error, "opt")


if __name__ == "__main__":
    tf.test.main()
