"""The finite test of gradients of any dtype, dense and sparse, here and on all replicas."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Iterable, Iterator

from tf_lossscale_compat._core import (
    _compiled,
    _graphs,
    _replicas,
    _structure,
    _tf,
    _unscaling,
)
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# For tensors of up to this many elements, joining them costs less than testing each by itself.
_SMALL = 2**14
# For at least this many elements, a test that writes no tensor costs less despite its conditional.
_LARGE = 2**19


def _concat_small(tensors: Iterable[tf.Tensor]) -> Iterator[tf.Tensor]:
    """Yields the same elements in fewer tensors: concatenates small tensors if shapes allow.

    The cost of testing a tensor of a few elements is the dispatch of its operations.
    """
    groups: dict[tuple[tf.DType, int | None, object], list[tf.Tensor]] = collections.OrderedDict()
    for tensor in tensors:
        number = tensor.shape.num_elements()  # None if a size is not known.
        if number is not None and number <= _SMALL:
            sizes = tensor.shape.as_list()
            # Kernels of dense and convolutional layers mostly share their number of outputs.
            axis = max(len(sizes) - 2, 0) if sizes else None
            others = () if axis is None else (tuple(sizes[:axis]), tuple(sizes[axis + 1 :]))
            key: tuple[tf.DType, int | None, object] = (tensor.dtype, axis, others)
        else:
            key = (tensor.dtype, None, object())  # Not joined with others.
        groups.setdefault(key, []).append(tensor)
    for (_, axis, _), group in groups.items():
        if len(group) == 1:
            yield group[0]
        else:
            yield tf.stack(group) if axis is None else tf.concat(group, axis)


def _testable(tensors: Iterable[tf.Tensor]) -> Iterator[tf.Tensor]:
    """Yields the same elements in dtypes that the finite test takes."""
    for tensor in tensors:
        if tensor.dtype.is_complex:
            yield tf.math.real(tensor)
            yield tf.math.imag(tensor)
        elif tensor.dtype == tf.bfloat16 or tensor.dtype.name.startswith("float8"):
            # The cast is exact. TensorFlow, or its earlier versions, cannot test these dtypes.
            yield tf.cast(tensor, tf.float32)
        else:
            yield tensor


def may_be_nonfinite(dtype: tf.DType) -> bool:
    # Integers are always finite.
    return dtype.is_floating or dtype.is_complex or dtype.name.startswith("float8")


def _all(flags: list[tf.Tensor]) -> tf.Tensor:
    return flags[0] if len(flags) == 1 else tf.reduce_all(tf.stack(flags))


def _finite_elementwise(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Returns whether all elements are finite, by testing each."""
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


def _row_sums(values: tf.Tensor, indices: tf.Tensor, by_xla: bool) -> tf.Tensor:
    """Returns the sums of a sparse gradient's rows with the same index."""
    if not by_xla:
        rows, segments = tf.unique(indices)
        return tf.math.unsorted_segment_sum(values, segments, tf.size(rows))
    # XLA needs a fixed number of sums: one for each index, and zero for those that are not needed.
    indices = tf.cast(indices, tf.int32)  # XLA of TensorFlow 2.4 sorts only int32.
    order = tf.argsort(indices, stable=True)
    indices = tf.gather(indices, order)
    begins = tf.cast(tf.not_equal(indices[1:], indices[:-1]), tf.int32)
    segments = tf.cumsum(tf.concat([[0], begins], 0)[: tf.size(order)])
    return tf.math.unsorted_segment_sum(tf.gather(values, order), segments, tf.size(order))


def _finite_by_sum_of_squares(
    dense: list[tf.Tensor], sparse_rows: list[tuple[tf.Tensor, tf.Tensor]]
) -> tf.Tensor:
    """Returns whether sums of squares are finite; if so, every element and sum of rows is finite.

    If not, the elements may still be finite: a square, or the sum of squares, may be too large for
    the dtype. A sum of n numbers is at most `sqrt(n * sum of squares)`. If the
    sum of squares is finite, that is far below the largest float32 or float64, but not float16.
    """
    sums: dict[tf.DType, list[tf.Tensor]] = collections.OrderedDict()
    for tensor in dense + [values for values, _ in sparse_rows if values.dtype != tf.float16]:
        sums.setdefault(tensor.dtype, []).append(tf.raw_ops.L2Loss(t=tensor))
    flags = [tf.math.is_finite(tf.add_n(sums_of_dtype)) for sums_of_dtype in sums.values()]
    for values, _ in sparse_rows:
        if values.dtype == tf.float16:
            # Half of the largest number leaves room for the rounding of another order of addition.
            magnitude = tf.reduce_sum(tf.abs(tf.cast(values, tf.float32)))
            flags.append(magnitude <= float(tf.float16.max) / 2)
    return _all(flags)


def _sort_by_test(
    tensors: list[tf.Tensor], sparse_positions: tuple[int, ...]
) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tuple[tf.Tensor, tf.Tensor]]]:
    """Sorts tensors by how they are tested.

    Args:
      tensors: list of tensors; the indices of sparse gradients come last.
      sparse_positions: tuple of the positions of sparse gradients' values in `tensors`.

    Returns:
      A triple of lists: small tensors, tested element by element; large tensors, tested by their
      sum of squares first; and (values, indices) of sparse gradients.

    Raises:
      TypeError: a tensor does not hold numbers.
    """
    num_gradients = len(tensors) - len(sparse_positions)
    indices = dict(zip(sparse_positions, tensors[num_gradients:]))
    tests_by_squares = not (_graphs.compiled_by_xla() or _compiled.has_op_callbacks())
    small: list[tf.Tensor] = []
    large: list[tf.Tensor] = []
    sparse_rows: list[tuple[tf.Tensor, tf.Tensor]] = []
    for i, tensor in enumerate(tensors[:num_gradients]):
        if not may_be_nonfinite(_structure.number_dtype(tensor)):
            continue
        if i in indices:
            sparse_rows.extend((values, indices[i]) for values in _testable([tensor]))
        elif tests_by_squares and (tensor.shape.num_elements() or 0) >= _LARGE:
            large.extend(_testable([tensor]))
        else:
            small.append(tensor)
    return small, large, sparse_rows


def _large_are_finite(
    large: list[tf.Tensor], sparse_rows: list[tuple[tf.Tensor, tf.Tensor]]
) -> tf.Tensor:
    """Returns whether large tensors and the sums of sparse gradients' rows are finite."""
    by_xla = _graphs.compiled_by_xla()

    def elementwise() -> tf.Tensor:
        sums = [_row_sums(values, indices, by_xla) for values, indices in sparse_rows]
        return _finite_elementwise(large + sums)

    if _compiled.has_op_callbacks():
        return elementwise()
    sums_are_finite = _finite_by_sum_of_squares(large, sparse_rows)
    # Has its own name: names of variables in checkpoints depend on how many `cond` there are.
    name = "large_gradients_are_finite"
    return tf1.cond(sums_are_finite, lambda: tf.constant(True), elementwise, name=name)


@_compiled.compiled_in_eager_mode
def _test(tensors: list[tf.Tensor], sparse_positions: tuple[int, ...]) -> tf.Tensor:
    """Returns whether all elements of gradients, and sums of sparse gradients' rows, are finite."""
    small, large, sparse_rows = _sort_by_test(tensors, sparse_positions)
    by_xla = _graphs.compiled_by_xla()
    flags = []
    if small:
        # XLA joins operations itself, and has no faster test than that of each element.
        flags.append(_finite_elementwise(_testable(small if by_xla else _concat_small(small))))
    if large or sparse_rows:
        flags.append(_large_are_finite(large, sparse_rows))
    if not flags:
        return tf.constant(True)
    finite = _all(flags)
    if by_xla and len(flags) + len(small) > 1:
        # XLA recomputes cheap operations, such as the AND of all flags, wherever they are used:
        # here in each variable's update. It computes a square root only once.
        finite = tf.sqrt(tf.cast(finite, tf.float32)) > 0
    return finite


def finite_here(grads: Any) -> tf.Tensor:
    """Returns whether every element of `grads` is finite, as a bool scalar tensor.

    Args:
      grads: nested structure of tensors, `tf.IndexedSlices` and `tf.RaggedTensor` of any dtype;
        None is ignored. Empty tensors, and structures without tensors, are finite. For
        `tf.IndexedSlices` the sum of the rows with the same index has to be finite.

    Raises:
      TypeError: `grads` holds strings, or other tensors that do not hold numbers.
    """
    grads = tf.nest.flatten(grads)
    tensors, sparse_positions = _structure.flatten(grads)
    tensors, varying_positions = _structure.append_indices(grads, tensors, sparse_positions)
    return _test(tensors, sparse_positions, varying_first_dim=varying_positions)


def finite_everywhere(grads: Any) -> tf.Tensor:
    """Returns whether `grads` are finite on every replica and worker, a bool scalar tensor.

    In a cross-replica context the nested structure may have per-replica, mirrored or plain values.
    """
    return _replicas.true_everywhere(finite_here, (grads,))


def nonfinite_each(grads: _types.Gradients) -> tf.Tensor:
    """Returns 1.0 for each of `grads` that is not finite and 0.0 for others, a float32 vector."""
    tested = []
    for grad in grads:
        values = list(_tested_values(grad)) or [tf.zeros([])]
        tested.append(tf.stack(values) if len(values) > 1 else values[0])

    def test(*tensors: tf.Tensor) -> tf.Tensor:
        finite = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]
        return 1.0 - tf.cast(tf.stack(finite), tf.float32)

    # One operation, because each operation costs time, even in a branch that is not taken.
    return _tf.call_as_one_operation(test, tested)


def _tested_values(grad: _types.Gradient) -> Iterator[tf.Tensor]:
    """Yields a gradient's elements as tensors for the finite test, or the sums of its rows."""
    if grad is None:
        return
    (tensor,), sparse_positions = _structure.flatten([grad])
    if not may_be_nonfinite(tensor.dtype):
        return
    for values in _testable([tensor]):
        if sparse_positions:
            indices = tf.convert_to_tensor(grad.indices)
            values = _row_sums(values, indices, _graphs.compiled_by_xla())
        yield values


@_compiled.compiled_in_eager_mode
def _unscale_and_test(
    tensors: list[tf.Tensor], sparse_positions: tuple[int, ...], function: _compiled.Compiled
) -> list[tf.Tensor]:
    """Returns the results of a division's function, followed by the flag of `_test`.

    The last of `tensors` is the operand of the division; the others are those of `_test`.
    """
    *tensors, operand = tensors
    num_gradients = len(tensors) - len(sparse_positions)
    unscaled = function.__wrapped__([*tensors[:num_gradients], operand])
    return [*unscaled, _test.__wrapped__(unscaled + tensors[num_gradients:], sparse_positions)]


def unscale_and_test(
    grads: Iterable[_types.Gradient], division: _unscaling.Division
) -> tuple[_types.Gradients, tf.Tensor]:
    """Returns unscaled gradients and the finite flag, in eager mode by one compiled operation."""
    grads = list(grads)
    tensors, sparse_positions = _structure.flatten(grads)
    tensors, varying_positions = _structure.append_indices(grads, tensors, sparse_positions)
    *unscaled, finite = _unscale_and_test(
        [*tensors, division.operand],
        sparse_positions,
        division.function,
        varying_first_dim=varying_positions,
    )
    return _structure.unflatten(grads, unscaled), finite
