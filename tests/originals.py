"""Finds the classes that this package stands in for, and runs things in other processes.

Shared by the tests that hold the package against TensorFlow's own classes.
"""

import json
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


_CALL = """
import importlib, json, sys
import tensorflow as tf
getattr(tf.compat.v1, sys.argv[1])()
function = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
result = function(*json.loads(sys.argv[4]))
with open(sys.argv[5], "w") as stream:
    json.dump(result, stream)
"""


def call_in_child(switch, module, function, arguments, directory):
    """Calls `module.function(*arguments)` in a process in which `tf.compat.v1.switch()` came first.

    Eager mode on TensorFlow 1.15 and `disable_v2_behavior()` on any version can only be chosen
    before anything else is done, hence a process of its own.

    Args:
      switch: name of the function of `tf.compat.v1` to call first.
      module: name of the module, such as `tests.checkpoint.checkpoint_generations_test`.
      function: name of a function in it, which takes and returns what JSON can hold.
      arguments: list of its arguments.
      directory: where the result may be left.

    Returns:
      What the function returned.

    Raises:
      RuntimeError: the process failed; the message ends with what it wrote.
    """
    path = os.path.join(directory, "{}_{}.json".format(function, switch))
    status, out, err = fork(["-c", _CALL, switch, module, function, json.dumps(arguments), path])
    if status:
        raise RuntimeError("exit status {}\n{}\n{}".format(status, out, err[-4000:]))
    with open(path) as stream:
        return json.load(stream)


def call_eagerly(module, function, arguments, directory):
    """Calls `module.function(*arguments)` in eager mode: right here, or on 1.15 in a child."""
    if tf.executing_eagerly():
        __import__(module)
        return getattr(sys.modules[module], function)(*arguments)
    return call_in_child("enable_eager_execution", module, function, arguments, directory)
