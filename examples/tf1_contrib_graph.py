"""A TensorFlow 1 training script, with contrib's loss scaling from tf_lossscale_compat.

It trains a small network on scikit-learn's handwritten digits, computed in float16 with float32
variables. On TensorFlow 1.15 the script had the line

    from tensorflow.contrib.mixed_precision import (

in place of the one that names tf_lossscale_compat below. Nothing else changes, and on 1.15 both
lines work. The loss scale starts far too high, as was common: the first steps overflow and are
skipped until it has shrunk.
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn import datasets

from tf_lossscale_compat.contrib.mixed_precision import (
    ExponentialUpdateLossScaleManager,
    LossScaleOptimizer,
)

tf.disable_v2_behavior()


def float32_variable(name, initial_value, dtype):
    """Returns a float32 variable, cast to `dtype` for computation."""
    variable = tf.get_variable(name, initializer=initial_value.astype(np.float32))
    return tf.cast(variable, dtype)


def build_loss(images, labels, dtype, random):
    """Returns the loss, summed over the images, and the share that the network gets right."""
    hidden = tf.cast(images, dtype)
    hidden = tf.matmul(hidden, float32_variable("kernel_1", random.randn(64, 32) / 8, dtype))
    hidden = tf.tanh(hidden + float32_variable("bias_1", np.zeros(32), dtype))
    logits = tf.matmul(hidden, float32_variable("kernel_2", random.randn(32, 10) / 6, dtype))
    logits += float32_variable("bias_2", np.zeros(10), dtype)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, reduction=tf.losses.Reduction.SUM)
    right = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
    return loss, tf.reduce_mean(tf.cast(right, tf.float32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()

    digits = datasets.load_digits()
    random = np.random.RandomState(0)
    order = random.permutation(len(digits.target))
    train, test = order[360:], order[:360]

    images = tf.placeholder(tf.float32, [None, 64])
    labels = tf.placeholder(tf.int32, [None])
    loss, accuracy = build_loss(images, labels, "float16", random)

    global_step = tf.train.get_or_create_global_step()
    manager = ExponentialUpdateLossScaleManager(
        init_loss_scale=2**32,
        incr_every_n_steps=100,
        decr_every_n_nan_or_inf=2,
        decr_ratio=0.5,
    )
    optimizer = LossScaleOptimizer(tf.train.MomentumOptimizer(0.001, 0.9), manager)
    train_op = optimizer.minimize(loss, global_step=global_step)
    loss_scale = manager.get_loss_scale()

    def feed(chosen):
        return {images: digits.data[chosen] / 8 - 1, labels: digits.target[chosen]}

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(args.steps):
            session.run(train_op, feed(random.choice(train, 64)))
        applied, scale = session.run([global_step, loss_scale])
        held_back = session.run(accuracy, feed(test))
    print(
        "accuracy {:.4f}, {} steps, {} skipped, final loss scale {:g}".format(
            held_back, args.steps, args.steps - applied, scale
        )
    )


if __name__ == "__main__":
    main()
