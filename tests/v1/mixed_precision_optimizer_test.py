"""`MixedPrecisionLossScaleOptimizer`, and the pair that turns the graph rewrite on and off."""

import inspect
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, originals, stepping
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.contrib import mixed_precision as lsm
from tf_lossscale_compat.keras.mixed_precision import experimental as keras_experimental
from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale
from tf_lossscale_compat.train import experimental
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
CONDITIONALS = {"If", "StatelessIf", "Switch", "RefSwitch", "Merge", "RefMerge", "Case"}
OPTIMIZERS = {
    "gradient_descent": lambda: tf1.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.5, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.125),
}


def _loss(function):
    """A loss as users of the mode give it: a tensor in a graph, else a callable."""
    graph = tf1.get_default_graph()
    return function if tf.executing_eagerly() or graph.building_function else function()


class Recorder(tf1.train.GradientDescentOptimizer):
    """Notes with what it is called."""

    def __init__(self, gradients=None):
        super().__init__(0.5)
        self.computed = []
        self.applied = []
        self.gradients = gradients

    def compute_gradients(self, loss, *args, **kwargs):
        self.computed.append((loss, args, kwargs))
        if self.gradients is not None:
            return self.gradients
        return super().compute_gradients(loss, *args, **kwargs)

    def apply_gradients(self, *args, **kwargs):
        self.applied.append((args, kwargs))
        return super().apply_gradients(*args, **kwargs)


class Fickle(LossScale):
    """A user's loss scale that says what it was told to."""

    def __init__(self, should_apply, scale=8.0):
        super().__init__()
        self.should_apply = should_apply
        self.scale = scale
        self.updates = self._add_weight("updates", 0, tf.int64)

    def __call__(self):
        return tf.constant(self.scale)

    def update(self, grads):
        moved = self.updates.assign_add(1)
        return None if tf.executing_eagerly() else tf.group(moved), self.should_apply

    def get_config(self):
        return {"should_apply": self.should_apply}


class Training:
    """A weight, a step counter and an optimizer whose loss is `sum(weight * x)`."""

    def __init__(self, opt, policy=None, dtype=tf.float32):
        self.weight = tf1.Variable(np.array([1.0, -2.0], dtype.as_numpy_dtype), name="weight")
        self.other = tf1.Variable([5.0], name="other")
        self.global_step = tf1.Variable(0, trainable=False, name="step", dtype=tf.int64)
        self.inner = opt
        self.policy = policy
        self.opt = opt if policy is None else MixedPrecisionLossScaleOptimizer(opt, policy)

    def step(self, x):
        """One `minimize`; returns the weight and the step counter after it."""
        done = self.opt.minimize(
            _loss(lambda: tf.reduce_sum(self.weight * x)),
            self.global_step,
            var_list=[self.weight],
        )
        return stepping.then(done, self.read)

    def apply(self, grads_and_vars):
        done = self.opt.apply_gradients(grads_and_vars, self.global_step)
        return stepping.then(done, self.read)

    def read(self):
        return [tf.identity(self.weight), tf.identity(self.global_step)]

    def slots(self):
        return [
            tf.identity(self.inner.get_slot(self.weight, name))
            for name in sorted(self.inner.get_slot_names())
        ]


def _rows(*values):
    return [(np.array(value, np.float32),) for value in values]


STEPS = _rows([1, 2], [NAN, 1], [3, -4], [1, INF], [-INF, INF], [-1, 0.5], [2, 2])
FINITE = [row for row in STEPS if np.isfinite(row[0]).all()]


class ComputeGradientsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_scales_the_loss_and_unscales_the_gradients(self, mode):
        def step(recorder_and_weight, x):
            recorder, weight = recorder_and_weight
            opt = MixedPrecisionLossScaleOptimizer(recorder, 1024)
            pairs = opt.compute_gradients(_loss(lambda: weight * x), [weight])
            assert pairs[0][1] is weight, pairs
            loss = recorder.computed[-1][0]
            return (loss() if callable(loss) else loss), pairs[0][0]

        def make():
            return Recorder(), tf1.Variable(3.0)

        (results,) = stepping.run(mode, make, step, [(np.float32(5),)])
        self.assertEqual(tuple(results), (15 * 1024, 5))

    def test_takes_a_tensor_or_a_callable_in_a_graph(self):
        # Resource variables: TensorFlow cannot watch those of TensorFlow 1 in a callable.
        with modes.entered("graph_v2") as mode:
            weight = tf1.Variable(3.0)
            opt = MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), 8)
            for loss in (weight * 2, lambda: weight * 2):
                ((grad, var),) = opt.compute_gradients(loss, [weight])
                self.assertIs(var, weight)
                self.assertEqual(mode.value(grad), 2)

    def test_takes_a_callable_in_eager_mode(self):
        with modes.entered("eager"):
            weight = tf1.Variable(3.0)
            opt = MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), 8)
            self.assertEqual(opt.compute_gradients(lambda: weight * 2)[0][0].numpy(), 2)
            with self.assertRaises(RuntimeError):
                opt.compute_gradients(weight * 2)

    @parameterized.parameters("float16", "bfloat16", "float32", "float64")
    def test_scale_is_cast_to_the_dtypes_of_loss_and_gradients(self, name):
        dtype = tf.as_dtype(name)
        with tf.Graph().as_default(), tf1.Session() as session:
            weight = tf1.Variable(1.0)
            recorder = Recorder([(tf.constant([8.0, 16.0], dtype), weight)])
            opt = MixedPrecisionLossScaleOptimizer(recorder, 8)
            ((grad, _),) = opt.compute_gradients(tf.constant(3.0, dtype))
            scaled = recorder.computed[0][0]
            self.assertEqual((scaled.dtype, grad.dtype), (dtype, dtype))
            self.assertAllEqual(session.run(tf.cast(scaled, tf.float32)), 24)
            self.assertAllEqual(session.run(tf.cast(grad, tf.float32)), [1, 2])

    @parameterized.parameters(*modes.ALL)
    def test_sparse_stays_sparse(self, mode):
        def step(table, x):
            opt = MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), 8)
            ((grad, _),) = opt.compute_gradients(
                _loss(lambda: tf.gather(table, [2, 0]) * x), [table]
            )
            assert isinstance(grad, tf.IndexedSlices), grad
            return grad.values, grad.indices

        make = lambda: tf1.Variable(tf.ones([4, 2]))  # noqa: E731
        ((values, indices),) = stepping.run(mode, make, step, [(np.float32(3),)])
        self.assertAllEqual(values, np.full([2, 2], 3))
        self.assertAllEqual(indices, [2, 0])

    @parameterized.parameters(*modes.ALL)
    def test_none_stays_none(self, mode):
        def step(variables, x):
            used, unused = variables
            opt = MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), 8)
            pairs = opt.compute_gradients(_loss(lambda: used * x), [unused, used])
            assert pairs[0][0] is None and pairs[0][1] is unused and pairs[1][1] is used, pairs
            return pairs[1][0]

        make = lambda: (tf1.Variable(1.0), tf1.Variable(2.0))  # noqa: E731
        (grad,) = stepping.run(mode, make, step, [(np.float32(3),)])
        self.assertEqual(grad, 3)

    def test_hands_its_arguments_to_the_wrapped_optimizer(self):
        with tf.Graph().as_default():
            weight = tf1.Variable(1.0)
            recorder = Recorder([(None, weight)])
            opt = MixedPrecisionLossScaleOptimizer(recorder, 8)
            given = {
                "var_list": [weight],
                "gate_gradients": tf1.train.Optimizer.GATE_GRAPH,
                "aggregation_method": tf1.AggregationMethod.ADD_N,
                "colocate_gradients_with_ops": True,
                "grad_loss": tf.constant(2.0),
            }
            opt.compute_gradients(weight * 2, **given)
            _, args, kwargs = recorder.computed[0]
            self.assertEqual(args, ())
            self.assertEqual(set(kwargs), set(given))
            for name, value in given.items():
                self.assertIs(kwargs[name], value)

    @parameterized.parameters(*modes.ALL)
    def test_uses_the_current_scale(self, mode):
        def step(recorder_and_opt, x):
            recorder, opt, weight = recorder_and_opt
            ((grad, _),) = opt.compute_gradients(_loss(lambda: weight * x), [weight])
            loss = recorder.computed[-1][0]
            scaled = loss() if callable(loss) else loss
            with tf.control_dependencies([scaled, grad]):
                done = opt.apply_gradients([(grad, weight)])
            return stepping.then(done, lambda: (tf.identity(scaled), tf.identity(grad)))

        def make():
            recorder = Recorder()
            scale = DynamicLossScale(8, 1, 2)
            return recorder, MixedPrecisionLossScaleOptimizer(recorder, scale), tf1.Variable(1.0)

        # The weight goes 1, 0.5, 0.5 (skipped), 0; the scale 8, 16, 8.
        results = stepping.run(mode, make, step, [(np.float32(v),) for v in (1, NAN, 1, 1)])
        self.assertEqual([float(results[i][0]) for i in (0, 2, 3)], [8, 4, 0])
        self.assertEqual([float(results[i][1]) for i in (0, 2, 3)], [1, 1, 1])


class MinimizeTest(parameterized.TestCase):
    @parameterized.parameters(MixedPrecisionLossScaleOptimizer, contrib.LossScaleOptimizer)
    def test_it_takes_the_arguments_of_any_optimizer_with_its_defaults(self, cls):
        def told(optimizer):
            parameters = inspect.signature(optimizer.minimize).parameters.values()
            return [(parameter.name, parameter.default) for parameter in parameters]

        self.assertEqual(told(cls), told(tf1.train.Optimizer))


class ApplyGradientsTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.parameters(
        *[
            (mode, opt, policy)
            for mode in modes.ALL
            for opt in sorted(OPTIMIZERS)
            for policy in ("dynamic", "fixed")
        ]
    )
    def test_finite_steps_equal_the_wrapped_optimizers_and_others_change_nothing(
        self, mode, opt, policy
    ):
        def make():
            made = DynamicLossScale(2**10, 2) if policy == "dynamic" else None
            return Training(OPTIMIZERS[opt](), made or FixedLossScale(2**10, skip_nonfinite=True))

        alone, slots_alone = stepping.run(
            mode, lambda: Training(OPTIMIZERS[opt]()), Training.step, FINITE, Training.slots
        )
        results, slots = stepping.run(mode, make, Training.step, STEPS, Training.slots)
        expected = []
        remaining = iter(alone)
        last = [np.array([1, -2], np.float32), np.int64(0)]
        for (x,) in STEPS:
            last = next(remaining) if np.isfinite(x).all() else last
            expected.append(last)
        self.assertEqual([int(count) for _, count in results], [1, 1, 2, 2, 2, 3, 4])
        # XLA fuses multiplications and additions as it likes.
        compare = self.assertAllClose if mode == "jit" else self.assertAllEqual
        for (weight, count), (expected_weight, expected_count) in zip(results, expected):
            compare(weight, expected_weight)
            self.assertEqual(count, expected_count)
        self.assertLen(slots, {"gradient_descent": 0, "momentum": 1, "adam": 2}[opt])
        for slot, slot_alone in zip(slots, slots_alone):
            compare(slot, slot_alone)

    @parameterized.parameters(*modes.ALL)
    def test_updates_the_loss_scale_once_per_step(self, mode):
        def step(training, x):
            done = training.opt.minimize(
                _loss(lambda: tf.reduce_sum(training.weight * x)), var_list=[training.weight]
            )
            scale = training.policy
            return stepping.then(done, lambda: [scale(), scale.good_steps.read_value()])

        make = lambda: Training(OPTIMIZERS["momentum"](), DynamicLossScale(8, 2, 4))  # noqa: E731
        results = stepping.run(mode, make, step, STEPS)
        self.assertAllEqual(
            np.array(results), [[8, 1], [2, 0], [2, 1], [1, 0], [1, 0], [1, 1], [4, 0]]
        )

    @parameterized.parameters(*modes.ALL)
    def test_a_fixed_loss_scale_applies_what_is_not_finite(self, mode):
        """As r2.0 did, and unlike contrib's optimizer with a fixed manager."""
        make = lambda: Training(OPTIMIZERS["gradient_descent"](), FixedLossScale(8))  # noqa: E731
        ((weight, count),) = stepping.run(mode, make, Training.step, _rows([NAN, 2]))
        self.assertAllEqual(np.isnan(weight), [True, False])
        self.assertEqual(count, 1)

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_python_flags_of_a_users_loss_scale(self, mode):
        for flag in (True, False):
            make = lambda flag=flag: Training(OPTIMIZERS["momentum"](), Fickle(flag))  # noqa: E731
            results, updates = stepping.run(
                mode,
                make,
                Training.step,
                _rows([2, 4], [2, 4]),
                lambda training: tf.identity(training.policy.updates),
            )
            self.assertEqual([int(count) for _, count in results], [1, 2] if flag else [0, 0])
            self.assertEqual(updates, 2)
            moved = np.any(results[1][0] != [1, -2])
            self.assertEqual(moved, flag)

    @parameterized.parameters("graph_v2", "eager")
    def test_a_users_subclass_of_the_fixed_loss_scale_is_asked(self, mode):
        class Never(FixedLossScale):
            def update(self, grads):
                return super().update(grads)[0], False

        make = lambda: Training(OPTIMIZERS["momentum"](), Never(8))  # noqa: E731
        ((weight, count),) = stepping.run(mode, make, Training.step, _rows([1, 2]))
        self.assertAllEqual(weight, [1, -2])
        self.assertEqual(count, 0)

    @parameterized.parameters(*modes.ALL)
    def test_tensor_flags_of_a_users_loss_scale(self, mode):
        def step(training, flag):
            training.policy.should_apply = flag
            return training.step(tf.constant([2.0, 4.0]))

        make = lambda: Training(OPTIMIZERS["momentum"](), Fickle(None))  # noqa: E731
        rows = [(np.bool_(flag),) for flag in (False, True, False, True)]
        results = stepping.run(mode, make, step, rows)
        self.assertEqual([int(count) for _, count in results], [0, 1, 1, 2])

    @parameterized.parameters("graph_v1", "graph_v2", "function")
    def test_builds_no_conditional_when_should_apply_is_true(self, mode):
        for policy, expected in (
            (lambda: FixedLossScale(8), False),
            (lambda: Fickle(True), False),
            (lambda: Fickle(False), False),
            (lambda: DynamicLossScale(8), True),
            (lambda: FixedLossScale(8, skip_nonfinite=True), True),
        ):
            kinds = set()

            def step(training, x):
                result = training.step(x)
                graph = tf1.get_default_graph()
                kinds.update(op.type for op in graph.get_operations())
                return result

            stepping.run(
                mode, lambda: Training(OPTIMIZERS["momentum"](), policy()), step, _rows([1, 2])
            )
            self.assertEqual(bool(kinds & CONDITIONALS), expected, kinds)

    @parameterized.parameters(*modes.ALL)
    def test_takes_any_iterable_and_carries_none_through(self, mode):
        wraps = [list, tuple, iter, lambda pairs: zip(*zip(*pairs)), lambda ps: (p for p in ps)]

        def step(trainings, x):
            done = []
            for training in trainings:
                for wrap in wraps:
                    with tf.control_dependencies(done):
                        pairs = wrap([(None, training.other), (x, training.weight)])
                        done = training.apply(pairs)
            return done

        def make():
            policies = (FixedLossScale(8), DynamicLossScale(8))
            return [Training(OPTIMIZERS["gradient_descent"](), policy) for policy in policies]

        ((weight, _),), counts = stepping.run(
            mode,
            make,
            step,
            _rows([2, 4]),
            lambda trainings: [tf.identity(training.global_step) for training in trainings],
        )
        self.assertAllEqual(weight, [1 - 5, -2 - 10])
        self.assertEqual([int(count) for count in counts], [5, 5])

    @parameterized.parameters(*modes.ALL)
    def test_sparse_and_zero_size_gradients(self, mode):
        class State(Training):
            def __init__(self):
                super().__init__(OPTIMIZERS["gradient_descent"](), DynamicLossScale(8))
                self.empty = tf1.Variable(tf.zeros([0, 2]))

            def sparse_step(self, values):
                sparse = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([2]))
                return self.apply([(tf.zeros([0, 2]), self.empty), (sparse, self.weight)])

        results = stepping.run(mode, State, State.sparse_step, _rows([2, 4], [NAN, 4], [1, 1]))
        self.assertAllEqual([weight for weight, _ in results], [[1, -5], [1, -5], [1, -6]])
        self.assertEqual([int(count) for _, count in results], [1, 1, 2])

    @parameterized.parameters(*modes.ALL)
    def test_one_bad_gradient_among_dtypes_skips_all(self, mode):
        dtypes = [np.float16, np.float32, np.float64]

        def make():
            variables = [tf1.Variable(np.zeros([2], dtype)) for dtype in dtypes]
            opt = MixedPrecisionLossScaleOptimizer(
                OPTIMIZERS["gradient_descent"](), DynamicLossScale(8)
            )
            return variables, opt

        def step(state, *grads):
            variables, opt = state
            done = opt.apply_gradients(zip(grads, variables))
            return stepping.then(done, lambda: [tf.identity(variable) for variable in variables])

        rows = [tuple(np.array([2, 4], dtype) for dtype in dtypes)]
        for i, dtype in enumerate(dtypes):
            rows.append(tuple(np.array([2, 4], dtype) for dtype in dtypes))
            rows[-1][i][0] = [NAN, INF, -INF][i]
        for values in stepping.run(mode, make, step, rows):
            self.assertAllEqual(values, [[-1, -2]] * 3)

    @parameterized.parameters("dynamic", "fixed")
    def test_no_gradient_at_all_raises_a_value_error_and_changes_nothing(self, kind):
        with modes.entered("eager"):
            policy = DynamicLossScale(8, 1) if kind == "dynamic" else FixedLossScale(8)
            training = Training(OPTIMIZERS["momentum"](), policy)
            for pairs in ([], [(None, training.weight)], iter([])):
                with self.assertRaises(ValueError):
                    training.opt.apply_gradients(pairs, training.global_step)
            self.assertEqual(training.global_step.numpy(), 0)
            self.assertEqual(policy().numpy(), 8)

    def test_an_error_of_the_wrapped_optimizer_leaves_the_loss_scale_alone(self):
        with modes.entered("eager"):
            policy = DynamicLossScale(8, 1)
            training = Training(OPTIMIZERS["momentum"](), policy)
            with self.assertRaises((ValueError, tf.errors.InvalidArgumentError)):
                training.opt.apply_gradients([(tf.ones([3]), training.weight)])
            self.assertEqual((policy().numpy(), policy.good_steps.numpy()), (8, 0))

    @parameterized.parameters("graph_v1", "graph_v2")
    def test_returns_an_operation_of_the_given_name_in_a_graph(self, mode):
        with modes.entered(mode):
            for policy in (FixedLossScale(8), DynamicLossScale(8)):
                training = Training(OPTIMIZERS["gradient_descent"](), policy)
                name = "train_" + type(policy).__name__
                done = training.opt.apply_gradients(
                    [(tf.constant([1.0, 2.0]), training.weight)], name=name
                )
                self.assertIsInstance(done, tf.Operation)
                self.assertEqual(done.name, name)

    def test_returns_none_in_eager_mode(self):
        with modes.entered("eager"):
            for policy in (DynamicLossScale(8), Fickle(True), Fickle(False)):
                training = Training(OPTIMIZERS["gradient_descent"](), policy)
                pairs = [(tf.constant([1.0, 2.0]), training.weight)]
                self.assertIsNone(training.opt.apply_gradients(pairs, training.global_step))

    @parameterized.parameters("graph_v1", "graph_v2", "function")
    def test_in_a_branch_only_the_taken_one_trains(self, mode):
        def step(training, taken, x):
            def train():
                with tf.control_dependencies(training.apply([(x, training.weight)])):
                    return tf.constant(True)

            done = tf1.cond(taken, train, lambda: tf.constant(False))
            return stepping.then(
                done, lambda: training.read() + [training.policy.good_steps.read_value()]
            )

        make = lambda: Training(OPTIMIZERS["momentum"](), DynamicLossScale(8))  # noqa: E731
        x, bad = np.array([2, 4], np.float32), np.array([NAN, 1], np.float32)
        rows = [(np.bool_(taken), grad) for taken, grad in ((False, x), (True, x), (True, bad))]
        rows += [(np.bool_(False), bad), (np.bool_(True), x)]
        results = stepping.run(mode, make, step, rows)
        self.assertEqual([int(count) for _, count, _ in results], [0, 1, 1, 1, 2])
        self.assertEqual([int(good) for _, _, good in results], [0, 1, 0, 0, 1])
        self.assertAllEqual(results[0][0], [1, -2])
        self.assertAllEqual(results[1][0], [0, -4])
        self.assertAllEqual(results[3][0], [0, -4])

    @parameterized.parameters(*modes.ALL)
    def test_a_scale_beyond_float16_comes_down_until_training_proceeds(self, mode):
        class Half(Training):
            def step(self, x):
                done = self.opt.minimize(
                    _loss(lambda: tf.reduce_sum(tf.cast(self.weight, tf.float16) * x)),
                    self.global_step,
                    var_list=[self.weight],
                )
                return stepping.then(done, lambda: self.read() + [self.policy()])

        make = lambda: Half(OPTIMIZERS["gradient_descent"](), DynamicLossScale(2**32))  # noqa: E731
        row = (np.array([1, 2], np.float16),)
        results = stepping.run(mode, make, Half.step, [row] * 24)
        counts = [int(count) for _, count, _ in results]
        self.assertEqual(counts[16], 0)
        self.assertGreater(counts[-1], 3)
        self.assertTrue(np.all(np.isfinite(results[-1][0])))
        self.assertBetween(results[-1][2], 2.0**10, 2.0**15)
        self.assertAllEqual(results[-1][0], np.array([1, -2]) - counts[-1] * np.array([0.5, 1]))

    def test_in_a_cross_replica_context_raises_a_value_error(self):
        with modes.entered("eager"):
            for strategy in (
                tf.distribute.MirroredStrategy(["/cpu:0"]),
                tf.distribute.OneDeviceStrategy("/cpu:0"),
            ):
                with strategy.scope():
                    for policy in (FixedLossScale(8), DynamicLossScale(8, 1)):
                        opt = MixedPrecisionLossScaleOptimizer(
                            tf1.train.GradientDescentOptimizer(1.0), policy
                        )
                        variable = tf1.Variable(1.0, use_resource=True)
                        with self.assertRaisesRegex(ValueError, "replica context"):
                            opt.apply_gradients([(tf.constant(1.0), variable)])
                        self.assertEqual(policy().numpy(), 8)
                        self.assertEqual(tf.convert_to_tensor(variable).numpy(), 1)


class ConstructorTest(parameterized.TestCase, tf.test.TestCase):
    def test_is_a_v1_optimizer(self):
        self.assertTrue(issubclass(MixedPrecisionLossScaleOptimizer, tf1.train.Optimizer))

    @parameterized.parameters(None, "sgd", 0.1, object(), tf1.train.GradientDescentOptimizer)
    def test_something_else_than_a_v1_optimizer_raises_a_value_error(self, opt):
        with tf.Graph().as_default() as graph:
            with self.assertRaises(ValueError) as raised:
                MixedPrecisionLossScaleOptimizer(opt, "dynamic")
            self.assertIn("tf.compat.v1.train.Optimizer", str(raised.exception))
            self.assertIn(repr(opt), str(raised.exception))
            self.assertEmpty(graph.get_operations())

    @parameterized.named_parameters(keras_homes.named())
    def test_a_keras_optimizer_raises_a_value_error_that_names_the_class_to_use(self, home):
        with modes.entered("eager"):
            opt = home.SGD(0.1)
            with self.assertRaises(ValueError) as raised:
                MixedPrecisionLossScaleOptimizer(opt, "dynamic")
            self.assertIn(
                "tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer",
                str(raised.exception),
            )

    def test_loss_scale_none_raises_a_value_error(self):
        opt = tf1.train.GradientDescentOptimizer(1.0)
        with self.assertRaisesRegex(ValueError, "loss_scale cannot be None"):
            MixedPrecisionLossScaleOptimizer(opt, None)

    @parameterized.parameters("fixed", 0.5, NAN, [[8]], 8j)
    def test_no_loss_scale_raises_a_value_error(self, loss_scale):
        opt = tf1.train.GradientDescentOptimizer(1.0)
        with self.assertRaises(ValueError):
            MixedPrecisionLossScaleOptimizer(opt, loss_scale)

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_takes_whatever_get_takes(self, mode):
        with modes.entered(mode) as mode:
            weight = tf1.Variable(1.0)
            config = {"class_name": "FixedLossScale", "config": {"loss_scale_value": 32.0}}
            for loss_scale, expected in (
                (16, 16),
                (np.float32(16), 16),
                ("dynamic", 2**15),
                (FixedLossScale(4), 4),
                (DynamicLossScale(8), 8),
                (config, 32),
                (lsm.FixedLossScaleManager(64), 64),
                (lsm.ExponentialUpdateLossScaleManager(128, 2), 128),
            ):
                recorder = Recorder([(tf.constant(1.0), weight)])
                opt = MixedPrecisionLossScaleOptimizer(recorder, loss_scale)
                ((grad, _),) = opt.compute_gradients(lambda: weight * 1)
                self.assertEqual(mode.value(grad), 1 / expected)

    @parameterized.parameters(*modes.ALL)
    def test_runs_a_managers_policy(self, mode):
        def make():
            manager = lsm.ExponentialUpdateLossScaleManager(8, 2, 2, 4, 0.5)
            return Training(OPTIMIZERS["momentum"](), manager)

        def step(training, x):
            done = training.step(x)
            with tf.control_dependencies(done):
                return done[1], training.policy.get_loss_scale()

        results = stepping.run(mode, make, step, STEPS)
        self.assertEqual([int(count) for count, _ in results], [1, 1, 2, 2, 2, 3, 4])
        self.assertEqual([float(scale) for _, scale in results], [8, 8, 8, 4, 4, 4, 16])

    def test_makes_no_tensor_of_its_own(self):
        with tf.Graph().as_default() as graph:
            MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), 8)
            self.assertEmpty(graph.get_operations())

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_answers_for_the_wrapped_optimizer(self, mode):
        with modes.entered(mode) as mode:
            for policy in (FixedLossScale(8), DynamicLossScale(8), Fickle(True)):
                training = Training(tf1.train.AdamOptimizer(0.1, name="MyAdam"), policy)
                pairs = [(tf.constant([1.0, 2.0]), training.weight)]
                training.opt.apply_gradients(pairs)
                opt, inner = training.opt, training.inner
                self.assertEqual(opt.get_name(), "MyAdam")
                self.assertEqual(opt.get_slot_names(), ["m", "v"])
                for name in ("m", "v"):
                    self.assertIsNotNone(inner.get_slot(training.weight, name))
                    self.assertIs(
                        opt.get_slot(training.weight, name), inner.get_slot(training.weight, name)
                    )
                self.assertIsNone(opt.get_slot(training.other, "m"))
                weights = list(policy._weights.values())
                self.assertLen(inner.variables(), 4)
                expected = [id(variable) for variable in inner.variables() + weights]
                self.assertCountEqual([id(variable) for variable in opt.variables()], expected)

    def test_variables_of_a_manager_are_among_the_variables(self):
        with tf.Graph().as_default():
            manager = lsm.ExponentialUpdateLossScaleManager(8, 2)
            opt = MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1), manager)
            self.assertEqual(
                [variable.name for variable in opt.variables()],
                ["loss_scale:0", "good_steps:0", "bad_steps:0"],
            )


class CheckpointTest(parameterized.TestCase, tf.test.TestCase):
    STEPS = _rows([1, 2], [NAN, 1], [3, -4])

    def _folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def _trained(self, steps=STEPS):
        training = Training(OPTIMIZERS["momentum"](), DynamicLossScale(8, 9))
        for (x,) in steps:
            training.step(tf.constant(x))
        return training

    def _checkpoint(self, training):
        return tf.train.Checkpoint(opt=training.opt, weight=training.weight)

    def _expect(self, training):
        reference = self._trained()
        self.assertAllEqual(training.weight.numpy(), reference.weight.numpy())
        slot, expected = (
            made.inner.get_slot(made.weight, "momentum").numpy() for made in (training, reference)
        )
        self.assertAllEqual(slot, expected)
        self.assertGreater(np.abs(expected).min(), 0)
        policy = training.policy
        self.assertEqual((policy().numpy(), policy.good_steps.numpy()), (4, 1))

    def test_children_are_base_optimizer_and_loss_scale(self):
        with modes.entered("eager"):
            training = Training(OPTIMIZERS["adam"](), DynamicLossScale(8, 9))
            training.step(tf.constant([1.0, 2.0]))
            path = self._checkpoint(training).save(os.path.join(self._folder(), "ckpt"))
            suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
            names = {name for name, _ in tf.train.list_variables(path)}
            expected = {
                name + suffix
                for name in (
                    "opt/loss_scale/current_loss_scale",
                    "opt/loss_scale/good_steps",
                    "opt/base_optimizer/beta1_power",
                    "opt/base_optimizer/beta2_power",
                    "weight/.OPTIMIZER_SLOT/opt/base_optimizer/m",
                    "weight/.OPTIMIZER_SLOT/opt/base_optimizer/v",
                    "weight",
                )
            }
            self.assertEqual(
                {name for name in names if name.startswith(("opt/", "weight"))}, expected
            )

    def test_slots_are_saved_and_restored(self):
        with modes.entered("eager"):
            path = self._checkpoint(self._trained()).save(os.path.join(self._folder(), "ckpt"))
            other = self._trained(_rows([50, 60]))
            self._checkpoint(other).restore(path).assert_consumed()
            self._expect(other)

    def test_slots_that_are_made_after_the_restore_are_restored(self):
        with modes.entered("eager"):
            path = self._checkpoint(self._trained(self.STEPS[:2])).save(
                os.path.join(self._folder(), "ckpt")
            )
            other = Training(OPTIMIZERS["momentum"](), DynamicLossScale(99, 9))
            status = self._checkpoint(other).restore(path)
            other.step(tf.constant(self.STEPS[2][0]))
            status.assert_consumed()
            self._expect(other)

    @parameterized.parameters("graph_v1", "graph_v2")
    def test_slots_are_saved_and_restored_in_a_session(self, name):
        prefix = os.path.join(self._folder(), "ckpt")

        def make():
            training = Training(OPTIMIZERS["momentum"](), DynamicLossScale(8, 9))
            checkpoint = tf1.train.Checkpoint(opt=training.opt, weight=training.weight)
            return training, checkpoint, tf1.placeholder(tf.float32, [2])

        with modes.entered(name) as mode:
            training, checkpoint, x = make()
            done = training.step(x)
            for (value,) in self.STEPS:
                mode.run(done, {x: value})
            before = mode.value(training.slots() + [training.weight, training.policy()])
            path = checkpoint.save(prefix, session=tf1.get_default_session())
        with modes.entered(name) as mode:
            training, checkpoint, x = make()
            training.step(x)
            mode.run(tf.constant(0))
            status = checkpoint.restore(path)
            status.assert_consumed().run_restore_ops(tf1.get_default_session())
            after = mode.value(training.slots() + [training.weight, training.policy()])
        self.assertLen(after, 3)
        for value, expected in zip(after, before):
            self.assertAllEqual(value, expected)

    @parameterized.parameters("ours", "theirs")
    def test_checkpoints_are_those_of_the_original(self, writer):
        home = originals.experimental()
        if home is None:
            self.skipTest("this TensorFlow has no MixedPrecisionLossScaleOptimizer of its own")

        class Original(Training):
            def __init__(self):
                super().__init__(OPTIMIZERS["momentum"]())
                self.policy = home.DynamicLossScale(8, 9)
                self.opt = home.MixedPrecisionLossScaleOptimizer(self.inner, self.policy)

        def ours():
            return Training(OPTIMIZERS["momentum"](), DynamicLossScale(8, 9))

        makers = (ours, Original) if writer == "ours" else (Original, ours)
        with modes.entered("eager"):
            written, read = [make() for make in makers]
            for (x,) in self.STEPS:
                written.step(tf.constant(x))
            path = self._checkpoint(written).save(os.path.join(self._folder(), "ckpt"))
            read.step(tf.constant([9.0, 9.0]))
            self._checkpoint(read).restore(path).assert_consumed()
            self.assertAllEqual(read.weight.numpy(), written.weight.numpy())
            self.assertAllEqual(
                read.inner.get_slot(read.weight, "momentum").numpy(),
                written.inner.get_slot(written.weight, "momentum").numpy(),
            )
            self.assertEqual(read.policy().numpy(), 4)
            self.assertEqual(read.policy._num_good_steps.numpy(), 1)

    def test_slots_are_saved_once(self):
        with modes.entered("eager"):
            path = self._checkpoint(self._trained()).save(os.path.join(self._folder(), "ckpt"))
            slots = [n for n, _ in tf.train.list_variables(path) if ".OPTIMIZER_SLOT" in n]
            self.assertLen(slots, 1)

    def test_slots_of_a_checkpoint_of_the_bare_optimizer_are_restored(self):
        """As when a training that had no loss scale goes on with one."""
        with modes.entered("eager"):
            bare = Training(OPTIMIZERS["momentum"]())
            bare.step(tf.constant([1.0, 2.0]))
            path = self._checkpoint(bare).save(os.path.join(self._folder(), "ckpt"))
            other = Training(OPTIMIZERS["momentum"](), FixedLossScale(8))
            self._checkpoint(other).restore(path)
            for training in (bare, other):
                training.step(tf.constant([3.0, 4.0]))
            self.assertAllEqual(other.weight.numpy(), bare.weight.numpy())
            self.assertAllClose(other.slots()[0].numpy(), [0.9 * 1 + 3, 0.9 * 2 + 4])

    def test_saver_saves_and_restores_by_name(self):
        prefix = os.path.join(self._folder(), "model")
        values, path = [], None
        for restore in (False, True):
            with modes.entered("graph_v2") as mode:
                training = Training(OPTIMIZERS["momentum"](), DynamicLossScale(8, 9))
                x = tf1.placeholder(tf.float32, [2])
                done = training.step(x)
                saver = tf1.train.Saver()
                if restore:
                    mode.run(tf.constant(0))
                    saver.restore(tf1.get_default_session(), path)
                else:
                    for (value,) in self.STEPS:
                        mode.run(done, {x: value})
                    path = saver.save(tf1.get_default_session(), prefix)
                values.append(mode.value(training.slots() + training.read() + [training.policy()]))
        names = {name for name, _ in tf.train.list_variables(path)}
        self.assertLessEqual(
            {"current_loss_scale", "good_steps", "weight", "weight/Momentum"}, names
        )
        for before, after in zip(*values):
            self.assertAllEqual(before, after)


def _functions_are_rewritten():
    return bool(tf.config.optimizer.get_experimental_options().get("auto_mixed_precision", False))


def _sessions_are_rewritten(config=None):
    """Returns whether sessions made now ask the graph optimizer for mixed precision."""
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        if session._config is None:
            return False
        return session._config.graph_options.rewrite_options.auto_mixed_precision == 1


class GraphRewriteTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(experimental.disable_mixed_precision_graph_rewrite)
        self._expect(False)

    def _expect(self, enabled):
        self.assertEqual(_functions_are_rewritten(), enabled)
        self.assertEqual(_sessions_are_rewritten(), enabled)

    def _opt(self):
        return tf1.train.GradientDescentOptimizer(1.0)

    @parameterized.parameters("graph_v2", "eager")
    def test_enable_wraps_and_turns_the_rewrite_on(self, mode):
        with modes.entered(mode):
            opt = self._opt()
            wrapped = experimental.enable_mixed_precision_graph_rewrite(opt, 16.0)
            self.assertIs(type(wrapped), MixedPrecisionLossScaleOptimizer)
            self.assertIs(wrapped._optimizer, opt)
            self.assertEqual(wrapped._loss_scale.get_config(), {"loss_scale_value": 16.0})
        self._expect(True)

    def test_enable_is_seen_by_sessions_with_a_config_of_their_own(self):
        experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
        config = tf1.ConfigProto(allow_soft_placement=True)
        self.assertTrue(_sessions_are_rewritten(config))
        experimental.disable_mixed_precision_graph_rewrite()
        self.assertFalse(_sessions_are_rewritten(config))

    def test_warns_where_a_session_is_there_that_is_not_rewritten(self):
        with tf.Graph().as_default(), tf1.Session(), self.assertLogs("tensorflow") as logs:
            experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
        self.assertIn("existing Sessions", "".join(logs.output))

    def test_loss_scale_is_dynamic_by_default(self):
        with tf.Graph().as_default():
            wrapped = experimental.enable_mixed_precision_graph_rewrite(self._opt())
            self.assertIs(type(wrapped._loss_scale), DynamicLossScale)
            self.assertEqual(wrapped._loss_scale.get_config(), DynamicLossScale().get_config())

    def test_takes_a_loss_scale(self):
        with tf.Graph().as_default():
            loss_scale = DynamicLossScale(8, 2)
            wrapped = experimental.enable_mixed_precision_graph_rewrite(self._opt(), loss_scale)
            self.assertIs(wrapped._loss_scale, loss_scale)

    def test_disable_turns_it_off(self):
        experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
        experimental.disable_mixed_precision_graph_rewrite()
        self._expect(False)
        experimental.disable_mixed_precision_graph_rewrite()
        self._expect(False)

    def test_can_be_enabled_again(self):
        for _ in range(2):
            experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
            self._expect(True)
            experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
            self._expect(True)
            experimental.disable_mixed_precision_graph_rewrite()
            self._expect(False)

    @crossed.parameters(
        *[
            (bad, before)
            for bad in ("opt", "none", "loss_scale", "twice")
            for before in (False, True)
        ]
    )
    def test_after_an_error_the_rewrite_is_as_before(self, bad, before):
        with modes.entered("eager"):
            if before:
                experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
            opt, loss_scale = {
                "opt": lambda: ("sgd", 16.0),
                "none": lambda: (self._opt(), None),
                "loss_scale": lambda: (self._opt(), 0.5),
                "twice": lambda: (MixedPrecisionLossScaleOptimizer(self._opt(), 16.0), 16.0),
            }[bad]()
            with self.assertRaises(ValueError):
                experimental.enable_mixed_precision_graph_rewrite(opt, loss_scale)
            self._expect(before)

    @parameterized.named_parameters(keras_homes.named())
    def test_wraps_a_keras_optimizer(self, home):
        with modes.entered("eager"):
            opt = home.SGD(0.5)
            wrapped = experimental.enable_mixed_precision_graph_rewrite(opt, 16.0)
            self.assertIsInstance(wrapped, keras_experimental.LossScaleOptimizer)
            self.assertIs(wrapped.inner_optimizer, opt)
            self.assertEqual(wrapped.loss_scale.get_config(), {"loss_scale_value": 16.0})
            self._expect(True)
            weight = tf.Variable(1.0)
            wrapped.minimize(lambda: 3.0 * weight, [weight])
            self.assertEqual(weight.numpy(), -0.5)
            dynamic = experimental.enable_mixed_precision_graph_rewrite(home.SGD(0.5))
            self.assertIs(type(dynamic.loss_scale), DynamicLossScale)

    @crossed.product(
        home=keras_homes.available(),
        bad=("none", "loss_scale", "twice", "class", "own"),
        before=(False, True),
    )
    def test_after_an_error_with_a_keras_optimizer_the_rewrite_is_as_before(
        self, home, bad, before
    ):
        with modes.entered("eager"):
            if bad == "own" and keras_homes.VERSION < (2, 4):
                self.skipTest("this Keras has no stable loss-scale optimizer of its own")
            opt, loss_scale = {
                "none": lambda: (home.SGD(1.0), None),
                "loss_scale": lambda: (home.SGD(1.0), 0.5),
                "twice": lambda: (keras_experimental.LossScaleOptimizer(home.SGD(1.0), 8), 16.0),
                "class": lambda: (home.SGD, 16.0),
                "own": lambda: (home.own()(home.SGD(1.0)), 16.0),
            }[bad]()
            if before:
                experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
            with modes.creations() as created, self.assertRaises(ValueError):
                experimental.enable_mixed_precision_graph_rewrite(opt, loss_scale)
            self.assertEmpty(created)
            self._expect(before)

    def test_an_optimizer_with_a_loss_scale_raises_an_error_that_says_so(self):
        opt = MixedPrecisionLossScaleOptimizer(self._opt(), 16.0)
        with self.assertRaisesRegex(ValueError, "loss scale already"):
            experimental.enable_mixed_precision_graph_rewrite(opt, 16.0)

    def test_an_optimizer_with_tensorflows_loss_scale_raises_an_error(self):
        home = originals.experimental()
        if home is None:
            self.skipTest("this TensorFlow has no MixedPrecisionLossScaleOptimizer of its own")
        opt = home.MixedPrecisionLossScaleOptimizer(self._opt(), 16.0)
        with self.assertRaises(ValueError):
            experimental.enable_mixed_precision_graph_rewrite(opt, 16.0)

    def test_makes_no_variable_but_those_of_the_loss_scale(self):
        with tf.Graph().as_default() as graph:
            experimental.enable_mixed_precision_graph_rewrite(self._opt(), 16.0)
            self.assertEmpty(graph.get_operations())

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_the_wrapped_optimizer_trains(self, mode):
        def make():
            training = Training(OPTIMIZERS["momentum"]())
            training.policy = DynamicLossScale(8, 9)
            training.opt = experimental.enable_mixed_precision_graph_rewrite(
                training.inner, training.policy
            )
            return training

        results = stepping.run(mode, make, Training.step, _rows([2, 4], [NAN, 4]))
        self.assertAllEqual([weight for weight, _ in results], [[0, -4]] * 2)
        self.assertEqual([int(count) for _, count in results], [1, 1])


if __name__ == "__main__":
    tf.test.main()
