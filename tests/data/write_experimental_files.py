"""Writes what the experimental optimizer of TensorFlow 2.2 or 2.3 saves, after two steps.

    python tests/data/write_experimental_files.py OUTDIR

It leaves in `OUTDIR` a checkpoint of a model's weights and optimizer, `weights`, a SavedModel,
`saved_model`, and `state.json` with the values in both. Under TensorFlow 2.4 and later the class is
another one, whose files have another layout.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf


def main(argv):
    (folder,) = argv
    if not (2, 2) <= tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 4):
        raise SystemExit(f"TensorFlow {tf.__version__} is neither 2.2 nor 2.3.")
    os.makedirs(folder)
    loss_scale = tf.mixed_precision.experimental.DynamicLossScale(256.0, increment_period=4)
    optimizer = tf.keras.mixed_precision.experimental.LossScaleOptimizer(
        tf.keras.optimizers.SGD(0.125, momentum=0.5), loss_scale
    )
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, kernel_initializer="ones")])
    model.compile(optimizer, "mse")
    # A step that overflows halves the loss scale; the other moves the weights.
    model.fit(np.full([1, 2], np.inf), np.ones([1, 2]), verbose=0)
    model.fit(np.ones([1, 2]), np.ones([1, 2]), verbose=0)
    model.save_weights(os.path.join(folder, "weights"))
    model.save(os.path.join(folder, "saved_model"))
    kernel = model.weights[0]
    state = {
        "tensorflow": tf.__version__,
        "scale": float(loss_scale().numpy()),
        "good_steps": int(loss_scale._num_good_steps.numpy()),
        "kernel": kernel.numpy().tolist(),
        "momentum": optimizer._optimizer.get_slot(kernel, "momentum").numpy().tolist(),
    }
    with open(os.path.join(folder, "state.json"), "w") as file:
        json.dump(state, file)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])
