"""`compile` and `fit` in float16 with a dynamic or, with --fixed, a fixed loss scale.

It trains a small network on scikit-learn's handwritten digits, under Keras' policy of float16
compute with float32 variables. Only `LossScaleOptimizer` is not imported from Keras. With the
environment variable TF_USE_LEGACY_KERAS=1 it runs on `tf_keras`, otherwise on the Keras of the
installed TensorFlow.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn import datasets

from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer

keras = tf.keras
EPOCHS = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600, help="rounded down to a multiple of 10")
    parser.add_argument("--fixed", type=float, metavar="SCALE", help="a fixed loss scale")
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

    # The policy stops at the logits, whose softmax and loss are computed in float32.
    model = keras.Sequential(
        [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(10, dtype="float32")]
    )
    inner = keras.optimizers.SGD(0.05, momentum=0.9)
    if args.fixed is None:
        # It starts far too high, so that the first steps are skipped until it has shrunk.
        optimizer = LossScaleOptimizer(
            inner, initial_scale=2**24, dynamic_growth_steps=200, count_skipped=False
        )
    else:
        optimizer = LossScaleOptimizer(inner, dynamic=False, initial_scale=args.fixed)
    model.compile(
        optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def report(epoch, logs):
        skipped = (epoch + 1) * steps - int(optimizer.iterations)
        print(
            "epoch {}: training accuracy {:.4f}, loss scale {:g}, {} steps skipped so far".format(
                epoch + 1, logs["accuracy"], float(optimizer.loss_scale), skipped
            )
        )

    model.fit(
        dataset,
        steps_per_epoch=steps,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)],
    )

    _, accuracy = model.evaluate(pixels[test], labels[test], verbose=0)
    print(
        "accuracy {:.4f}, {} steps, {} skipped, final loss scale {:g}".format(
            accuracy,
            steps * EPOCHS,
            steps * EPOCHS - int(optimizer.iterations),
            float(optimizer.loss_scale),
        )
    )


if __name__ == "__main__":
    main()
