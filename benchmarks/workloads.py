"""The shapes of the gradients that are measured with."""

import numpy as np
import tensorflow as tf


def _resnet50():
    """ResNet-50's weights: 25.6 M parameters in 161 variables."""
    shapes = [(7, 7, 3, 64), (64,), (64,)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(1, 1, channels, width), (width,), (width,)]
            shapes += [(3, 3, width, width), (width,), (width,)]
            shapes += [(1, 1, width, 4 * width), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(1, 1, channels, 4 * width), (4 * width,), (4 * width,)]
            channels = 4 * width
    return shapes + [(2048, 1000), (1000,)]


def _bert_base():
    """BERT-base's weights: 110 M parameters."""
    size, hidden = 768, 3072
    shapes = [(30522, size), (512, size), (2, size), (size,), (size,)]
    for _ in range(12):
        shapes += [(size, size), (size,)] * 4 + [(size,), (size,)]
        shapes += [(size, hidden), (hidden,), (hidden, size), (size,), (size,), (size,)]
    return shapes + [(size, size), (size,)]


SHAPES = {
    "large": _resnet50(),
    "bert": _bert_base(),
    "small": [(8, 8)] * 161,
    "10": [(8, 8)] * 10,
    "100": [(8, 8)] * 100,
    "1000": [(8, 8)] * 1000,
}
EMBEDDING = (30522, 256)
ROWS = 512
NAMES = [*SHAPES, "sparse"]


def gradients(name):
    """Returns NumPy gradients and the shapes of their variables.

    A sparse one is a pair of values and indices.
    """
    random = np.random.RandomState(0)
    if name == "sparse":
        values = random.normal(size=(ROWS, EMBEDDING[1])).astype(np.float32)
        return [(values, random.randint(0, EMBEDDING[0], ROWS))], [EMBEDDING]
    shapes = SHAPES[name]
    return [random.normal(size=shape).astype(np.float32) for shape in shapes], shapes


def not_finite(gradient):
    """Returns a copy of a gradient of `gradients` whose last element is infinite."""
    if isinstance(gradient, tuple):
        return (not_finite(gradient[0]), *gradient[1:])
    copy = gradient.copy()
    copy.flat[-1] = np.inf
    return copy


def as_tensors(arrays, shapes):
    """The gradients as TensorFlow takes them."""
    return [
        tf.IndexedSlices(tf.constant(array[0]), tf.constant(array[1]), tf.constant(shape))
        if isinstance(array, tuple)
        else tf.constant(array)
        for array, shape in zip(arrays, shapes)
    ]
