"""Tensors of the graph being built; graphs that are finalized, or saved and imported."""

import gc
import os
import weakref

import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, replicas
from tests.v1_optimizers import BOTH, OPTIMIZERS, sgd
from tf_lossscale_compat import ExponentialUpdateLossScaleManager, FixedLossScaleManager
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer

tf1 = tf.compat.v1

MANAGERS = {
    "fixed": lambda: FixedLossScaleManager(8.0),
    "exponential": lambda: ExponentialUpdateLossScaleManager(8.0, 2, 1, 2.0, 0.5),
}


class FinalizedGraphTest(modes.EagerTestCase):
    @parameterized.parameters(
        ("fixed", "graph_v1", "central_3"), ("exponential", "graph_v2", "mirrored_2")
    )
    def test_under_a_strategy(self, kind, name, strategy):
        strategy = replicas.strategy(strategy)
        with modes.entered(name):
            with strategy.scope():
                weight = tf1.Variable([1.0], name="weight", use_resource=True)
                manager = MANAGERS[kind]()
                opt = LossScaleOptimizer(sgd(), manager)
            own = []

            def step():
                own.append(tf.identity(manager.get_loss_scale()))  # Of this replica's copy.
                with tf.control_dependencies([tf.no_op()]):
                    return opt.apply_gradients([(tf.constant([float("nan")]), weight)])

            with strategy.scope():
                train = strategy.group(replicas.run(strategy, step))
            self.assertLen(set(map(id, own)), strategy.num_replicas_in_sync)
            scales = []
            with tf1.train.MonitoredTrainingSession() as session:
                for _ in range(2):
                    session.run(train)
                    with strategy.scope():
                        scales.append(session.run(manager.get_loss_scale()))
                    scales.append(session.run(manager.get_loss_scale()))
            self.assertEqual(scales, [8.0] * 4 if kind == "fixed" else [4.0, 4.0, 2.0, 2.0])

    @crossed.product(
        kind=sorted(MANAGERS), name=modes.GRAPH, where=("branch", "loop", "control dependency")
    )
    def test_first_called_within(self, kind, name, where):
        # As in batch normalization's `update_ops`, on which the step of such networks depends.
        with modes.entered(name) as mode:
            manager = MANAGERS[kind]()
            read, taken = manager.get_loss_scale, tf1.placeholder(tf.bool, [])
            if where == "branch":
                inside = tf.cond(taken, lambda: read() * 1.0, lambda: read() * 3.0)
            elif where == "loop":
                _, inside = tf1.while_loop(
                    lambda i, _: i < tf1.where(taken, 1, 3),
                    lambda i, total: (i + 1, total + read()),
                    [tf.constant(0), tf.constant(0.0)],
                )
            else:
                with tf.control_dependencies([taken]):
                    inside = read() * tf1.where(taken, 1.0, 3.0)
            later = tf.cond(taken, read, lambda: tf.constant(0.0))
            tf1.get_default_graph().finalize()
            for value, wanted in ((True, [8.0, 8.0]), (False, [24.0, 0.0])):
                self.assertEqual(mode.run([inside, later], {taken: value}), wanted)
            self.assertEqual(mode.run(read()), 8.0)  # Without a value for the placeholder.

    @parameterized.parameters(*modes.GRAPH)
    def test_called_under_an_update_it_reads_what_that_made(self, name):
        with modes.entered(name) as mode:
            manager = MANAGERS["exponential"]()
            manager.get_loss_scale()
            with tf.control_dependencies([manager.update_loss_scale(tf.constant(False))]):
                after = tf.identity(manager.get_loss_scale())
            self.assertEqual([mode.run(after) for _ in range(3)], [4.0, 2.0, 1.0])

    def test_a_fixed_manager_in_two_graphs(self):
        manager = MANAGERS["fixed"]()
        graphs = [tf.Graph(), tf.Graph()]
        for graph in graphs:
            with graph.as_default():
                self.assertIs(manager.get_loss_scale().graph, graph)
                graph.finalize()
        for graph in graphs:
            with graph.as_default(), tf1.Session() as session:
                scale = manager.get_loss_scale()
                self.assertIs(scale.graph, graph)
                self.assertEqual(session.run(scale), 8.0)
        self.assertEqual(manager.get_loss_scale().numpy(), 8.0)
        for _ in range(2):  # Two functions, and so two graphs.
            scale = tf.function(lambda: manager.get_loss_scale() * 2.0, autograph=False)
            self.assertEqual([scale().numpy(), scale().numpy()], [16.0, 16.0])

    def test_a_fixed_manager_keeps_no_graph_alive(self):
        manager = MANAGERS["fixed"]()
        graph = tf.Graph()
        with graph.as_default():
            manager.get_loss_scale()
        known = weakref.ref(graph)
        del graph
        gc.collect()
        self.assertIsNone(known())


class MetaGraphTest(parameterized.TestCase, tf.test.TestCase):
    """A saved graph can be imported, and its train operation run."""

    @crossed.product(version=(1, 2), which=BOTH)
    def test_the_train_operation_of_an_imported_graph(self, version, which):
        path = os.path.join(self.get_temp_dir(), "model")
        with modes.control_flow(version), tf.Graph().as_default(), tf1.Session() as session:
            weight = tf1.get_variable("weight", initializer=8.0, use_resource=True)
            step = tf1.get_variable("step", initializer=0, trainable=False, use_resource=True)
            with tf1.variable_scope("", use_resource=True):  # Control flow v2 knows no others.
                opt = OPTIMIZERS[which](sgd(0.25), MANAGERS["exponential"]())
            opt.minimize(weight * weight, global_step=step)
            (train_op,) = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
            self.assertIs(train_op.graph, tf1.get_default_graph())
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver().save(session, path)
        with tf.Graph().as_default(), tf1.Session() as session:
            tf1.train.import_meta_graph(path + ".meta").restore(session, path)
            variables = {variable.op.name: variable for variable in tf1.global_variables()}
            if version == 2:  # With TensorFlow 1's it is in a branch, and no session runs that.
                session.run(tf1.get_collection(tf1.GraphKeys.TRAIN_OP))
                session.run(tf1.get_collection(tf1.GraphKeys.TRAIN_OP))
            found = session.run([variables["weight"], variables["step"]])
            self.assertEqual(found, [2.0, 2] if version == 2 else [8.0, 0])
