"""Scaling losses, unscaling gradients, and the finite test: dense, sparse, None, any dtype."""

import collections
from typing import Any

from tf_lossscale_compat import _compiled, _tf

tf = _tf.tf

# Up to so many elements, joining tensors costs less than testing each by itself.
_SMALL = 2**14


def scale_loss(loss, scale):
    """Returns `loss` times `scale`, in the dtype of `loss`.

    Args:
      loss: float tensor, or what converts to one.
      scale: float32 scalar tensor.
    """
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(scale, loss.dtype)


def _values(grad):
    """The elements of a gradient that is not None, a tensor."""
    if isinstance(grad, tf.IndexedSlices):
        grad = grad.values
    return grad if isinstance(grad, tf.Tensor) else tf.convert_to_tensor(grad)


def _loose(grads):
    """Positions among gradients that are not None of those whose number of rows may vary."""
    return frozenset(i for i, grad in enumerate(grads) if isinstance(grad, tf.IndexedSlices))


@_compiled.in_eager_mode
def _multiply(tensors):
    """Multiplies all but the last with the last, a float32 scalar, each in its own dtype."""
    *tensors, factor = tensors
    factors = {}  # One cast for all tensors of a dtype.
    for tensor in tensors:
        if tensor.dtype not in factors:
            factors[tensor.dtype] = tf.cast(factor, tensor.dtype)
    return [tensor * factors[tensor.dtype] for tensor in tensors]


def unscale(grads, reciprocal):
    """Returns gradients times `reciprocal`, each in its own dtype.

    Args:
      grads: iterable of tensors, `tf.IndexedSlices` and None.
      reciprocal: float32 scalar tensor, one over the loss scale.

    Returns:
      A list as long; sparse stays sparse, None stays None.
    """
    grads = list(grads)
    found = [grad for grad in grads if grad is not None]
    products = iter(
        _multiply([_values(grad) for grad in found] + [reciprocal], loose=_loose(found))
    )
    unscaled = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            unscaled.append(tf.IndexedSlices(next(products), grad.indices, grad.dense_shape))
        else:
            unscaled.append(None if grad is None else next(products))
    return unscaled


def _joined(tensors):
    """The same elements in fewer tensors: small ones are joined where one operation can do it.

    What testing a tensor of a few elements costs is the dispatch of its operations.
    """
    groups: Any = collections.OrderedDict()
    for tensor in tensors:
        shape = tensor.shape
        key = object()  # Alone.
        if shape.is_fully_defined() and shape.num_elements() <= _SMALL:
            sizes = shape.as_list()
            # Kernels of dense and convolutional layers mostly share their number of outputs.
            axis = max(len(sizes) - 2, 0)
            key = (tensor.dtype, axis, tuple(sizes[:axis]), tuple(sizes[axis + 1 :]))
            if not sizes:
                key = (tensor.dtype,)
        groups.setdefault(key, []).append(tensor)
    for key, group in groups.items():
        if len(group) == 1:
            yield group[0]
        elif len(key) == 1:
            yield tf.stack(group)
        else:
            yield tf.concat(group, key[1])


def _real(tensors):
    """The same elements as numbers that the finite test takes."""
    for tensor in tensors:
        if tensor.dtype.is_complex:
            yield tf.math.real(tensor)
            yield tf.math.imag(tensor)
        elif tensor.dtype == tf.bfloat16:
            # Exact, and older versions have no bfloat16 kernel for the test.
            yield tf.cast(tensor, tf.float32)
        else:
            yield tensor


@_compiled.in_eager_mode
def _test(tensors):
    """Whether all elements of float and complex tensors, at least one tensor, are finite."""
    axes = {}  # One constant for all tensors of a rank.
    tests = []
    for part in _real(_joined(tensors)):
        rank = part.shape.rank
        if rank is not None and rank not in axes:
            axes[rank] = tf.constant(list(range(rank)), tf.int32)
        tests.append(tf.reduce_all(tf.math.is_finite(part), axes.get(rank)))
    return tests[0] if len(tests) == 1 else tf.reduce_all(tf.stack(tests))


def all_finite(grads):
    """Returns whether every element of `grads` is finite, as a bool scalar tensor.

    Args:
      grads: nested structure of tensors and `tf.IndexedSlices` of any dtype; None is ignored.
        An empty tensor is finite, as is a structure without tensors.
    """
    found, tensors = [], []
    for grad in tf.nest.flatten(grads):
        if grad is not None:
            values = _values(grad)
            if values.dtype.is_floating or values.dtype.is_complex:  # Integers are finite.
                found.append(grad)
                tensors.append(values)
    return _test(tensors, loose=_loose(found)) if tensors else tf.constant(True)
