"""Scaling losses, unscaling gradients, and the finite test: dense, sparse, None, any dtype."""

import collections
import functools
from typing import Any, List

from tf_lossscale_compat import _compiled, _tf

tf = _tf.tf
tf1 = _tf.tf1

# Up to so many elements, joining tensors costs less than testing each by itself.
_SMALL = 2**14
# From so many on, reading them once and writing nothing pays for a conditional.
_LARGE = 2**19


def scale_loss(loss, scale):
    """Returns `loss` times `scale`, in the dtype of `loss`.

    Args:
      loss: float tensor, or what converts to one.
      scale: float32 scalar tensor.
    """
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(scale, loss.dtype)


# Asked of every gradient of every step, where isinstance is slow for tensors.
_is_subclass: Any = functools.lru_cache(maxsize=None)(issubclass)


def _elements(grads):
    """Returns the elements of gradients, a list of tensors, and where those of sparse ones are.

    Nothing is in it for None.
    """
    tensors: List[Any] = []
    sparse: List[int] = []
    for grad in grads:
        cls = type(grad)
        if not _is_subclass(cls, tf.Tensor):
            if grad is None:
                continue
            if _is_subclass(cls, tf.IndexedSlices):
                sparse.append(len(tensors))
                grad = grad.values
            grad = tf.convert_to_tensor(grad)
        tensors.append(grad)
    return tensors, tuple(sparse)


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
    tensors, sparse = _elements(grads)
    products = _multiply(tensors + [reciprocal], loose=sparse)
    if len(tensors) == len(grads) and not sparse:
        return products
    products = iter(products)
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
        number = tensor.shape.num_elements()  # None where a size is not known.
        if number is not None and number <= _SMALL:
            sizes = tensor.shape.as_list()
            # Kernels of dense and convolutional layers mostly share their number of outputs.
            axis = max(len(sizes) - 2, 0) if sizes else None
            others = () if axis is None else (tuple(sizes[:axis]), tuple(sizes[axis + 1 :]))
            key: Any = (tensor.dtype, axis, others)
        else:
            key = (tensor.dtype, None, object())  # Alone.
        groups.setdefault(key, []).append(tensor)
    for (_, axis, _), group in groups.items():
        if len(group) == 1:
            yield group[0]
        else:
            yield tf.stack(group) if axis is None else tf.concat(group, axis)


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


def _all(flags):
    return flags[0] if len(flags) == 1 else tf.reduce_all(tf.stack(flags))


def _exactly(tensors):
    """Whether all elements are finite, from each of them."""
    axes = {}  # One constant for all tensors of a rank.
    flags = []
    for tensor in tensors:
        rank = tensor.shape.rank
        if rank is not None and rank not in axes:
            axes[rank] = tf.constant(list(range(rank)), tf.int32)
        flags.append(tf.reduce_all(tf.math.is_finite(tensor), axes.get(rank)))
    return _all(flags)


def _quickly(tensors):
    """Whether the sums of the elements' squares are finite, and so every element is.

    If not, elements may still be: their squares, or the sum, may be too large for the dtype.
    """
    sums: Any = collections.OrderedDict()
    for tensor in tensors:
        sums.setdefault(tensor.dtype, []).append(tf.nn.l2_loss(tensor))
    return _all([tf.math.is_finite(tf.add_n(of_dtype)) for of_dtype in sums.values()])


@_compiled.in_eager_mode
def _test(tensors):
    """Whether all elements of tensors, of which there is at least one, are finite."""
    # Others, such as integers, are.
    tensors = [tensor for tensor in tensors if tensor.dtype.is_floating or tensor.dtype.is_complex]
    if tensors and _tf.compiled_by_xla():
        # It joins operations itself, and has no faster one than this. On GPUs it would wait for a
        # conditional.
        return _exactly(_real(tensors))
    others: List[Any] = []
    large: List[Any] = []
    for tensor in tensors:
        is_large = (tensor.shape.num_elements() or 0) >= _LARGE
        (large if is_large else others).append(tensor)
    flags = []
    if others:
        flags.append(_exactly(_real(_joined(others))))
    if large:
        parts = list(_real(large))
        # Under a name of its own: variables in checkpoints are named by how many `cond` there are.
        flags.append(
            tf1.cond(
                _quickly(parts),
                lambda: tf.constant(True),
                lambda: _exactly(parts),
                name="large_gradients_are_finite",
            )
        )
    return _all(flags) if flags else tf.constant(True)


def all_finite(grads):
    """Returns whether every element of `grads` is finite, as a bool scalar tensor.

    Args:
      grads: nested structure of tensors and `tf.IndexedSlices` of any dtype; None is ignored.
        An empty tensor is finite, as is a structure without tensors.
    """
    tensors, sparse = _elements(tf.nest.flatten(grads))
    return _test(tensors, loose=sparse) if tensors else tf.constant(True)
