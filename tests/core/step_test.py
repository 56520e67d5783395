"""A step: what it adds to the optimizer's own, in each mode, and the order of its parts."""

import collections
import contextlib
import functools
import itertools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, stepping
from tests.v1_optimizers import (
    BOTH,
    OPTIMIZERS,
    Bypassing,
    OwnManager,
    dynamic_for,
    fixed_for,
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
from tf_lossscale_compat._core import _gradients, _tf
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

_sgd = functools.partial(sgd, 0.1)
WRAPPERS = {
    "fixed": lambda: MixedPrecisionLossScaleOptimizer(_sgd(), FixedLossScale(8.0)),
    "dynamic": lambda: MixedPrecisionLossScaleOptimizer(_sgd(), DynamicLossScale(8.0)),
    "contrib_fixed": lambda: contrib.LossScaleOptimizer(_sgd(), FixedLossScaleManager(8.0)),
    "contrib_exponential": lambda: contrib.LossScaleOptimizer(
        _sgd(), ExponentialUpdateLossScaleManager(8.0, 100)
    ),
}


def _loss(variables):
    return tf.add_n([tf.reduce_sum(variable * variable) for variable in variables])


def _step(optimizer, variables):
    optimizer.apply_gradients(optimizer.compute_gradients(lambda: _loss(variables), variables))


def _minimize(optimizer, variables):
    optimizer.minimize(lambda: _loss(variables), var_list=variables)


def _operations(make, shapes):
    """`_count` of a step with gradients of these shapes."""
    variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    optimizer = make()
    function = tf.function(lambda: _step(optimizer, variables), autograph=False)
    return _count(function.get_concrete_function())


def _count(concrete):
    """Counts of the types of a function's operations, with all that it calls."""
    graph = concrete.graph.as_graph_def()
    nodes = list(graph.node) + [node for f in graph.library.function for node in f.node_def]
    return collections.Counter(node.op for node in nodes)


class GraphTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(modes.control_flow(2))

    def _added(self, make, shapes):
        return sum(_operations(make, shapes).values()) - sum(_operations(_sgd, shapes).values())

    # Not contrib's: on 1.15 it calls the loss itself, as r1.15's does, so gradients have other
    # operations than with the bare optimizer.
    @parameterized.parameters("fixed", "dynamic")
    def test_one_operation_for_each_small_gradient(self, wrapper):
        # Kernels may differ in all but their number of outputs.
        few, many = (self._added(WRAPPERS[wrapper], [[1 + i, 4] for i in range(n)]) for n in (3, 8))
        self.assertEqual(many - few, 5)

    def test_three_at_most_for_each_that_is_not_small(self):
        few, many = (self._added(WRAPPERS["dynamic"], [[200, 200]] * n) for n in (2, 4))
        self.assertEqual(many - few, 2 * 3)

    def test_one_run_and_two_in_reserve_for_each_large_gradient(self):
        few, many = (self._added(WRAPPERS["dynamic"], [[1024, 512]] * n) for n in (2, 6))
        self.assertEqual(many - few, 4 * (1 + 1 + 2))
        counts = _operations(WRAPPERS["dynamic"], [[1024, 512]] * 3)
        self.assertEqual(counts["L2Loss"], 3)

    @parameterized.parameters("step", "branch", "function")
    def test_xla_is_left_to_join_operations(self, place):
        def test(grads):
            return _gradients.finite_here(grads)

        def in_branch(grads):
            wanted = tf.reduce_sum(grads[0]) > 0
            return tf.cond(wanted, lambda: test(grads), lambda: tf.constant(False))

        def in_function(grads):
            return tf.function(test, autograph=False)(grads)

        function = {"step": test, "branch": in_branch, "function": in_function}[place]
        specs = [tf.TensorSpec(shape) for shape in ([1024, 512], [1024, 512], [3], [3])]
        counts = [
            _count(make(function).get_concrete_function(specs))
            for make in (functools.partial(tf.function, autograph=False), modes.compiled)
        ]
        self.assertGreater(counts[0]["L2Loss"], 0)
        self.assertGreater(counts[0]["ConcatV2"], 0)
        self.assertEqual(counts[1]["L2Loss"] + counts[1]["ConcatV2"], 0, counts[1])
        self.assertGreaterEqual(counts[1]["IsFinite"], 4)

    def test_hardly_anything_else_with_a_fixed_scale(self):
        added = self._added(WRAPPERS["fixed"], [[4, 4]] * 10)
        self.assertBetween(added, 10, 17)

    @parameterized.parameters(
        ("fixed", 0), ("contrib_fixed", 1), ("dynamic", 4), ("contrib_exponential", 5)
    )
    def test_one_conditional_where_steps_can_be_skipped(self, wrapper, expected):
        """And those of an update, which assigns only what a step changes, as the originals do."""
        counts = _operations(WRAPPERS[wrapper], [[4, 4], [200, 200], [3]])
        conditionals = [op for op in counts if op in ("If", "StatelessIf", "Case", "Switch")]
        self.assertEqual(sum(counts[op] for op in conditionals), expected, counts)


class KerasGraphTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_two_operations_for_each_small_gradient(self, home):
        def wrapped():
            return mixed_precision.LossScaleOptimizer(home.SGD(0.1), initial_scale=8.0)

        def operations(make, number):
            variables = [tf.Variable(tf.ones([4, 4])) for _ in range(number)]
            optimizer = make()

            def step(grads):
                if hasattr(optimizer, "get_unscaled_gradients"):
                    optimizer.get_scaled_loss(tf.constant(1.0))
                    grads = optimizer.get_unscaled_gradients(grads)
                optimizer.apply_gradients(zip(grads, variables))

            grads = [tf.ones([4, 4])] * number
            # Variables are made by the first trace.
            tf.function(step, autograph=False)(grads)
            return _count(tf.function(step, autograph=False).get_concrete_function(grads))

        added = [
            sum(operations(wrapped, number).values())
            - sum(operations(lambda: home.SGD(0.1), number).values())
            for number in (2, 5)
        ]
        # Fewer where that Keras aggregates gradients one by one, and this package all at once. In
        # the branch that applies there is an identity of each, which TensorFlow prunes.
        self.assertLessEqual(added[1] - added[0], 3 * 2, added)


@pytest.mark.slow
class XlaTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        if not _tf.at_least(2, 15):
            self.skipTest("how XLA compiles conditionals is known of later versions")

    def _compiled(self, optimizer):
        """Checks a finite step and one that is not; returns what XLA makes of them, as text."""
        variables = [tf.Variable(tf.ones([4, 4])) for _ in range(3)]
        v1 = isinstance(optimizer, tf1.train.Optimizer)

        @functools.partial(tf.function, jit_compile=True, autograph=False)
        def step(grads):
            optimizer.apply_gradients(zip(grads, variables), **({} if v1 else {"scaled": True}))

        grads = [tf.fill([4, 4], 1.0 if v1 else 8.0)] * 3
        step(grads)
        for variable in variables:
            self.assertAllClose(variable, tf.fill([4, 4], 0.9))
        step([*grads[:-1], tf.fill([4, 4], float("inf"))])
        for variable in variables:
            self.assertAllClose(variable, tf.fill([4, 4], 0.9))
        return step.experimental_get_compiler_ir(grads)(stage="optimized_hlo")

    update = {}

    def _conditionals(self, optimizer, wrapper):
        """The number of conditionals beside those of a loss scale's update."""
        if wrapper not in self.update:
            self.update[wrapper] = self._compiled(WRAPPERS[wrapper]()).count("conditional(")
        return self._compiled(optimizer).count("conditional(") - self.update[wrapper]

    @keras_homes.each()
    def test_keras_branches_only_where_the_optimizer_has_slots(self, home):
        """Selections read and write slots that a skipped step would leave alone."""
        for name, counts in (("SGD", True), ("Adam", False)):
            inner = getattr(home, name)(0.1)
            optimizer = mixed_precision.LossScaleOptimizer(
                inner, initial_scale=8.0, count_skipped=counts
            )
            # The SGD of newer tf.keras has slots for momentum even where there is none.
            slots = name == "Adam" or home.kind == "current"
            self.assertEqual(self._conditionals(optimizer, "dynamic"), slots, name)
            self.assertEqual(float(optimizer.loss_scale), 4.0)
            self.assertEqual(int(optimizer.iterations), 2 if counts else 1)

    def test_what_is_wrapped_need_not_tell_its_variables(self):
        class Applies:
            """An optimizer as r1.15's class asks for, with attributes of its own."""

            def __init__(self, variables=None):
                if variables is not None:
                    self.variables = variables

            def compute_gradients(self, loss):
                raise NotImplementedError

            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                return tf.group(
                    *[v.assign_sub(0.1 * g, read_value=False) for g, v in grads_and_vars]
                )

        class Raises(Applies):
            def variables(self):
                raise NotImplementedError

        for wrapped in (Applies({"m": 1}), Raises(), Bypassing(_sgd())):
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 100, 1, decr_ratio=0.5)
            optimizer, variable = contrib.LossScaleOptimizer(wrapped, manager), tf.Variable([1.0])

            @functools.partial(tf.function, jit_compile=True, autograph=False)
            def step(grad, optimizer=optimizer, variable=variable):
                optimizer.apply_gradients([(grad, variable)])

            step(tf.constant([1.0]))
            step(tf.constant([float("inf")]))
            self.assertAllClose(variable, [0.9])
            self.assertEqual(float(manager.get_loss_scale()), 4.0)

    def test_all_flags_are_joined_once(self):
        """And not in each variable's selection, as XLA does with what it takes for cheap."""

        def lines_of(number):
            variables = [tf.Variable(tf.ones([4, 4])) for _ in range(number)]
            optimizer = WRAPPERS["dynamic"]()

            @functools.partial(tf.function, jit_compile=True, autograph=False)
            def step(grads):
                optimizer.apply_gradients(zip(grads, variables))

            grads = [tf.ones([4, 4])] * number
            return len(step.experimental_get_compiler_ir(grads)("optimized_hlo").splitlines())

        lines = [lines_of(number) for number in (10, 20, 40)]
        growth = (lines[2] - lines[1]) / (lines[1] - lines[0])
        self.assertLess(growth, 2.2, lines)  # 4 where each joins them.


class EagerTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        if not _tf.compiled_gives_same_bits():
            self.skipTest("functions of this TensorFlow take small numbers for zero")

    @parameterized.parameters(
        ("fixed", _step, {"unscale"}),
        ("dynamic", _step, {"unscale", "test"}),
        ("fixed", _minimize, {"unscale"}),
        ("contrib_fixed", _minimize, {"both"}),
        ("dynamic", _minimize, {"both"}),
    )
    def test_after_two_steps_no_python_runs_for_each_gradient(self, wrapper, step, expected):
        self._check_parts(WRAPPERS[wrapper], step, expected)

    @keras_homes.each((True, False))
    def test_apply_of_keras_unscales_and_tests_in_one(self, home, dynamic):
        def apply(optimizer, variables):
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(_loss(variables))
            optimizer.apply(tape.gradient(loss, variables), variables)

        self._check_parts(
            lambda: mixed_precision.LossScaleOptimizer(home.SGD(0.1), dynamic, 8.0),
            apply,
            {"both"} if dynamic else {"divide" if home.kind == "keras3" else "unscale"},
        )

    def _check_parts(self, make, step, expected):
        """Compares what is compiled by the second step, after which none of it runs in Python."""
        parts = {
            "unscale": _gradients.multiply,
            "divide": _gradients.divide,
            "test": _gradients._test,
            "both": _gradients._unscale_and_test,
        }
        compiled, compile_one = set(), _gradients.Compiled._compile

        def record(part, *args):
            compiled.update(name for name, each in parts.items() if each is part)
            return compile_one(part, *args)

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(_gradients.Compiled, "_compile", record))
            for part in parts.values():
                part._kept.cache_clear()
            variables = [tf.Variable(tf.ones([4, 4])) for _ in range(5)]
            optimizer = make()
            for _ in range(2):
                step(optimizer, variables)
            self.assertEqual(compiled, expected)
            for part in parts.values():
                stack.enter_context(mock.patch.object(part, "_function", None))
            for _ in range(3):
                step(optimizer, variables)
            # 5 steps of v -= 0.1 * 2 * v
            self.assertAllClose(variables[0][0, 0], 0.8**5)


class Failing(tf1.train.GradientDescentOptimizer):
    """Cannot apply what it is given."""

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        (grad, _), *_ = grads_and_vars
        with tf.control_dependencies([tf.debugging.assert_less(grad, 0.0)]):
            return super().apply_gradients(grads_and_vars, global_step, name)


class OrderTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(  # XLA drops assertions.
        name=(*modes.GRAPH, "eager", "function"),
        make=(lambda: dynamic_for("contrib"), lambda: OwnManager(8.0, 2000)),
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


class Given(tf1.train.GradientDescentOptimizer):
    """Gradient descent on gradients that it is given; applies even what others refuse."""

    def __init__(self, grads=None):
        super().__init__(1.0)
        self.grads = grads

    def compute_gradients(self, loss, var_list=None, **_):
        return list(zip(self.grads, var_list))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        moved = [variable.assign_add(tf.ones_like(variable)) for _, variable in grads_and_vars]
        return None if tf.executing_eagerly() else tf.group(*moved)


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
