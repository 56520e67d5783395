"""Finds the classes that this package stands in for, where the installed TensorFlow has them."""

import os

import tensorflow as tf

tf1 = tf.compat.v1

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERSION = tf.__version__
IS_TF1 = VERSION.startswith("1.")


def contrib():
    """TensorFlow's `tf.contrib.mixed_precision`, or None where contrib is gone (2.0 and later)."""
    if not IS_TF1:
        return None
    return tf.contrib.mixed_precision


def experimental():
    """The namespace with TensorFlow's own loss scales and v1 loss-scale optimizer, or None."""
    for home in (getattr(tf1.train, "experimental", None), getattr(tf1, "mixed_precision", None)):
        if hasattr(home, "MixedPrecisionLossScaleOptimizer"):
            return home
    return None
