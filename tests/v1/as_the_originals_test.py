"""Programs of TensorFlow 1 find what the originals give: operations, names, state that adds up.

What is expected was recorded on TensorFlow 1.15.5 (contrib) and 2.0.4; where an original is
installed, the same program runs with it, too.
"""

import contextlib
import itertools
import os
import threading

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.eager import context

from tests import crossed, modes, originals
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
KINDS = tuple(WRAPPERS)
# Of control flow, and resource variables; control flow v2 knows no others.
GRAPHS = ((1, False), (1, True), (2, True))


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


class OperationsTest(parameterized.TestCase, tf.test.TestCase):
    """Random operations without seeds of their own are seeded by how many came before them."""

    def _operations(self, home, kind, scale, sparse, dtype):
        """Numbers of operations after each call, and the names of gradients."""
        graph, counts = tf1.get_default_graph(), []

        def count():
            counts.append(len(graph.get_operations()))

        loss_scale = SCALES[kind, scale](home)
        count()
        read(loss_scale)
        count()
        optimizer = wrapped(home, kind, tf1.train.AdamOptimizer(0.1), loss_scale)
        count()
        weight = tf1.get_variable("w", [4, 2], dtype, tf1.ones_initializer())
        other = tf1.get_variable("v", [2], tf.float32, tf1.ones_initializer())
        if kind == "mixed":  # Without a gradient, at which contrib's original fails in a step.
            tf1.get_variable("unused", [2], tf.float32, tf1.ones_initializer())
        used = tf.gather(weight, [1, 1]) if sparse else weight * weight
        loss = tf.reduce_sum(tf.cast(used, tf.float32)) + tf.reduce_sum(other * other)
        pairs = optimizer.compute_gradients(loss)
        count()
        grads = [grad for grad, _ in pairs if grad is not None]
        names = [getattr(grad, "values", grad).op.name for grad in grads]
        step = optimizer.apply_gradients(pairs)
        names += [step.name, *(variable.op.name for variable in tf1.global_variables())]
        return counts, names, len(graph.get_operations()) - counts[-1]

    @crossed.product(
        kind=KINDS,
        scale=("fixed", "dynamic"),
        graph=GRAPHS,
        sparse=(False, True),
        dtype=("float32", "float64"),
    )
    def test_as_many_as_the_original(self, kind, scale, graph, sparse, dtype):
        if THEIRS[kind] is None:
            self.skipTest("this TensorFlow has no original of this class")
        if kind == "mixed" and dtype != "float32":
            self.skipTest("the original multiplies with float32 alone")
        results = []
        for home in homes(kind):
            with graph_of(*graph):
                results.append(self._operations(home, kind, scale, sparse, dtype))
        (ours, our_names, in_step), (theirs, their_names, in_their_step) = results
        self.assertEqual(ours, theirs)
        self.assertEqual(our_names, their_names)
        # Of a sparse gradient the sums of rows are tested, too, which makes up to 9 more.
        self.assertLessEqual(in_step, in_their_step + (9 if sparse and kind == "mixed" else 0))

    @parameterized.parameters(*SCALES)
    def test_on_every_version(self, kind, scale):
        """Before the network: 1.15.5's and 2.0.4's numbers."""
        expected = {
            ("contrib", "fixed"): [1, 1, 1],
            ("contrib", "dynamic"): [12, 12, 12],
            ("mixed", "fixed"): [0, 1, 1],
            ("mixed", "dynamic"): [10, 11, 11],
        }[kind, scale]
        with graph_of():
            counts, _, _ = self._operations(OURS[kind], kind, scale, False, "float32")
        self.assertEqual(counts[:3], expected)

    def test_a_function_reads_a_dynamic_scale_by_one_operation(self):
        with modes.eager_mode():
            scale = experimental.DynamicLossScale(8.0)
            concrete = tf.function(scale, autograph=False).get_concrete_function()
        counts = [op.type for op in concrete.graph.get_operations()]
        self.assertEqual(counts.count("ReadVariableOp"), 1)
        # What returns it from the function is one, too.
        self.assertLessEqual(counts.count("Identity"), 1)


class NamesTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*((kind, way) for kind in KINDS for way in ("compute", "minimize")))
    def test_averages_of_gradients_are_named_as_with_the_original(self, kind, way):
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
                loss = tf.reduce_sum(weight * weight)
                scale = SCALES[kind, "fixed"](home)
                if way == "minimize":
                    wrapped(home, kind, Averages(0.1), scale).minimize(loss)
                else:
                    pairs = wrapped(home, kind, sgd(), scale).compute_gradients(loss)
                    Averages(0.1).apply_gradients(pairs)
                names.append([variable.op.name for variable in tf1.global_variables()])
        for each in names:
            self.assertEqual(each, names[0])
        self.assertIn("mul_2", "".join(names[0]))

    @parameterized.parameters(*GRAPHS)
    def test_a_checkpoint_of_1_15_restores_under_either_control_flow(self, *graph):
        if originals.contrib() is None:
            self.skipTest("contrib's original is in TensorFlow 1.15 alone")
        path, values = os.path.join(self.get_temp_dir(), "model"), []
        for home in reversed(homes("contrib")):
            with graph_of(*graph), tf1.Session() as session:
                weight = tf1.get_variable("w", [2], initializer=tf1.ones_initializer())
                optimizer = wrapped(
                    home,
                    "contrib",
                    tf1.train.AdamOptimizer(0.1),
                    SCALES["contrib", "dynamic"](home),
                )
                step = optimizer.minimize(tf.reduce_sum(weight * weight))
                saver = tf1.train.Saver()
                if values:
                    saver.restore(session, path)
                else:
                    session.run(tf1.global_variables_initializer())
                    session.run(step)
                    saver.save(session, path)
                session.run(step)
                values.append(session.run(tf1.global_variables()))
        self.assertAllEqual(np.hstack(list(map(np.ravel, values[0]))),
                            np.hstack(list(map(np.ravel, values[1]))))  # fmt: skip


class SharedTest(parameterized.TestCase, tf.test.TestCase):
    """Steps that run at once lose none of each other's updates."""

    def _step(self, home, kind, scale, gradient, name):
        weight = tf1.get_variable(name, [64, 64], initializer=tf1.ones_initializer())
        optimizer = wrapped(home, kind, tf1.train.GradientDescentOptimizer(1e-9), scale)
        return optimizer.minimize(tf.reduce_sum(weight) * gradient, var_list=[weight])

    @crossed.product(kind=KINDS, graph=GRAPHS, grouped=(False, True))
    def test_two_train_operations_in_one_run(self, kind, graph, grouped):
        """As in GANs: one optimizer's step is finite, the other's is not; or both are."""
        for home in homes(kind):
            with graph_of(*graph), tf1.Session() as session:
                first, second = (tf1.placeholder(tf.float32, []) for _ in range(2))
                scale = {
                    "contrib": lambda: home.ExponentialUpdateLossScaleManager(
                        2.0**100, 10**6, 1, 2.0, 0.5
                    ),
                    "mixed": lambda: home.DynamicLossScale(2.0**100, 10**6),
                }[kind]()
                steps = [
                    self._step(home, kind, scale, first, "first"),
                    self._step(home, kind, scale, second, "second"),
                ]
                steps = tf.group(*steps) if grouped else steps
                session.run(tf1.global_variables_initializer())
                for _ in range(40):
                    session.run(steps, {first: 1.0, second: 1.0})
                self.assertEqual(session.run(scale._num_good_steps), 80)
                for _ in range(40):
                    session.run(steps, {first: 1.0, second: np.inf})
                self.assertEqual(session.run(read(scale)), 2.0**60)

    @crossed.product(kind=KINDS, graph=GRAPHS)
    def test_threads_of_one_session(self, kind, graph):
        # The originals lose some where nothing locks a reference variable.
        for home in homes(kind) if graph[1] else [OURS[kind]]:
            with graph_of(*graph), tf1.Session() as session:
                factor = tf1.placeholder(tf.float32, [])
                scale = SCALES[kind, "dynamic"](home)
                if kind == "contrib":
                    scale._incr_every_n_steps = 10**6
                else:
                    scale._increment_period = 10**6
                step = self._step(home, kind, scale, factor, "weight")
                session.run(tf1.global_variables_initializer())
                _in_threads(lambda: session.run(step, {factor: 1.0}), 250)
                self.assertEqual(session.run(scale._num_good_steps), 1000)

    @crossed.product(what=("contrib", "mixed", "update", "manager"), mode=("eager", "function"))
    def test_threads_of_one_eager_step(self, what, mode):
        """As actors that share a learner do; a lowered scale is not put back."""
        with modes.entered(mode):
            weight = tf1.Variable(1.0, use_resource=True)
            if what in ("contrib", "manager"):
                scale = contrib.ExponentialUpdateLossScaleManager(2.0**100, 10**6, 1, 2.0, 0.5)
            else:
                scale = experimental.DynamicLossScale(2.0**100, 10**6)
            if what in KINDS:
                optimizer = wrapped(OURS[what], what, sgd(1e-9), scale)

            def step(gradient):
                if what == "update":
                    scale.update([gradient])
                elif what == "manager":
                    scale.update_loss_scale(tf.math.is_finite(gradient))
                else:
                    optimizer.apply_gradients([(gradient, weight)])

            if mode == "function":
                step = tf.function(step, autograph=False)
            one, inf = tf.constant(1.0), tf.constant(np.inf)

            def in_eager_mode(gradient):
                with modes.eager_mode():
                    step(gradient)

            in_eager_mode(one)
            _in_threads(lambda: in_eager_mode(one), 60)
            self.assertEqual(scale._num_good_steps.numpy(), 241)
            _in_threads(lambda: in_eager_mode(one), 40, lambda: step(inf))
            self.assertEqual(float(read(scale).numpy()), 2.0**60)


def _in_threads(call, times, meanwhile=None):
    """Calls in each of four threads, and what is to happen meanwhile in this one."""
    errors = []

    def calls():
        try:
            for _ in range(times):
                call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    if meanwhile is not None:
        for _ in range(times):
            meanwhile()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class ReadTest(parameterized.TestCase, tf.test.TestCase):
    """Of the managers of contrib and of loss scales in a Session."""

    @parameterized.parameters(*itertools.product(("fixed", "dynamic"), (False, True), (1, 2)))
    def test_outside_of_the_graph(self, scale, finalized, flow):
        """As scripts do that give their Session a graph and never enter it again."""
        for home in homes("contrib"):
            with modes.control_flow(flow), _no_graph_entered():
                with tf.Graph().as_default() as graph, tf1.variable_scope(
                    "", use_resource=flow == 2
                ):
                    weight = tf1.get_variable("w", [3], initializer=tf1.ones_initializer())
                    manager = SCALES["contrib", scale](home)
                    optimizer = wrapped(home, "contrib", sgd(0.1), manager)
                    step = optimizer.minimize(tf.reduce_sum(weight * weight))
                    start = tf1.global_variables_initializer()
                    taken = manager.get_loss_scale()
                if finalized:
                    graph.finalize()
                with contextlib.closing(tf1.Session(graph=graph)) as session:
                    session.run(start)
                    for _ in range(4):
                        session.run([step, manager.get_loss_scale()])
                    expected = 8.0 if scale == "fixed" else 32.0
                    self.assertEqual(session.run(manager.get_loss_scale()), expected)
                    self.assertEqual(session.run(taken), expected)

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_what_was_taken_before_a_step_shows_the_scale_after_it(self, name):
        with modes.entered(name) as mode:
            manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1)
            taken = manager.get_loss_scale()
            self.assertIs(taken, manager._loss_scale)
            step = mode.compile(manager.update_loss_scale, modes.scalar(tf.bool))
            step(True)
            self.assertEqual(mode.value(tf.identity(taken)), 16.0)

    def test_the_exponential_managers_scale_is_its_variable(self):
        """Set by hand, loaded, saved and averaged: 8, 8, 12, 14, 15 as on 1.15.5."""
        for home in homes("contrib"):
            with graph_of(), tf1.Session() as session:
                manager = home.ExponentialUpdateLossScaleManager(8.0, 3)
                scale = manager.get_loss_scale()
                self.assertEqual((scale.name, scale.op.name), ("loss_scale:0", "loss_scale"))
                average = tf1.train.ExponentialMovingAverage(0.5)
                averaged = average.apply([scale])
                session.run(tf1.global_variables_initializer())
                seen = []
                for value in (8.0, 8.0, 16.0, 16.0, 16.0):
                    session.run(tf1.assign(scale, value))
                    session.run(averaged)
                    seen.append(session.run(average.average(scale)))
                self.assertEqual(seen, [8.0, 8.0, 12.0, 14.0, 15.0])
                tf1.train.Saver([scale])
                scale.load(4.0, session)
                self.assertEqual(session.run(scale), 4.0)

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

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_a_scale_that_became_nan(self, name):
        """It is the maximum of 1 and NaN after a decrease, which is 1 for TensorFlow 1.15."""
        with modes.entered(name) as mode:
            results = []
            for home in homes("contrib"):
                manager = home.ExponentialUpdateLossScaleManager(8.0, 10, 1, 2.0, 0.5)
                scale = manager.get_loss_scale()
                mode.compile(lambda s=scale: s.assign(np.nan))()
                mode.compile(
                    lambda flag, m=manager: m.update_loss_scale(flag), modes.scalar(tf.bool)
                )(False)
                results.append(mode.value(tf.identity(scale)))
            if originals.IS_TF1:
                self.assertEqual(results, [1.0, 1.0])
            else:  # Kernels of later versions differ.
                self.assertTrue(np.isnan(results[0]) or results[0] == 1.0, results)


def _no_graph_entered():
    """Context of graph mode outside of every `as_default()`, as where a script starts."""
    return context.graph_mode() if tf.executing_eagerly() else contextlib.nullcontext()


class ReturnedTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*GRAPHS)
    def test_a_fixed_scale_returns_what_the_optimizer_returns(self, *graph):
        """Such as the tensor of `DropStaleGradientOptimizer`."""

        class ReturnsTensor(tf1.train.GradientDescentOptimizer):
            def apply_gradients(self, grads_and_vars, global_step=None, name=None):
                applied = super().apply_gradients(grads_and_vars, global_step, name)
                with tf.control_dependencies([applied]):
                    return tf.constant(7)

        for home in homes("mixed"):
            with graph_of(*graph), tf1.Session() as session:
                weight = tf1.get_variable("w", [2], initializer=tf1.ones_initializer())
                optimizer = home.MixedPrecisionLossScaleOptimizer(
                    ReturnsTensor(0.5), home.FixedLossScale(8.0)
                )
                step = tf.identity(optimizer.minimize(tf.reduce_sum(weight)))
                session.run(tf1.global_variables_initializer())
                self.assertEqual(session.run(step), 7)
                self.assertAllEqual(session.run(weight), [0.5, 0.5])
