"""Finds the classes that this package stands in for, and runs things in other processes.

Shared by the tests that hold the package against TensorFlow's own classes.
"""

import os
import sys

import tensorflow as tf

from tests import forks

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


def is_original(cls):
    """Returns if `cls` is TensorFlow's own class, not this package's under TensorFlow's name."""
    return cls.__module__.split(".")[0] in ("tensorflow", "tensorflow_core")


# Far above what any takes.
SECONDS = 280


def _surroundings(environment):
    variables = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    # The clone comes last: where the package is installed, it is the installed one that is tested.
    variables["PYTHONPATH"] = os.pathsep.join([path for path in sys.path if path] + [ROOT])
    variables.update(environment)
    return variables, os.path.join(ROOT, "tests")  # Not ROOT: Python puts this folder first.


def child(arguments, **environment):
    """Runs Python on `arguments`, with the same package to be imported as here.

    Returns:
      (exit status, standard output, standard error), the latter two as text.
    """
    return forks.alone(arguments, *_surroundings(environment), SECONDS)


def fork(arguments, **environment):
    """As `child`, but TensorFlow has been imported when it begins."""
    return forks.run(arguments, *_surroundings(environment), SECONDS)
