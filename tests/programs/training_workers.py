"""One worker of multi_worker_test.py: trains under MultiWorkerMirroredStrategy.

    [TF_CONFIG=...] python training_workers.py FOLDER CASE...

Without TF_CONFIG it trains without a strategy. It leaves in the folder a JSON file named by the
worker's number: for each case a list of the states after every step.

The arithmetic is exact, so that neither the order in which gradients are summed nor the number of
workers matters: features and targets are small integers, the loss is a sum of absolute errors,
so gradients are integers, and learning rate, momentum and loss scales are powers of two.
"""

import json
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras.mixed_precision import experimental as keras_experimental
from tf_lossscale_compat.train import experimental

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))  # After an installed wheel.
from tests import keras_homes

tf1 = tf.compat.v1

STEPS = 12
NAN_STEPS = (1, 2, 6, 9)
EXAMPLES, FEATURES = 12, 4  # A global batch can be cut in two or three.


class _V1:
    """An optimizer of TensorFlow 1 and the variables of its loss scale."""

    def __init__(self, wrapper, policy, variables):
        self._opt = wrapper(tf1.train.MomentumOptimizer(2.0**-6, 0.5), policy)
        self.policy = variables
        self._count = tf.Variable(
            0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def step(self, loss, variables):
        gradients = self._opt.compute_gradients(loss, variables)
        self._opt.apply_gradients(gradients, global_step=self._count)

    def state(self, variables):
        return [self._count] + [self._opt.get_slot(each, "momentum") for each in variables]


class _Keras:
    """The same for an optimizer of Keras, which counts applied steps by itself."""

    def __init__(self, home):
        policy = experimental.DynamicLossScale(2.0**10, increment_period=2, multiplier=2.0)
        inner = home.SGD(2.0**-6, momentum=0.5)
        self._opt = keras_experimental.LossScaleOptimizer(inner, policy, count_skipped=False)
        self.policy = [policy.current_loss_scale, policy.good_steps]

    def step(self, loss, variables):
        with tf.GradientTape() as tape:
            scaled_loss = self._opt.get_scaled_loss(loss())
        gradients = self._opt.get_unscaled_gradients(tape.gradient(scaled_loss, variables))
        self._opt.apply_gradients(zip(gradients, variables))

    def state(self, _):
        inner = self._opt.inner_optimizer.variables
        return list(inner() if callable(inner) else inner)


def _dynamic():
    policy = experimental.DynamicLossScale(2.0**10, increment_period=2, multiplier=2.0)
    variables = [policy.current_loss_scale, policy.good_steps]
    return _V1(experimental.MixedPrecisionLossScaleOptimizer, policy, variables)


def _contrib():
    manager = contrib.ExponentialUpdateLossScaleManager(
        2.0**10, incr_every_n_steps=2, decr_every_n_nan_or_inf=2, decr_ratio=0.5
    )
    return _V1(contrib.LossScaleOptimizer, manager, manager.variables())


CASES = {"dynamic": _dynamic, "contrib": _contrib}
CASES.update({home.name: lambda home=home: _Keras(home) for home in keras_homes.available()})


def global_batch(step):
    """Returns features and targets of one step; at some steps the last example is NaN."""
    random = np.random.RandomState(step)
    features = random.randint(-4, 5, (EXAMPLES, FEATURES)).astype(np.float32)
    targets = random.randint(-9, 10, EXAMPLES).astype(np.float32)
    if step in NAN_STEPS:
        features[-1] = np.nan
    return features, targets


def values(variables):
    return [np.asarray(tf1.convert_to_tensor(variable)).tolist() for variable in variables]


def train(case, strategy, worker, workers):
    """Trains on a worker's share of every global batch; returns the state after each step."""
    with strategy.scope():
        weights = tf.Variable(tf.zeros([FEATURES]))
        bias = tf.Variable(0.0)
        opt = CASES[case]()

    def replica_step(features, targets):
        def loss():
            predictions = tf.linalg.matvec(features, weights) + bias
            return tf.reduce_sum(tf.abs(predictions - targets))

        opt.step(loss, [weights, bias])

    @tf.function
    def distributed_step(features, targets):
        run = getattr(strategy, "run", None) or strategy.experimental_run_v2
        run(replica_step, args=(features, targets))

    share = slice(EXAMPLES * worker // workers, EXAMPLES * (worker + 1) // workers)
    history = []
    for step in range(STEPS):
        features, targets = global_batch(step)
        distributed_step(tf.constant(features[share]), tf.constant(targets[share]))
        trained = [weights, bias, *opt.state([weights, bias])]
        history.append(
            {
                "step": step,
                "nan": step in NAN_STEPS,
                "trained": values(trained),
                "policy": values(opt.policy),
            }
        )
    return history


def main(folder, *cases):
    tf1.enable_v2_behavior()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if "TF_CONFIG" in os.environ:
        home = tf.distribute
        if not hasattr(home, "MultiWorkerMirroredStrategy"):  # TensorFlow before 2.4
            home = tf.distribute.experimental
        strategy = home.MultiWorkerMirroredStrategy()
        config = json.loads(os.environ["TF_CONFIG"])
        worker, workers = config["task"]["index"], len(config["cluster"]["worker"])
    else:
        strategy, worker, workers = tf.distribute.get_strategy(), 0, 1
    assert strategy.num_replicas_in_sync == workers, strategy.num_replicas_in_sync
    histories = {case: train(case, strategy, worker, workers) for case in cases}
    written = pathlib.Path(folder, f"{worker}.new")
    written.write_text(json.dumps(histories), encoding="utf-8")
    written.rename(written.with_suffix(".json"))
    # A worker that left now would tear down the collective in which another may still be.
    while len(list(pathlib.Path(folder).glob("*.json"))) < workers:
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
