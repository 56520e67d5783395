"""Policies of one generation, and of users, where the optimizer of the other expects its own."""

import json
import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, originals, replicas, stepping
from tests.v1_optimizers import OPTIMIZERS, exponential, loss_of, sgd, state_of, states
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras.mixed_precision import experimental as keras_experimental
from tf_lossscale_compat.train import experimental

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

STEPS = (1.0, np.nan, 1.0, 1.0, -np.inf, np.inf, 1.0)


def grouped(updates):
    """One operation of assignments, of all replicas; in eager mode None."""
    if tf.executing_eagerly():
        return None
    local_results = tf.distribute.get_strategy().experimental_local_results
    return tf.group(*[local for update in updates for local in local_results(update)])


def count_finite(values):
    return int(np.isfinite(values).sum())


class CondManager(contrib.LossScaleManager):
    """A user's manager: doubles after a finite step, halves after any other, by `tf.cond`."""

    def __init__(self, returns="tensor"):
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
                return grouped(updates)
            with tf.control_dependencies([] if tf.executing_eagerly() else [grouped(updates)]):
                return tf.identity(1.0)

        return branch

    def update_loss_scale(self, finite_grads):
        update = tf1.cond(finite_grads, self._branch(2.0, 1), self._branch(0.5, 100))
        return None if self._returns == "none" else update

    def read(self):
        return [self.scale, self.steps]

    @staticmethod
    def expected(values):
        finite = count_finite(values)
        bad = len(values) - finite
        return [64.0 * 2.0 ** (finite - bad), finite + 100 * bad]


class AssignAddManager(contrib.LossScaleManager):
    """A user's manager that returns what `assign_add` returned."""

    def __init__(self):
        self.steps = tf1.Variable(0.0, trainable=False, name="users_steps")

    def get_loss_scale(self):
        return tf.constant(8.0) + self.steps

    def update_loss_scale(self, finite_grads):
        return self.steps.assign_add(tf.cast(finite_grads, tf.float32) + 1.0)

    def read(self):
        return [self.steps]

    @staticmethod
    def expected(values):
        return [len(values) + count_finite(values)]


class DuckManager:
    """Has the methods of a manager and is none; its update returns None in graphs too."""

    def get_loss_scale(self):
        return 8  # As r1.15's optimizer takes it.

    def update_loss_scale(self, finite_grads):
        return None


class Looking(experimental.LossScale):
    """A user's loss scale that notes the sum of the gradients that it is given."""

    def __init__(self):
        super().__init__()
        self.seen = self._add_weight("seen", 0.0, tf.float32)
        self.updates = self._add_weight("updates", 0, tf.int64)

    def __call__(self):
        return tf.constant(8.0)

    def update(self, grads):
        local_results = tf.distribute.get_strategy().experimental_local_results
        parts = [
            part for grad in tf.nest.flatten(grads) if grad is not None
            for part in local_results(grad)
        ]  # fmt: skip
        total = tf.add_n([tf.cast(tf.reduce_sum(part), tf.float32) for part in parts])
        update = grouped([self.seen.assign(total), self.updates.assign_add(1)])
        return update, tf.reduce_all(tf.math.is_finite(total))

    def get_config(self):
        return {}

    def read(self):
        return [self.seen, self.updates]

    @staticmethod
    def expected(values):
        return [values[-1], len(values)]


class Plain(Looking):
    """One without state, which left the constructor of its base uncalled."""

    def __init__(self):
        pass

    def update(self, grads):
        return grouped([]), True


def nothing(_):
    return []


# Name: (function that makes a policy, its variables, and their values after steps on some values).
POLICIES = {
    "fixed_skipping": (
        lambda: experimental.FixedLossScale(8.0, skip_nonfinite=True), nothing, nothing
    ),
    "fixed_manager": (lambda: contrib.FixedLossScaleManager(8.0), nothing, nothing),
    "duck": (DuckManager, nothing, nothing),
    "exponential": (exponential, state_of, lambda values: states(np.isfinite(values))[-1]),
    "cond_operation": (lambda: CondManager("operation"), CondManager.read, CondManager.expected),
    "cond_none": (lambda: CondManager("none"), CondManager.read, CondManager.expected),
}  # fmt: skip
OWN = (CondManager, AssignAddManager, Looking)
POLICIES.update({cls.__name__: (cls, cls.read, cls.expected) for cls in OWN})
MANAGERS = ("CondManager", "cond_operation", "cond_none", "exponential", "fixed_manager")


def driven(policies):
    """Pairs of an optimizer and a policy that it takes: contrib's takes managers alone."""
    for policy in sorted(policies):
        if policy in (*MANAGERS, "duck", "AssignAddManager"):
            yield "contrib", policy
        yield "mixed", policy


class PoliciesTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.parameters(
        *((which, policy, name) for which, policy in driven(POLICIES) for name in modes.ALL)
    )
    def test_drives_an_optimizer(self, which, policy, name):
        """A loss scale is given the gradients, a manager the flag, once per step."""
        if policy == "cond_none" and name in modes.GRAPH:
            self.skipTest("there a manager has to return what updates it")
        make, read, expected = POLICIES[policy]
        with modes.entered(name) as mode:
            var, made = tf1.Variable(0.0), make()
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            opt = OPTIMIZERS[which](sgd(), made)

            def train(factor):
                return opt.minimize(loss_of(lambda: factor * var), global_step, var_list=[var])

            step = mode.compile(train, modes.scalar())
            for number, value in enumerate(STEPS, 1):
                step(value)
                done = STEPS[:number]
                np.testing.assert_array_equal(mode.value(read(made)), expected(done))
                applied = count_finite(done)
                self.assertEqual(list(mode.value([var, global_step])), [-applied, applied])
            if isinstance(made, experimental.LossScale):
                self.assertCountEqual(map(id, opt.variables()), map(id, read(made)))

    @crossed.parameters(*driven([cls.__name__ for cls in OWN]))
    def test_on_two_replicas(self, which, policy):
        make, read, expected = POLICIES[policy]
        strategy = replicas.strategy("mirrored_2")
        with replicas.executing("function", strategy) as execution:
            weight, made = tf1.Variable([1.0], name="weight"), make()
            opt = OPTIMIZERS[which](sgd(), made)

            def replica_step(factors):
                factor = replicas.own(factors)
                opt.minimize(lambda: tf.reduce_sum(factor * weight), var_list=[weight])

            call = execution.compile(
                lambda factors: replicas.run(strategy, replica_step, (factors,)) and None,
                tf.TensorSpec([2], tf.float32),
            )
            rows = [[1.0, 1.0], [1.0, np.nan], [1.0, 2.0]]
            sums = [float(sum(row)) for row in rows]
            for number, row in enumerate(rows, 1):
                call(np.array(row, np.float32))
                *found, weights = execution.values([*read(made), weight])
                for copies, value in zip(found, expected(sums[:number])):
                    self.assertAllEqual(copies, [value] * 2)
                self.assertAllEqual(weights, [[1.0 - np.nansum(sums[:number])]] * 2)

    def test_a_loss_scale_whose_base_was_not_constructed(self):
        with modes.entered("graph_v1") as mode:
            opt, var = OPTIMIZERS["mixed"](sgd(), Plain()), tf1.Variable(0.0)
            mode.compile(lambda: opt.apply_gradients([(tf.constant(2.0), var)]))()
            self.assertEqual(mode.value(var), -2.0)
            self.assertEqual(opt.variables(), [])


class ManagerAsLossScaleTest(modes.EagerTestCase):
    @crossed.product(policy=MANAGERS, name=modes.ALL)
    def test_update_has_one_form_whatever_the_managers_own_returns(self, policy, name):
        make, read, expected = POLICIES[policy]
        with modes.entered(name) as mode:
            made = make()
            loss_scale = loss_scale_lib.get(made)

            def step(grad):
                update, should_apply = loss_scale.update([grad, None])
                self.assertEqual(update is None, name == "eager")
                return stepping.then(update, lambda: [tf.identity(should_apply), loss_scale * 1.0])

            step = mode.compile(step, modes.scalar())
            for number, value in enumerate(STEPS, 1):
                finite, scale = step(value)
                self.assertEqual(finite, np.isfinite(value))
                if policy == "cond_none" and name in modes.GRAPH:
                    continue  # Nothing runs the manager's update.
                np.testing.assert_array_equal(mode.value(read(made)), expected(STEPS[:number]))
                self.assertEqual(scale, mode.value(loss_scale * 1.0))

    def test_its_config_makes_the_same_manager(self):
        arguments = (64.0, 5, 3, 4.0, 0.5)
        for manager in (
            contrib.FixedLossScaleManager(8.0),
            contrib.ExponentialUpdateLossScaleManager(*arguments),
        ):
            with tf.Graph().as_default():
                config = loss_scale_lib.serialize(loss_scale_lib.get(manager))
                again = loss_scale_lib.get(json.loads(json.dumps(config)))
                self.assertIs(type(again.manager), type(manager))
                self.assertEqual(loss_scale_lib.serialize(again), config)
        self.assertEqual(tuple(config["config"]["config"].values()), arguments)

    @keras_homes.each()
    def test_a_manager_of_the_users_own_drives_a_keras_optimizer(self, home):
        class Policy(contrib.ExponentialUpdateLossScaleManager):
            pass

        variable = home.variable(1.0)
        opt = keras_experimental.LossScaleOptimizer(home.SGD(0.5), Policy(8.0, 100, 1))
        for grad in (8.0, float("nan")):
            opt.apply_gradients([(tf.constant(grad), variable)], scaled=True)
        self.assertEqual(float(home.numpy(variable)), 0.5)
        self.assertAlmostEqual(float(opt.loss_scale()), 6.4, places=6)
        scale = opt.loss_scale
        for call in (opt.get_config, scale.get_config, lambda: loss_scale_lib.serialize(scale)):
            with self.assertRaisesRegex(NotImplementedError, "Policy has no config: save weights"):
                call()

    def test_a_config_of_no_manager_is_refused(self):
        for name in ("Policy", "FixedLossScaleManager"):
            config = {"class_name": "ManagerLossScale", "config": {"class_name": name}}
            with self.assertRaisesRegex(ValueError, "names no loss-scale manager.*" + name):
                loss_scale_lib.get(config)

    def test_a_checkpoint_of_a_subclass_that_passes_slots_on(self):
        class Passing(OPTIMIZERS["mixed"]):
            def get_slot_names(self):
                return super().get_slot_names()

        opt = Passing(tf1.train.MomentumOptimizer(0.1, 0.9), "dynamic")
        weight = tf1.Variable(1.0, use_resource=True)
        opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertEqual(opt.get_slot_names(), ["momentum"])
        checkpoint = tf.train.Checkpoint(opt=opt, weight=weight)
        path = checkpoint.save(self.get_temp_dir() + "/passing")
        opt.get_slot(weight, "momentum").assign(7.0)
        checkpoint.restore(path).assert_consumed()
        self.assertEqual(float(opt.get_slot(weight, "momentum").numpy()), 1.0)

    def test_a_checkpoint_of_the_optimizer_holds_the_manager(self):
        with modes.entered("eager") as mode:
            opt = OPTIMIZERS["mixed"](sgd(), exponential())
            opt.apply_gradients([(tf.constant(np.nan), tf1.Variable(1.0))])
            path = tf.train.Checkpoint(optimizer=opt).save(self.get_temp_dir() + "/manager")
            other = OPTIMIZERS["mixed"](sgd(), exponential())
            before = mode.value(other.variables())
            status = tf.train.Checkpoint(optimizer=other).restore(path)
            status.assert_existing_objects_matched()
            self.assertEqual(mode.value(other.variables()), mode.value(opt.variables()))
            self.assertNotEqual(mode.value(other.variables()), before)


@unittest.skipIf(originals.experimental() is None, "this TensorFlow has no loss scales of its own")
class OfTensorFlowTest(modes.EagerTestCase):
    """TensorFlow's own loss scales, as `policy.loss_scale` of 2.1 to 2.4 is one."""

    def dynamic(self):
        return originals.experimental().DynamicLossScale(8.0, 2, 2.0)

    @parameterized.parameters("graph_v1", "function")
    def test_a_v1_optimizer_goes_on_as_the_original(self, mode):
        original = originals.experimental().MixedPrecisionLossScaleOptimizer
        seen = []
        for cls in (original, experimental.MixedPrecisionLossScaleOptimizer):
            with modes.entered(mode) as entered:
                loss_scale, weight = self.dynamic(), tf1.Variable(1.0)
                opt = cls(sgd(0.25), loss_scale)
                step = entered.compile(
                    lambda grad: opt.apply_gradients([(grad, weight)]), modes.scalar()
                )
                seen.append([])
                for value in STEPS:
                    step(value)
                    state = [weight, loss_scale(), loss_scale._num_good_steps]
                    seen[-1].append(entered.value(state))
        self.assertEqual(seen[1], seen[0])

    @keras_homes.each(("eager", "function"), kind=keras_homes.BEFORE_3)
    def test_a_keras_optimizer_goes_on_as_its_own_class(self, home, mode):
        seen = []
        with modes.entered(mode) as entered:
            for own in (True, False):
                loss_scale, weight = self.dynamic(), tf.Variable(1.0)
                opt = keras_experimental.LossScaleOptimizer(home.SGD(0.25), loss_scale)
                if own:
                    opt = home.wrapped_in_own(home.SGD(0.25), growth_steps=2)
                step = entered.compile(
                    lambda grad: [opt.apply_gradients([(grad, weight)])][1:], modes.scalar()
                )
                seen.append([])
                for value in STEPS:
                    step(value)
                    scale = opt.loss_scale
                    seen[-1].append((weight.numpy(), float(scale() if callable(scale) else scale)))
            self.assertEqual(seen[1], seen[0])
            self.assertEqual(float(loss_scale()), seen[1][-1][1])  # Its state is the optimizer's.

    def test_its_state_and_config(self):
        own = self.dynamic()
        loss_scale = loss_scale_lib.get(own)
        self.assertIs(loss_scale_lib.get(own), loss_scale)  # Which has one owner.
        self.assertIs(loss_scale.current_loss_scale, own._current_loss_scale)
        config = loss_scale_lib.serialize(loss_scale)
        self.assertEqual(config, {"class_name": "DynamicLossScale", "config": own.get_config()})
        opt = OPTIMIZERS["mixed"](sgd(), own)
        opt.apply_gradients([(tf.constant(np.nan), tf1.Variable(1.0))])
        self.assertEqual(float(own()), 4.0)
        assigned = OPTIMIZERS["mixed"](sgd(), 8.0)
        assigned._loss_scale = own
        self.assertIs(assigned._loss_scale, loss_scale)
        self.assertContainsSubset([4.0, 0], [float(each.numpy()) for each in opt.variables()])
        path = tf.train.Checkpoint(optimizer=opt).save(self.get_temp_dir() + "/own")
        fresh = OPTIMIZERS["mixed"](sgd(), experimental.DynamicLossScale(8.0))
        tf.train.Checkpoint(optimizer=fresh).restore(path).assert_existing_objects_matched()
        self.assertEqual(float(fresh._loss_scale()), 4.0)
        fixed = loss_scale_lib.get(originals.experimental().FixedLossScale(8.0))
        self.assertEqual(repr(fixed), "FixedLossScale(8.0)")

    def test_a_class_derived_from_it_is_refused(self):
        class Own(originals.experimental().DynamicLossScale):
            pass

        with self.assertRaisesRegex(ValueError, "a LossScale of this package"):
            loss_scale_lib.get(Own())


class BadInputTest(modes.EagerTestCase):
    def _refused(self, make, error, *words):
        with tf.Graph().as_default() as graph:
            with self.assertRaises(error) as raised:
                make()
            self.assertIs(type(raised.exception), error)
            for word in words:
                self.assertIn(word, str(raised.exception))
            self.assertEmpty(graph.get_operations())
            self.assertEmpty(tf1.global_variables())
        with modes.creations() as created:
            with self.assertRaises(error):
                make()
            self.assertEmpty(created)

    @parameterized.parameters(
        (None,), (object(),), ([8.0],), (8j,), (np.array([8.0]),),
        (contrib.FixedLossScaleManager,), (experimental.DynamicLossScale,),
    )  # fmt: skip
    def test_what_is_no_loss_scale_is_refused(self, identifier):
        words = ["loss_scale cannot be None"] if identifier is None else []
        self._refused(lambda: OPTIMIZERS["mixed"](sgd(), identifier), ValueError, *words)

    @parameterized.parameters(
        (None,), (8,), (128.0,), ("dynamic",), (contrib.FixedLossScaleManager,),
        (experimental.FixedLossScale(8.0),),
        ({"class_name": "FixedLossScale", "config": {"loss_scale_value": 8.0}},),
        (loss_scale_lib.get(contrib.FixedLossScaleManager(8.0)),),
    )  # fmt: skip
    def test_what_is_no_manager_is_refused(self, identifier):
        words = [
            "loss_scale_manager must be a LossScaleManager", repr(identifier),
            "MixedPrecisionLossScaleOptimizer, which takes a LossScale, a number",
        ]  # fmt: skip
        self._refused(lambda: contrib.LossScaleOptimizer(sgd(), identifier), TypeError, *words)
        manager = contrib.FixedLossScaleManager(8.0)
        opt = contrib.LossScaleOptimizer(sgd(), manager)
        with self.assertRaisesRegex(TypeError, words[0]):
            opt._loss_scale_manager = identifier
        self.assertIs(opt._loss_scale_manager, manager)

    def test_what_lacks_a_method_of_a_manager_is_refused(self):
        class HalfAManager:
            def get_loss_scale(self):
                return tf.constant(4.0)

        self._refused(
            lambda: loss_scale_lib.get(HalfAManager()), ValueError, "Cannot make a loss scale"
        )

    @parameterized.parameters((None,), (object(),), ("sgd",), (0.1,), (type(sgd()),))
    def test_what_is_no_optimizer_is_refused(self, opt):
        for cls, error in zip(OPTIMIZERS.values(), (TypeError, ValueError)):
            words = "opt must", "tf.compat.v1.train.Optimizer", repr(opt)
            self._refused(lambda cls=cls: cls(opt, "dynamic"), error, *words)
