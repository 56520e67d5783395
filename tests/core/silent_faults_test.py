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
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic, exponential, moved, sgd, states
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    FixedLossScale,
    FixedLossScaleManager,
)
from tf_lossscale_compat import loss_scale as loss_scale_lib

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
MOST_MODES = tuple(mode for mode in modes.ALL if mode != "jit")
SMALLEST = float(np.finfo(np.float32).tiny)  # Of the normal numbers.
BFLOAT16 = tf.bfloat16.as_numpy_dtype


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
    """State made under `strategy.scope()` and updated from outside: copies never differ."""

    @crossed.parameters(*itertools.product(OUTSIDE, replicas.EXECUTIONS))
    def test_every_copy_moves_alike(self, name, mode):
        strategy = replicas.strategy(name)
        with replicas.executing(mode, strategy, inside=False) as execution:
            with strategy.scope():
                loss_scale, manager, of_manager = dynamic(), exponential(), exponential()
                adapted = loss_scale_lib.get(of_manager)
            state = [loss_scale.current_loss_scale, *manager.variables()[:1]]
            state += [*of_manager.variables()[:1], loss_scale.good_steps]
            state += [*manager.variables()[1:2], *of_manager.variables()[1:2]]

            def step(factor):
                grads, flag = [factor * tf.ones([2])], tf.math.is_finite(factor)
                updates = [
                    loss_scale.update(grads)[0],
                    manager.update_loss_scale(flag),
                    adapted.update(grads)[0],
                ]
                return [] if mode == "function" else updates

            call = execution.compile(step, tf.TensorSpec([], tf.float32))
            factors = (NAN, 1.0, 1.0, INF, 1.0)
            for factor, wanted in zip(factors, states(np.isfinite(factors))):
                call(np.float32(factor))
                for part, copies in enumerate(execution.values(state)):
                    self.assertAllEqual(copies, [wanted[part // 3]] * len(copies))
        if name.startswith("mirrored"):
            self.assertLen(copies, replicas.REPLICAS[name])

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
                        grads = replicas.run(strategy, replicas.own, (factors,))
                        if policy is manager:
                            flags = replicas.run(
                                strategy, lambda f: tf.math.is_finite(replicas.own(f)), (factors,)
                            )
                            manager.update_loss_scale(flags)
                        else:
                            policy.update([grads])

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
            policy = DynamicLossScale(8.0, 1, 2.0)
            opt = OPTIMIZERS[optimizer](Given(), policy)

            def apply(values, indices):
                grad = tf.IndexedSlices(values, indices, tf.constant([3, 2]))
                return opt.apply_gradients([(grad, table)])

            entered.compile(apply, *self._specs(values, indices))(values, indices)
            after = entered.value(tf.cast(table, tf.float64))
            scale = entered.value(tf.identity(policy.current_loss_scale))
        self.assertEqual(scale, 16.0 if finite else 4.0)
        self.assertAllEqual(after, np.full([3, 2], 1 + finite))

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
            inner = sgd()
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
            manager = ExponentialUpdateLossScaleManager(smallest, 2)
            scales.append(entered.value(manager.get_loss_scale()))
        expected = np.array([1, 1, 1, 2, 4, 4, 1], np.float32) * np.float32(smallest)
        self.assertAllEqual(scales, expected)


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
        opt = OPTIMIZERS["mixed"](Given(), FixedLossScale(8.0))
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
    opt = cls(sgd(), policy)

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
    **{
        f"{which}_{make.__name__}": functools.partial(_healthy_optimizer, OPTIMIZERS[which], make)
        for which in BOTH
        for make in (dynamic, exponential)
    },
    "large": _healthy_large,
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
                opt = cls(sgd(), policy)
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
                        inner = sgd()
                        OPTIMIZERS[optimizer](inner, FixedLossScaleManager(8.0))
                    self.assertEmpty(created)


class ImportTest(tf.test.TestCase):
    def test_checkpoint_is_there_after_a_plain_import(self):
        status, out, err = originals.fork(
            ["-c", "import tf_lossscale_compat as t; print(callable(t.checkpoint.read))"]
        )
        self.assertEqual((status, out.strip()), (0, "True"), err)
