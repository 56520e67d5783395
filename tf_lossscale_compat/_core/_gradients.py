"""Gradients of any dtype: as flat lists of tensors, divided by the loss scale, and tested.

They may be dense, sparse, ragged or None. Division and test are compiled in eager mode, which then
dispatches one operation, not many.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Hashable, Iterable, Iterator, NamedTuple, Sequence

from tf_lossscale_compat._core import _graphs, _replicas, _tf
from tf_lossscale_compat._core._tf import tf, tf1

try:
    from tensorflow.python.eager import context as _context
except ImportError:
    _context = None

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# Compiled functions.

# The number of signatures for which a function stays compiled. Models have a few signatures; a
# program whose signatures never repeat must not pile up graphs.
CAPACITY = 32


def signature_of(tensors: Sequence[tf.Tensor]) -> list[tuple[int, tuple[int | None, ...]]]:
    """Returns the dtypes (as numbers) and shapes of eager tensors, a list of hashable pairs."""
    try:
        # Takes a tenth of the time of the public properties, for each gradient of each step.
        return [(tensor._datatype_enum(), tensor._shape_tuple()) for tensor in tensors]
    except AttributeError:
        return [
            (tensor.dtype.as_datatype_enum, tuple(tensor.shape.as_list())) for tensor in tensors
        ]


def call_flat(function: Any, tensors: Sequence[tf.Tensor]) -> Any:
    """Calls a concrete function with one list of tensors.

    The public call sorts arguments by name first. For hundreds of arguments that takes longer than
    the function itself. Before TensorFlow 2.3 it does not accept positional arguments.
    """
    call = getattr(function, "_call_flat", None)
    if call is None:
        return function(list(tensors))
    return call(list(tensors), function.captured_inputs)


def has_op_callbacks() -> bool:
    """Returns whether a callback sees each operation's result, as with `enable_check_numerics`.

    TensorFlow has no public API for this. TensorFlow before 2.1 has no callbacks.
    """
    return _context is not None and bool(getattr(_context.context(), "op_callbacks", ()))


class Compiled:
    """Runs a function of a list of tensors, and compiles it in eager mode once per signature.

    The function returns a list of tensors or a tensor, and depends on nothing else but constants. A
    signature is the dtypes and shapes of the tensors, the constants, and whether a callback sees
    operations. It is compiled when it occurs for the second time, because tracing costs more than
    running each operation once. The least recently used signatures are dropped.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        # For each signature a list, empty when it is new, then of the compiled function or None.
        self._kept: Any = functools.lru_cache(maxsize=CAPACITY)(lambda signature: [])

    def __call__(
        self,
        tensors: list[tf.Tensor],
        *constants: Hashable,
        varying_first_dim: Iterable[int] = (),
    ) -> Any:
        """Runs the function, whose other arguments are the constants.

        `varying_first_dim` has the positions of tensors whose first dimension is not part of the
        signature, because it varies.
        """
        if not (tf.executing_eagerly() and _tf.compiled_gives_same_bits()):
            return self._function(tensors, *constants)
        signature = signature_of(tensors)
        for i in varying_first_dim:
            dtype, sizes = signature[i]
            signature[i] = (dtype, (None,) + sizes[1:])
        kept = self._kept((tuple(signature), constants, has_op_callbacks()))
        if not kept:
            kept.append(None)
            return self._function(tensors, *constants)
        if kept[0] is None:
            kept[0] = self._compile(signature, constants)
        return call_flat(kept[0], tensors)

    def _compile(self, signature: list[Any], constants: tuple[Hashable, ...]) -> Any:
        specs = [tf.TensorSpec(sizes, tf.dtypes.as_dtype(dtype)) for dtype, sizes in signature]
        function = tf.function(
            lambda tensors: self._function(tensors, *constants),
            input_signature=[specs],
            autograph=False,
        )
        return function.get_concrete_function()


# Lists of gradients.

# Called for every gradient of every step. `isinstance` is slow for tensors.
_is_subclass: Any = functools.lru_cache(maxsize=None)(issubclass)


def unzip(pairs: Iterable[_types.Pair]) -> _types.Unzipped:
    """Returns the gradients and the variables of pairs, two lists."""
    pairs = list(pairs)
    return [grad for grad, _ in pairs], [variable for _, variable in pairs]


def flatten(grads: Iterable[_types.Gradient]) -> tuple[list[tf.Tensor], tuple[int, ...]]:
    """Returns the values of gradients, a list of tensors that leaves out None.

    It also returns the positions of sparse gradients' values in that list, a tuple.
    """
    tensors: list[tf.Tensor] = []
    sparse_positions: list[int] = []
    for grad in grads:
        cls = type(grad)
        if not _is_subclass(cls, tf.Tensor):
            if grad is None:
                continue
            if _is_subclass(cls, tf.IndexedSlices):
                sparse_positions.append(len(tensors))
                grad = grad.values
            elif _is_subclass(cls, tf.RaggedTensor):
                grad = grad.flat_values
            try:
                grad = tf.convert_to_tensor(grad)
            except (TypeError, ValueError):
                raise TypeError(f"Gradients must be numbers, got {grad!r}.") from None
        tensors.append(grad)
    return tensors, tuple(sparse_positions)


def refuse_flags(grads: Any) -> None:
    """Raises a TypeError if a bool, or a bool tensor, is among `grads`, a nested structure."""
    for grad in tf.nest.flatten(grads):
        if tf.bool == getattr(grad, "dtype", type(grad)):
            raise TypeError(
                f"Gradients must be numbers, got the bool {grad!r}. A step's flag is for a "
                "LossScaleManager: update_loss_scale(finite). A LossScale tests the gradients."
            )


def number_dtype(tensor: tf.Tensor) -> tf.DType:
    """Returns the dtype of a gradient's values; raises a TypeError if they are no numbers."""
    refuse_flags(tensor)
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(f"Gradients must be numbers, got a tensor of dtype {tensor.dtype.name}.")
    return tensor.dtype


def densify(grads: Iterable[_types.Gradient]) -> _types.Gradients:
    """Returns gradients with sparse ones made dense."""
    return [
        tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in grads
    ]


def flatten_with_indices(
    grads: _types.Gradients,
) -> tuple[list[tf.Tensor], tuple[int, ...], tuple[int, ...]]:
    """Like `flatten`; sparse gradients' indices follow, and positions of shapes that vary."""
    tensors, sparse_positions = flatten(grads)
    indices = [
        tf.convert_to_tensor(grad.indices) for grad in grads if isinstance(grad, tf.IndexedSlices)
    ]
    varying_positions = sparse_positions + tuple(range(len(tensors), len(tensors) + len(indices)))
    return tensors + indices, sparse_positions, varying_positions


def unflatten(grads: _types.Gradients, values: list[tf.Tensor]) -> _types.Gradients:
    """Returns gradients with these values and the structure of `grads`: None, sparse or ragged."""
    for cls in set(map(type, grads)):
        if not _is_subclass(cls, tf.Tensor):
            break
    else:
        return values
    left = iter(values)
    restored = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            restored.append(tf.IndexedSlices(next(left), grad.indices, grad.dense_shape))
        elif isinstance(grad, tf.RaggedTensor):
            restored.append(grad.with_flat_values(next(left)))
        else:
            restored.append(None if grad is None else next(left))
    return restored


# The division by the loss scale. Each function takes the operand as the last of its tensors,
# because a compiled function takes one list.


@Compiled
def multiply(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Multiplies each tensor by the last one, a float32 scalar; results keep the dtypes."""
    *tensors, factor = tensors
    # NaN instead of zero, with which finite steps would train nothing: the reciprocal of a loss
    # scale above 2**126 is subnormal, and processors may flush it to zero. A healthy step makes no
    # NaN on the way, which `tf.debugging.enable_check_numerics` would report.
    factor = factor / tf.sign(factor)
    factors: dict[tf.DType, tf.Tensor] = {}  # Made once for all tensors of a dtype.
    results = []
    for tensor in tensors:
        dtype = number_dtype(tensor)
        is_half = dtype == tf.float16
        if dtype not in factors:
            # A factor that is not zero in float32 is not zero in bfloat16 or float64 either.
            factors[dtype] = _for_float16(factor) if is_half else tf.cast(factor, dtype)
        # Raw operations here and below: public functions take longer to trace for each gradient.
        if is_half:
            product = tf.raw_ops.Mul(x=tf.cast(tensor, tf.float32), y=factors[dtype])
            results.append(tf.cast(product, dtype))
        else:
            results.append(tf.raw_ops.Mul(x=tensor, y=factors[dtype]))
    return results


def _for_float16(factor: tf.Tensor) -> tf.Tensor:
    """Returns `factor` rounded to float16, in float32; not rounded if it would become zero.

    The reciprocal of a loss scale of 2**25 or more would become zero, and with it all gradients.
    """
    rounded = tf.cast(tf.cast(factor, tf.float16), tf.float32)
    return tf.where(tf.equal(rounded, 0.0), factor, rounded)


@Compiled
def divide(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Divides each tensor by the last one, a float32 scalar, in the wider dtype.

    Integers are divided in float32.
    """
    *tensors, divisor = tensors
    results = []
    for tensor in tensors:
        dtype = number_dtype(tensor)
        if dtype.is_integer or dtype.size < divisor.dtype.size:
            dtype = divisor.dtype
        results.append(tf.raw_ops.RealDiv(x=tf.cast(tensor, dtype), y=tf.cast(divisor, dtype)))
    return results


@Compiled  # Only graphs use it; so all three are called alike.
def multiply_as_originals(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Multiplies each tensor by the last one, by the operations of the originals' graphs alone.

    Names of variables depend on these, such as those of an `ExponentialMovingAverage` of gradients.
    float16 is an exception: there the factor, the reciprocal of a large scale, may be zero.
    """
    *tensors, factor = tensors
    results = []
    for tensor in tensors:
        dtype = number_dtype(tensor)
        if dtype == tf.float16:
            results += multiply([tensor, factor])
        else:
            results.append(tensor * tf.cast(factor, dtype))
    return results


class Division(NamedTuple):
    """The division of gradients by the loss scale, as an original does it.

    The operand, a float32 scalar tensor, is the loss scale if the function is `divide`, else its
    reciprocal.
    """

    operand: tf.Tensor
    function: Compiled = multiply


def unscale(grads: Iterable[_types.Gradient], division: Division) -> _types.Gradients:
    """Returns a list of divided gradients; sparse stays sparse, None stays None.

    With `divide`, integers and narrower dtypes than float32 are returned in float32.
    """
    grads = list(grads)
    tensors, sparse_positions = flatten(grads)
    tensors = [*tensors, division.operand]
    return unflatten(grads, division.function(tensors, varying_first_dim=sparse_positions))


# The finite test.

# For tensors of up to this many elements, joining them costs less than testing each by itself.
_SMALL = 2**14
# For at least this many elements, a test that writes no tensor costs less despite its conditional.
_LARGE = 2**19


def _concat_small(tensors: Iterable[tf.Tensor]) -> Iterator[tf.Tensor]:
    """Yields the same elements in fewer tensors: concatenates small tensors if shapes allow.

    The cost of testing a tensor of a few elements is the dispatch of its operations.
    """
    groups: dict[tuple[tf.DType, int | None, object], list[tf.Tensor]] = {}
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
    the dtype. A sum of n numbers is at most `sqrt(n * sum of squares)`. If the sum of squares is
    finite in float32 or float64, that is far below its largest number. In float16 it is not.
    """
    sums: dict[tf.DType, list[tf.Tensor]] = {}
    for tensor in dense + [values for values, _ in sparse_rows if values.dtype != tf.float16]:
        sums.setdefault(tensor.dtype, []).append(tf.raw_ops.L2Loss(t=tensor))
    flags = [tf.math.is_finite(tf.add_n(sums_of_dtype)) for sums_of_dtype in sums.values()]
    for values, _ in sparse_rows:
        if values.dtype == tf.float16:
            # Half of the largest number leaves room for the rounding of another order of addition.
            magnitude = tf.reduce_sum(tf.abs(tf.cast(values, tf.float32)))
            flags.append(magnitude <= float(tf.float16.max) / 2)
    return _all(flags)


def _large_are_finite(
    large: list[tf.Tensor], sparse_rows: list[tuple[tf.Tensor, tf.Tensor]]
) -> tf.Tensor:
    """Returns whether large tensors and the sums of sparse gradients' rows are finite."""
    by_xla = _graphs.compiled_by_xla()

    def elementwise() -> tf.Tensor:
        sums = [_row_sums(values, indices, by_xla) for values, indices in sparse_rows]
        return _finite_elementwise(large + sums)

    if has_op_callbacks():
        return elementwise()
    sums_are_finite = _finite_by_sum_of_squares(large, sparse_rows)
    # Has its own name: names of variables in checkpoints depend on how many `cond` there are.
    name = "large_gradients_are_finite"
    return tf1.cond(sums_are_finite, lambda: tf.constant(True), elementwise, name=name)


@Compiled
def _test(tensors: list[tf.Tensor], sparse_positions: tuple[int, ...]) -> tf.Tensor:
    """Returns whether all elements of gradients, and sums of sparse gradients' rows, are finite.

    The last of `tensors` are the indices of sparse gradients.
    """
    num_gradients = len(tensors) - len(sparse_positions)
    indices = dict(zip(sparse_positions, tensors[num_gradients:]))
    by_xla = _graphs.compiled_by_xla()
    tests_by_squares = not (by_xla or has_op_callbacks())
    small: list[tf.Tensor] = []  # Tested element by element.
    large: list[tf.Tensor] = []  # Tested by their sum of squares first.
    sparse_rows: list[tuple[tf.Tensor, tf.Tensor]] = []
    for i, tensor in enumerate(tensors[:num_gradients]):
        if not may_be_nonfinite(number_dtype(tensor)):
            continue
        if i in indices:
            sparse_rows.extend((values, indices[i]) for values in _testable([tensor]))
        elif tests_by_squares and (tensor.shape.num_elements() or 0) >= _LARGE:
            large.extend(_testable([tensor]))
        else:
            small.append(tensor)
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

    `grads` is a nested structure of gradients of any dtype; None is ignored. Empty tensors, and
    structures without tensors, are finite. For `tf.IndexedSlices` the sum of the rows with the same
    index has to be finite. Raises a TypeError if a tensor holds no numbers.
    """
    tensors, sparse_positions, varying_positions = flatten_with_indices(tf.nest.flatten(grads))
    return _test(tensors, sparse_positions, varying_first_dim=varying_positions)


def finite_everywhere(grads: Any) -> tf.Tensor:
    """Returns whether `grads` are finite on every replica and worker, a bool scalar tensor.

    In a cross-replica context the nested structure may have per-replica, mirrored or plain values.
    """
    return _replicas.true_everywhere(finite_here, (grads,))


# For names in a record: it asks of each replica's gradient what `_test` asks of all gradients.
def nonfinite_each(grads: _types.Gradients) -> tf.Tensor:
    """Returns 1.0 for each of `grads` that is not finite and 0.0 for others, a float32 vector."""
    by_xla, tested = _graphs.compiled_by_xla(), []
    for grad in grads:
        tensors, sparse_positions = flatten([grad])
        values = _testable(each for each in tensors if may_be_nonfinite(each.dtype))
        if sparse_positions:
            indices = tf.convert_to_tensor(grad.indices)
            values = (_row_sums(each, indices, by_xla) for each in values)
        whole = list(values) or [tf.zeros([])]
        tested.append(tf.stack(whole) if len(whole) > 1 else whole[0])

    def test(*tensors: tf.Tensor) -> tf.Tensor:
        finite = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]
        return 1.0 - tf.cast(tf.stack(finite), tf.float32)

    # One operation, because each operation costs time, even in a branch that is not taken.
    return _tf.call_as_one_operation(test, tested)


@Compiled
def _unscale_and_test(
    tensors: list[tf.Tensor], sparse_positions: tuple[int, ...], function: Compiled
) -> list[tf.Tensor]:
    """Returns the results of a division's function, followed by the flag of `_test`.

    The last of `tensors` is the operand of the division; the others are those of `_test`.
    """
    *tensors, operand = tensors
    num_gradients = len(tensors) - len(sparse_positions)
    unscaled = function.__wrapped__([*tensors[:num_gradients], operand])
    return [*unscaled, _test.__wrapped__(unscaled + tensors[num_gradients:], sparse_positions)]


def unscale_and_test(
    grads: Iterable[_types.Gradient], division: Division
) -> tuple[_types.Gradients, tf.Tensor]:
    """Returns unscaled gradients and the finite flag, in eager mode by one compiled operation."""
    grads = list(grads)
    tensors, sparse_positions, varying_positions = flatten_with_indices(grads)
    *unscaled, finite = _unscale_and_test(
        [*tensors, division.operand],
        sparse_positions,
        division.function,
        varying_first_dim=varying_positions,
    )
    return unflatten(grads, unscaled), finite
