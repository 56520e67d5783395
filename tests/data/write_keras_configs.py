"""Adds to keras_configs.json what Keras' own loss-scale optimizers of this TensorFlow give.

python tests/data/write_keras_configs.py, under each TensorFlow, with tf_keras from 2.16 on; or
with `keras3` after it, under each Keras 3.
"""

import importlib
import importlib.util
import json
import pathlib
import sys

import tensorflow as tf

FILE = pathlib.Path(__file__).resolve().parent / "keras_configs.json"
VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])


def configs():
    """Yields (name, config)."""
    keras = importlib.import_module("tf_keras") if VERSION >= (2, 16) else tf.keras
    kinds = {"v2": getattr(keras.optimizers, "legacy", keras.optimizers)}
    if VERSION >= (2, 11):
        kinds["current"] = keras.optimizers
    for kind, optimizers in kinds.items():
        for dynamic in (True, False):
            inner = optimizers.SGD(0.5, momentum=0.25)
            if VERSION >= (2, 4):
                scale = (True, 16.0, 3) if dynamic else (False, 16.0, None)
                opt = keras.mixed_precision.LossScaleOptimizer(inner, *scale)
            else:
                home = getattr(tf.compat.v1, "mixed_precision", None) or tf.compat.v1.train
                scale = home.experimental.DynamicLossScale(16.0, 3) if dynamic else 16.0
                opt = keras.mixed_precision.experimental.LossScaleOptimizer(inner, scale)
            yield f"{tf.__version__} {kind} {'dynamic' if dynamic else 'fixed'}", opt.get_config()


def configs_of_keras3():
    """Yields (name, config)."""
    keras = importlib.import_module("keras")
    inner = keras.optimizers.SGD(0.5, momentum=0.25)
    opt = keras.optimizers.LossScaleOptimizer(inner, initial_scale=16.0, dynamic_growth_steps=3)
    yield f"{keras.__version__} keras3 dynamic", opt.get_config()


def main():
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    found.update(configs_of_keras3() if sys.argv[1:] == ["keras3"] else configs())
    text = json.dumps(found, indent=1, sort_keys=True, default=float)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
