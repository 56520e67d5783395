"""Faults that a training run would not notice: each has to be right, or to raise an error.

Without Keras; Keras' optimizers are tested elsewhere.
"""

import functools
import itertools
import tempfile
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, originals, replicas, stepping
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    FixedLossScale,
    FixedLossScaleManager,
    LossScale,
    LossScaleManager,
)
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
OPTIMIZERS = {"contrib": LossScaleOptimizer, "mixed": MixedPrecisionLossScaleOptimizer}
BOTH = tuple(sorted(OPTIMIZERS))
MOST_MODES = tuple(mode for mode in modes.ALL if mode != "jit")
SMALLEST = float(np.finfo(np.float32).tiny)  # Of the normal numbers.
BFLOAT16 = tf.bfloat16.as_numpy_dtype


def dynamic():
    return DynamicLossScale(8.0, increment_period=2, multiplier=2.0)


def exponential():
    return ExponentialUpdateLossScaleManager(8.0, 2, 1, incr_ratio=2.0, decr_ratio=0.5)


def moved(state, finite):
    """Scale and good steps after one more step, of `dynamic` and `exponential` alike."""
    scale, good = state
    if not finite:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if good == 1 else (scale, 1)


def loss_of(function):
    """A loss as users of the mode give it: a tensor in a graph, else a callable."""
    graph = tf1.get_default_graph()
    return function if tf.executing_eagerly() or graph.building_function else function()


class Given(tf1.train.GradientDescentOptimizer):
    """Gradient descent on gradients that it is given; applies even what others refuse."""

    def __init__(self, grads=None):
        super().__init__(1.0)
        self.grads = grads
        self.applied = []

    def compute_gradients(self, loss, var_list=None, **_):
        return list(zip(self.grads, var_list))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        self.applied.append(list(grads_and_vars))
        moved = [variable.assign_add(tf.ones_like(variable)) for _, variable in self.applied[-1]]
        return None if tf.executing_eagerly() else tf.group(*moved)


class Descent(Given):
    """Gradient descent on gradients that it is given."""

    apply_gradients = tf1.train.GradientDescentOptimizer.apply_gradients


# Copies of mirrored state.

OUTSIDE = ["one_device", "mirrored_2", "mirrored_3", "central_3"]
if stepping.VERSION < (2, 10):  # Tracing for several replicas is slow there.
    OUTSIDE = ["one_device", "mirrored_2", "central_3"]


class CopiesTest(parameterized.TestCase, tf.test.TestCase):
    """State made under `strategy.scope()` and updated from elsewhere: copies never differ."""

    def _gradients(self, form, strategy, factors):
        """A gradient and its flag, as plain tensors or one for each replica."""

        def of_factor(factor):
            return factor * tf.ones([2]), tf.math.is_finite(factor)

        if form == "reduced":
            return of_factor(tf.reduce_sum(factors))
        return replicas.run(strategy, lambda f: of_factor(replicas.own(f)), (factors,))

    @crossed.parameters(
        *itertools.product(
            OUTSIDE,
            replicas.EXECUTIONS,
            (("inside", "reduced"), ("inside", "per_replica"), ("outside", "reduced")),
        )
    )
    def test_every_copy_moves_alike(self, name, mode, case):
        where, form = case
        strategy, count = replicas.strategy(name), replicas.REPLICAS[name]
        with replicas.executing(mode, strategy, inside=where == "inside") as execution:
            with strategy.scope():
                loss_scale, manager, of_manager = dynamic(), exponential(), exponential()
                adapted = loss_scale_lib.get(of_manager)
            state = [
                (loss_scale.current_loss_scale, loss_scale.good_steps),
                tuple(manager.variables()[:2]),
                tuple(of_manager.variables()[:2]),
            ]

            def step(factors):
                grad, flag = self._gradients(form, strategy, factors)
                updates = [
                    loss_scale.update([grad])[0],
                    manager.update_loss_scale(flag),
                    adapted.update([grad])[0],
                ]
                return [] if mode == "function" else updates

            call = execution.compile(step, tf.TensorSpec([count], tf.float32))
            fine = [1.0] * count
            wanted = (8.0, 0)
            for factors in (fine[1:] + [NAN], fine, fine, [INF] + fine[1:], fine):
                call(np.array(factors, np.float32))
                wanted = moved(wanted, np.isfinite(factors).all())
                for scale, good in state:
                    scales, goods = execution.values([scale, good])
                    self.assertAllEqual(scales, [wanted[0]] * len(scales))
                    self.assertAllEqual(goods, [wanted[1]] * len(goods))
        if name.startswith("mirrored"):
            self.assertLen(scales, count)

    @crossed.parameters(*itertools.product(OUTSIDE, replicas.EXECUTIONS[:2]))
    def test_values_per_replica_outside_of_the_scope_are_taken_right_or_refused(self, name, mode):
        strategy, count = replicas.strategy(name), replicas.REPLICAS[name]
        with replicas.executing(mode, strategy, inside=False) as execution:
            with strategy.scope():
                loss_scale, manager = dynamic(), exponential()
            for factors, finite in (([1.0] * (count - 1) + [NAN], False), ([1.0] * count, True)):
                for policy in (loss_scale, manager):
                    scale, good = (
                        manager.variables()[:2]
                        if policy is manager
                        else (loss_scale.current_loss_scale, loss_scale.good_steps)
                    )

                    def step(factors, policy=policy):
                        grad, flag = self._gradients("per_replica", strategy, factors)
                        if policy is manager:
                            manager.update_loss_scale(flag)
                        else:
                            policy.update([grad])

                    (before,), (good_before,) = ({*v} for v in execution.values([scale, good]))
                    wanted = moved((before, good_before), finite)
                    call = execution.compile(step, tf.TensorSpec([count], tf.float32))
                    try:
                        call(np.array(factors, np.float32))
                    except ValueError:  # TensorFlow's, which takes no such value there.
                        wanted = before, good_before
                    scales, goods = execution.values([scale, good])
                    self.assertAllEqual(scales, [wanted[0]] * len(scales))
                    self.assertAllEqual(goods, [wanted[1]] * len(goods))

    @parameterized.parameters("mirrored_2", "mirrored_3")
    def test_eager_updates_by_a_python_flag(self, name):
        strategy = replicas.strategy(name)
        with replicas.executing("eager", strategy, inside=False) as execution:
            with strategy.scope():
                manager = exponential()
            for flag, wanted in ((False, 4.0), (True, 4.0), (True, 8.0), (False, 4.0)):
                manager.update_loss_scale(flag)
                (scales,) = execution.values(manager.variables()[:1])
                self.assertAllEqual(scales, [wanted] * replicas.REPLICAS[name])


# Users' own policies.


class Looking(LossScale):
    """A user's loss scale that notes the sum of the gradients that it is given."""

    def __init__(self, scale=8.0):
        super().__init__()
        self.scale = scale
        self.seen = self._add_weight("seen", 0.0, tf.float32)
        self.updates = self._add_weight("updates", 0, tf.int64)

    def __call__(self):
        return tf.constant(self.scale)

    def update(self, grads):
        local_results = tf.distribute.get_strategy().experimental_local_results
        parts = [
            part for grad in tf.nest.flatten(grads) if grad is not None
            for part in local_results(grad)
        ]  # fmt: skip
        total = tf.add_n([tf.cast(tf.reduce_sum(part), tf.float32) for part in parts])
        updates = [self.seen.assign(total), self.updates.assign_add(1)]
        finite = tf.reduce_all(tf.math.is_finite(total))
        return None if tf.executing_eagerly() else grouped(updates), finite

    def get_config(self):
        return {"scale": self.scale}


def grouped(updates):
    """One operation of assignments; under a strategy each is one for each replica."""
    local_results = tf.distribute.get_strategy().experimental_local_results
    return tf.group(*[local for update in updates for local in local_results(update)])


class LookingDynamic(DynamicLossScale):
    """A user's dynamic loss scale that notes what it is given and calls `super`."""

    def __init__(self):
        super().__init__(8.0, increment_period=2, multiplier=2.0)
        self.seen = self._add_weight("seen", 0.0, tf.float32)
        self.updates = self._add_weight("updates", 0, tf.int64)

    def update(self, grads):
        updates = [Looking.update(self, grads)[0]]
        update, should_apply = super().update(grads)
        if tf.executing_eagerly():
            return None, should_apply
        return grouped(updates + [update]), should_apply


class Flagged(LossScaleManager):
    """A user's manager that counts what it is told."""

    def __init__(self):
        self.finite = tf1.Variable(0, trainable=False, name="finite")
        self.updates = tf1.Variable(0, trainable=False, name="updates")

    def get_loss_scale(self):
        return tf.constant(8.0)

    def update_loss_scale(self, finite_grads):
        finite = tf.cast(finite_grads, tf.int32)
        updates = [self.finite.assign_add(finite), self.updates.assign_add(1)]
        return None if tf.executing_eagerly() else grouped(updates)


class CountingExponential(ExponentialUpdateLossScaleManager):
    """A user's manager with the rule of the base class, and a count of updates."""

    def __init__(self):
        super().__init__(8.0, 2, 1, incr_ratio=2.0, decr_ratio=0.5)
        self.updates = tf1.Variable(0, trainable=False, name="updates")

    def update_loss_scale(self, finite_grads):
        update = super().update_loss_scale(finite_grads)
        counted = self.updates.assign_add(1)
        return None if tf.executing_eagerly() else grouped([counted, update])


class HalvingExponential(CountingExponential):
    """A user's manager with a rule of its own, made of conditionals as r1.15's was."""

    def update_loss_scale(self, finite_grads):
        def if_finite():
            grows = self._num_good_steps + 1 >= self._incr_every_n_steps
            return tf.cond(
                grows,
                lambda: assign(self._loss_scale * self._incr_ratio, 0),
                lambda: assign(self._loss_scale * 1.0, self._num_good_steps + 1),
            )

        def assign(scale, good):
            good = tf.cast(good, tf.int32)
            with tf.control_dependencies([scale, good]):
                updates = [self._loss_scale.assign(scale), self._num_good_steps.assign(good)]
            if tf.executing_eagerly():
                return tf.constant(0)
            with tf.control_dependencies([grouped(updates)]):
                return tf.constant(0)

        result = tf.cond(
            tf.convert_to_tensor(finite_grads),
            if_finite,
            lambda: assign(tf.maximum(self._loss_scale * self._decr_ratio, 1.0), 0),
        )
        counted = self.updates.assign_add(1)
        return None if tf.executing_eagerly() else grouped([counted, result])


class OwnPolicyTest(parameterized.TestCase, tf.test.TestCase):
    """A user's own `LossScale` gets the gradients, a user's own manager the flag."""

    FACTORS = (1.0, NAN, 1.0, 1.0, INF)

    def _steps(self, mode_name, optimizer, make, read):
        """Steps on 3.0 * weight; what `read` reads after each, and the weight."""
        rows = []
        with stepping.entered(mode_name) as mode:
            weight = tf1.Variable([1.0], name="weight")
            policy = make()
            opt = OPTIMIZERS[optimizer](tf1.train.GradientDescentOptimizer(1.0), policy)

            def step(factor):
                loss = loss_of(lambda: tf.reduce_sum(3.0 * factor * weight))
                return opt.minimize(loss, var_list=[weight])

            call = mode.compile(step, modes.scalar())
            for factor in self.FACTORS:
                call(factor)
                rows.append(mode.value([read(policy), tf.identity(weight)]))
        return rows

    def _assert_seen(self, rows, gradients, weights):
        for row, gradient, weight in zip(rows, gradients, weights):
            self.assertAllEqual(row[0][0], gradient)
            self.assertAllClose(row[1], [weight], rtol=0, atol=0)

    @crossed.parameters(*itertools.product(BOTH, modes.ALL))
    def test_a_users_loss_scale_is_given_the_gradients(self, optimizer, mode):
        rows = self._steps(
            mode,
            optimizer,
            Looking,
            lambda policy: [tf.identity(policy.seen), tf.identity(policy.updates)],
        )
        self._assert_seen(rows, [3.0, NAN, 3.0, 3.0, INF], [-2.0, -2.0, -5.0, -8.0, -8.0])
        self.assertEqual([int(row[0][1]) for row in rows], [1, 2, 3, 4, 5])

    @crossed.parameters(*itertools.product(BOTH, modes.ALL))
    def test_a_users_dynamic_loss_scale_is_given_the_gradients(self, optimizer, mode):
        rows = self._steps(
            mode,
            optimizer,
            LookingDynamic,
            lambda policy: [
                tf.identity(policy.seen),
                tf.identity(policy.updates),
                tf.identity(policy.current_loss_scale),
            ],
        )
        self._assert_seen(rows, [3.0, NAN, 3.0, 3.0, INF], [-2.0, -2.0, -5.0, -8.0, -8.0])
        self.assertEqual([int(row[0][1]) for row in rows], [1, 2, 3, 4, 5])
        self.assertEqual([float(row[0][2]) for row in rows], [8, 4, 4, 8, 4])

    @crossed.parameters(*itertools.product(BOTH, modes.ALL))
    def test_a_users_manager_is_given_the_flag(self, optimizer, mode):
        rows = self._steps(
            mode,
            optimizer,
            Flagged,
            lambda policy: [tf.identity(policy.finite), tf.identity(policy.updates)],
        )
        self._assert_seen(rows, [1, 1, 2, 3, 3], [-2.0, -2.0, -5.0, -8.0, -8.0])
        self.assertEqual([int(row[0][1]) for row in rows], [1, 2, 3, 4, 5])

    @crossed.parameters(
        *itertools.product(BOTH, modes.ALL, (CountingExponential, HalvingExponential))
    )
    def test_a_users_exponential_manager_has_its_own_rule(self, optimizer, mode, cls):
        if cls is HalvingExponential and mode == "jit" and stepping.VERSION < (2, 10):
            raise unittest.SkipTest("XLA cannot assign in nested conditionals yet")
        rows = self._steps(
            mode,
            optimizer,
            cls,
            lambda policy: [tf.identity(policy._loss_scale), tf.identity(policy.updates)],
        )
        self._assert_seen(rows, [8.0, 4.0, 4.0, 8.0, 4.0], [-2.0, -2.0, -5.0, -8.0, -8.0])
        self.assertEqual([int(row[0][1]) for row in rows], [1, 2, 3, 4, 5])

    @crossed.parameters(
        *itertools.product(
            BOTH, (Looking, LookingDynamic, Flagged, CountingExponential, HalvingExponential)
        )
    )
    def test_on_two_replicas(self, optimizer, cls):
        strategy = replicas.strategy("mirrored_2")
        with replicas.executing("function", strategy) as execution:
            weight = tf1.Variable([1.0], name="weight")
            policy = cls()
            opt = OPTIMIZERS[optimizer](tf1.train.GradientDescentOptimizer(1.0), policy)

            def replica_step(factors):
                factor = replicas.own(factors)
                opt.minimize(lambda: tf.reduce_sum(3.0 * factor * weight), var_list=[weight])

            call = execution.compile(
                lambda factors: replicas.run(strategy, replica_step, (factors,)) and None,
                tf.TensorSpec([2], tf.float32),
            )
            seen = {
                Looking: lambda: [policy.seen],
                LookingDynamic: lambda: [policy.current_loss_scale, policy.seen],
                Flagged: lambda: [policy.finite],
            }.get(cls, lambda: [policy._loss_scale])()
            wanted = {
                Looking: [(6.0,), (NAN,), (6.0,)],
                LookingDynamic: [(8.0, 6.0), (4.0, NAN), (4.0, 6.0)],
                Flagged: [(1,), (1,), (2,)],
            }.get(cls, [(8.0,), (4.0,), (4.0,)])
            rows = [[1.0, 1.0], [1.0, NAN], [1.0, 1.0]]
            for number, (factors, values) in enumerate(zip(rows, wanted)):
                call(np.array(factors, np.float32))
                *found, updates, weights = execution.values(seen + [policy.updates, weight])
                for copies, value in zip(found, values):
                    self.assertAllEqual(copies, [value] * 2)
                self.assertAllEqual(updates, [number + 1] * 2)
                self.assertAllEqual(weights, [[-5.0 if number < 2 else -11.0]] * 2)


class Returning(Looking):
    """A user's loss scale whose call returns what `make` makes."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __call__(self):
        return self.make()


SCALES = {
    "float": lambda: 8.0,
    "int": lambda: 8,
    "numpy": lambda: np.float64(8.0),
    "float64": lambda: tf.constant(8.0, tf.float64),
    "float16": lambda: tf.constant(8.0, tf.float16),
    "int32": lambda: tf.constant(8, tf.int32),
}


class ScaleOfAnyTypeTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.parameters(*itertools.product(BOTH, modes.ALL, sorted(SCALES)))
    def test_a_users_loss_scale_may_return_any_number(self, optimizer, mode, kind):
        with stepping.entered(mode) as entered:
            weight = tf1.Variable([1.0], name="weight")
            half = tf1.Variable(np.ones([1], np.float16), name="half")
            inner = tf1.train.GradientDescentOptimizer(1.0)
            opt = OPTIMIZERS[optimizer](inner, Returning(SCALES[kind]))

            def step(factor):
                def loss():
                    halves = tf.cast(2.0 * half, tf.float32)
                    return tf.reduce_sum(3.0 * factor * weight) + tf.reduce_sum(halves)

                pairs = opt.compute_gradients(loss_of(loss), var_list=[weight, half])
                applied = opt.apply_gradients(pairs)
                return stepping.then(applied, lambda: [tf.identity(g) for g, _ in pairs])

            call = entered.compile(step, modes.scalar())
            gradients = call(1.0)
            self.assertAllEqual(gradients[0], [3.0])
            self.assertAllEqual(gradients[1], [2.0])
            self.assertEqual(gradients[0].dtype, np.float32)
            self.assertEqual(gradients[1].dtype, np.float16)
            call(NAN)
            self.assertAllEqual(entered.value(tf.identity(weight)), [-2.0])
            self.assertAllEqual(entered.value(tf.identity(half)), [-1.0])


# Sparse gradients.

# (name, dtype, values, indices, whether what they add up to in each row is finite).
SPARSE = [
    ("sum_overflows", np.float32, [[3e38, 1], [3e38, 1]], [1, 1], False),
    ("sum_underflows", np.float32, [[-3e38, 1], [-3e38, 1]], [1, 1], False),
    ("three_add_up", np.float32, [[1.5e38, 1], [1.5e38, 1], [1.5e38, 1]], [0, 0, 0], False),
    ("float16_overflows", np.float16, [[4e4, 1], [4e4, 1]], [1, 1], False),
    ("bfloat16_overflows", BFLOAT16, [[3e38, 1], [3e38, 1]], [1, 1], False),
    ("other_rows", np.float32, [[3e38, 1], [3e38, 1]], [0, 1], True),
    ("other_columns", np.float32, [[3e38, 1], [1, 3e38]], [1, 1], True),
    ("they_cancel", np.float32, [[3e38, 1], [-3e38, 1]], [1, 1], True),
    ("just_below", np.float32, [[1.7e38, 1], [1.7e38, 1]], [1, 1], True),
    ("float16_other_rows", np.float16, [[4e4, 1], [4e4, 1]], [0, 1], True),
    ("float16_just_below", np.float16, [[3e4, 1], [3e4, 1]], [1, 1], True),
    ("float16_many_rows", np.float16, [[6e4, 6e4], [6e4, 6e4], [6e4, 6e4]], [0, 1, 2], True),
    ("nan", np.float32, [[NAN, 1], [1, 1]], [0, 1], False),
    ("inf_of_both_signs", np.float32, [[INF, 1], [-INF, 1]], [0, 1], False),
]


class SparseOverflowTest(parameterized.TestCase, tf.test.TestCase):
    """Sparse gradients are looked at by what they add up to in each row."""

    def _specs(self, values, indices):
        return tf.TensorSpec(values.shape, values.dtype), tf.TensorSpec(indices.shape, tf.int32)

    @crossed.parameters(
        *[
            (optimizer, mode) + case
            for optimizer, mode, case in itertools.product(BOTH, MOST_MODES, SPARSE)
        ]
    )
    def test_optimizers(self, optimizer, mode, _, dtype, values, indices, finite):
        values, indices = np.array(values, dtype), np.array(indices, np.int32)
        with stepping.entered(mode) as entered:
            table = tf1.Variable(np.ones([3, 2], dtype), name="table")
            step = tf1.Variable(0, trainable=False, name="step")
            policy = DynamicLossScale(8.0, 1, 2.0)
            inner = Given() if dtype == BFLOAT16 else tf1.train.GradientDescentOptimizer(1.0)
            opt = OPTIMIZERS[optimizer](inner, policy)

            def apply(values, indices):
                grad = tf.IndexedSlices(values, indices, tf.constant([3, 2]))
                if isinstance(inner, Given):
                    return opt.apply_gradients([(grad, table)])
                return opt.apply_gradients([(grad, table)], global_step=step)

            entered.compile(apply, *self._specs(values, indices))(values, indices)
            after = entered.value(tf.cast(table, tf.float64))
            scale = entered.value(tf.identity(policy.current_loss_scale))
            steps = entered.value(tf.identity(step))
        self.assertEqual(scale, 16.0 if finite else 4.0)
        self.assertTrue(np.isfinite(after).all(), after)
        self.assertEqual(bool((after != 1.0).any()), finite)
        if not isinstance(inner, Given):
            self.assertEqual(steps, int(finite))

    @crossed.parameters(
        *[
            (mode, known) + case
            for mode, known, case in itertools.product(MOST_MODES, (True, False), SPARSE)
        ]
    )
    def test_update(self, mode, shape_known, _, dtype, values, indices, finite):
        values, indices = np.array(values, dtype), np.array(indices, np.int32)
        with stepping.entered(mode) as entered:
            policy = DynamicLossScale(8.0, 1, 2.0)

            def update(values, indices):
                shape = tf.constant([3, 2]) if shape_known else None
                grad = tf.IndexedSlices(values, indices, shape)
                done, should_apply = policy.update({"a": [grad, None], "b": tf.ones([2])})
                return stepping.then(done, lambda: tf.identity(should_apply))

            call = entered.compile(update, *self._specs(values, indices))
            self.assertEqual(bool(call(values, indices)), finite)
            scale = entered.value(tf.identity(policy.current_loss_scale))
        self.assertEqual(scale, 16.0 if finite else 4.0)

    @parameterized.parameters(*MOST_MODES)
    def test_many_rows(self, mode):
        rows = 2**18
        values = np.full([rows, 2], 3e38, np.float32)
        indices = np.arange(rows, dtype=np.int32)
        twice = indices.copy()
        twice[-1] = 0
        with stepping.entered(mode) as entered:
            policy = DynamicLossScale(8.0, 1, 2.0)

            def update(values, indices):
                grad = tf.IndexedSlices(values, indices, tf.constant([rows, 2]))
                done, should_apply = policy.update([grad])
                return stepping.then(done, lambda: tf.identity(should_apply))

            call = entered.compile(update, *self._specs(values, indices))
            self.assertTrue(call(values, indices))
            self.assertFalse(call(values, twice))

    @parameterized.parameters("contrib", "mixed", "update")
    def test_on_replicas(self, way):
        """One replica's rows add up to too much; the other's do not."""
        strategy = replicas.strategy("mirrored_2")
        if way == "update" and stepping.VERSION < (2, 0):
            raise unittest.SkipTest("TensorFlow 1.15 does not keep sparse values per replica")
        with replicas.executing("function", strategy) as execution:
            table = tf1.Variable(np.ones([3, 2], np.float32), name="table")
            policy = DynamicLossScale(8.0, 1, 2.0)
            inner = tf1.train.GradientDescentOptimizer(1.0)
            opt = None if way == "update" else OPTIMIZERS[way](inner, policy)

            def replica_step(indices):
                grad = tf.IndexedSlices(
                    tf.constant([[2e38, 1.0], [2e38, 1.0]]),
                    replicas.own(indices),
                    tf.constant([3, 2]),
                )
                if opt is None:
                    return grad
                opt.apply_gradients([(grad, table)])
                return tf.constant(0)

            def step(indices):
                result = replicas.run(strategy, replica_step, (indices,))
                if opt is None:
                    policy.update([result])

            call = execution.compile(step, tf.TensorSpec([2, 2], tf.int32))
            call(np.array([[0, 1], [2, 2]], np.int32))
            scales, tables = execution.values([policy.current_loss_scale, table])
            self.assertAllEqual(scales, [4.0, 4.0])
            self.assertAllEqual(tables, np.ones([2, 3, 2]))
            call(np.array([[0, 1], [2, 0]], np.int32) if opt is None else [[0, 0], [1, 1]])
            (scales,) = execution.values([policy.current_loss_scale])
            self.assertAllEqual(scales, [8.0, 8.0] if opt is None else [2.0, 2.0])


# Scales that processors flush to zero.


class SubnormalTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ("initial_loss_scale", 1e-38, lambda: DynamicLossScale(1e-38, 1, 2.0)),
        ("initial_loss_scale", 1e-39, lambda: DynamicLossScale(1e-39, 1, 2.0)),
        ("min_loss_scale", 1e-38, lambda: DynamicLossScale(1.0, 1, 2.0, min_loss_scale=1e-38)),
        ("min_loss_scale", 1e-39, lambda: DynamicLossScale(1.0, 1, 2.0, min_loss_scale=1e-39)),
        ("max_loss_scale", 1e-39, lambda: DynamicLossScale(1.0, 1, 2.0, max_loss_scale=1e-39)),
        ("init_loss_scale", 1e-38, lambda: ExponentialUpdateLossScaleManager(1e-38, 1)),
        ("init_loss_scale", 1e-39, lambda: ExponentialUpdateLossScaleManager(1e-39, 1)),
        (
            "(initial|min)_loss_scale",
            1e-38,
            lambda: DynamicLossScale(1e-38, 1, 2.0, min_loss_scale=1e-38),
        ),
        (
            "(initial|min|max)_loss_scale",
            1e-39,
            lambda: DynamicLossScale(1e-39, 1, 2.0, min_loss_scale=1e-39, max_loss_scale=1e-39),
        ),
    )
    def test_a_subnormal_scale_raises_and_makes_nothing(self, argument, value, make):
        for mode in ("eager", "graph_v2"):
            with modes.entered(mode), modes.creations() as created:
                # With the value and the smallest one that is taken.
                with self.assertRaisesRegex(
                    ValueError,
                    rf"{argument}.*1\.17.*{value}|"
                    rf"{argument}.*{value}.*1\.17",
                ):
                    make()
                self.assertEmpty(created)

    @crossed.parameters(*itertools.product(MOST_MODES, (SMALLEST, 1.1754944e-38)))
    def test_the_smallest_normal_scale_is_taken_and_stays(self, mode, smallest):
        with stepping.entered(mode) as entered:
            loss_scale = DynamicLossScale(
                2 * smallest, 1, 2.0, min_loss_scale=smallest, max_loss_scale=4 * smallest
            )

            def update(factor):
                return stepping.then(loss_scale.update([factor])[0], loss_scale)

            call = entered.compile(update, modes.scalar())
            scales = [call(factor) for factor in (NAN, NAN, NAN, 1.0, 1.0, 1.0)]
        expected = np.array([1, 1, 1, 2, 4, 4], np.float32) * np.float32(smallest)
        self.assertAllEqual(scales, expected)

    def test_managers_take_it_too(self):
        for mode in ("eager", "graph_v2"):
            with modes.entered(mode) as entered:
                manager = ExponentialUpdateLossScaleManager(SMALLEST, 2)
                self.assertEqual(entered.value(manager.get_loss_scale()), np.float32(SMALLEST))


class EagerArithmeticTest(parameterized.TestCase, tf.test.TestCase):
    """Eager mode flushes no small number to zero, at whichever call."""

    @crossed.parameters(
        *itertools.product(
            BOTH,
            (
                (2.0**127, 2.0**127),
                (2.0**127, 2.0**100),
                (8.0, 8e-38),
                (8.0, 1e-38),
                (1.0, 1e-38),
                (1.0, 1e-45),
            ),
        )
    )
    def test_unscaled_gradients_are_what_plain_operations_give(self, optimizer, case):
        scale, scaled = case
        with modes.eager_mode():
            weight = tf1.Variable([1.0], use_resource=True)
            inner = Given([tf.constant([scaled], tf.float32)])
            opt = OPTIMIZERS[optimizer](inner, DynamicLossScale(scale))
            reciprocals = {
                "contrib": tf.math.reciprocal,
                "mixed": lambda tensor: 1.0 / tensor,
            }
            reciprocal = reciprocals[optimizer](tf.constant(scale, tf.float32))
            expected = inner.grads[0] * reciprocal
            for _ in range(4):
                ((grad, _),) = opt.compute_gradients(lambda: tf.constant(1.0), [weight])
                if reciprocal == 0:  # To this processor.
                    self.assertAllEqual(grad, [np.nan])
                    continue
                self.assertAllEqual(grad.numpy().view(np.uint32), expected.numpy().view(np.uint32))

    @parameterized.parameters(*BOTH)
    def test_steps_at_the_largest_scale(self, optimizer):
        with modes.eager_mode():
            weight = tf1.Variable([8.0], use_resource=True)
            inner = tf1.train.GradientDescentOptimizer(1.0)
            loss_scale = DynamicLossScale(2.0**127)
            opt = OPTIMIZERS[optimizer](inner, loss_scale)
            for _ in range(4):
                opt.minimize(lambda: tf.reduce_sum(weight), var_list=[weight])
            # Where one over 2**127 is zero, the first step is skipped.
            skips = int(1.0 / tf.constant(2.0**127) == 0)
            self.assertAllEqual(weight.numpy(), [8.0 - (4 - skips)])
            self.assertEqual(loss_scale().numpy(), 2.0 ** (127 - skips))


class ZeroReciprocalTest(parameterized.TestCase, tf.test.TestCase):
    """Gradients are multiplied with one over the scale, which may be zero in their dtype."""

    @crossed.parameters(*itertools.product(BOTH, modes.ALL))
    def test_steps_are_skipped_until_the_scale_has_come_down(self, optimizer, mode):
        scale = 2.0**127

        def make():
            weight = tf1.Variable(np.zeros(2, np.float32), use_resource=True)
            loss_scale = DynamicLossScale(scale, 1000)
            return OPTIMIZERS[optimizer](Given(), loss_scale), weight, loss_scale

        def step(state, grad):
            opt, weight, loss_scale = state
            opt._tflsc_wrapped.grads = [grad]
            update = opt.minimize(lambda: tf.constant(1.0), var_list=[weight])
            return stepping.then(update, lambda: [weight.read_value(), loss_scale()])

        inputs = [(np.array([2.0, 0.0], np.float32),)] * 4
        *_, (weight, last) = stepping.run(mode, make, step, inputs)
        # To processors that take 2**-127 for zero, as these do.
        with modes.eager_mode():
            zero = (tf.constant(2.0**-126) * 0.5).numpy() == 0
        skips = int(zero or mode != "eager")
        self.assertEqual((weight[0], float(last)), (4 - skips, scale / 2**skips))

    @crossed.parameters(
        *itertools.product(BOTH, modes.ALL, (FixedLossScale, FixedLossScaleManager, None))
    )
    def test_float16_gradients_of_a_large_scale_are_divided(self, optimizer, mode, fixed):
        scale = 2.0**26  # One over it is rounded to zero in float16.

        def make():
            weight = tf1.Variable(np.zeros(3, np.float16), use_resource=True)
            loss_scale = DynamicLossScale(scale, 1000) if fixed is None else fixed(scale)
            return OPTIMIZERS[optimizer](Descent(), loss_scale), weight

        def step(state, grad):
            opt, weight = state
            opt._tflsc_wrapped.grads = [grad]
            update = opt.minimize(lambda: tf.constant(1.0), var_list=[weight])
            return stepping.then(update, lambda: [weight.read_value()])

        # The last would be below the smallest float16.
        inputs = [(np.array([2.0**15, -(2.0**12), 0.5], np.float16),)] * 3
        *_, (weight,) = stepping.run(mode, make, step, inputs)
        self.assertAllEqual(weight, np.array([-3 * 2.0**-11, 3 * 2.0**-14, 0.0], np.float16))

    @parameterized.parameters(*BOTH)
    def test_float16_gradients_have_the_bits_of_the_originals_product(self, optimizer):
        grads = (np.random.RandomState(0).randn(200) * 1000).astype(np.float16)
        for scale in (3.0, 1000.1, 1.3 * 2.0**23, 1.5 * 2.0**24):
            with modes.eager_mode():
                opt = OPTIMIZERS[optimizer](Given([tf.constant(grads)]), scale)
                for _ in range(3):  # From the second call on it is compiled.
                    [(grad, _)] = opt.compute_gradients(lambda: tf.constant(1.0), [None])
                reciprocal = np.float16(np.float32(1) / np.float32(scale))
                self.assertAllEqual(grad, grads * reciprocal)

    @parameterized.parameters(*BOTH)
    def test_fixed_scales_whose_reciprocal_is_zero_are_refused(self, optimizer):
        make = OPTIMIZERS[optimizer]
        make(Given(), FixedLossScale(2.0**126))
        for loss_scale in (FixedLossScale(2.0**127), FixedLossScaleManager(2.0**127)):
            with self.assertRaisesRegex(ValueError, r"at most 2\*\*126, got 1.70"):
                make(Given(), loss_scale)

    def test_so_are_those_that_are_assigned(self):
        opt = MixedPrecisionLossScaleOptimizer(Given(), FixedLossScale(8.0))
        with self.assertRaisesRegex(ValueError, r"at most 2\*\*126, got 1.70"):
            opt._loss_scale = FixedLossScale(2.0**127)
        self.assertEqual(opt._loss_scale.get_config(), {"loss_scale_value": 8.0})


# Gradients that are no plain numbers.


def _float8s():
    names = ("float8_e5m2", "float8_e4m3fn")
    homes = (tf, tf.dtypes, getattr(tf.dtypes, "experimental", None))
    return {name: getattr(home, name) for name in names for home in homes if hasattr(home, name)}


class KindsOfGradientsTest(parameterized.TestCase, tf.test.TestCase):
    def _update(self, mode, make_grads, *values):
        """Returns, for each value, whether `DynamicLossScale.update` calls the gradients finite."""
        with stepping.entered(mode) as entered:
            policy = DynamicLossScale(8.0, 1, 2.0)

            def update(value):
                done, should_apply = policy.update(make_grads(value))
                return stepping.then(done, lambda: tf.identity(should_apply))

            call = entered.compile(update, modes.scalar())
            flags = [bool(call(value)) for value in values]
            scale = entered.value(tf.identity(policy.current_loss_scale))
        self.assertEqual(scale, 8.0 * np.prod([2.0 if flag else 0.5 for flag in flags]))
        return flags

    def _apply(self, mode, optimizer, make_grad, *values):
        """Returns, for each value, whether an optimizer applied the gradients."""
        with stepping.entered(mode) as entered:
            weight = tf1.Variable([1.0], name="weight")
            policy = DynamicLossScale(8.0, 1, 2.0)
            opt = OPTIMIZERS[optimizer](Given(), policy)

            def apply(value):
                done = opt.apply_gradients([(make_grad(value), weight)])
                return stepping.then(done, lambda: tf.identity(weight))

            call = entered.compile(apply, modes.scalar())
            before, flags = 1.0, []
            for value in values:
                (after,) = call(value)
                flags.append(bool(after != before))
                before = after
            scale = entered.value(tf.identity(policy.current_loss_scale))
        self.assertEqual(scale, 8.0 * np.prod([2.0 if flag else 0.5 for flag in flags]))
        return flags

    @crossed.parameters(
        *itertools.product(
            ("graph_v2", "eager", "function"),
            (
                ("string", lambda: tf.constant(["a"])),
                ("string", lambda: [tf.ones([2]), tf.constant("a")]),
                ("string", lambda: {"a": None, "b": (tf.constant([["a"]]),)}),
                ("str", lambda: ["a"]),
                ("object|Unconvertible", lambda: [Unconvertible()]),
            ),
        )
    )
    def test_update_with_what_is_no_number_raises(self, mode, case):
        named, make_grads = case
        with stepping.entered(mode) as entered:
            policy = dynamic()
            entered.value(tf.identity(policy.current_loss_scale))
            with self.assertRaisesRegex(TypeError, named):
                entered.compile(lambda: policy.update(make_grads()))()
            state = [tf.identity(policy.current_loss_scale), tf.identity(policy.good_steps)]
            self.assertEqual([float(value) for value in entered.value(state)], [8.0, 0])

    @crossed.parameters(*itertools.product(BOTH, ("graph_v1", "graph_v2", "eager")))
    def test_optimizers_with_strings_raise(self, optimizer, mode):
        with stepping.entered(mode) as entered:
            weight, other = (tf1.Variable([1.0], name=name) for name in ("weight", "other"))
            policy = dynamic()
            entered.value(tf.identity(policy.current_loss_scale))
            inner = Given()
            opt = OPTIMIZERS[optimizer](inner, policy)
            with self.assertRaisesRegex(TypeError, "string"):
                pairs = [(tf.ones([1]), other), (tf.constant(["a"]), weight)]
                entered.compile(lambda: opt.apply_gradients(pairs))()
            self.assertEmpty(inner.applied)
            state = [policy.current_loss_scale, policy.good_steps, weight, other]
            values = entered.value([tf.reshape(tf.cast(v, tf.float32), []) for v in state])
            self.assertEqual([float(value) for value in values], [8.0, 0.0, 1.0, 1.0])

    @parameterized.parameters(*MOST_MODES)
    def test_update_looks_at_the_flat_values_of_ragged_gradients(self, mode):
        def grads(value):
            values = tf.stack([1.0, value, 2.0])
            return [tf.RaggedTensor.from_row_lengths(values, [2, 0, 1]), tf.ones([2])]

        flags = self._update(mode, grads, 1.0, NAN, 3e38, INF, -INF, 0.0)
        self.assertEqual(flags, [True, False, True, False, False, True])

    @crossed.parameters(*itertools.product(BOTH, MOST_MODES))
    def test_optimizers_look_at_the_flat_values_of_ragged_gradients(self, optimizer, mode):
        def grad(value):
            return tf.RaggedTensor.from_row_lengths(tf.stack([1.0, value]), [1, 0, 1])

        flags = self._apply(mode, optimizer, grad, 1.0, NAN, 3e38, INF)
        self.assertEqual(flags, [True, False, True, False])

    @crossed.parameters(
        *itertools.product(("float8_e5m2", "float8_e4m3fn"), ("graph_v2", "eager", "function"))
    )
    def test_float8(self, name, mode):
        if name not in _float8s():
            raise unittest.SkipTest("this TensorFlow has no {}".format(name))
        dtype = _float8s()[name]

        def as_float8(value):
            return [tf.cast(tf.stack([1.0, value]), dtype)]

        self.assertEqual(self._update(mode, as_float8, 1.0, NAN, 1.0), [True, False, True])
        for optimizer in BOTH:
            flags = self._apply(mode, optimizer, lambda v: as_float8(v)[0], 1.0, NAN)
            self.assertEqual(flags, [True, False])


class Unconvertible:
    """No number."""


# tf.debugging.enable_check_numerics.


def _healthy_large(run):
    policy = dynamic()
    step = run(lambda: policy.update([tf.fill([2**19], 3e19)])[1])
    flags = [bool(step()) for _ in range(4)]
    return flags + [float(policy.current_loss_scale)]


def _healthy_optimizer(cls, make_policy, run):
    weight = tf1.Variable([1.0, 2.0], use_resource=True)
    policy = make_policy()
    opt = cls(tf1.train.GradientDescentOptimizer(1.0), policy)

    def step():
        opt.minimize(lambda: tf.reduce_sum(3.0 * weight), var_list=[weight])
        return tf.identity(weight)

    step = run(step)
    return [float(step()[0]) for _ in range(4)]


def _healthy_growth(run):
    loss_scale = DynamicLossScale(2.0**126, 1, 2.0)
    manager = ExponentialUpdateLossScaleManager(2.0**126, 1, 2, 2.0, 0.5)

    def step():
        loss_scale.update([tf.ones([2])])
        manager.update_loss_scale(tf.constant(True))
        return tf.stack([loss_scale(), manager.get_loss_scale()])

    step = run(step)
    return [float(value) / 2.0**127 for _ in range(3) for value in step()]


def _healthy_sparse(run):
    policy = dynamic()

    def step():
        values = tf.constant([[3e38, 1.0], [3e38, 1.0]])
        return policy.update([tf.IndexedSlices(values, tf.constant([0, 1]), tf.constant([3, 2]))])[
            1
        ]

    step = run(step)
    return [bool(step()) for _ in range(3)] + [float(policy.current_loss_scale)]


def _not_finite(run):
    """After each of three steps with NaN: whether it raised, and the scale."""
    policy = dynamic()
    step = run(lambda: policy.update([tf.constant([1.0, NAN])])[1])
    results = []
    for _ in range(3):
        try:
            results.append("finite" if bool(step()) else "skipped")
        except tf.errors.InvalidArgumentError:
            results.append("raised")
        results.append(float(policy.current_loss_scale))
    return results


_WATCHED = {
    "large": _healthy_large,
    "contrib_dynamic": functools.partial(_healthy_optimizer, LossScaleOptimizer, dynamic),
    "contrib_exponential": functools.partial(_healthy_optimizer, LossScaleOptimizer, exponential),
    "mixed_dynamic": functools.partial(
        _healthy_optimizer, MixedPrecisionLossScaleOptimizer, dynamic
    ),
    "mixed_exponential": functools.partial(
        _healthy_optimizer, MixedPrecisionLossScaleOptimizer, exponential
    ),
    "growth": _healthy_growth,
    "sparse": _healthy_sparse,
    "not_finite": _not_finite,
}
_HEALTHY = {
    "large": [True, True, True, True, 32.0],
    "growth": [1.0] * 6,
    "sparse": [True, True, True, 16.0],
}


def watched_steps():
    """Returns what each of `_WATCHED` gives, eagerly and in a function, every number checked."""
    tf.debugging.enable_check_numerics()
    found = {}
    for name, mode in itertools.product(_WATCHED, ("eager", "function")):
        run = (lambda f: f) if mode == "eager" else functools.partial(tf.function, autograph=False)
        try:
            found[f"{name} {mode}"] = _WATCHED[name](run)
        except tf.errors.InvalidArgumentError as error:
            found[f"{name} {mode}"] = str(error)[:2000]
    return found


class CheckNumericsTest(parameterized.TestCase, tf.test.TestCase):
    @staticmethod
    @functools.lru_cache(maxsize=None)
    def _found():
        if not hasattr(tf.debugging, "enable_check_numerics"):
            raise unittest.SkipTest("this TensorFlow has no tf.debugging.enable_check_numerics")
        # In a process of its own, as functions traced before are not checked.
        with tempfile.TemporaryDirectory() as directory:
            return originals.call_in_child(
                "enable_eager_execution",
                "tests.core.silent_faults_test",
                "watched_steps",
                [],
                directory,
            )

    @crossed.parameters(
        *itertools.product([name for name in _WATCHED if name != "not_finite"], modes.IMMEDIATE[:2])
    )
    def test_healthy_steps_raise_nothing(self, name, mode):
        self.assertEqual(
            self._found()[f"{name} {mode}"], _HEALTHY.get(name, [-2.0, -5.0, -8.0, -11.0])
        )

    @parameterized.parameters(*modes.IMMEDIATE[:2])
    def test_a_step_that_is_not_finite_is_skipped_or_raises(self, mode):
        found = self._found()[f"not_finite {mode}"]
        scale = 8.0
        for outcome, after in zip(found[::2], found[1::2]):
            self.assertIn(outcome, ("skipped", "raised"))
            allowed = {scale / 2} if outcome == "skipped" else {scale}
            if mode == "function":  # Its operations run side by side.
                allowed.add(scale / 2)
            self.assertIn(after, allowed)
            scale = after


# Where a strategy was taken from.


def _strategies():
    apis = {
        "tf.distribute": tf.distribute,
        "tf.compat.v1.distribute": tf1.distribute,
        "tf.compat.v2.distribute": tf.compat.v2.distribute,
    }
    makers = {
        "MirroredStrategy": lambda cls: cls(
            replicas.cpus(2), cross_device_ops=tf.distribute.ReductionToOneDevice()
        ),
        "OneDeviceStrategy": lambda cls: cls("/cpu:0"),
        "MultiWorkerMirroredStrategy": lambda cls: cls(),
        "CentralStorageStrategy": lambda cls: cls(
            compute_devices=replicas.cpus(2), parameter_device="/cpu:0"
        ),
    }
    for (api, module), name in itertools.product(sorted(apis.items()), sorted(makers)):
        for home in (module, getattr(module, "experimental", None)):
            if hasattr(home, name):
                yield api, name, functools.partial(makers[name], getattr(home, name))
                break


class StrategiesTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*_strategies())
    def test_is_taken_from_whichever_api(self, api, name, make):
        with modes.eager_mode():
            strategy = make()
        for cls in OPTIMIZERS.values():
            with replicas.executing("eager", strategy) as execution:
                weight = tf1.Variable([1.0], use_resource=True)
                policy = dynamic()
                opt = cls(tf1.train.GradientDescentOptimizer(1.0), policy)
                if name == "MultiWorkerMirroredStrategy":
                    continue  # A step of it is tested elsewhere, with one strategy per process.

                def step(opt=opt, weight=weight):
                    opt.apply_gradients([(tf.constant([NAN]), weight)])
                    return tf.constant(0)

                replicas.run(strategy, step)
                weights, scales = execution.values([weight, policy.current_loss_scale])
                self.assertAllEqual(weights, [[1.0]] * len(weights))
                self.assertAllEqual(scales, [4.0] * len(scales))

    @parameterized.parameters(*BOTH)
    def test_an_unsupported_one_is_refused_from_whichever_api(self, optimizer):
        classes = {api.Strategy for api in (tf.distribute, tf1.distribute, tf.compat.v2.distribute)}
        for cls in classes:

            class Unsupported(cls):
                """A strategy that nobody knows."""

            with modes.eager_mode():
                strategy = Unsupported(tf.distribute.OneDeviceStrategy("/cpu:0").extended)
                with strategy.scope(), modes.creations() as created:
                    with self.assertRaisesRegex(
                        ValueError, "does not support Unsupported.*MirroredStrategy"
                    ):
                        inner = tf1.train.GradientDescentOptimizer(1.0)
                        OPTIMIZERS[optimizer](inner, FixedLossScaleManager(8.0))
                    self.assertEmpty(created)


class ImportTest(tf.test.TestCase):
    def test_checkpoint_is_there_after_a_plain_import(self):
        status, out, err = originals.fork(
            ["-c", "import tf_lossscale_compat as t; print(callable(t.checkpoint.read))"]
        )
        self.assertEqual((status, out.strip()), (0, "True"), err)


if __name__ == "__main__":
    tf.test.main()
