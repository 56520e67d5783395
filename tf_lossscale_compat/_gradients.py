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
            elif _is_subclass(cls, tf.RaggedTensor):
                grad = grad.flat_values
            try:
                grad = tf.convert_to_tensor(grad)
            except (TypeError, ValueError):
                raise TypeError(f"Gradients must be numbers, got {grad!r}.") from None
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
    # Raw operations here and below, one for each gradient: public ones take longer to trace.
    return [tf.raw_ops.Mul(x=tensor, y=factors[tensor.dtype]) for tensor in tensors]


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
    return _like(grads, _multiply(tensors + [reciprocal], loose=sparse))


def _like(grads, products):
    """Gradients of these elements: None where one of `grads` is None, sparse where it is sparse."""
    if all(isinstance(grad, tf.Tensor) for grad in grads):
        return products
    products = iter(products)
    unscaled = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            unscaled.append(tf.IndexedSlices(next(products), grad.indices, grad.dense_shape))
        elif isinstance(grad, tf.RaggedTensor):
            unscaled.append(grad.with_flat_values(next(products)))
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
        elif tensor.dtype == tf.bfloat16 or tensor.dtype.name.startswith("float8"):
            # Exact, and there are no kernels of the test for these, or not in older versions.
            yield tf.cast(tensor, tf.float32)
        else:
            yield tensor


def may_be_nonfinite(dtype):
    # Integers are always finite.
    return dtype.is_floating or dtype.is_complex or dtype.name.startswith("float8")


def numbers(grad):
    """Yields tensors of all elements of one gradient that may be other than finite.

    Of a sparse gradient, what its rows with the same index add up to.
    """
    if grad is None:
        return
    (tensor,), sparse = _elements([grad])
    if not may_be_nonfinite(tensor.dtype):
        return
    for values in _real([tensor]):
        if sparse:
            values = _row_sums(values, tf.convert_to_tensor(grad.indices), _tf.compiled_by_xla())
        yield values


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
        finite = tf.raw_ops.IsFinite(x=tensor)
        if rank is None:
            flags.append(tf.reduce_all(finite))
        else:
            flags.append(tf.raw_ops.All(input=finite, axis=axes[rank]))
    return _all(flags)


def _row_sums(values, indices, by_xla):
    """What the rows of a sparse gradient add up to where indices repeat."""
    if not by_xla:
        rows, segments = tf.unique(indices)
        return tf.math.unsorted_segment_sum(values, segments, tf.size(rows))
    # XLA has to know how many sums there are: as many as indices, those not needed zero.
    indices = tf.cast(indices, tf.int32)  # XLA of TensorFlow 2.4 sorts no others.
    order = tf.argsort(indices, stable=True)
    indices = tf.gather(indices, order)
    begins = tf.cast(tf.not_equal(indices[1:], indices[:-1]), tf.int32)
    segments = tf.cumsum(tf.concat([[0], begins], 0)[: tf.size(order)])
    return tf.math.unsorted_segment_sum(tf.gather(values, order), segments, tf.size(order))


def _quickly(dense, sparse):
    """Whether sums of the elements' squares are finite, and so is every element and sum of rows.

    If not, they may still be: a square, or the sum of squares, may be too large for the dtype. A
    sum of n numbers is at most the square root of n times the sum of squares: far from the largest
    float32 or float64 where the latter is finite, but not from the largest float16.
    """
    sums: Any = collections.OrderedDict()
    for tensor in dense + [values for values, _ in sparse if values.dtype != tf.float16]:
        sums.setdefault(tensor.dtype, []).append(tf.raw_ops.L2Loss(t=tensor))
    flags = [tf.math.is_finite(tf.add_n(of_dtype)) for of_dtype in sums.values()]
    for values, _ in sparse:
        if values.dtype == tf.float16:
            # Half of the largest number leaves room for what adding in another order rounds to.
            magnitude = tf.reduce_sum(tf.abs(tf.cast(values, tf.float32)))
            flags.append(magnitude <= float(tf.float16.max) / 2)
    return _all(flags)


@_compiled.in_eager_mode
def _test(tensors, sparse):
    """Whether all elements of gradients are finite, and what sparse ones add up to in each row.

    Args:
      tensors: list of at least one tensor, the indices of sparse gradients last.
      sparse: tuple of the positions in it of sparse gradients' values.
    """
    count = len(tensors) - len(sparse)
    indices = dict(zip(sparse, tensors[count:]))
    others: List[Any] = []
    large: List[Any] = []
    rows: List[Any] = []
    by_xla, watched = _tf.compiled_by_xla(), _tf.operations_are_watched()
    for i, tensor in enumerate(tensors[:count]):
        dtype = tensor.dtype
        if dtype in (tf.string, tf.resource, tf.variant):
            raise TypeError(f"Gradients must be numbers, got a tensor of dtype {dtype.name}.")
        if not may_be_nonfinite(dtype):
            continue
        if i in indices:
            rows.extend((values, indices[i]) for values in _real([tensor]))
        elif (tensor.shape.num_elements() or 0) >= _LARGE and not (by_xla or watched):
            large.extend(_real([tensor]))
        else:
            others.append(tensor)
    flags = []
    if others:
        # XLA joins operations itself, and has no faster one than the test of each element.
        flags.append(_exactly(_real(others if by_xla else _joined(others))))
    if large or rows:

        def exactly():
            return _exactly(large + [_row_sums(values, at, by_xla) for values, at in rows])

        # Under a name of its own: variables in checkpoints are named by how many `cond` there are.
        flags.append(
            exactly()
            if watched
            else tf1.cond(
                _quickly(large, rows),
                lambda: tf.constant(True),
                exactly,
                name="large_gradients_are_finite",
            )
        )
    if not flags:
        return tf.constant(True)
    finite = _all(flags)
    if by_xla and len(flags) + len(others) > 1:
        # XLA computes again what is cheap wherever it is used, here the AND of a flag for each
        # gradient in each variable's update, but what is expensive only once.
        finite = tf.sqrt(tf.cast(finite, tf.float32)) > 0
    return finite


def all_finite(grads):
    """Returns whether every element of `grads` is finite, as a bool scalar tensor.

    Args:
      grads: nested structure of tensors, `tf.IndexedSlices` and `tf.RaggedTensor` of any dtype;
        None is ignored. An empty tensor is finite, as is a structure without tensors. Of
        `tf.IndexedSlices` it is the sum of the rows with the same index that has to be finite.

    Raises:
      TypeError: there are strings among them, or other tensors that hold no numbers.
    """
    grads = tf.nest.flatten(grads)
    tensors, sparse = _elements(grads)
    if not tensors:
        return tf.constant(True)
    tensors, loose = _with_indices(grads, tensors, sparse)
    return _test(tensors, sparse, loose=loose)


def _with_indices(grads, tensors, sparse):
    """The tensors, after them the indices of sparse gradients, and where shapes vary."""
    indices = [
        tf.convert_to_tensor(grad.indices) for grad in grads if isinstance(grad, tf.IndexedSlices)
    ]
    loose = sparse + tuple(range(len(tensors), len(tensors) + len(indices)))
    return tensors + indices, loose


@_compiled.in_eager_mode
def _multiply_and_test(tensors, sparse):
    """What `_multiply` and, of its products, `_test` return, in one list.

    Args:
      tensors: as those of `_test`, and after them the factor.
      sparse: see there.
    """
    *tensors, factor = tensors
    count = len(tensors) - len(sparse)
    products = _multiply.__wrapped__([*tensors[:count], factor])
    return [*products, _test.__wrapped__(products + tensors[count:], sparse)]


def unscale_and_test(grads, reciprocal):
    """Returns what `unscale` and, of its result, `all_finite` return.

    In eager mode that is one compiled operation in place of two.
    """
    grads = list(grads)
    tensors, sparse = _elements(grads)
    if not tensors:
        return grads, tf.constant(True)
    tensors, loose = _with_indices(grads, tensors, sparse)
    *products, finite = _multiply_and_test([*tensors, reciprocal], sparse, loose=loose)
    return _like(grads, products), finite
