"""The contract's table of contexts: where each call belongs and what it does there.

| context | get_loss_scale | update(grads) | update_loss_scale(finite) | apply_gradients |
| none | value | yes | yes | yes |
| cross-replica | value | yes | yes | ValueError |
| replica | value | dynamic: RuntimeError | yes, as one step | yes |

Updates and steps in each context are in scales/state_property_test.py.
"""

import functools
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, replicas, stepping
from tests.v1_optimizers import dynamic, exponential, sgd, state_of, states
from tf_lossscale_compat import FixedLossScale, FixedLossScaleManager
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")


def contrib(policy, inner=None):
    return LossScaleOptimizer(inner or sgd(0.25), policy, keep_sparse=True)


def mixed(policy, inner=None):
    return MixedPrecisionLossScaleOptimizer(inner or sgd(0.25), policy)


def faults(count):
    """Rows of factors, one for each replica: fine, at fault on the last, on the first, and on all.

    Some are so twice, so that the loss scale grows as well as shrinks.
    """
    fine = [1.0] * count
    last, first = list(fine), list(fine)
    last[-1], first[0] = NAN, INF
    return np.array([fine, fine, fine, last, fine, first, [-INF] * count, fine], np.float32)


def weight(**arguments):
    return tf1.Variable([1.0, 2.0], use_resource=True, **arguments)


class Assigning(tf1.train.GradientDescentOptimizer):
    """Assigns in a replica context, where a variable's aggregation counts."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assigned = [variable.assign_sub(0.25 * grad) for grad, variable in grads_and_vars]
        return tf.group(*assigned, global_step.assign_add(1.0))


class ContextsTest(replicas.TestCase):
    @parameterized.parameters(*replicas.PROGRAMS)
    def test_update_in_replica_context(self, name, mode):
        self.enter(name, mode)
        loss_scale, manager = dynamic(), exponential()
        state = [*state_of(loss_scale), *manager.variables()]

        def fixed(factors):
            grads = [replicas.own(factors) * tf.ones([2]), None]
            applies = FixedLossScale(8.0).update(grads)[1]
            skips = FixedLossScale(8.0, skip_nonfinite=True).update(grads)[1]
            return tf.convert_to_tensor(applies), skips

        spec = tf.TensorSpec([self.count])
        step = self.execution.compile(lambda values: self.each(fixed, values), spec)
        for factors in faults(self.count):
            applies, skips = step(factors)
            self.assertAllEqual(applies, [True] * self.count)
            self.assertAllEqual(skips, [np.all(np.isfinite(factors))] * self.count)

        before = self.execution.values(state)
        for policy in (loss_scale, loss_scale_lib.get(manager)):
            with self.assertRaisesRegex(
                RuntimeError, r"(?s)replica context.*merge_call.*strategy\.run.*strategy\.scope"
            ):
                self.execution.call(
                    lambda policy=policy: self.each(lambda: policy.update([tf.constant(NAN)])[1])
                )
        self.assertAllEqual(self.execution.values(state), before)

    def test_the_cross_replica_error_names_the_method_that_was_called(self):
        variable = self.enter("mirrored_2", "eager", weight)
        optimizer = mixed(dynamic())
        with self.assertRaisesRegex(ValueError, "^minimize was called in a cross-replica context"):
            optimizer.minimize(lambda: tf.reduce_sum(variable), var_list=[variable])

    @parameterized.parameters(*replicas.PROGRAMS)
    def test_apply_gradients_in_cross_replica_context_raises_a_value_error(self, name, mode):
        self.enter(name, mode)
        variable = weight()
        count = tf1.Variable(3, use_resource=True, trainable=False)
        loss_scale, manager = dynamic(), exponential()
        skips = FixedLossScale(8.0, skip_nonfinite=True)
        state = [variable, count, *state_of(loss_scale), *state_of(manager)]
        for optimizer in (mixed(loss_scale), contrib(manager), mixed(skips)):
            before = self.execution.values(state)
            with self.assertRaisesRegex(
                ValueError,
                r"(?s)^\S*apply_gradients was called.*cross-replica"
                r".*replica context: inside.*strategy\.run",
            ):
                self.execution.call(
                    lambda optimizer=optimizer: optimizer.apply_gradients(
                        [(tf.constant([1.0, 1.0]), variable)], global_step=count
                    )
                )
            for old, new in zip(before, self.execution.values(state)):
                self.assertAllEqual(new, old)


def reductions(graph):
    """Reductions in a graph: [(type of operation, shape or None in a function body)]."""

    # ReductionToOneDevice adds; everything else is a collective.
    def reduces(kind):
        return kind == "AddN" or kind.startswith(("Collective", "Nccl"))

    found = [(op.type, op.inputs[0].shape) for op in graph.get_operations() if reduces(op.type)]
    for function in graph.as_graph_def().library.function:
        found.extend((node.op, None) for node in function.node_def if reduces(node.op))
    return found


def step_reductions(name, mode, wrap):
    """Returns `reductions` of one training step with three gradients."""
    strategy = replicas.strategy(name)
    with replicas.executing(mode, strategy):
        variables = [tf1.Variable(tf.ones([3]), use_resource=True) for _ in range(3)]
        optimizer = wrap(sgd())

        def replica_step():
            grads_and_vars = optimizer.compute_gradients(
                lambda: tf.reduce_sum(tf.stack(variables)), variables
            )
            return optimizer.apply_gradients(grads_and_vars)

        if mode == "graph":
            replicas.run(strategy, replica_step)
            return reductions(tf1.get_default_graph())
        function = tf.function(
            lambda: replicas.run(strategy, replica_step) and None, autograph=False
        )
        return reductions(function.get_concrete_function().graph)


@unittest.skipUnless(stepping.VERSION < (2, 0), "there is no tf.contrib")
class ContribStrategyTest(modes.EagerTestCase):
    @parameterized.product(optimizer=(contrib, mixed), mirrored=(True, False))
    def test_nan_on_one_replica(self, optimizer, mirrored):
        if mirrored:
            strategy = tf.contrib.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        else:
            strategy = tf.distribute.experimental.ParameterServerStrategy()
            # As with two GPUs.
            strategy.extended._initialize_local(replicas.cpus(2), "/cpu:0")
        with tf.Graph().as_default(), strategy.scope():
            policy = exponential() if optimizer is contrib else dynamic()
            opt = optimizer(policy)
            weight = tf1.get_variable("weight", initializer=1.0)
            bad = tf1.placeholder_with_default(-1, [])

            def step():
                nan = tf.equal(replicas.replica_id(), bad)
                grad = tf.where(nan, tf.constant(NAN), tf.constant(2.0))
                return opt.apply_gradients([(grad, weight)])

            update = strategy.group(replicas.run(strategy, step))
            copies = [*strategy.experimental_local_results(weight)]
            scale = state_of(policy)[0]
            with tf1.Session(config=tf1.ConfigProto(device_count={"CPU": 2})) as session:
                session.run(tf1.global_variables_initializer())
                session.run(update)
                first = session.run([scale, *copies])
                self.assertEqual(first[0], 8.0)
                self.assertLen(copies, 2 if mirrored else 1)
                self.assertEqual(first[1], first[-1])
                self.assertNotEqual(first[1], 1.0)
                session.run(update, {bad: 1})
                self.assertEqual(session.run([scale, *copies]), [4.0, *first[1:]])

    def test_others_are_named_by_their_module(self):
        with tf.contrib.distribute.CollectiveAllReduceStrategy().scope():
            strategy = tf.distribute.get_strategy()
            # As in a cluster, which it would look for.
            with mock.patch.object(strategy.extended, "_cluster_spec", {"worker": ["host:1"]}):
                message = r"CollectiveAllReduceStrategy: .* This one is from tensorflow\.contrib"
                with self.assertRaisesRegex(ValueError, message):
                    contrib(FixedLossScaleManager(8))
            contrib(FixedLossScaleManager(8))


class OneReductionTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ("mirrored_2", "graph", lambda opt: contrib(exponential(), opt)),
        ("central_3", "graph", lambda opt: mixed(dynamic(), opt)),
        ("no_merge_2", "function", lambda opt: contrib(exponential(), opt)),
    )
    def test_one_scalar_is_reduced_for_several_gradients(self, name, mode, wrap):
        if name not in replicas.REPLICAS:
            self.skipTest("this TensorFlow always has merge_call")
        # Collectives are one operation on each replica.
        one = replicas.REPLICAS[name] if name == "no_merge_2" else 1
        plain, scaled = (step_reductions(name, mode, make) for make in (lambda opt: opt, wrap))
        self.assertNotEmpty(plain)
        self.assertLen(scaled, len(plain) + one)
        # In the branch of the step that is not skipped are the gradients; outside the flag.
        scalars = [shape for _, shape in scaled if shape is not None and shape.num_elements() == 1]
        self.assertLen(scalars, one)


@unittest.skipUnless("no_merge_2" in replicas.REPLICAS, "this TensorFlow always has merge_call")
class NoMergeCallTest(parameterized.TestCase, tf.test.TestCase):
    """Replicas that cannot meet: each is in a function of its own, as XLA compiles it on GPUs."""

    def setUp(self):
        super().setUp()
        self.strategy = replicas.strategy("no_merge_2")

    def compile(self, execution, replica_step):
        functions = [tf.function(replica_step, autograph=False) for _ in range(2)]

        def call(factors):
            # Not one function for both, which would be traced for one replica only.
            function = functions[int(tf.get_static_value(replicas.replica_id()))]
            return function(replicas.own(factors))

        return execution.compile(
            lambda factors: replicas.run(self.strategy, call, (factors,)),
            tf.TensorSpec([2], tf.float32),
        )

    def test_steps_are_taken_and_skipped_together(self):
        with replicas.executing("function", self.strategy) as execution:
            manager, loss_scale, alone = exponential(), dynamic(), exponential()
            optimizers = [contrib(manager, Assigning(0.25)), mixed(loss_scale, Assigning(0.25))]
            variables = [weight(aggregation=tf1.VariableAggregation.SUM) for _ in optimizers]
            count = tf1.Variable(
                0.0, use_resource=True, trainable=False, aggregation=tf1.VariableAggregation.MEAN
            )

            def replica_step(factor):
                for optimizer, variable in zip(optimizers, variables):
                    grads_and_vars = optimizer.compute_gradients(
                        lambda variable=variable: tf.reduce_sum(variable) * factor, [variable]
                    )
                    optimizer.apply_gradients(grads_and_vars, global_step=count)
                alone.update_loss_scale(tf.math.is_finite(factor))
                skips = FixedLossScale(8.0, skip_nonfinite=True)
                return skips.update([factor])[1]

            step = self.compile(execution, replica_step)
            flags = []
            for factors in faults(2):
                flags.append(bool(np.all(np.isfinite(factors))))
                self.assertAllEqual(step(factors), [flags[-1]] * 2)
                applied = sum(flags)
                for policy in (manager, loss_scale, alone):
                    for each, wanted in zip(state_of(policy), states(flags)[-1]):
                        self.assertAllEqual(execution.values([each]), [[wanted] * 2])
                self.assertAllEqual(execution.values([count]), [[2 * applied] * 2])
                for copies in execution.values(variables):
                    self.assertAllEqual(copies, [[1 - 0.5 * applied, 2 - 0.5 * applied]] * 2)

    def test_state_made_outside_the_scope_is_refused(self):
        with replicas.executing("function", self.strategy, exponential) as execution:
            manager = execution.made_before
            with self.assertRaisesRegex(ValueError, r"loss_scale:0 was made outside.*under"):
                self.compile(
                    execution, lambda factor: manager.update_loss_scale(tf.math.is_finite(factor))
                )([1.0, 1.0])
            self.assertAllEqual(execution.values(manager.variables()), [[8.0], [0], [0]])


def refused():
    """Calls that need a supported strategy, by name, and the variables that none may change.

    To be called outside the strategy's scope, as then it is found out when they are used.
    """
    manager, loss_scale = exponential(), dynamic()
    calls = {
        "contrib": lambda: contrib(manager),
        "mixed": lambda: mixed(8.0),
        "mixed dynamic": lambda: mixed("dynamic"),
        "update": lambda: loss_scale.update([tf.constant(1.0)]),
        "update_loss_scale": lambda: manager.update_loss_scale(True),
    }
    return calls, [*manager.variables(), *state_of(loss_scale)]


def of_any_api(*names):
    """TensorFlow's strategies of these names, wherever a user may take them from."""
    apis = (tf.distribute, tf1.distribute, tf.compat.v2.distribute)
    homes = [home for api in apis for home in (api, api.experimental)]
    found = {getattr(home, name) for home in homes for name in names if hasattr(home, name)}
    return sorted(found, key=repr)


def made(cls):
    """A strategy of a subclass on one device, whatever cluster or TPU `cls` would look for."""
    strategy = object.__new__(type(cls.__name__, (cls,), {"scope": tf.distribute.Strategy.scope}))
    extended = type(replicas.strategy("one_device").extended)
    tf.distribute.Strategy.__init__(strategy, extended(strategy, "/cpu:0"))
    return strategy


class UnsupportedStrategyTest(modes.EagerTestCase):
    def test_raise_and_make_nothing(self):
        for cls in of_any_api("Strategy", "TPUStrategy", "ParameterServerStrategy"):
            with replicas.executing("eager", made(cls), refused) as execution:
                calls, state = execution.made_before
                before = execution.call(lambda state=state: state)
                with modes.creations() as created:
                    for call in calls.values():
                        with self.assertRaisesRegex(
                            ValueError, rf"support {cls.__name__}: .*\. Use .*MirroredStrategy"
                        ):
                            call()
                self.assertEmpty(created)
                self.assertAllEqual(execution.call(lambda state=state: state), before)

    def test_a_step_that_reduces_nothing(self):
        opt, weight = mixed(8.0), tf.Variable(1.0)
        with made(tf.distribute.Strategy).scope():
            step = functools.partial(opt.apply_gradients, [(tf.constant(1.0), weight)])
            with self.assertRaisesRegex(ValueError, "does not support Strategy"):
                tf.distribute.get_strategy().extended.call_for_each_replica(step)
        self.assertEqual(weight.numpy(), 1.0)

    @parameterized.parameters(
        "OneDeviceStrategy",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "CentralStorageStrategy",
    )
    def test_subclasses_of_supported_ones_are_supported(self, name):
        for cls in of_any_api(name):
            with replicas.executing("eager", made(cls), refused) as execution:
                calls, _ = execution.made_before
                for call in calls.values():
                    call()
