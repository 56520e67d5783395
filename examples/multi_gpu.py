"""Training on all GPUs of a machine with `MirroredStrategy`, in float16 with a dynamic loss scale.

With fewer than two GPUs it runs on two logical CPU devices. The data are scikit-learn's handwritten
digits. If gradients are not finite on one device, all devices skip the step. All devices hold the
same loss scale.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tf_lossscale_compat.train.experimental import (
    DynamicLossScale,
    MixedPrecisionLossScaleOptimizer,
)

tf1 = tf.compat.v1
BATCH = 64


def make_strategy():
    """Returns a strategy over all GPUs, or over two logical CPUs."""
    gpus = tf.config.experimental.list_physical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy()
    (cpu,) = tf.config.experimental.list_physical_devices("CPU")
    halves = [tf.config.experimental.VirtualDeviceConfiguration() for _ in range(2)]
    tf.config.experimental.set_virtual_device_configuration(cpu, halves)
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    tf1.enable_v2_behavior()  # Needed on TensorFlow 1.15.
    strategy = make_strategy()

    digits = datasets.load_digits()
    random = np.random.RandomState(0)
    order = random.permutation(len(digits.target))
    train, test = order[360:], order[:360]
    pixels = (digits.data / 8 - 1).astype(np.float16)
    labels = digits.target.astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((pixels[train], labels[train]))
    dataset = dataset.shuffle(len(train), seed=0).repeat().batch(BATCH, drop_remainder=True)

    # All state is made in the strategy's scope: variables, optimizer and loss scale.
    with strategy.scope():
        kernel_1 = tf.Variable(random.randn(64, 32).astype(np.float32) / 8)
        bias_1 = tf.Variable(tf.zeros([32]))
        kernel_2 = tf.Variable(random.randn(32, 10).astype(np.float32) / 6)
        bias_2 = tf.Variable(tf.zeros([10]))
        applied = tf.Variable(
            0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        # It starts far too high: the first steps are skipped until it has shrunk.
        loss_scale = DynamicLossScale(initial_loss_scale=2**24, increment_period=200)
        optimizer = MixedPrecisionLossScaleOptimizer(
            tf1.train.MomentumOptimizer(0.05, 0.9), loss_scale
        )
    variables = [kernel_1, bias_1, kernel_2, bias_2]

    def network(images):
        hidden = tf.matmul(images, tf.cast(kernel_1, tf.float16)) + tf.cast(bias_1, tf.float16)
        hidden = tf.matmul(tf.tanh(hidden), tf.cast(kernel_2, tf.float16))
        return hidden + tf.cast(bias_2, tf.float16)

    def replica_step(images, targets):
        """Takes one replica's part of a step: its share of the batch, scaling and the update."""

        def loss():
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=targets, logits=network(images)
            )
            # Gradients are summed over the replicas, so each divides by the whole batch.
            return tf.reduce_sum(losses) / BATCH

        gradients = optimizer.compute_gradients(loss, var_list=variables)
        optimizer.apply_gradients(gradients, global_step=applied)

    run = strategy.run if hasattr(strategy, "run") else strategy.experimental_run_v2

    @tf.function
    def train_step(batch):
        run(replica_step, args=batch)

    batches = iter(strategy.experimental_distribute_dataset(dataset))
    for _ in range(args.steps):
        train_step(next(batches))

    guesses = np.argmax(network(tf.constant(pixels[test])).numpy(), axis=1)
    print(
        "accuracy {:.4f}, {} steps on {} replicas, {} skipped, final loss scale {:g}".format(
            np.mean(guesses == labels[test]),
            args.steps,
            strategy.num_replicas_in_sync,
            args.steps - applied.numpy(),
            loss_scale().numpy(),
        )
    )


if __name__ == "__main__":
    main()
