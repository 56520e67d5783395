"""Monitored sessions and their restarts, and Estimators under strategies.

Each runs on this package and, where the installed TensorFlow has it, on the original.
"""

import operator
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import originals
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
GRADIENTS = [1.0, 1.0, np.inf, 1.0, 1.0, 1.0, np.nan, 1.0]


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
    "contrib": ("loss_scale", "good_steps", "bad_steps"),
    "mixed": ("current_loss_scale", "good_steps"),
}
# Of TensorFlow 1.15, which gives them to Estimators.
STRATEGIES = (
    "distribute.experimental.ParameterServerStrategy",
    "contrib.distribute.ParameterServerStrategy",
    "contrib.distribute.CollectiveAllReduceStrategy",
    "distribute.experimental.MultiWorkerMirroredStrategy",
)


def monitored(make, api, folder, gradients):
    """Trains in a `MonitoredTrainingSession` that begins where the folder's last one ended.

    Returns weight, loss scale and global step at the end.
    """
    with tf.Graph().as_default():
        weight = tf1.get_variable("weight", initializer=1.0)
        global_step = tf1.train.get_or_create_global_step()
        optimizer, read = make(api)
        gradient = tf1.placeholder(tf.float32, [])
        step = optimizer.minimize(weight * gradient, global_step=global_step, var_list=[weight])
        scale = tf.identity(read())
        with tf1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, save_checkpoint_steps=1, log_step_count_steps=None
        ) as session:
            for value in gradients:
                session.run(step, {gradient: value})
            end = session.run([weight, scale, global_step])
        return [float(number) for number in end]


class MonitoredTest(parameterized.TestCase):
    def folder(self):
        return self.enter_context(tempfile.TemporaryDirectory())

    @parameterized.parameters(*KINDS)
    def test_restart_goes_on_where_it_was(self, kind):
        make, ours, original = KINDS[kind]
        ends = []
        for api in (ours, original):
            if api is None:
                continue
            whole, parts = self.folder(), self.folder()
            ends.append(monitored(make, api, whole, GRADIENTS))
            # Not after a skipped step: sessions save only where the global step has moved.
            monitored(make, api, parts, GRADIENTS[:4])
            self.assertEqual(monitored(make, api, parts, GRADIENTS[4:]), ends[-1])
        self.assertEqual(ends[0][1:], [8.0, 6.0])
        self.assertEqual(ends[0], ends[-1])


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

            folder = self.enter_context(tempfile.TemporaryDirectory())
            config = tf1.estimator.RunConfig(train_distribute=strategy)
            estimator = tf1.estimator.Estimator(model_fn, folder, config)
            estimator.train(input_fn)
            names = ("weight", "global_step", *NAMES[kind])
            return [float(estimator.get_variable_value(each)) for each in names]

        strategy = operator.attrgetter(name)(tf)
        trained = train(ours, strategy())
        self.assertEqual(trained[1:3], [6, 8.0])
        if kind == "contrib":  # Its own takes no global step under any strategy.
            self.assertEqual(trained, train(ours, None))
        else:
            self.assertEqual(trained, train(original, strategy()))
