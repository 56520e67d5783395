"""Reading the loss scale by its name, hooks, monitored sessions and their restarts.

Each runs on this package and, where the installed TensorFlow has it, on the original.
"""

import operator
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import event_files, originals
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
GRADIENTS = [1.0, 1.0, np.inf, 1.0, 1.0, 1.0, np.nan, 1.0]


class Recorder(tf1.train.SessionRunHook):
    """Fetches tensors by their names at each step, as hooks that log do.

    What it sees is of before the step or after, as it happens.
    """

    def __init__(self, *names):
        self._names, self.history = names, []

    def begin(self):
        graph = tf1.get_default_graph()
        # That is a resource variable's handle.
        self._names = [
            name.replace(":0", "/Read/ReadVariableOp:0")
            if graph.get_tensor_by_name(name).dtype == tf.resource
            else name
            for name in self._names
        ]

    def before_run(self, run_context):
        return tf1.train.SessionRunArgs({name: name for name in self._names})

    def after_run(self, run_context, run_values):
        self.history.append([float(run_values.results[name]) for name in self._names])


def contrib_optimizer(api):
    manager = api.ExponentialUpdateLossScaleManager(8.0, 2, 1, 2.0, 0.5)
    sgd = tf1.train.MomentumOptimizer(0.125, 0.5)
    return api.LossScaleOptimizer(sgd, manager), manager.get_loss_scale


def experimental_optimizer(api):
    loss_scale = api.DynamicLossScale(8.0, 2)
    sgd = tf1.train.MomentumOptimizer(0.125, 0.5)
    return api.MixedPrecisionLossScaleOptimizer(sgd, loss_scale), loss_scale


KINDS = {
    "contrib": (contrib_optimizer, contrib, originals.contrib()),
    "mixed": (experimental_optimizer, experimental, originals.experimental()),
}
NAMES = {
    "contrib": ("loss_scale:0", "good_steps:0", "bad_steps:0"),
    "mixed": ("current_loss_scale:0", "good_steps:0"),
}
# Of TensorFlow 1.15, which gives them to Estimators.
STRATEGIES = (
    "distribute.experimental.ParameterServerStrategy",
    "contrib.distribute.ParameterServerStrategy",
    "contrib.distribute.CollectiveAllReduceStrategy",
    "distribute.experimental.MultiWorkerMirroredStrategy",
)


def monitored(make, api, names, folder, gradients):
    """Trains in a `MonitoredTrainingSession` that begins where the folder's last one ended.

    Returns:
      What the hook has seen at each step; weight, loss scale and global step at the end.
    """
    with tf.Graph().as_default():
        weight = tf1.get_variable("weight", initializer=1.0)
        global_step = tf1.train.get_or_create_global_step()
        optimizer, read = make(api)
        gradient = tf1.placeholder(tf.float32, [])
        step = optimizer.minimize(weight * gradient, global_step=global_step, var_list=[weight])
        logged = tf.identity(read(), name="logged_scale")
        hook = Recorder(*names, "logged_scale:0")
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=[hook], save_checkpoint_steps=1, log_step_count_steps=None
        ) as session:
            for value in gradients:
                session.run([step, logged], {gradient: value})
            end = session.run([weight, logged, global_step])
        return hook.history[: len(gradients)], [float(number) for number in end]


class MonitoredTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_restart_goes_on_where_it_was(self, kind):
        make, ours, original = KINDS[kind]
        runs = {}
        for name, api in (("ours", ours), ("original", original)):
            if api is None:
                continue
            whole = os.path.join(event_files.folder(self), "whole")
            parts = os.path.join(event_files.folder(self), "parts")
            runs[name] = monitored(make, api, NAMES[kind], whole, GRADIENTS)
            # Not after a skipped step: sessions save only where the global step has moved.
            monitored(make, api, NAMES[kind], parts, GRADIENTS[:4])
            _, end = monitored(make, api, NAMES[kind], parts, GRADIENTS[4:])
            self.assertEqual(end, runs[name][1])
        self.assertEqual(runs["ours"][1][1:], [8.0, 6.0])
        if "original" in runs:
            self.assertEqual(runs["ours"][1], runs["original"][1])
        scales = {row[0] for row in runs["ours"][0]}
        self.assertLessEqual(scales, {4.0, 8.0, 16.0})
        self.assertGreater(len(scales), 1)


class EstimatorTest(parameterized.TestCase):
    @parameterized.product(kind=tuple(KINDS), name=STRATEGIES)
    def test_strategies_in_one_process(self, kind, name):
        if not originals.IS_TF1:
            self.skipTest("from TensorFlow 2.0 on these are other strategies, or none")
        make, ours, original = KINDS[kind]

        def train(api, strategy):
            def model_fn(features, labels, mode):
                weight = tf1.get_variable("weight", initializer=1.0)
                loss = tf.reduce_sum(weight * features)
                step = make(api)[0].minimize(loss, global_step=tf1.train.get_global_step())
                return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

            def input_fn():
                finite = np.isfinite(GRADIENTS)  # An Estimator ends at a loss of NaN.
                values = np.where(finite, GRADIENTS, np.inf).astype(np.float32)
                return tf1.data.Dataset.from_tensor_slices((values, values))

            config = tf1.estimator.RunConfig(train_distribute=strategy)
            estimator = tf1.estimator.Estimator(model_fn, event_files.folder(self), config)
            estimator.train(input_fn)
            names = ("weight", "global_step", *(each.split(":")[0] for each in NAMES[kind]))
            return [float(estimator.get_variable_value(each)) for each in names]

        strategy = operator.attrgetter(name)(tf)
        trained = train(ours, strategy())
        self.assertEqual(trained[1:3], [6, 8.0])
        if kind == "contrib":  # Its own takes no global step under any strategy.
            self.assertEqual(trained, train(ours, None))
        else:
            self.assertEqual(trained, train(original, strategy()))
