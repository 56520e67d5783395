"""Writes what Keras' own loss-scale optimizers save, after training that moved the scale.

    python tests/data/write_keras_files.py OUTDIR

Under TensorFlow 2.16 or later with tf-keras it leaves `OUTDIR/keras3` and `OUTDIR/tf_keras`: a
checkpoint of TensorFlow, and `state.json` with what was saved.
"""

import importlib
import json
import os
import sys

import numpy as np
import tensorflow as tf

INITIAL_SCALE = 256.0
GROWTH_STEPS = 4
STEPS = 6  # One growth, and two steps towards the next.


def train(keras):
    """Trains a small model under the loss-scale optimizer of this Keras; returns the model."""
    try:
        wrapper = keras.optimizers.LossScaleOptimizer
    except AttributeError:
        wrapper = keras.mixed_precision.LossScaleOptimizer
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, input_shape=(1,))])
    optimizer = wrapper(
        keras.optimizers.SGD(0.125),
        initial_scale=INITIAL_SCALE,
        dynamic_growth_steps=GROWTH_STEPS,
    )
    model.compile(optimizer, "mse")
    data = np.ones([STEPS, 1], np.float32)
    model.fit(data, data, batch_size=1, epochs=1, verbose=0)
    return model


def state_of(optimizer):
    """Returns {"scale": float, "steps": int} of an optimizer of either Keras."""
    if hasattr(optimizer, "step_counter"):
        scale, steps = optimizer.dynamic_scale, optimizer.step_counter
    else:
        scale, steps = optimizer.loss_scale, optimizer.dynamic_counter
    return {"scale": float(np.asarray(scale)), "steps": int(np.asarray(steps))}


def write(keras, folder):
    """Trains and saves."""
    os.makedirs(folder)
    model = train(keras)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.save(os.path.join(folder, "saved"))
    with open(os.path.join(folder, "state.json"), "w") as file:
        json.dump(dict(state_of(model.optimizer), keras=keras.__version__), file)
        file.write("\n")


def main(outdir):
    for name, folder in (("keras", "keras3"), ("tf_keras", "tf_keras")):
        write(importlib.import_module(name), os.path.join(outdir, folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
