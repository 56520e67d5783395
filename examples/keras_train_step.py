"""A `Model` with a custom `train_step`, in float16 with a dynamic loss scale.

Three calls add loss scaling to the step, as in TensorFlow 2.4's guide to mixed precision: scale the
loss, unscale the gradients, apply them. Clipping comes between the last two, where gradients have
their true size. The data are scikit-learn's handwritten digits. With the environment variable
TF_USE_LEGACY_KERAS=1 it runs on `tf_keras`, otherwise on the Keras of the installed TensorFlow.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tf_lossscale_compat import DynamicLossScale
from tf_lossscale_compat.keras.mixed_precision import experimental

keras = tf.keras
EPOCHS = 10


class Classifier(keras.Model):
    """A network with one hidden layer, for ten classes."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(32, activation="tanh")
        self.logits = keras.layers.Dense(10, dtype="float32")
        self.cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def call(self, images):
        """Returns the logits of a batch of images."""
        return self.logits(self.hidden(images))

    def train_step(self, data):
        """Takes one step on a batch, a pair of images and labels; `fit` calls it."""
        images, labels = data
        optimizer = self.optimizer
        with tf.GradientTape() as tape:
            loss = self.cross_entropy(labels, self(images, training=True))
            scaled_loss = optimizer.get_scaled_loss(loss)  # 1: scale the loss
        scaled_gradients = tape.gradient(scaled_loss, self.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(scaled_gradients)  # 2: unscale the gradients
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        # 3: apply them, unless one is not finite
        optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss, "gradient_norm": norm, "loss_scale": optimizer.loss_scale()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="rounded down to a multiple of 10")
    args = parser.parse_args()
    if not hasattr(keras.mixed_precision, "set_global_policy"):
        parser.error(f"needs the mixed_float16 policy of TensorFlow 2.4, this is {tf.__version__}")
    steps = max(args.steps // EPOCHS, 1)
    keras.mixed_precision.set_global_policy("mixed_float16")
    tf.random.set_seed(0)

    digits = datasets.load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    train, test = order[360:], order[:360]
    pixels = (digits.data / 8 - 1).astype(np.float32)
    labels = digits.target.astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((pixels[train], labels[train]))
    dataset = dataset.shuffle(len(train), seed=0).repeat().batch(64)

    # It starts far too high, so that the first steps are skipped until it has shrunk.
    loss_scale = DynamicLossScale(initial_loss_scale=2**24, increment_period=200)
    optimizer = experimental.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), loss_scale, count_skipped=False
    )
    model = Classifier()
    model.compile(optimizer)

    def report(epoch, logs):
        print(
            "epoch {}: loss {:.4f}, loss scale {:g}, {} steps skipped so far".format(
                epoch + 1,
                float(logs["loss"]),
                float(optimizer.loss_scale),
                (epoch + 1) * steps - int(optimizer.iterations.numpy()),
            )
        )

    model.fit(
        dataset,
        steps_per_epoch=steps,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)],
    )

    guesses = np.argmax(model(pixels[test]).numpy(), axis=1)
    print(
        "accuracy {:.4f}, {} steps, {} skipped, final loss scale {:g}".format(
            np.mean(guesses == labels[test]),
            steps * EPOCHS,
            steps * EPOCHS - int(optimizer.iterations.numpy()),
            float(loss_scale()),
        )
    )


if __name__ == "__main__":
    main()
