"""Runs a test's steps one after another, with state, in any of the modes of `modes`."""

import numpy as np
import tensorflow as tf

from tests import modes

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])

# For code without variables or conditionals, to which the two kinds of graph are the same.
STATELESS = ("graph_v2", "eager", "function", "jit")


def then(update, read):
    """`read()` after `update` has run; `update` is what the package returned in any mode."""
    with tf.control_dependencies([] if update is None else [update]):
        return read()


def run(name, make, step, inputs, finish=None, static_shapes=True):
    """Runs one step after another in one mode; returns a list of what they returned, as NumPy.

    `make` makes the state; `step` is a function of it and of one tensor for each array of an input.
    Inputs are tuples of arrays, of equal shapes and dtypes from step to step, which a graph knows
    if `static_shapes`. `finish`, a function of the state, is called at the end within the context;
    then the result has two parts, the second of which is what that returned.
    """
    inputs = [tuple(np.asarray(array) for array in row) for row in inputs]
    specs = [
        tf.TensorSpec(array.shape if static_shapes else None, array.dtype) for array in inputs[0]
    ]
    with modes.entered(name) as mode:
        state = make()
        call = mode.compile(lambda *tensors: step(state, *tensors), *specs)
        results = [call(*row) for row in inputs]
        if finish is None:
            return results
        return results, mode.value(finish(state))
