"""The loss-scale optimizer of TensorFlow 1.15's contrib: scaling, skipping, and getting along."""

import contextlib
import functools
import importlib
import inspect
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, originals
from tf_lossscale_compat._core import _gradients
from tf_lossscale_compat.contrib import mixed_precision as contrib

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

NONFINITE = (np.nan, np.inf, -np.inf)
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


class CountingManager(contrib.LossScaleManager):
    """A fixed scale that counts the steps it is told of, and the finite ones among them."""

    def __init__(self, scale=8.0):
        self._scale = scale
        self.steps = tf1.Variable(0, trainable=False, name="steps")
        self.finite_steps = tf1.Variable(0, trainable=False, name="finite_steps")

    def get_loss_scale(self):
        return tf.constant(self._scale)

    def update_loss_scale(self, finite_grads):
        finite = tf.cast(finite_grads, tf.int32)
        return tf.group(self.steps.assign_add(1), self.finite_steps.assign_add(finite))

    def counted(self):
        return [self.steps, self.finite_steps]


class BareOptimizer:
    """Nothing but the two methods an optimizer needs; remembers how they were called."""

    def __init__(self, grads=None):
        self._grads = grads
        self.calls = []
        self.applied = []

    def compute_gradients(self, loss, var_list=None, **kwargs):
        self.calls.append((loss, var_list, kwargs))
        if self._grads is not None:
            return self._grads()
        return tf1.train.GradientDescentOptimizer(1.0).compute_gradients(loss, var_list)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = list(grads_and_vars)
        self.applied.append((pairs, global_step, name))
        updates = []
        for grad, var in pairs:
            if isinstance(grad, tf.IndexedSlices):
                grad = tf.math.unsorted_segment_sum(grad.values, grad.indices, var.shape[0])
            if grad is not None:
                updates.append(var.assign_sub(tf.cast(grad, var.dtype.base_dtype)))
        if global_step is not None:
            updates.append(global_step.assign_add(1))
        return tf.group(*updates)


def optimizer(opt=None, manager=None, **kwargs):
    opt = tf1.train.GradientDescentOptimizer(1.0) if opt is None else opt
    manager = CountingManager() if manager is None else manager
    return contrib.LossScaleOptimizer(opt, manager, **kwargs)


def in_graph(name, value):
    """Returns what a step does: in a graph `value`, elsewhere nothing, as it has happened."""
    return value if name in modes.GRAPH else None


class ConstructorTest(tf.test.TestCase, parameterized.TestCase):
    def test_it_is_a_v1_optimizer(self):
        self.assertTrue(issubclass(contrib.LossScaleOptimizer, tf1.train.Optimizer))
        with tf.Graph().as_default():
            self.assertIsInstance(optimizer(), tf1.train.Optimizer)

    def test_it_takes_opt_and_loss_scale_manager(self):
        parameters = inspect.signature(contrib.LossScaleOptimizer).parameters
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        self.assertEqual(
            [name for name, each in parameters.items() if each.kind is not keyword_only],
            ["opt", "loss_scale_manager"],
        )

    @parameterized.parameters(*modes.ALL)
    def test_the_arguments_stay_readable(self, name):
        with modes.entered(name):
            opt, manager = tf1.train.AdamOptimizer(), CountingManager()
            wrapped = contrib.LossScaleOptimizer(opt=opt, loss_scale_manager=manager)
            self.assertIs(wrapped._opt, opt)
            self.assertIs(wrapped._loss_scale_manager, manager)

    @parameterized.parameters("__init__", "compute_gradients", "apply_gradients")
    def test_methods_take_what_those_of_the_original_take(self, method):
        original = originals.contrib()
        if original is None:
            raise unittest.SkipTest("only TensorFlow 1.15 has tf.contrib")
        ours, theirs = (
            [
                # The originals have no annotations.
                each.replace(annotation=inspect.Parameter.empty)
                for each in inspect.signature(
                    getattr(home.LossScaleOptimizer, method)
                ).parameters.values()
            ]
            for home in (contrib, original)
        )
        # What is beyond the original can only be said by name.
        ours = [each for each in ours if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        self.assertEqual(ours, theirs)

    @parameterized.parameters(None, 1.0, "sgd", object)
    def test_an_opt_without_the_two_methods_is_refused(self, opt):
        with tf.Graph().as_default() as graph:
            with self.assertRaisesRegex(TypeError, "opt must .*Optimizer"):
                contrib.LossScaleOptimizer(opt, 8.0)
            self.assertEmpty(graph.get_operations())

    @parameterized.parameters(
        "tf.keras.optimizers", "tf.keras.optimizers.legacy", "keras.optimizers",
        "tf_keras.optimizers", "tf_keras.optimizers.legacy",
    )  # fmt: skip
    def test_a_keras_optimizer_is_refused_with_the_class_to_use(self, home):
        module, *path = home.split(".")
        with modes.eager_mode():
            try:
                cls = tf if module == "tf" else importlib.import_module(module)
                for part in path + ["SGD"]:
                    cls = getattr(cls, part)
                keras_optimizer = cls(0.1)
            except (ImportError, AttributeError) as error:
                raise unittest.SkipTest("no {} here: {}".format(home, error)) from None
            with modes.creations() as created:
                with self.assertRaises(TypeError) as raised:
                    contrib.LossScaleOptimizer(keras_optimizer, "dynamic")
            self.assertIn(
                "tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer",
                str(raised.exception),
            )
            self.assertEmpty(created)


class ComputeGradientsTest(tf.test.TestCase, parameterized.TestCase):
    def test_it_takes_its_arguments_in_this_order_with_these_defaults(self):
        parameters = inspect.signature(contrib.LossScaleOptimizer.compute_gradients).parameters
        self.assertEqual(
            [(p.name, p.default) for p in parameters.values()],
            [
                ("self", inspect.Parameter.empty),
                ("loss", inspect.Parameter.empty),
                ("var_list", None),
                ("gate_gradients", tf1.train.Optimizer.GATE_OP),
                ("aggregation_method", None),
                ("colocate_gradients_with_ops", False),
                ("grad_loss", None),
            ],
        )

    def test_the_wrapped_optimizer_gets_the_arguments(self):
        with tf.Graph().as_default():
            var, weight = tf1.Variable(1.0), tf.constant(2.0)
            opt = BareOptimizer()
            wrapped = optimizer(opt)
            wrapped.compute_gradients(
                var * 2, [var], tf1.train.Optimizer.GATE_GRAPH, 1, True, weight
            )
            wrapped.compute_gradients(var * 2)
        loss, var_list, kwargs = opt.calls[0]
        self.assertIs(var_list[0], var)
        self.assertIsNot(loss, None)
        self.assertIs(kwargs.pop("grad_loss"), weight)
        self.assertEqual(
            kwargs,
            {
                "gate_gradients": tf1.train.Optimizer.GATE_GRAPH,
                "aggregation_method": 1,
                "colocate_gradients_with_ops": True,
            },
        )
        self.assertIs(opt.calls[1][1], None)

    @crossed.parameters(*[(name, dtype) for name in modes.ALL for dtype in FLOATS])
    def test_the_loss_is_multiplied_by_the_scale_in_its_own_dtype(self, name, dtype):
        with modes.entered(name) as mode:
            opt = BareOptimizer(grads=list)
            wrapped = optimizer(opt, contrib.FixedLossScaleManager(3.0))

            def scaled():
                wrapped.compute_gradients(lambda: tf.constant(1.1, dtype))
                loss = opt.calls[-1][0]
                loss = loss() if callable(loss) else loss
                self.assertEqual(loss.dtype, dtype)
                return tf.cast(loss, tf.float64)

            numpy = dtype.as_numpy_dtype
            self.assertEqual(
                mode.compile(scaled)(), np.float64(numpy(numpy(1.1) * np.float32(3).astype(numpy)))
            )

    @parameterized.parameters(*modes.ALL)
    def test_gradients_are_multiplied_by_the_reciprocal_cast_to_their_dtype(self, name):
        values = [1.1, -2.3, 0.0, 60000.0]

        def grads():
            return [(tf.constant(values, dtype), None) for dtype in FLOATS]

        with modes.entered(name) as mode:
            wrapped = optimizer(BareOptimizer(grads), contrib.FixedLossScaleManager(3.0))

            def unscaled():
                pairs = wrapped.compute_gradients(lambda: tf.constant(1.0))
                self.assertEqual(tuple(grad.dtype for grad, _ in pairs), FLOATS)
                return [tf.cast(grad, tf.float64) for grad, _ in pairs]

            reciprocal = np.float32(1) / np.float32(3)
            for dtype, grad in zip(FLOATS, mode.compile(unscaled)()):
                numpy = dtype.as_numpy_dtype
                expected = np.array(values).astype(numpy) * reciprocal.astype(numpy)
                self.assertAllEqual(grad, expected.astype(numpy).astype(np.float64))

    @parameterized.parameters(*modes.ALL)
    def test_gradients_of_a_callable_loss_are_right(self, name):
        with modes.entered(name) as mode:
            first, second = tf1.Variable([1.0, 2.0]), tf1.Variable(3.0)
            wrapped = optimizer(manager=contrib.FixedLossScaleManager(1024.0))

            def compute():
                pairs = wrapped.compute_gradients(
                    lambda: tf.reduce_sum(first * first) * second, var_list=[second, first]
                )
                self.assertIs(pairs[0][1], second)
                self.assertIs(pairs[1][1], first)
                return [grad for grad, _ in pairs]

            grads = mode.compile(compute)()
            self.assertAllEqual(grads[0], 5.0)
            self.assertAllEqual(grads[1], [6.0, 12.0])

    @parameterized.parameters(*modes.GRAPH)
    def test_the_loss_is_a_tensor_or_a_callable_in_graph_mode(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(3.0)
            wrapped = optimizer(manager=contrib.FixedLossScaleManager(1024.0))
            for loss in (var * var, lambda: var * var):
                ((grad, of),) = wrapped.compute_gradients(loss)
                self.assertIs(of, var)
                self.assertEqual(mode.value(grad), 6.0)

    @parameterized.parameters(*modes.GRAPH)
    def test_the_wrapped_optimizer_need_not_take_callables_in_graph_mode(self, name):
        with modes.entered(name):
            opt = BareOptimizer(grads=list)
            optimizer(opt).compute_gradients(lambda: tf.constant(1.0))
            self.assertIsInstance(opt.calls[0][0], tf.Tensor)

    @parameterized.parameters(*modes.IMMEDIATE)
    def test_the_wrapped_optimizer_differentiates_a_callable_elsewhere(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(3.0)
            opt = BareOptimizer()
            wrapped = optimizer(opt)
            grad = mode.compile(lambda: wrapped.compute_gradients(lambda: var * var, [var])[0][0])
            self.assertEqual(grad(), 6.0)
            self.assertTrue(callable(opt.calls[0][0]))

    @parameterized.parameters(*modes.GRAPH)
    def test_grad_loss_weights_the_gradients(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable([1.0, 2.0])
            wrapped = optimizer(manager=contrib.FixedLossScaleManager(1024.0))
            ((grad, _),) = wrapped.compute_gradients(var * var, grad_loss=tf.constant([1.0, 10.0]))
            self.assertAllEqual(mode.value(grad), [2.0, 40.0])

    @parameterized.parameters(*modes.ALL)
    def test_none_gradients_stay_none(self, name):
        with modes.entered(name) as mode:
            used, unused = tf1.Variable(3.0), tf1.Variable(5.0)
            wrapped = optimizer()

            def compute():
                pairs = wrapped.compute_gradients(lambda: used * used, [unused, used])
                self.assertIsNone(pairs[0][0])
                self.assertIs(pairs[0][1], unused)
                return pairs[1][0]

            self.assertEqual(mode.compile(compute)(), 6.0)

    @parameterized.parameters(*modes.ALL)
    def test_indexed_slices_stay_sparse_on_request(self, name):
        with modes.entered(name) as mode:
            table = tf1.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
            manager = contrib.FixedLossScaleManager(1024.0)
            wrapped = optimizer(manager=manager, keep_sparse=True)

            def compute():
                pairs = wrapped.compute_gradients(
                    lambda: tf.reduce_sum(tf.gather(table, [2, 0, 2]) ** 2), [table]
                )
                grad = pairs[0][0]
                self.assertIsInstance(grad, tf.IndexedSlices)
                self.assertIsNotNone(grad.dense_shape)
                return grad.values, grad.indices, grad.dense_shape

            values, indices, dense_shape = mode.compile(compute)()
            self.assertAllEqual(values, [[10.0, 12.0], [2.0, 4.0], [10.0, 12.0]])
            self.assertAllEqual(indices, [2, 0, 2])
            self.assertAllEqual(dense_shape, [3, 2])

    @parameterized.parameters(*modes.GRAPH)
    def test_without_var_list_the_variables_of_the_manager_are_not_trained(self, name):
        with modes.entered(name):
            var = tf1.Variable(3.0)
            wrapped = optimizer(manager=contrib.ExponentialUpdateLossScaleManager(8.0, 2))
            pairs = wrapped.compute_gradients(var * var)
            self.assertEqual([id(of) for _, of in pairs], [id(var)])

    @parameterized.parameters(*modes.ALL)
    def test_a_scale_that_underflow_needs_is_felt(self, name):
        # 2**-20 is halved away to nothing in float16 once squared; times 2**15 it is not.
        with modes.entered(name) as mode:
            var = tf1.Variable(2.0**-14)

            def loss():
                return tf.cast(var, tf.float16) * tf.constant(2.0**-14, tf.float16)

            def compute():
                grads = []
                for scale in (1.0, 2.0**12):
                    wrapped = optimizer(manager=contrib.FixedLossScaleManager(scale))
                    ((grad, _),) = wrapped.compute_gradients(
                        lambda: loss() * tf.constant(2.0**-11, tf.float16), [var]
                    )
                    grads.append(grad)
                return grads

            lost, kept = mode.compile(compute)()
            self.assertEqual(lost, 0.0)
            self.assertEqual(kept, 2.0**-25)


class ApplyGradientsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_a_finite_step_is_applied_and_any_other_moves_nothing(self, name):
        with modes.entered(name) as mode:
            first, second = tf1.Variable([1.0, 2.0]), tf1.Variable(3.0)
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            opt = tf1.train.AdamOptimizer(0.1)
            manager = CountingManager()
            wrapped = optimizer(opt, manager)

            def apply(grad, other):
                return wrapped.apply_gradients([(grad, first), (other, second)], global_step)

            step = mode.compile(apply, tf.TensorSpec([2], tf.float32), modes.scalar())
            step([1.0, 1.0], 1.0)
            # Variables, slots m and v of each, beta1_power and beta2_power, and the global step.
            everything = [first, second, global_step] + opt.variables()
            self.assertLen(everything, 9)
            before = mode.value(everything)
            self.assertEqual(before[2], 1)
            self.assertAllClose(before[0], [0.9, 1.9])
            for steps, bad in enumerate(NONFINITE):
                step([bad, 1.0], 1.0)
                step([1.0, bad], 1.0)
                step([1.0, 1.0], bad)
                for was, now in zip(before, mode.value(everything)):
                    self.assertAllEqual(was, now)
                self.assertEqual(list(mode.value(manager.counted())), [4 + 3 * steps, 1])
            step([1.0, 1.0], 1.0)
            for was, now in zip(before, mode.value(everything)):
                self.assertNotAllEqual(was, now)
            self.assertEqual(mode.value(global_step), 2)

    @parameterized.parameters(*modes.ALL)
    def test_the_manager_is_updated_exactly_once_for_each_step(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(0.0)
            manager = CountingManager()
            wrapped = optimizer(manager=manager)
            step = mode.compile(lambda grad: wrapped.apply_gradients([(grad, var)]), modes.scalar())
            for index in range(20):
                step(np.nan if index % 3 else 1.0)
                self.assertEqual(
                    list(mode.value(manager.counted() + [var])),
                    [index + 1, index // 3 + 1, -float(index // 3 + 1)],
                )

    @parameterized.parameters(*modes.ALL)
    def test_one_run_is_exactly_one_step_of_everything(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(0.0)
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            manager = contrib.ExponentialUpdateLossScaleManager(2.0**20, 2, 2, 2, 0.5)
            wrapped = optimizer(tf1.train.MomentumOptimizer(1.0, 0.0), manager)
            step = mode.compile(
                lambda grad: wrapped.apply_gradients([(grad, var)], global_step), modes.scalar()
            )
            scale, good, bad, applied = 2.0**20, 0, 0, 0
            for finite in np.random.RandomState(3).rand(200) < 0.6:
                step(1.0 if finite else np.nan)
                applied += int(finite)
                good, bad = (good + 1, bad) if finite else (0, bad + 1)
                if good == 2:
                    scale, good, bad = scale * 2, 0, 0
                elif bad == 2:
                    scale, good, bad = scale / 2, 0, 0
                state = mode.value(manager.variables() + [var, global_step])
                self.assertEqual(list(state), [scale, good, bad, -float(applied), applied])

    @parameterized.parameters(*modes.GRAPH)
    def test_in_graph_mode_it_returns_an_operation(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(1.0)
            applied = optimizer().apply_gradients([(tf.constant(1.0), var)])
            self.assertIsInstance(applied, tf.Operation)
            minimized = optimizer().minimize(var * 2, name="train")
            self.assertIsInstance(minimized, tf.Operation)
            self.assertIsNone(mode.run(applied))

    def test_in_eager_mode_it_returns_none(self):
        with modes.eager_mode():
            var = tf1.Variable(1.0)
            for grad in (1.0, np.nan):
                self.assertIsNone(optimizer().apply_gradients([(tf.constant(grad), var)]))
            self.assertIsNone(optimizer().minimize(lambda: var * 2, var_list=[var]))
            self.assertEqual(var.numpy(), -2.0)

    @parameterized.parameters(*modes.ALL)
    def test_minimize_computes_and_applies(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(3.0)
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            wrapped = optimizer(tf1.train.GradientDescentOptimizer(0.25))
            step = mode.compile(
                lambda: wrapped.minimize(lambda: var * var, global_step, var_list=[var])
            )
            step()
            step()
            self.assertEqual(list(mode.value([var, global_step])), [0.75, 2])

    @parameterized.parameters(*modes.ALL)
    def test_opt_needs_only_compute_gradients_and_apply_gradients(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(3.0)
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            manager = CountingManager()
            wrapped = optimizer(BareOptimizer(), manager)

            def train(factor):
                return wrapped.minimize(lambda: var * factor, global_step, var_list=[var])

            step = mode.compile(train, modes.scalar())
            for factor in (1.0, np.inf, 0.5):
                step(factor)
            self.assertEqual(
                list(mode.value([var, global_step] + manager.counted())), [1.5, 2, 3, 2]
            )
            self.assertEqual([id(v) for v in wrapped.variables()], [])
            self.assertIsInstance(wrapped.get_name(), str)

    @parameterized.parameters(*modes.GRAPH)
    def test_the_wrapped_optimizer_gets_global_step_and_name(self, name):
        with modes.entered(name):
            var, global_step = tf1.Variable(3.0), tf1.Variable(0)
            opt = BareOptimizer()
            optimizer(opt).apply_gradients([(tf.constant(1.0), var)], global_step, "train")
            ((pairs, step, applied_name),) = opt.applied
            self.assertIs(pairs[0][1], var)
            self.assertIs(step, global_step)
            self.assertEqual(applied_name, "train")

    @crossed.parameters(*[(n, r) for n in modes.ALL for r in ("tensor", "none", "list")])
    def test_the_wrapped_optimizer_may_return_anything(self, name, returned):
        class Returns(BareOptimizer):
            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                update = super().apply_gradients(grads_and_vars, global_step, name)
                if returned == "none" or update is None:
                    # What it does without being asked for: an op that nothing else leads to.
                    self.update = update
                    return None
                if returned == "list":
                    return [update]
                with tf.control_dependencies([update]):
                    return tf.constant(1.0)

        with modes.entered(name) as mode:
            var = tf1.Variable(3.0)
            manager = CountingManager()
            wrapped = optimizer(Returns(), manager)
            step = mode.compile(lambda grad: wrapped.apply_gradients([(grad, var)]), modes.scalar())
            step(1.0)
            step(np.nan)
            self.assertEqual(list(mode.value(manager.counted())), [2, 1])
            if returned != "none" or name not in modes.GRAPH:
                self.assertEqual(mode.value(var), 2.0)

    @crossed.parameters(
        *[(n, kind) for n in ("graph_v1", "eager") for kind in ("zip", "generator", "map", "tuple")]
    )
    def test_grads_and_vars_may_be_any_iterable(self, name, kind):
        with modes.entered(name) as mode:
            variables = [tf1.Variable(1.0), tf1.Variable(2.0)]
            wrapped = optimizer()

            def apply(grad):
                pairs = {
                    "zip": lambda: zip([grad, 2 * grad], variables),
                    "generator": lambda: ((grad * (i + 1), v) for i, v in enumerate(variables)),
                    "map": lambda: map(tuple, [(grad, variables[0]), (2 * grad, variables[1])]),
                    "tuple": lambda: ((grad, variables[0]), [2 * grad, variables[1]]),
                }[kind]()
                return wrapped.apply_gradients(pairs)

            step = mode.compile(apply, modes.scalar())
            step(np.nan)
            self.assertEqual(list(mode.value(variables)), [1.0, 2.0])
            step(1.0)
            self.assertEqual(list(mode.value(variables)), [0.0, 0.0])

    @parameterized.parameters(*modes.ALL)
    def test_variables_that_accumulated_gradients_serve_as_gradients(self, name):
        with modes.entered(name) as mode:
            var, accumulator = tf1.Variable(0.0), tf1.Variable(1.0, trainable=False)
            manager = CountingManager()
            wrapped = optimizer(manager=manager)
            step = mode.compile(lambda: wrapped.apply_gradients([(accumulator, var)]))
            accumulate = mode.compile(
                lambda grad: in_graph(name, accumulator.assign_add(grad)), modes.scalar()
            )
            for grad in (1.0, np.nan):
                accumulate(grad)
                step()
            self.assertEqual(list(mode.value([var] + manager.counted())), [-2.0, 2, 1])

    @parameterized.parameters(*modes.ALL)
    def test_none_gradients_are_carried_through(self, name):
        with modes.entered(name) as mode:
            used, unused = tf1.Variable(1.0), tf1.Variable(5.0)
            opt = BareOptimizer()
            manager = CountingManager()
            wrapped = optimizer(opt, manager)
            step = mode.compile(
                lambda grad: wrapped.apply_gradients([(None, unused), (grad, used)]),
                modes.scalar(),
            )
            step(1.0)
            step(np.inf)
            self.assertEqual(list(mode.value([used, unused])), [0.0, 5.0])
            self.assertEqual(list(mode.value(manager.counted())), [2, 1])
            pairs = opt.applied[0][0]
            self.assertIsNone(pairs[0][0])
            self.assertIs(pairs[0][1], unused)

    @crossed.parameters(
        *[(n, o) for n in modes.ALL for o in ("GradientDescent", "Momentum", "Adam")]
    )
    def test_a_none_gradient_leaves_its_variable_to_the_wrapped_optimizer(self, name, opt):
        with modes.entered(name) as mode:
            used, unused = tf1.Variable(1.0), tf1.Variable(5.0)
            arguments = (0.1, 0.9) if opt == "Momentum" else (0.1,)
            wrapped = optimizer(getattr(tf1.train, opt + "Optimizer")(*arguments))
            step = mode.compile(lambda: wrapped.minimize(lambda: 2 * used, var_list=[used, unused]))
            step()
            self.assertLess(mode.value(used), 1.0)
            self.assertEqual(mode.value(unused), 5.0)

    @parameterized.parameters(*modes.ALL)
    def test_the_wrapped_optimizer_sees_indexed_slices(self, name):
        with modes.entered(name) as mode:
            table = tf1.Variable([[1.0], [2.0], [3.0]])
            opt = BareOptimizer()
            wrapped = optimizer(opt)

            def apply(values):
                slices = tf.IndexedSlices(values, tf.constant([2, 2]), tf.constant([3, 1]))
                return wrapped.apply_gradients([(slices, table)])

            step = mode.compile(apply, tf.TensorSpec([2, 1], tf.float32))
            for bad in NONFINITE:
                step([[1.0], [bad]])
            self.assertAllEqual(mode.value(table), [[1.0], [2.0], [3.0]])
            step([[1.0], [1.0]])
            self.assertAllEqual(mode.value(table), [[1.0], [2.0], [1.0]])
            for pairs, _, _ in opt.applied:
                self.assertIsInstance(pairs[0][0], tf.IndexedSlices)

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_sparse_training_touches_only_the_rows_looked_up(self, name):
        # Momentum moves on in every row of a dense gradient; in a sparse one only in those named.
        with modes.entered(name) as mode:
            table = tf1.Variable([[1.0], [2.0], [3.0]])
            wrapped = optimizer(tf1.train.MomentumOptimizer(1.0, 0.5), keep_sparse=True)

            def train(index):
                return wrapped.minimize(
                    lambda: tf.reduce_sum(tf.gather(table, index)), var_list=[table]
                )

            step = mode.compile(train, tf.TensorSpec([1], tf.int32))
            step([0])
            step([1])
            self.assertAllEqual(mode.value(table), [[0.0], [1.0], [3.0]])

    @parameterized.parameters(*modes.ALL)
    def test_a_zero_size_gradient_is_finite(self, name):
        with modes.entered(name) as mode:
            empty, other = tf1.Variable(tf.zeros([0, 3])), tf1.Variable(1.0)
            manager = CountingManager()
            wrapped = optimizer(manager=manager)
            alone = mode.compile(lambda: wrapped.apply_gradients([(tf.zeros([0, 3]), empty)]))
            both = mode.compile(
                lambda grad: wrapped.apply_gradients([(tf.zeros([0, 3]), empty), (grad, other)]),
                modes.scalar(),
            )
            alone()
            self.assertEqual(list(mode.value(manager.counted())), [1, 1])
            both(1.0)
            self.assertEqual(list(mode.value(manager.counted() + [other])), [2, 2, 0.0])
            both(np.nan)
            self.assertEqual(list(mode.value(manager.counted() + [other])), [3, 2, 0.0])

    @parameterized.parameters(*modes.ALL)
    def test_gradients_of_all_float_types_in_one_list(self, name):
        # Twice the largest value of each type: finite, though their sum is not.
        largest = {dtype: float(dtype.max) for dtype in FLOATS}
        with modes.entered(name) as mode:
            variables = [tf1.Variable(tf.zeros([2], dtype)) for dtype in FLOATS]
            opt = BareOptimizer()
            manager = CountingManager()
            wrapped = optimizer(opt, manager)

            def apply(*bad):
                grads = [
                    tf.cast(tf.stack([tf.constant(largest[dtype], tf.float64), one]), dtype)
                    for dtype, one in zip(FLOATS, bad)
                ]
                return wrapped.apply_gradients(zip(grads, variables))

            step = mode.compile(apply, *[modes.scalar(tf.float64)] * len(FLOATS))
            step(*[largest[dtype] for dtype in FLOATS])
            self.assertEqual(list(mode.value(manager.counted())), [1, 1])
            for index in range(len(FLOATS)):
                for bad in NONFINITE:
                    step(*[bad if index == position else 1.0 for position in range(len(FLOATS))])
            self.assertEqual(list(mode.value(manager.counted())), [13, 1])
            for (grad, _), dtype in zip(opt.applied[0][0], FLOATS):
                self.assertEqual(grad.dtype, dtype)

    @parameterized.parameters(*modes.ALL)
    def test_mixed_float_types_are_trained(self, name):
        dtypes = (tf.float16, tf.float32, tf.float64)
        with modes.entered(name) as mode:
            variables = [tf1.Variable(tf.ones([2], dtype)) for dtype in dtypes]
            wrapped = optimizer(tf1.train.GradientDescentOptimizer(0.25))

            def loss():
                return tf.add_n([tf.cast(tf.reduce_sum(v), tf.float32) for v in variables])

            step = mode.compile(lambda: wrapped.minimize(loss, var_list=variables))
            step()
            for value, dtype in zip(mode.value(variables), dtypes):
                self.assertEqual(value.dtype, dtype.as_numpy_dtype)
                self.assertAllEqual(value, [0.75, 0.75])

    @parameterized.parameters(
        (1 + 2j, True), (complex(1, np.nan), False), (complex(np.inf, 0), False), (7, True)
    )
    def test_complex_gradients_are_finite_if_both_parts_are_and_integers_always(self, grad, finite):
        for name in ("graph_v1", "graph_v2", "eager", "function"):
            with modes.entered(name) as mode:
                var = tf1.Variable(tf.zeros_like(grad))
                manager = CountingManager()
                wrapped = optimizer(BareOptimizer(), manager)
                step = mode.compile(lambda: wrapped.apply_gradients([(tf.constant(grad), var)]))
                step()
                self.assertEqual(list(mode.value(manager.counted())), [1, int(finite)])
                self.assertEqual(mode.value(var), -grad if finite else 0)

    @parameterized.parameters(("all_none",), ("empty",))
    def test_without_any_gradient_it_raises_and_changes_nothing(self, kind):
        for name in ("graph_v1", "graph_v2", "eager"):
            with modes.entered(name) as mode:
                var = tf1.Variable(1.0, name="lonely")
                manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1)
                wrapped = optimizer(tf1.train.AdamOptimizer(), manager)
                count = len(tf1.get_default_graph().get_operations())
                pairs = [(None, var), (None, var)] if kind == "all_none" else []
                expected = "lonely" if kind == "all_none" else "radient"
                with self.assertRaisesRegex(ValueError, expected):
                    wrapped.apply_gradients(iter(pairs))
                if name in modes.GRAPH:
                    self.assertLen(tf1.get_default_graph().get_operations(), count)
                self.assertEqual(list(mode.value(manager.variables())), [8.0, 0, 0])
                self.assertLen(wrapped.variables(), 3)

    def test_where_the_wrapped_optimizer_fails_the_manager_is_not_updated(self):
        class Failing(BareOptimizer):
            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                raise RuntimeError("no luck")

        with modes.eager_mode():
            manager = CountingManager()
            var = tf1.Variable(1.0)
            with self.assertRaisesRegex(RuntimeError, "no luck"):
                optimizer(Failing(), manager).apply_gradients([(tf.constant(1.0), var)])
            self.assertEqual([v.numpy() for v in manager.counted()], [0, 0])

    @parameterized.parameters(*modes.ALL)
    def test_a_start_at_2_to_the_32_comes_down_until_a_float16_loss_trains(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(2.0)
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            manager = contrib.ExponentialUpdateLossScaleManager(2**32, 1000, decr_ratio=0.5)
            wrapped = optimizer(tf1.train.GradientDescentOptimizer(0.125), manager)

            def loss():
                half = tf.cast(var, tf.float16)
                return half * half

            step = mode.compile(lambda: wrapped.minimize(loss, global_step, var_list=[var]))
            # 4 * 2**13 is the largest of these scales times the loss that float16 holds, so it
            # takes 19 halvings of two steps each.
            for _ in range(2 * 19):
                step()
            self.assertEqual(
                list(mode.value([var, global_step, manager.get_loss_scale()])), [2.0, 0, 2.0**13]
            )
            for _ in range(3):
                step()
            self.assertEqual(
                list(mode.value([var, global_step, manager.get_loss_scale()])),
                [2.0 * 0.75**3, 3, 2.0**13],
            )


class ContextsTest(tf.test.TestCase, parameterized.TestCase):
    @crossed.parameters(*[(n, i) for n in modes.GRAPH for i in ("Adam", "GradientDescent")])
    def test_it_accumulates_gradients_as_bert_does(self, name, inner):
        with modes.entered(name) as mode:
            var = tf1.Variable(0.0)
            global_step = tf1.train.get_or_create_global_step()
            accumulator = tf1.Variable(0.0, trainable=False)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2, 1, 2, 0.5)
            opt = getattr(tf1.train, inner + "Optimizer")(1.0)
            wrapped = contrib.LossScaleOptimizer(opt, manager)
            grad, update_step = tf1.placeholder(tf.float32, []), tf1.placeholder(tf.bool, [])
            with tf.control_dependencies([accumulator.assign_add(grad)]):
                accumulated = [tf.identity(accumulator.read_value())]
                train_op = tf1.cond(
                    update_step,
                    lambda: wrapped.apply_gradients(
                        zip(accumulated, [var]), global_step=global_step
                    ),
                    tf.no_op,
                )
            with tf.control_dependencies([train_op]):
                train_op = tf1.cond(update_step, lambda: accumulator.assign(0.0).op, tf.no_op)
            state = manager.variables() + [global_step]
            for grads, expected in (
                ((1.0, 2.0), [8.0, 1, 0, 1]),
                ((1.0, 1.0), [16.0, 0, 0, 2]),
                ((np.nan, 1.0), [8.0, 0, 0, 2]),
                ((3.0, 1.0), [8.0, 1, 0, 3]),
            ):
                before = mode.value([var] + state)
                mode.run(train_op, {grad: grads[0], update_step: False})
                self.assertAllEqual(mode.value([var] + state), before)
                mode.run(train_op, {grad: grads[1], update_step: True})
                self.assertEqual(list(mode.value(state)), expected)
                moved = mode.value(var) - before[0]
                if not np.isfinite(sum(grads)):
                    self.assertEqual(moved, 0.0)
                elif inner == "GradientDescent":
                    self.assertEqual(moved, -sum(grads))
                else:
                    self.assertLess(moved, 0.0)

    @parameterized.parameters(*modes.GRAPH)
    def test_it_is_applied_in_a_branch_of_a_branch(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(0.0)
            manager = CountingManager()
            wrapped = optimizer(tf1.train.AdamOptimizer(1.0), manager)
            grad = tf1.placeholder(tf.float32, [])
            outer, inner = tf1.placeholder(tf.bool, []), tf1.placeholder(tf.bool, [])

            def apply():
                return wrapped.apply_gradients([(grad, var)])

            train_op = tf1.cond(outer, lambda: tf1.cond(inner, apply, tf.no_op), tf.no_op)
            for choice in ((False, False), (True, False), (False, True)):
                mode.run(train_op, {grad: 1.0, outer: choice[0], inner: choice[1]})
                self.assertEqual(list(mode.value(manager.counted() + [var])), [0, 0, 0.0])
            mode.run(train_op, {grad: 1.0, outer: True, inner: True})
            self.assertEqual(list(mode.value(manager.counted())), [1, 1])
            moved = mode.value(var)
            self.assertLess(moved, 0.0)
            mode.run(train_op, {grad: np.nan, outer: True, inner: True})
            self.assertEqual(list(mode.value(manager.counted() + [var])), [2, 1, moved])

    @parameterized.parameters("function", "jit")
    def test_it_is_applied_in_a_branch_of_a_function(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(0.0)
            manager = CountingManager()
            wrapped = optimizer(tf1.train.AdamOptimizer(1.0), manager)

            def train(grad, choice):
                def apply():
                    wrapped.apply_gradients([(grad, var)])
                    return tf.constant(1)

                return tf.cond(choice, apply, lambda: tf.constant(0))

            step = mode.compile(train, modes.scalar(), modes.scalar(tf.bool))
            step(1.0, False)
            self.assertEqual(list(mode.value(manager.counted() + [var])), [0, 0, 0.0])
            step(np.nan, True)
            self.assertEqual(list(mode.value(manager.counted() + [var])), [1, 0, 0.0])
            step(1.0, True)
            self.assertEqual(list(mode.value(manager.counted())), [2, 1])
            self.assertLess(mode.value(var), 0.0)

    def test_autograph_and_a_python_branch_in_a_function(self):
        with modes.eager_mode():
            var = tf1.Variable(0.0)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1, 2, 0.5)
            wrapped = optimizer(manager=manager)

            @tf.function
            def train(grads):
                for grad in grads:
                    if tf.not_equal(grad, 0.0):
                        wrapped.apply_gradients([(grad, var)])
                return manager.get_loss_scale()

            scale = train(tf.constant([1.0, 0.0, np.nan, 1.0, 1.0]))
            self.assertEqual(scale.numpy(), 8.0 * 2 * 0.5 * 2 * 2)
            self.assertEqual(var.numpy(), -3.0)

    def test_one_optimizer_in_two_functions(self):
        with modes.eager_mode():
            var = tf1.Variable(0.0)
            manager = CountingManager()
            wrapped = optimizer(tf1.train.MomentumOptimizer(1.0, 0.5), manager)

            def apply(grad):
                wrapped.apply_gradients([(grad, var)])

            first, second = tf.function(apply), tf.function(lambda grad: apply(2 * grad))
            first(tf.constant(1.0))
            second(tf.constant(np.nan))
            second(tf.constant(1.0))
            self.assertEqual(var.numpy(), -1.0 - 2.5)
            self.assertEqual([v.numpy() for v in manager.counted()], [3, 2])

    @parameterized.parameters(*modes.GRAPH)
    def test_it_trains_in_a_loop_in_the_graph(self, name):
        with modes.entered(name) as mode:
            var = tf1.get_variable("looped", initializer=8.0, use_resource=True)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2)
            wrapped = optimizer(tf1.train.GradientDescentOptimizer(0.5), manager)

            def body(index):
                grad = tf1.where(tf.equal(index, 1), np.float32(np.nan), var.read_value())
                with tf.control_dependencies([wrapped.apply_gradients([(grad, var)])]):
                    return index + 1

            loop = tf1.while_loop(lambda index: index < 4, body, [0], parallel_iterations=1)
            mode.run(loop)
            self.assertEqual(list(mode.value([var, manager.get_loss_scale()])), [1.0, 16.0])

    @parameterized.parameters(*modes.GRAPH)
    def test_it_trains_in_a_monitored_training_session(self, name):
        directory = self.get_temp_dir() + "/" + name
        for first, last in ((0, 4), (4, 6)):
            with modes.entered(name):
                var = tf1.Variable(16.0)
                global_step = tf1.train.get_or_create_global_step()
                manager = contrib.ExponentialUpdateLossScaleManager(8.0, 4, 1, 2, 0.5)
                wrapped = optimizer(tf1.train.MomentumOptimizer(0.5, 0.0), manager)
                factor = tf1.placeholder_with_default(1.0, [])
                train_op = wrapped.minimize(factor * var * var / 2, global_step=global_step)
                hooks = [tf1.train.StopAtStepHook(last_step=last)]
                with tf1.train.MonitoredTrainingSession(
                    checkpoint_dir=directory,
                    hooks=hooks,
                    save_summaries_steps=None,
                    save_summaries_secs=None,
                    log_step_count_steps=None,
                ) as session:
                    self.assertEqual(session.run(global_step), first)
                    if not first:
                        session.run(train_op, {factor: np.inf})
                        self.assertEqual(session.run([global_step, var]), [0, 16.0])
                    while not session.should_stop():
                        state = session.run([train_op, var, global_step] + manager.variables())
                    del state
        saved = tf.train.load_checkpoint(directory)
        self.assertEqual(saved.get_tensor("Variable"), 16.0 / 2**6)
        self.assertEqual(saved.get_tensor("global_step"), 6)
        # Halved by the first step, doubled by the next four; two steps on the way to the next.
        self.assertEqual(saved.get_tensor("loss_scale"), 8.0)
        self.assertEqual(saved.get_tensor("good_steps"), 2)

    def test_it_trains_as_the_original_did_step_by_step(self):
        original = originals.contrib()
        if original is None:
            raise unittest.SkipTest("only TensorFlow 1.15 has tf.contrib")

        def history(home):
            with tf.Graph().as_default(), tf1.Session() as session:
                var = tf1.Variable([1.0, 2.0])
                step = tf1.train.get_or_create_global_step()
                manager = home.ExponentialUpdateLossScaleManager(2**18, 3, 2, 2, 0.7)
                opt = home.LossScaleOptimizer(tf1.train.AdamOptimizer(0.1), manager)
                loss = tf.reduce_sum(tf.cast(var * var, tf.float16))
                train_op = opt.minimize(loss, global_step=step)
                session.run(tf1.global_variables_initializer())
                states = [np.concatenate([session.run(v).ravel() for v in tf1.global_variables()])]
                for _ in range(30):
                    session.run(train_op)
                    states.append(
                        np.concatenate([session.run(v).ravel() for v in tf1.global_variables()])
                    )
                return [v.op.name for v in tf1.global_variables()], np.stack(states)

        names, states = history(contrib)
        expected_names, expected = history(original)
        self.assertEqual(names, expected_names)
        self.assertAllEqual(states, expected)
        self.assertGreater(len(np.unique(states[:, 0])), 5)

    def test_random_operations_with_a_seed_of_their_own_draw_as_beside_the_original(self):
        """Also those that are made after the optimizer's, whose number is another."""
        original = originals.contrib()
        if original is None:
            raise unittest.SkipTest("only TensorFlow 1.15 has tf.contrib")

        def drawn(home):
            with tf.Graph().as_default(), tf1.Session() as session:
                tf1.set_random_seed(3)
                before = tf1.random_uniform([4])
                var = tf1.Variable([1.0, 2.0])
                opt = home.LossScaleOptimizer(
                    tf1.train.AdamOptimizer(0.1), home.FixedLossScaleManager(8)
                )
                opt.minimize(tf.reduce_sum(var))
                after = [tf1.random_uniform([4], seed=7), tf1.random_uniform([4])]
                session.run(tf1.global_variables_initializer())
                return session.run([before, *after])

        before, seeded, unseeded = zip(drawn(contrib), drawn(original))
        self.assertAllEqual(*before)
        self.assertAllEqual(*seeded)
        self.assertNotAllEqual(*unseeded)  # Where they are equal, the pages say too much.

    def test_it_trains_where_all_of_tensorflow_2_is_switched_off(self):
        if originals.IS_TF1:
            raise unittest.SkipTest("this is how TensorFlow 1.15 starts, and all tests with it")
        self.assertEqual(
            originals.call_in_child(
                "disable_v2_behavior",
                "tests.v1.contrib_optimizer_test",
                "train_in_session",
                [],
                self.get_temp_dir(),
            ),
            [["float32_ref", "int32_ref", "int32_ref"], [16.0, 0, 0], 2, 14.0],
        )


def train_in_session():
    """Trains in the default graph; returns the manager's dtypes and state, step and variable."""
    var = tf1.get_variable("var", initializer=16.0)
    global_step = tf1.train.get_or_create_global_step()
    manager = contrib.ExponentialUpdateLossScaleManager(16.0, 1, 1, 2, 0.25)
    wrapped = contrib.LossScaleOptimizer(tf1.train.MomentumOptimizer(1.0, 0.0), manager)
    factor = tf1.placeholder(tf.float32, [])
    train_op = wrapped.minimize(factor * var, global_step=global_step)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for value in (1.0, np.nan, 1.0):
            session.run(train_op, {factor: value})
        return [
            [variable.dtype.name for variable in manager.variables()],
            [float(value) for value in session.run(manager.variables())],
            int(session.run(global_step)),
            float(session.run(var)),
        ]


class HorovodLike(tf1.train.Optimizer):
    """Wraps an optimizer as Horovod's `DistributedOptimizer` does; averages over itself."""

    def __init__(self, opt):
        super().__init__(name="Distributed" + type(opt).__name__, use_locking=False)
        self._optimizer = opt
        self.reduced = 0

    def compute_gradients(self, *args, **kwargs):
        gradients = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = zip(*gradients)
        averaged = []
        for grad in grads:
            if isinstance(grad, tf.IndexedSlices):
                grad = tf.IndexedSlices(grad.values / 1, grad.indices, grad.dense_shape)
            elif grad is not None:
                grad = grad / 1
            self.reduced += 1
            averaged.append(grad)
        return list(zip(averaged, variables))

    def apply_gradients(self, *args, **kwargs):
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args, **kwargs):
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args, **kwargs):
        return self._optimizer.variables(*args, **kwargs)


class WrappersTest(tf.test.TestCase, parameterized.TestCase):
    @crossed.parameters(*[(n, w) for n in modes.ALL for w in ("inside", "outside")])
    def test_a_distributed_optimizer(self, name, where):
        with modes.entered(name) as mode:
            var, unused = tf1.Variable(16.0), tf1.Variable(1.0)
            table = tf1.Variable([[1.0], [2.0]])
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1, 1, 2, 0.5)
            opt = tf1.train.MomentumOptimizer(0.5, 0.0)
            # XLA knows no sparse momentum.
            look_up = tf.identity if name == "jit" else lambda of: tf.gather(of, [1])
            if where == "inside":
                distributed = HorovodLike(opt)
                train = contrib.LossScaleOptimizer(distributed, manager)
            else:
                distributed = train = HorovodLike(contrib.LossScaleOptimizer(opt, manager))

            def minimize(factor):
                return train.minimize(
                    lambda: factor * (var * var / 2 + tf.reduce_sum(look_up(table)[-1])),
                    global_step=global_step,
                    var_list=[var, unused, table],
                )

            step = mode.compile(minimize, modes.scalar())
            for factor in (1.0, np.nan, 1.0):
                step(factor)
            self.assertEqual(
                list(mode.value([var, global_step, manager.get_loss_scale()])), [4.0, 2, 16.0]
            )
            self.assertAllEqual(mode.value(table), [[1.0], [1.0]])
            self.assertEqual(distributed.reduced % 3, 0)
            self.assertGreater(distributed.reduced, 0)
            # What hvd.broadcast_variables and its hooks look at.
            ours = {id(variable) for variable in train.variables()}
            self.assertContainsSubset({id(variable) for variable in manager.variables()}, ours)
            self.assertIs(train.get_slot(var, "momentum"), opt.get_slot(var, "momentum"))

    @parameterized.parameters(*modes.ALL)
    def test_a_subclass_with_variables_of_its_own(self, name):
        class Own(contrib.LossScaleOptimizer):
            def variables(self):
                return self._opt.variables() + self._loss_scale_manager.variables()

        class OwnManager(contrib.ExponentialUpdateLossScaleManager):
            def variables(self):
                return [self._loss_scale, self._num_good_steps, self._num_bad_steps]

        with modes.entered(name) as mode:
            var = tf1.Variable(1.0)
            wrapped = Own(tf1.train.MomentumOptimizer(0.5, 0.9), OwnManager(8.0, 1))
            mode.compile(lambda: wrapped.minimize(lambda: 2 * var, var_list=[var]))()
            self.assertLen(wrapped.variables(), 4)
            self.assertEqual(list(mode.value(wrapped.variables())), [2.0, 16.0, 0, 0])

    def test_autograph_converts_what_a_loss_calls(self):
        with modes.entered("eager"):
            var = tf1.Variable(1.0)
            wrapped = contrib.LossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), 8.0)

            @tf.function
            def step(x):
                wrapped.minimize(lambda: _larger_than_one_or_nothing(var * x), var_list=[var])

            step(tf.constant(0.125))
            self.assertEqual(var.numpy(), 1.0)
            step(tf.constant(2.0))
            self.assertEqual(var.numpy(), -1.0)

    @parameterized.parameters("subclass", "instance", "class")
    def test_minimize_goes_through_what_is_overridden(self, way):
        base = contrib.LossScaleOptimizer
        called = []

        computes, applies = base.compute_gradients, base.apply_gradients

        def compute_gradients(self, *args, **kwargs):
            called.append("compute_gradients")
            return [(2 * grad, var) for grad, var in computes(self, *args, **kwargs)]

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            called.append("apply_gradients")
            return applies(self, grads_and_vars, *args, **kwargs)

        own = {"compute_gradients": compute_gradients, "apply_gradients": apply_gradients}
        for names in ([], ["compute_gradients"], ["apply_gradients"]):
            with modes.entered("eager"):
                called.clear()
                var = tf1.Variable(1.0)
                methods = {name: own[name] for name in names}
                cls = type("Own", (base,), methods) if way == "subclass" else base
                wrapped = cls(tf1.train.GradientDescentOptimizer(0.25), 8.0)
                if way == "instance":
                    for name, method in methods.items():
                        setattr(wrapped, name, functools.partial(method, wrapped))
                with contextlib.ExitStack() as stack:
                    if way == "class":
                        for name, method in methods.items():
                            stack.enter_context(mock.patch.object(base, name, method))
                    wrapped.minimize(lambda var=var: 1 * var, var_list=[var])
                self.assertEqual(called, names)
                self.assertEqual(var.numpy(), 0.5 if "compute_gradients" in names else 0.75)

    @parameterized.parameters(*modes.GRAPH)
    def test_a_subclass_that_keeps_master_copies(self, name):
        class Master(contrib.LossScaleOptimizer):
            def compute_gradients(self, loss, var_list=None, **kwargs):
                scale = self._loss_scale_manager.get_loss_scale()
                pairs = self._opt.compute_gradients(
                    loss * tf.cast(scale, loss.dtype), var_list=var_list, **kwargs
                )
                return [
                    (tf.cast(grad, tf.float32) / scale, masters[id(var)]) for grad, var in pairs
                ]

        with modes.entered(name) as mode:
            half = tf1.Variable(tf.constant(2.0, tf.float16), trainable=True)
            master = tf1.Variable(2.0, trainable=False)
            masters = {id(half): master}
            wrapped = Master(
                tf1.train.GradientDescentOptimizer(0.25),
                contrib.ExponentialUpdateLossScaleManager(1024.0, 1),
            )
            train_op = wrapped.minimize(half * half)
            mode.run(train_op)
            self.assertEqual(list(mode.value([half, master])), [2.0, 1.0])

    def test_a_subclass_that_does_not_call_our_constructor(self):
        class Bare(contrib.LossScaleOptimizer):
            def __init__(self, opt, manager):
                self._opt = opt
                self._loss_scale_manager = manager

        for name in ("graph_v1", "eager"):
            with modes.entered(name) as mode:
                var = tf1.Variable(3.0)
                manager = CountingManager()
                wrapped = Bare(tf1.train.GradientDescentOptimizer(0.25), manager)
                mode.compile(lambda: wrapped.minimize(lambda: var * var, var_list=[var]))()
                self.assertEqual(list(mode.value([var] + manager.counted())), [1.5, 1, 1])


def _larger_than_one_or_nothing(x):
    if x > 1.0:
        return x
    return x * 0.0


class WrappedStateTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_variables_are_those_of_the_wrapped_optimizer_and_the_manager(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(1.0)
            opt = tf1.train.AdamOptimizer()
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2)
            wrapped = contrib.LossScaleOptimizer(opt, manager)
            self.assertEqual(
                [id(v) for v in wrapped.variables()], [id(v) for v in manager.variables()]
            )
            mode.compile(lambda: wrapped.minimize(lambda: var * var, var_list=[var]))()
            self.assertLen(opt.variables(), 4)
            self.assertEqual(
                [id(v) for v in wrapped.variables()],
                [id(v) for v in opt.variables() + manager.variables()],
            )

    @parameterized.parameters(*modes.ALL)
    def test_slots_are_those_of_the_wrapped_optimizer(self, name):
        with modes.entered(name) as mode:
            var = tf1.Variable(1.0)
            opt = tf1.train.AdamOptimizer()
            wrapped = optimizer(opt)
            mode.compile(lambda: wrapped.minimize(lambda: var * var, var_list=[var]))()
            self.assertEqual(sorted(wrapped.get_slot_names()), ["m", "v"])
            for slot in ("m", "v"):
                self.assertIsNotNone(wrapped.get_slot(var, slot))
                self.assertIs(wrapped.get_slot(var, slot), opt.get_slot(var, slot))
            self.assertIsNone(wrapped.get_slot(var, "momentum"))

    def test_get_name_is_that_of_the_wrapped_optimizer(self):
        with tf.Graph().as_default():
            for opt in (tf1.train.AdamOptimizer(name="Mine"), tf1.train.MomentumOptimizer(1, 1)):
                self.assertEqual(optimizer(opt).get_name(), opt.get_name())
            self.assertEqual(optimizer(BareOptimizer()).get_name(), "BareOptimizer")

    def test_around_one_that_never_called_the_base_class_constructor(self):
        """As TensorFlow 1.15's `tf.contrib.opt.MovingAverageOptimizer`."""

        class Around(tf1.train.Optimizer):
            def __init__(self, opt):
                self._optimizer = opt

            def compute_gradients(self, *args, **kwargs):
                return self._optimizer.compute_gradients(*args, **kwargs)

            def apply_gradients(self, *args, **kwargs):
                return self._optimizer.apply_gradients(*args, **kwargs)

        with tf.Graph().as_default(), tf1.Session() as session:
            weight = tf1.Variable([1.0, 2.0], use_resource=True)
            wrapped = optimizer(Around(tf1.train.GradientDescentOptimizer(0.25)))
            self.assertEqual(wrapped.get_name(), "Around")
            step = wrapped.minimize(tf.reduce_sum(weight * weight), var_list=[weight])
            session.run(tf1.global_variables_initializer())
            session.run(step)
            self.assertAllEqual(session.run(weight), [0.5, 1.0])

    @parameterized.parameters(*modes.GRAPH)
    def test_a_saver_holds_all_state(self, name):
        prefix = self.get_temp_dir() + "/saver" + name

        def build():
            var = tf1.Variable(4.0, name="w")
            step = tf1.train.get_or_create_global_step()
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 3, 3)
            wrapped = contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(0.1), manager)
            factor = tf1.placeholder(tf.float32, [])
            return wrapped.minimize(factor * var * var, global_step=step), factor

        with modes.entered(name) as mode:
            train_op, factor = build()
            for value in (1.0, np.nan, 1.0):
                mode.run(train_op, {factor: value})
            path = tf1.train.Saver().save(tf1.get_default_session(), prefix)
            saved = {v.op.name: mode.value(v) for v in tf1.global_variables()}
            mode.run(train_op, {factor: 1.0})
            after = {v.op.name: mode.value(v) for v in tf1.global_variables()}
        # The names that TensorFlow 1.15.5 gives them.
        self.assertCountEqual(
            saved,
            ["w", "global_step", "loss_scale", "good_steps", "bad_steps", "cond/beta1_power",
             "cond/beta2_power", "w/Adam", "w/Adam_1"],
        )  # fmt: skip
        self.assertEqual((saved["good_steps"], saved["bad_steps"], saved["global_step"]), (1, 1, 2))
        with modes.entered(name) as mode:
            train_op, factor = build()
            mode.value(tf1.global_variables())
            tf1.train.Saver().restore(tf1.get_default_session(), path)
            self.assertEqual({v.op.name: mode.value(v) for v in tf1.global_variables()}, saved)
            mode.run(train_op, {factor: 1.0})
            self.assertEqual({v.op.name: mode.value(v) for v in tf1.global_variables()}, after)

    @parameterized.parameters(*modes.GRAPH)
    def test_names_do_not_depend_on_how_large_gradients_are(self, name):
        """A large one is tested with a conditional, which must not be counted among the others."""

        def names(shape):
            with modes.entered(name):
                for scope in ("first", "second"):
                    var = tf1.get_variable(scope, shape, initializer=tf1.ones_initializer())
                    manager = contrib.ExponentialUpdateLossScaleManager(8.0, 3)
                    wrapped = contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(), manager)
                    wrapped.minimize(tf.reduce_sum(var * var), var_list=[var])
                return [variable.op.name for variable in tf1.global_variables()]

        small = names([2])
        self.assertIn("cond_2/beta1_power", small)
        self.assertEqual(names([_gradients._LARGE]), small)

    @parameterized.parameters("eager", "function")
    def test_a_checkpoint_holds_all_state(self, name):
        def build(mode):
            var = tf1.Variable(4.0)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 3, 3)
            wrapped = contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(0.1), manager)
            step = mode.compile(
                lambda factor: wrapped.minimize(lambda: factor * var * var, var_list=[var]),
                modes.scalar(),
            )
            return wrapped, var, step, tf.train.Checkpoint(optimizer=wrapped, model=var)

        with modes.entered(name) as mode:
            wrapped, var, step, checkpoint = build(mode)
            for factor in (1.0, np.nan, 1.0):
                step(factor)
            path = checkpoint.save(self.get_temp_dir() + "/checkpoint" + name)
            saved = mode.value([var] + wrapped.variables())
            self.assertLen(saved, 8)
            after = []
            for early in (False, True):
                # Restored before the slots are made, or after.
                wrapped, var, step, checkpoint = build(mode)
                if not early:
                    step(1.0)
                    self.assertNotAllEqual(mode.value([var] + wrapped.variables()), saved)
                status = checkpoint.restore(path)
                status.assert_existing_objects_matched()
                if not early:
                    self.assertAllEqual(mode.value([var] + wrapped.variables()), saved)
                step(1.0)
                status.assert_consumed()
                after.append(mode.value([var] + wrapped.variables()))
            self.assertAllEqual(after[0], after[1])
            self.assertNotAllEqual(after[0], saved)

    def test_a_checkpoint_holds_all_state_in_graph_mode(self):
        def build():
            var = tf1.Variable(4.0, use_resource=True)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 3, 3)
            wrapped = contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(0.1), manager)
            factor = tf1.placeholder(tf.float32, [])
            train_op = wrapped.minimize(factor * var * var)
            return wrapped, var, train_op, factor, tf.train.Checkpoint(optimizer=wrapped, model=var)

        with modes.entered("graph_v2") as mode:
            wrapped, var, train_op, factor, checkpoint = build()
            for value in (1.0, np.nan, 1.0):
                mode.run(train_op, {factor: value})
            mode.value(checkpoint.save_counter)
            path = checkpoint.save(self.get_temp_dir() + "/graph")
            saved = mode.value([var] + wrapped.variables())
        with modes.entered("graph_v2") as mode:
            wrapped, var, train_op, factor, checkpoint = build()
            mode.value([var] + wrapped.variables())
            status = checkpoint.restore(path)
            status.assert_existing_objects_matched()
            status.run_restore_ops(tf1.get_default_session())
            self.assertAllEqual(mode.value([var] + wrapped.variables()), saved)

    def test_checkpoint_children_are_base_optimizer_and_loss_scale(self):
        with modes.eager_mode():
            var = tf1.Variable(4.0)
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 3)
            wrapped = contrib.LossScaleOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9), manager)
            wrapped.minimize(lambda: var * var, var_list=[var])
            path = tf.train.Checkpoint(optimizer=wrapped, model=var).save(
                self.get_temp_dir() + "/children"
            )
            keys = [key for key, _ in tf.train.list_variables(path)]
        for key in (
            "optimizer/loss_scale/loss_scale",
            "optimizer/loss_scale/good_steps",
            "optimizer/loss_scale/bad_steps",
            "model/.OPTIMIZER_SLOT/optimizer/base_optimizer/momentum",
        ):
            self.assertIn(key + "/.ATTRIBUTES/VARIABLE_VALUE", keys)


if __name__ == "__main__":
    tf.test.main()
