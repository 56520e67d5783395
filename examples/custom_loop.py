"""A custom TensorFlow 2 training loop, with a bare `DynamicLossScale`.

It trains a small network on scikit-learn's handwritten digits, computed in float16 with float32
variables. The four numbered lines below are the whole loss scaling. The optimizer does not take
part in it, so any optimizer works.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tf_lossscale_compat.train.experimental import DynamicLossScale


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    if not tf.executing_eagerly():
        tf.compat.v1.enable_eager_execution()  # Needed on TensorFlow 1.15.

    digits = datasets.load_digits()
    random = np.random.RandomState(0)
    order = random.permutation(len(digits.target))
    train, test = order[360:], order[:360]
    pixels = tf.constant(digits.data / 8 - 1, tf.float16)
    labels = tf.constant(digits.target, tf.int32)

    kernel_1 = tf.Variable(random.randn(64, 32).astype(np.float32) / 8)
    bias_1 = tf.Variable(tf.zeros([32]))
    kernel_2 = tf.Variable(random.randn(32, 10).astype(np.float32) / 6)
    bias_2 = tf.Variable(tf.zeros([10]))
    variables = [kernel_1, bias_1, kernel_2, bias_2]

    def network(images):
        hidden = tf.matmul(images, tf.cast(kernel_1, tf.float16)) + tf.cast(bias_1, tf.float16)
        hidden = tf.matmul(tf.tanh(hidden), tf.cast(kernel_2, tf.float16))
        return hidden + tf.cast(bias_2, tf.float16)

    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    if hasattr(optimizer, "build"):
        # Optimizers of tf.keras 2.11 and later make their slots here, outside of the conditional.
        optimizer.build(variables)
    # It starts far too high, so that the first steps are skipped until it has shrunk.
    loss_scale = DynamicLossScale(initial_loss_scale=2**24, increment_period=200, multiplier=2.0)

    @tf.function
    def train_step(batch):
        scale = loss_scale()
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=tf.gather(labels, batch), logits=network(tf.gather(pixels, batch))
            )
            loss = tf.reduce_mean(losses)
            scaled_loss = loss * tf.cast(scale, loss.dtype)  # 1: scale the loss
        gradients = tape.gradient(scaled_loss, variables)
        gradients = [gradient / scale for gradient in gradients]  # 2: unscale the gradients
        _, should_apply = loss_scale.update(gradients)  # 3: are they finite?
        if should_apply:  # 4: skip the step if not
            optimizer.apply_gradients(zip(gradients, variables))
        return should_apply

    skipped = 0
    for _ in range(args.steps):
        skipped += not train_step(tf.constant(random.choice(train, 64)))

    guesses = np.argmax(network(tf.gather(pixels, test)).numpy(), axis=1)
    print(
        "accuracy {:.4f}, {} steps, {} skipped, final loss scale {:g}".format(
            np.mean(guesses == digits.target[test]), args.steps, skipped, loss_scale().numpy()
        )
    )


if __name__ == "__main__":
    main()
