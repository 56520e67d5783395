"""Both v1 loss-scale optimizers: scaling, skipping, and getting along."""

import contextlib
import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, originals, stepping
from tests.v1_optimizers import (
    BOTH,
    OPTIMIZERS,
    Around,
    Bypassing,
    dynamic_for,
    fixed_for,
    loss_of,
    sgd,
    state_of,
)
from tf_lossscale_compat._core import _gradients
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.loss_scale import FixedLossScale, LossScale
from tf_lossscale_compat.train import experimental

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

CONDITIONALS = {"If", "StatelessIf", "Switch", "RefSwitch", "Merge", "RefMerge", "Case"}
INNER = {
    "momentum": lambda: tf1.train.MomentumOptimizer(0.5, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.125),
}


class Recorder(tf1.train.GradientDescentOptimizer):
    """Notes with what `compute_gradients` is called; may return gradients that it is given."""

    def __init__(self, make_pairs=None):
        super().__init__(0.5)
        self.computed = []
        self.make_pairs = make_pairs

    def compute_gradients(self, loss, *args, **kwargs):
        self.computed.append((loss, args, kwargs))
        if self.make_pairs is not None:
            return self.make_pairs()
        return super().compute_gradients(loss, *args, **kwargs)


class Training:
    """A weight, a step counter and an optimizer whose loss is `sum(weight * x)`."""

    def __init__(self, inner, which=None, policy=None):
        self.weight = tf1.Variable([1.0, -2.0], name="weight")
        self.other = tf1.Variable([5.0], name="other")
        self.global_step = tf1.Variable(0, trainable=False, name="step", dtype=tf.int64)
        self.inner, self.policy = inner, policy
        self.opt = inner if which is None else OPTIMIZERS[which](inner, policy)

    def step(self, x):
        """One `minimize`; returns the weight and the step counter after it."""
        loss = loss_of(lambda: tf.reduce_sum(tf.cast(self.weight, x.dtype) * x))
        done = self.opt.minimize(loss, self.global_step, var_list=[self.weight])
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


class ConstructorTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_a_keras_optimizer_is_refused_with_the_class_to_use(self, home):
        opt = home.SGD(0.1)
        for cls, error in zip(OPTIMIZERS.values(), (TypeError, ValueError)):
            with modes.creations() as created, self.assertRaisesRegex(
                error, "keras.mixed_precision.experimental.LossScaleOptimizer"
            ):
                cls(opt, "dynamic")
            self.assertEmpty(created)

    @parameterized.parameters(*BOTH, "rewrite")
    def test_contribs_optimizer_v2_is_no_keras_optimizer(self, which):
        if not originals.IS_TF1:
            self.skipTest("TensorFlow 2 has no tf.contrib.optimizer_v2")
        self.addCleanup(experimental.disable_mixed_precision_graph_rewrite)
        wrap = experimental.enable_mixed_precision_graph_rewrite
        with modes.entered("graph_v1") as entered:
            inner = tf.contrib.optimizer_v2.GradientDescentOptimizer(0.25)
            opt = OPTIMIZERS.get(which, wrap)(inner, dynamic_for(which))
            var, values = tf1.Variable(1.0), []
            step = entered.compile(lambda grad: opt.apply_gradients([(grad, var)]), modes.scalar())
            for grad in (1.0, np.nan):
                step(grad)
                values.append(entered.value(var))
            self.assertEqual(values, [0.75, 0.75])


class ComputeGradientsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ("contrib", "graph_v1"), ("contrib", "graph_v2"), ("mixed", "graph_v2")
    )
    def test_takes_a_tensor_or_a_callable_in_a_graph(self, which, mode):
        # TensorFlow cannot watch variables of graph_v1 in a callable; contrib's calls it at once.
        with modes.entered(mode) as entered:
            weight, recorder = tf1.Variable(3.0), Recorder()
            opt = OPTIMIZERS[which](recorder, fixed_for(which, 8))
            for loss in (weight * 2, lambda: weight * 2):
                ((grad, of),) = opt.compute_gradients(loss, [weight])
                self.assertIs(of, weight)
                self.assertEqual(entered.value(grad), 2)
            self.assertEqual(callable(recorder.computed[-1][0]), which == "mixed")

    @crossed.product(which=BOTH, mode=("graph_v1", "eager"))
    def test_scale_is_cast_to_the_dtypes_of_loss_and_gradients(self, which, mode):
        values, reciprocal = np.array([1.1, -2.3, 0.0, 60000.0]), np.float32(1) / np.float32(3)
        with modes.entered(mode) as entered:
            for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
                inner = Recorder(lambda dtype=dtype: [(tf.constant(values, dtype), None)])
                opt = OPTIMIZERS[which](inner, fixed_for(which, 3.0))
                pairs = opt.compute_gradients(loss_of(lambda dtype=dtype: tf.constant(1.1, dtype)))
                scaled = inner.computed[-1][0]
                tensors = scaled() if callable(scaled) else scaled, pairs[0][0]
                self.assertEqual([tensor.dtype for tensor in tensors], [dtype] * 2)
                loss, grad = entered.value([tf.cast(tensor, tf.float64) for tensor in tensors])
                numpy = dtype.as_numpy_dtype
                self.assertEqual(loss, np.float64(numpy(numpy(1.1) * np.float32(3).astype(numpy))))
                expected = values.astype(numpy) * reciprocal.astype(numpy)
                self.assertAllEqual(grad, expected.astype(numpy).astype(np.float64))

    @parameterized.parameters(*BOTH)
    def test_hands_its_arguments_to_the_wrapped_optimizer(self, which):
        with tf.Graph().as_default():
            weight, inner = tf1.Variable(1.0), sgd()
            opt = OPTIMIZERS[which](inner, fixed_for(which, 8))
            given = {
                "var_list": [weight],
                "gate_gradients": tf1.train.Optimizer.GATE_GRAPH,
                "aggregation_method": tf1.AggregationMethod.ADD_N,
                "colocate_gradients_with_ops": True,
                "grad_loss": tf.constant(2.0),
            }
            computed = mock.patch.object(inner, "compute_gradients", return_value=[(None, weight)])
            with computed as compute_gradients:
                opt.compute_gradients(weight * 2, **given)
            _, kwargs = compute_gradients.call_args
            kwargs.pop("loss", None)
            self.assertEqual(kwargs, given)


class Fickle(LossScale):
    """A user's loss scale whose flag is a Python bool."""

    def __init__(self, should_apply):
        super().__init__()
        self.should_apply = should_apply
        self.updates = self._add_weight("updates", 0, tf.int64)

    def __call__(self):
        return tf.constant(8.0)

    def update(self, grads):
        counted = self.updates.assign_add(1)
        return None if tf.executing_eagerly() else tf.group(counted), self.should_apply

    def get_config(self):
        return {"should_apply": self.should_apply}


class Never(FixedLossScale):
    def update(self, grads):
        return super().update(grads)[0], False


class Bare:
    """Nothing but the two methods that contrib's optimizer needs."""

    def __init__(self, returns):
        self.returns = returns

    def compute_gradients(self, loss, var_list=None, **_):
        return sgd().compute_gradients(loss, var_list)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        self.applied = list(grads_and_vars), global_step, name
        self.update = sgd().apply_gradients(self.applied[0], global_step)
        if self.returns == "none" or self.update is None:
            return None
        if self.returns == "tensor":
            with tf.control_dependencies([self.update]):
                return tf.constant(1.0)
        return [self.update] if self.returns == "list" else self.update


class ApplyGradientsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("graph_v1", "eager", "function")
    def test_python_flags_of_a_users_loss_scale(self, mode):
        """No conditional is built for them."""
        for make_policy, applied in (
            (lambda: Fickle(True), True),
            (lambda: Fickle(False), False),
            (lambda: Never(8), False),
        ):
            kinds = set()

            def make(make_policy=make_policy):
                return Training(INNER["momentum"](), "mixed", make_policy())

            def step(training, x, kinds=kinds):
                result = training.step(x)
                kinds.update(op.type for op in tf1.get_default_graph().get_operations())
                return result

            results, updates = stepping.run(
                mode,
                make,
                step,
                _rows([2, 4], [2, 4]),
                lambda training: tf.identity(getattr(training.policy, "updates", 2)),
            )
            self.assertEqual([int(count) for _, count in results], [1, 2] if applied else [0, 0])
            self.assertEqual(np.any(results[1][0] != [1, -2]), applied)
            self.assertEqual(updates, 2)
            self.assertEmpty(kinds & CONDITIONALS)

    @crossed.product(mode=modes.ALL, returns=("operation", "tensor", "none", "list"))
    def test_contrib_needs_two_methods_that_may_return_anything(self, mode, returns):
        with modes.entered(mode) as entered:
            var, unused = tf1.Variable(3.0), tf1.Variable(5.0)
            global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
            manager, bare = dynamic_for("contrib"), Bare(returns)
            opt = contrib.LossScaleOptimizer(bare, manager)

            def train(factor):
                return opt.minimize(
                    lambda: var * factor, global_step, var_list=[unused, var], name="train"
                )

            step = entered.compile(train, modes.scalar())
            for factor in (1.0, np.inf, 0.5):
                step(factor)
            self.assertEqual(list(entered.value(state_of(manager))), [4.0, 1])
            if returns != "none" or mode not in modes.GRAPH:
                self.assertEqual(list(entered.value([var, global_step])), [1.5, 2])
            self.assertLen(opt.variables(), 3)
            self.assertEqual(opt.get_name(), "Bare")
            (without, (grad, of)), step_variable, name = bare.applied
            self.assertEqual((without[0], name), (None, "train"))
            self.assertIs(without[1], unused)
            self.assertIsNotNone(grad)
            self.assertIs(of, var)
            self.assertIs(step_variable, global_step)

    @crossed.product(which=BOTH, mode=("graph_v1", "function"))
    def test_takes_any_iterable_and_carries_none_through(self, which, mode):
        for make_policy in (fixed_for, dynamic_for):
            with modes.entered(mode) as entered:
                training = Training(sgd(0.5), which, make_policy(which, 8))
                for wrap in (tuple, iter, lambda pairs: (pair for pair in pairs)):
                    pairs = [(None, training.other), (tf.constant([2.0, 4.0]), training.weight)]
                    pairs = wrap(pairs)
                    entered.compile(functools.partial(training.apply, pairs))()
                values = entered.value([training.weight, training.global_step])
                self.assertAllEqual(values[0], [1 - 3, -2 - 6])
                self.assertEqual(values[1], 3)

    @parameterized.parameters("graph_v1", "function")
    def test_sparse_gradients_stay_so_with_keep_sparse(self, mode):
        """Momentum then moves only the rows that were looked up."""
        for keep_sparse, expected in ((False, [[-1.5], [-1.0]]), (True, [[-1.0], [-1.0]])):
            with modes.entered(mode) as entered:
                table = tf1.Variable([[0.0], [0.0]])
                inner, manager = tf1.train.MomentumOptimizer(1.0, 0.5), fixed_for("contrib", 8)
                opt = contrib.LossScaleOptimizer(inner, manager, keep_sparse=keep_sparse)

                def minimize(row, opt=opt, table=table):
                    loss = loss_of(lambda: tf.reduce_sum(tf.gather(table, [row])))
                    return opt.minimize(loss, var_list=[table])

                step = entered.compile(minimize, modes.scalar(tf.int32))
                for row in (0, 1):
                    step(row)
                self.assertAllEqual(entered.value(tf.identity(table)), expected)

    @crossed.product(which=BOTH, mode=("graph_v1", "eager"))
    def test_variables_that_accumulated_gradients_serve_as_gradients(self, which, mode):
        with modes.entered(mode) as entered:
            var, accumulator = tf1.Variable(0.0), tf1.Variable(1.0, trainable=False)
            policy = dynamic_for(which)
            opt = OPTIMIZERS[which](sgd(), policy)
            step = entered.compile(lambda: opt.apply_gradients([(accumulator, var)]))

            def add(grad):
                done = accumulator.assign_add(grad)
                return done if mode in modes.GRAPH else None

            accumulate = entered.compile(add, modes.scalar())
            for grad in (1.0, np.nan):
                accumulate(grad)
                step()
            self.assertEqual(list(entered.value([var, *state_of(policy)])), [-2.0, 4.0, 0])

    @crossed.product(which=BOTH, mode=(*modes.GRAPH, "eager"))
    def test_without_any_gradient_it_raises_and_changes_nothing(self, which, mode):
        with modes.entered(mode) as entered:
            var = tf1.Variable(1.0, name="lonely")
            policy = dynamic_for(which, 8.0, 1)
            opt = OPTIMIZERS[which](tf1.train.AdamOptimizer(), policy)
            count = len(tf1.get_default_graph().get_operations())
            for pairs, message in (([(None, var)] * 2, "lonely"), ([], "no gradient")):
                with self.assertRaisesRegex(ValueError, message):
                    opt.apply_gradients(iter(pairs))
            self.assertLen(tf1.get_default_graph().get_operations(), count)
            self.assertEqual(list(entered.value(state_of(policy))), [8.0, 0])


class ContextsTest(modes.EagerTestCase):
    @parameterized.parameters(*BOTH)
    def test_autograph_and_a_python_branch_in_a_function(self, which):
        var, policy = tf1.Variable(0.0), dynamic_for(which, 8.0, 1)
        opt = OPTIMIZERS[which](sgd(), policy)

        @tf.function
        def train(grads):
            for grad in grads:
                if tf.not_equal(grad, 0.0):
                    opt.apply_gradients([(grad, var)])
            return tf.identity(state_of(policy)[0])

        seen = train(tf.constant([1.0, 0.0, np.nan, 1.0, 1.0]))
        self.assertEqual(seen.numpy(), 8.0 * 2 / 2 * 2 * 2)
        self.assertEqual(var.numpy(), -3.0)


class WrappersTest(modes.EagerTestCase):
    @crossed.product(
        which=BOTH,
        mode=("graph_v1", "eager", "function"),
        where=("inside", "outside", "twice", "bare"),
    )
    def test_an_optimizer_around_another(self, which, mode, where):
        """As Horovod's `DistributedOptimizer` is."""
        with modes.entered(mode) as entered:
            var, unused = tf1.Variable(16.0), tf1.Variable(1.0)
            table = tf1.Variable([[1.0], [2.0]])
            policy = dynamic_for(which, 8.0, 1)
            scale, _ = state_of(policy)
            opt, wrap = tf1.train.MomentumOptimizer(0.5, 0.0), OPTIMIZERS[which]
            train = {
                "inside": lambda: wrap(Around(opt), policy),
                "outside": lambda: Around(wrap(opt, policy)),
                "bare": lambda: wrap(Bypassing(opt), policy),
                "twice": lambda: wrap(wrap(opt, dynamic_for(which, 4.0, 1)), policy),
            }[where]()

            def minimize(factor):
                def loss():
                    return factor * (var * var / 2 + tf.reduce_sum(tf.gather(table, [1])))

                return train.minimize(loss_of(loss), var_list=[var, unused, table])

            step = entered.compile(minimize, modes.scalar())
            for factor in (1.0, np.nan, 1.0):
                step(factor)
            self.assertEqual(list(entered.value([var, scale])), [4.0, 16.0])
            self.assertAllEqual(entered.value(table), [[1.0], [1.0]])
            if where == "bare":
                self.assertEqual(train.get_name(), "Bypassing")
            # What hvd.broadcast_variables and its hooks look at.
            found = [id(variable) for variable in train.variables()]
            self.assertIn(id(scale), found)
            self.assertIs(train.get_slot(var, "momentum"), opt.get_slot(var, "momentum"))

    @parameterized.product(which=BOTH, way=("subclass", "instance", "class"))
    def test_minimize_goes_through_what_is_overridden(self, which, way):
        base, called = OPTIMIZERS[which], []
        computes, applies = base.compute_gradients, base.apply_gradients

        def compute_gradients(self, *args, **kwargs):
            called.append("compute_gradients")
            return [(2 * grad, var) for grad, var in computes(self, *args, **kwargs)]

        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            called.append("apply_gradients")
            return applies(self, grads_and_vars, *args, **kwargs)

        own = {"compute_gradients": compute_gradients, "apply_gradients": apply_gradients}
        for names in ([], ["compute_gradients"], ["apply_gradients"]):
            with contextlib.ExitStack() as stack:
                called.clear()
                var = tf1.Variable(1.0)
                methods = {name: own[name] for name in names}
                cls = type("Own", (base,), methods) if way == "subclass" else base
                opt = cls(sgd(0.25), fixed_for(which, 8))
                for name, method in methods.items():
                    if way == "instance":
                        setattr(opt, name, functools.partial(method, opt))
                    if way == "class":
                        stack.enter_context(mock.patch.object(base, name, method))
                opt.minimize(lambda var=var: 1 * var, var_list=[var])
                self.assertEqual(called, names)
                self.assertEqual(var.numpy(), 0.5 if "compute_gradients" in names else 0.75)


class StateTest(modes.EagerTestCase):
    @crossed.product(which=BOTH, mode=(*modes.GRAPH, "eager"))
    def test_answers_for_the_wrapped_optimizer(self, which, mode):
        with modes.entered(mode):
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2)
            cases = [(manager, manager.variables()), (contrib.FixedLossScaleManager(8), [])]
            if which == "mixed":
                own, moving = Fickle(True), dynamic_for(which)
                cases += [(own, [own.updates]), (moving, state_of(moving)), (FixedLossScale(8), [])]
            for policy, weights in cases:
                training = Training(tf1.train.AdamOptimizer(0.1, name="MyAdam"), which, policy)
                opt, inner = training.opt, training.inner
                self.assertEqual(list(map(id, opt.variables())), list(map(id, weights)))
                opt.apply_gradients([(tf.constant([1.0, 2.0]), training.weight)])
                self.assertEqual(opt.get_name(), "MyAdam")
                self.assertEqual(opt.get_slot_names(), ["m", "v"])
                for name in ("m", "v"):
                    slot = inner.get_slot(training.weight, name)
                    self.assertIsNotNone(slot)
                    self.assertIs(opt.get_slot(training.weight, name), slot)
                self.assertIsNone(opt.get_slot(training.other, "m"))
                self.assertLen(inner.variables(), 4)
                expected = [*inner.variables(), *weights]
                self.assertEqual(list(map(id, opt.variables())), list(map(id, expected)))

    @parameterized.parameters(*modes.GRAPH)
    def test_names_do_not_depend_on_how_large_gradients_are(self, mode):
        """A large one is tested with a conditional, which must not be counted among the others."""

        def names(shape):
            with modes.entered(mode):
                managers = {scope: dynamic_for("contrib") for scope in ("first", "second")}
                for scope in managers:
                    var = tf1.get_variable(scope, shape, initializer=tf1.ones_initializer())
                    opt = contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(), managers[scope])
                    opt.minimize(tf.reduce_sum(var * var), var_list=[var])
                return [variable.op.name for variable in tf1.global_variables()]

        small = names([2])
        # On 1.15 under control flow v2 the original's lack the prefix, too.
        plain = mode == "graph_v2" and originals.IS_TF1
        self.assertIn("beta1_power" if plain else "cond_2/beta1_power", small)
        self.assertEqual(names([_gradients._LARGE]), small)

    @parameterized.parameters(*BOTH)
    def test_slots_of_a_checkpoint_of_the_bare_optimizer_are_restored(self, which):
        """As when a training that had no loss scale goes on with one."""
        pair = [
            Training(INNER["momentum"](), each, each and dynamic_for(each))
            for each in (None, which)
        ]
        saved, other = [tf.train.Checkpoint(opt=t.opt, weight=t.weight) for t in pair]
        pair[0].step(tf.constant([1.0, 2.0]))
        other.restore(saved.save(self.get_temp_dir() + "/saved"))
        for training in pair:
            training.step(tf.constant([3.0, 4.0]))
            self.assertAllEqual(training.weight.numpy(), pair[0].weight.numpy())
            self.assertAllClose(training.slots()[0].numpy(), [0.9 * 1 + 3, 0.9 * 2 + 4])
