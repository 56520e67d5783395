"""Writes what Keras' own loss-scale optimizers give and save.

    python -m tests.data.write_keras configs              # Under each TensorFlow and Keras 3.
    python -m tests.data.write_keras files OUTDIR         # Under TensorFlow 2.4 and 2.16 or later.
    python -m tests.data.write_keras experimental OUTDIR  # Under TensorFlow 2.2 or 2.3.

The first adds to keras_configs.json. The second leaves a checkpoint, `keras2` or `keras3`. The
third leaves weights and optimizer of a model, `weights`, a SavedModel, `saved_model`, and
`state.json` with the values in both; later TensorFlows have another class, whose files have another
layout.
"""

import json
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf

from tests import keras_homes

CONFIGS = pathlib.Path(__file__).resolve().parent / "keras_configs.json"
VERSION = keras_homes.VERSION


def configs():
    found = json.loads(CONFIGS.read_text(encoding="utf-8")) if CONFIGS.exists() else {}
    for home in keras_homes.available():
        if home.kind == "current" and VERSION < (2, 11):
            continue
        keras3 = home.kind == "keras3"
        version = home.keras.__version__ if keras3 else tf.__version__
        kinds = {"dynamic": 3} if keras3 else {"dynamic": 3, "fixed": None}
        for name, growth_steps in kinds.items():
            opt = home.wrapped_in_own(home.SGD(0.5, momentum=0.25), 16.0, growth_steps)
            found[f"{version} {home.kind} {name}"] = opt.get_config()
    text = json.dumps(found, indent=1, sort_keys=True, default=float)
    CONFIGS.write_text(text + "\n", encoding="utf-8")


def files(folder):
    home = keras_homes.available()[0]

    class Model(home.keras.Model):
        def __init__(self):
            super().__init__()
            self.fc1 = home.keras.layers.Dense(2)

        def call(self, inputs):
            return self.fc1(inputs)

    model = Model()
    model.compile(home.wrapped_in_own(home.Adam(0.125), 256.0, 4), "mse")
    data = np.ones([6, 1], np.float32)  # One growth, and two steps towards the next.
    model.fit(data, data, batch_size=1, verbose=0)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    name = "keras3" if home.kind == "keras3" else "keras2"
    checkpoint.save(os.path.join(folder, name, "saved"))


def experimental(folder):
    if not (2, 2) <= VERSION < (2, 4):
        raise SystemExit(f"TensorFlow {tf.__version__} is neither 2.2 nor 2.3.")
    (home,) = keras_homes.available()
    optimizer = home.wrapped_in_own(home.SGD(0.125, momentum=0.5), 256.0, 4)
    model = home.keras.Sequential([home.keras.layers.Dense(2, kernel_initializer="ones")])
    model.compile(optimizer, "mse")
    # A step that overflows halves the loss scale; the other moves the weights.
    model.fit(np.full([1, 2], np.inf), np.ones([1, 2]), verbose=0)
    model.fit(np.ones([1, 2]), np.ones([1, 2]), verbose=0)
    model.save_weights(os.path.join(folder, "weights"))
    model.save(os.path.join(folder, "saved_model"))
    kernel = model.weights[0]
    state = {
        "tensorflow": tf.__version__,
        "scale": float(optimizer.loss_scale().numpy()),
        "good_steps": int(optimizer.loss_scale._num_good_steps.numpy()),
        "kernel": kernel.numpy().tolist(),
        "momentum": optimizer._optimizer.get_slot(kernel, "momentum").numpy().tolist(),
    }
    with open(os.path.join(folder, "state.json"), "w") as file:
        json.dump(state, file)
        file.write("\n")


if __name__ == "__main__":
    {"configs": configs, "files": files, "experimental": experimental}[sys.argv[1]](*sys.argv[2:])
