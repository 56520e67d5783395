"""Counts the frames of the package's own code in one eager step: `python -m benchmarks.frames`.

A step that is easy to follow goes through few functions. What TensorFlow and Keras call is not
counted. `--names` lists the functions, with how often each is called.
"""

import argparse
import collections
import os
import sys

import tensorflow as tf

import tf_lossscale_compat
from tf_lossscale_compat import contrib, train
from tf_lossscale_compat.keras import mixed_precision

FOLDER = os.path.dirname(tf_lossscale_compat.__file__)
WARM_UP = 4  # Steps in which functions are compiled and variables made.


def frames_of(step):
    """Returns a `collections.Counter` of (file, function) for one call of `step`."""
    for _ in range(WARM_UP):
        step()
    counts = collections.Counter()

    def count(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(FOLDER):
            counts[os.path.relpath(code.co_filename, FOLDER), code.co_name] += 1

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return counts


def steps():
    """Returns {name: function that takes one step} for each public optimizer."""
    weights = [tf.Variable(tf.ones([4, 4])) for _ in range(3)]
    pairs = [(tf.ones([4, 4]), weight) for weight in weights]

    def loss():
        return tf.add_n([tf.reduce_sum(weight) for weight in weights])

    def sgd():
        return tf.compat.v1.train.GradientDescentOptimizer(0.1)

    manager = contrib.mixed_precision.ExponentialUpdateLossScaleManager(2**15, 1000)
    of_contrib = contrib.mixed_precision.LossScaleOptimizer(sgd(), manager)
    of_v1 = train.experimental.MixedPrecisionLossScaleOptimizer(sgd(), "dynamic")
    of_keras = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    return {
        "contrib apply_gradients": lambda: of_contrib.apply_gradients(pairs),
        "contrib minimize": lambda: of_contrib.minimize(loss, var_list=weights),
        "v1 apply_gradients": lambda: of_v1.apply_gradients(pairs),
        "v1 minimize": lambda: of_v1.minimize(loss, var_list=weights),
        "Keras apply": lambda: of_keras.apply([grad for grad, _ in pairs], weights),
    }


def main(argv=None):
    """Prints a line for each optimizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", action="store_true", help="list the functions")
    arguments = parser.parse_args(argv)
    for name, step in steps().items():
        counts = frames_of(step)
        print(f"{sum(counts.values()):4d} {name}")
        for (file, function), number in sorted(counts.items() if arguments.names else ()):
            print(f"      {number:3d} {file} {function}")


if __name__ == "__main__":
    main()
