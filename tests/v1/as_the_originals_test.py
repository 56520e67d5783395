"""Programs of TensorFlow 1 that tests/differential does not draw, beside the originals.

Numbers of operations were recorded on TensorFlow 1.15.5 (contrib) and 2.0.4.
"""

import contextlib

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.eager import context

from tests import modes, originals
from tests.v1_optimizers import sgd
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

OURS = {"contrib": contrib, "mixed": experimental}
THEIRS = {"contrib": originals.contrib(), "mixed": originals.experimental()}
WRAPPERS = {"contrib": "LossScaleOptimizer", "mixed": "MixedPrecisionLossScaleOptimizer"}
SCALES = {
    ("contrib", "fixed"): lambda home: home.FixedLossScaleManager(8.0),
    ("contrib", "dynamic"): lambda home: home.ExponentialUpdateLossScaleManager(8.0, 2, 1, 2, 0.5),
    ("mixed", "fixed"): lambda home: home.FixedLossScale(8.0),
    ("mixed", "dynamic"): lambda home: home.DynamicLossScale(8.0, 2),
}


def homes(kind):
    """The namespaces to compare: this package's, and the original's where there is one."""
    return [home for home in (OURS[kind], THEIRS[kind]) if home is not None]


def wrapped(home, kind, optimizer, scale):
    return getattr(home, WRAPPERS[kind])(optimizer, scale)


@contextlib.contextmanager
def graph_of(control_flow=1, use_resource=False):
    with modes.control_flow(control_flow), tf.Graph().as_default() as graph:
        with tf1.variable_scope("", use_resource=use_resource):
            yield graph


def read(scale):
    return scale.get_loss_scale() if hasattr(scale, "get_loss_scale") else scale()


class OperationsTest(modes.EagerTestCase):
    """Random operations without seeds of their own are seeded by how many came before them."""

    @parameterized.parameters(*SCALES)
    def test_on_every_version(self, kind, scale):
        """Of the loss scale, its value and the optimizer: 1.15.5's and 2.0.4's numbers."""
        expected = {
            ("contrib", "fixed"): [1, 1, 1],
            ("contrib", "dynamic"): [12, 12, 12],
            ("mixed", "fixed"): [0, 1, 1],
            ("mixed", "dynamic"): [10, 11, 11],
        }[kind, scale]
        with graph_of() as graph:
            loss_scale = SCALES[kind, scale](OURS[kind])
            counts = [len(graph.get_operations())]
            read(loss_scale)
            counts.append(len(graph.get_operations()))
            wrapped(OURS[kind], kind, tf1.train.AdamOptimizer(0.1), loss_scale)
            counts.append(len(graph.get_operations()))
        self.assertEqual(counts, expected)

    def test_a_function_reads_a_dynamic_scale_by_one_operation(self):
        scale = experimental.DynamicLossScale(8.0)
        concrete = tf.function(scale, autograph=False).get_concrete_function()
        counts = [op.type for op in concrete.graph.get_operations()]
        self.assertEqual(counts.count("ReadVariableOp"), 1)
        # What returns it from the function is one, too.
        self.assertLessEqual(counts.count("Identity"), 1)

    @parameterized.product(
        kind=("contrib", "mixed"), resource=(False, True), way=("minimize", "compute_gradients")
    )
    def test_a_function_that_returns_a_loss_with_dropout(self, kind, resource, way):
        if THEIRS[kind] is None or (kind == "mixed" and way == "minimize"):
            self.skipTest("no original, or one that minimizes in more operations")
        seen = []
        for home in homes(kind):
            with graph_of(use_resource=resource):
                tf1.set_random_seed(3)
                weights = tf1.get_variable("w", [64], initializer=tf1.ones_initializer())
                optimizer = wrapped(home, kind, sgd(0.1), SCALES[kind, "dynamic"](home))
                call = getattr(optimizer, way)
                call = call(lambda: tf.reduce_sum(tf1.nn.dropout(weights, rate=0.5)))
                fetched = weights if way == "minimize" else [grad for grad, _ in call]
                with tf1.Session() as session:
                    session.run(tf1.global_variables_initializer())
                    session.run(call if way == "minimize" else [])
                    seen.append(session.run(fetched))
        self.assertAllEqual(*seen)

    def test_a_loop_reads_the_constant_of_a_fixed_manager(self):
        # Grappler folds a constant within the loop: SGD's weights then differ in their last bits.
        for home in homes("contrib"):
            with graph_of(control_flow=2):
                manager, read_there = home.FixedLossScaleManager(1.0), []

                def body(count, manager=manager, read_there=read_there):
                    read_there.append(manager.get_loss_scale())
                    return count + 1

                constant = manager.get_loss_scale()
                tf.while_loop(lambda count: count < 2, body, [tf.constant(0)])
                self.assertIs(read_there[0], constant)


class NamesTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*WRAPPERS)
    def test_averages_of_gradients_are_named_as_with_the_original(self, kind):
        """As tensor2tensor's YellowFin names its averages."""

        class Averages(tf1.train.GradientDescentOptimizer):
            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                average = tf1.train.ExponentialMovingAverage(0.5)
                averages = average.apply([grad for grad, _ in grads_and_vars])
                with tf.control_dependencies([averages]):
                    return super().apply_gradients(grads_and_vars, global_step, name)

        names = []
        for home in homes(kind):
            with graph_of():
                weight = tf1.get_variable("w", [2], initializer=tf1.ones_initializer())
                optimizer = wrapped(home, kind, Averages(0.1), SCALES[kind, "fixed"](home))
                optimizer.minimize(tf.reduce_sum(weight * weight))
                names.append([variable.op.name for variable in tf1.global_variables()])
        for each in names:
            self.assertEqual(each, names[0])
        self.assertIn("mul_2", "".join(names[0]))


class ReadTest(parameterized.TestCase, tf.test.TestCase):
    """Of the managers of contrib and of loss scales in a Session."""

    @parameterized.parameters(("fixed", 1), ("dynamic", 2))
    def test_outside_of_the_graph(self, scale, flow):
        """As scripts do that give their Session a graph and never enter it again."""
        for home in homes("contrib"):
            with modes.control_flow(flow), context.graph_mode():
                with tf.Graph().as_default() as graph, tf1.variable_scope(
                    "", use_resource=flow == 2
                ):
                    weight = tf1.get_variable("w", [3], initializer=tf1.ones_initializer())
                    manager = SCALES["contrib", scale](home)
                    optimizer = wrapped(home, "contrib", sgd(0.1), manager)
                    step = optimizer.minimize(tf.reduce_sum(weight * weight))
                    start = tf1.global_variables_initializer()
                    taken = manager.get_loss_scale()
                graph.finalize()
                with contextlib.closing(tf1.Session(graph=graph)) as session:
                    session.run(start)
                    for _ in range(4):
                        session.run([step, manager.get_loss_scale()])
                    expected = 8.0 if scale == "fixed" else 32.0
                    self.assertEqual(session.run(manager.get_loss_scale()), expected)
                    self.assertEqual(session.run(taken), expected)

    @parameterized.parameters("fixed", "dynamic")
    def test_a_session_that_runs_a_loss_scale_leaves_the_graph_as_it_is(self, scale):
        with graph_of(2, True) as graph, tf1.Session() as session:
            loss_scale = SCALES["mixed", scale](experimental)
            session.run(tf1.global_variables_initializer())
            before = len(graph.get_operations())
            for _ in range(3):
                self.assertEqual(session.run(loss_scale), 8.0)
            self.assertLessEqual(len(graph.get_operations()), before + 2)
            if scale == "dynamic":
                session.run(loss_scale.update([tf.constant(np.inf)])[0])
            graph.finalize()
            self.assertEqual(session.run(loss_scale), 4.0 if scale == "dynamic" else 8.0)


class ReturnedTest(parameterized.TestCase, tf.test.TestCase):
    def test_a_fixed_scale_returns_what_the_optimizer_returns(self):
        """Such as the tensor of `DropStaleGradientOptimizer`."""

        class ReturnsTensor(tf1.train.GradientDescentOptimizer):
            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                applied = super().apply_gradients(grads_and_vars, global_step, name)
                with tf.control_dependencies([applied]):
                    return tf.constant(7)

        for home in homes("mixed"):
            with graph_of(), tf1.Session() as session:
                weight = tf1.get_variable("w", [2], initializer=tf1.ones_initializer())
                optimizer = home.MixedPrecisionLossScaleOptimizer(
                    ReturnsTensor(0.5), home.FixedLossScale(8.0)
                )
                step = tf.identity(optimizer.minimize(tf.reduce_sum(weight)))
                session.run(tf1.global_variables_initializer())
                self.assertEqual(session.run(step), 7)
                self.assertAllEqual(session.run(weight), [0.5, 0.5])
