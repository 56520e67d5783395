"""Two optimizers in one step, each with its own loss scale: a GAN that draws digits.

The losses of the two networks have gradients of different sizes, so each optimizer finds its own
scale. If one optimizer skips a step, the other still takes it. The data are scikit-learn's
handwritten digits. With the environment variable TF_USE_LEGACY_KERAS=1 it runs on `tf_keras`,
otherwise on the Keras of the installed TensorFlow.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer

keras = tf.keras
BATCH, NOISE = 64, 16


def distance(some, others):
    """Returns the Fréchet distance of two sets of images, taken as normally distributed pixels."""
    means = [np.mean(images, axis=0) for images in (some, others)]
    covariances = [np.cov(images, rowvar=False) for images in (some, others)]
    roots = np.sqrt(np.abs(np.linalg.eigvals(covariances[0] @ covariances[1])))
    return (
        np.sum((means[0] - means[1]) ** 2)
        + np.trace(covariances[0])
        + np.trace(covariances[1])
        - 2 * np.sum(roots)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    if not hasattr(keras.mixed_precision, "set_global_policy"):
        parser.error(f"needs the mixed_float16 policy of TensorFlow 2.4, this is {tf.__version__}")
    keras.mixed_precision.set_global_policy("mixed_float16")
    tf.random.set_seed(0)

    digits = datasets.load_digits()
    random = np.random.RandomState(0)
    order = random.permutation(len(digits.target))
    pixels = (digits.data / 8 - 1).astype(np.float32)
    train, test = pixels[order[360:]], pixels[order[:360]]

    generator = keras.Sequential(
        [
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="tanh", dtype="float32"),
        ]
    )
    critic = keras.Sequential(
        [keras.layers.Dense(128), keras.layers.LeakyReLU(), keras.layers.Dense(1, dtype="float32")]
    )
    generator.build((None, NOISE))
    critic.build((None, 64))
    players = []
    # Both start far too high, so that the first steps are skipped until they have shrunk.
    for network, rate in ((generator, 1e-3), (critic, 1e-3)):
        optimizer = LossScaleOptimizer(
            keras.optimizers.Adam(rate, beta_1=0.5),
            initial_scale=2**24,
            dynamic_growth_steps=500,
            count_skipped=False,
        )
        players.append((network.trainable_variables, optimizer))
    cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(real):
        noise = tf.random.normal([BATCH, NOISE])
        with tf.GradientTape(persistent=True) as tape:
            fake = generator(noise, training=True)
            of_real, of_fake = critic(real, training=True), critic(fake, training=True)
            zeros, ones = tf.zeros_like(of_fake), tf.ones_like(of_fake)
            losses = [
                cross_entropy(ones, of_fake),
                cross_entropy(ones, of_real) + cross_entropy(zeros, of_fake),
            ]
            scaled_losses = [
                optimizer.get_scaled_loss(loss) for loss, (_, optimizer) in zip(losses, players)
            ]
        # All gradients are computed before any is applied, so that they are of the same weights.
        gradients = [
            optimizer.get_unscaled_gradients(tape.gradient(loss, variables))
            for loss, (variables, optimizer) in zip(scaled_losses, players)
        ]
        for own, (variables, optimizer) in zip(gradients, players):
            optimizer.apply_gradients(zip(own, variables))

    def drawn():
        return generator(tf.random.stateless_normal([2000, NOISE], [1, 2])).numpy()

    before = distance(drawn(), test)
    scales = []
    for step in range(args.steps):
        train_step(tf.constant(train[random.choice(len(train), BATCH)]))
        scales.append(["{:g}".format(float(optimizer.loss_scale)) for _, optimizer in players])
        if (step + 1) % max(args.steps // 10, 1) == 0:
            print(
                "step {}: distance {:.2f}, loss scales {} and {}".format(
                    step + 1, distance(drawn(), test), *scales[-1]
                )
            )

    print(
        "distance from real digits {:.2f}, before training {:.2f}, {} steps, skipped {} by the "
        "generator and {} by the critic, final loss scales {} and {}".format(
            distance(drawn(), test),
            before,
            args.steps,
            *[args.steps - int(optimizer.iterations) for _, optimizer in players],
            *scales[-1],
        )
    )


if __name__ == "__main__":
    main()
