"""Scaling, unscaling and the finite test: dense, sparse, None, nested, any dtype."""

import unittest

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, stepping
from tf_lossscale_compat._core import _gradients

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

BFLOAT16 = tf.bfloat16.as_numpy_dtype
FLOATS = [np.float16, BFLOAT16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
INTEGERS = [np.int8, np.uint8, np.int16, np.int32, np.int64]

# Finite values that are easily taken for something else; the sum of two maxima overflows.
_HARD = {
    np.float16: (65504.0, 6e-8),
    BFLOAT16: (3.38953139e38, 1e-40),
    np.float32: (3.4028235e38, 1e-45),
    np.float64: (1.7976931348623157e308, 5e-324),
}

NAN, INF = float("nan"), float("inf")

# Sparse gradients: (dtype, values, indices, whether what they add up to in each row is finite).
SPARSE = [
    (np.float32, [[3e38, 1], [3e38, 1]], [1, 1], False),
    (np.float16, [[4e4, 1], [4e4, 1]], [1, 1], False),
    (BFLOAT16, [[3e38, 1], [3e38, 1]], [1, 1], False),
    (np.float32, [[3e38, 1], [3e38, 1]], [0, 1], True),
    (np.float32, [[3e38, 1], [1, 3e38]], [1, 1], True),
    (np.float32, [[3e38, 1], [-3e38, 1]], [1, 1], True),
    (np.float16, [[6e4, 6e4], [6e4, 6e4], [6e4, 6e4]], [0, 1, 2], True),
    (np.float32, [[NAN, 1], [1, 1]], [0, 1], False),
    (np.float16, [[65504], [0], [65504]], [5, 1, 5], False),
    (np.float32, [], [], True),
]


def _is_finite(mode, values, build=lambda *tensors: list(tensors), **options):
    """Returns what `finite_here` says of `build(*values)` in `mode`."""
    (result,) = stepping.run(
        mode,
        lambda: None,
        lambda _, *tensors: _gradients.finite_here(build(*tensors)),
        [values],
        **options,
    )
    assert result.shape == () and result.dtype == np.bool_, result
    return bool(result)


def _verdicts(mode, dtype, arrays, build=lambda *tensors: list(tensors)):
    """Returns what `finite_here` says of each of `arrays`, all of one shape, in one graph."""
    rows = [(np.array(array, dtype),) for array in arrays]
    results = stepping.run(
        mode, lambda: None, lambda _, tensor: _gradients.finite_here(build(tensor)), rows
    )
    return [bool(result) for result in results]


class AllFiniteTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.product(mode=stepping.STATELESS, dtype=FLOATS)
    def test_floats(self, mode, dtype):
        largest, subnormal = _HARD[dtype]
        arrays = [
            [0.0, 1.0, -1.0],
            [largest, largest, largest],
            [-largest, -largest, -largest],
            [largest, -largest, subnormal],
            [NAN, 0, 0],
            [0, 0, NAN],
            [0, INF, 0],
            [-INF, 0, 0],
            [INF, -INF, 0],
            [NAN, INF, -INF],
        ]
        self.assertEqual(_verdicts(mode, dtype, arrays), [True] * 4 + [False] * 6)

    @crossed.product(mode=stepping.STATELESS, dtype=COMPLEX)
    def test_complex_is_finite_if_both_parts_are(self, mode, dtype):
        parts = [(0, 0), (3e38, -3e38), (NAN, 0), (0, NAN), (INF, 1), (1, -INF), (INF, -INF)]
        arrays = [[0, complex(*pair)] for pair in parts]
        self.assertEqual(_verdicts(mode, dtype, arrays), [True] * 2 + [False] * 5)

    @crossed.product(mode=stepping.STATELESS, dtype=INTEGERS)
    def test_integers_are_finite(self, mode, dtype):
        arrays = [[np.iinfo(dtype).min, np.iinfo(dtype).max]]
        self.assertEqual(_verdicts(mode, dtype, arrays), [True])
        # And they hide no neighbour that is not.
        values = (np.array(arrays[0], dtype), np.array(NAN, np.float32))
        self.assertFalse(_is_finite(mode, values))

    @parameterized.parameters("graph_v1", "eager")  # XLA joins by itself.
    def test_finds_the_bad_one_among_many_of_all_shapes_and_sizes(self, mode):
        """Small ones are joined to be tested, by shape and dtype; none may get lost in that."""
        shapes = [[], [], [1], [7], [0], [2, 3], [5, 3], [5, 3], [0, 3], [3, 5], [3, 3, 2, 4]]
        shapes += [[3, 3, 5, 4], [1, 1, 2, 4], [2, 3, 4], [2, 1, 4], [200, 100], [130, 130]]
        shapes += [[20000], [_gradients._LARGE], [2, _gradients._LARGE]]
        dtypes = [np.float32, np.float16, np.float64, BFLOAT16, np.complex64, np.int32]
        kinds = [(shape, dtypes[i % 2]) for i, shape in enumerate(shapes)]
        kinds += [([3, 2], dtype) for dtype in dtypes for _ in range(2)]
        largest = {np.dtype(dtype).name: value for dtype, (value, _) in _HARD.items()}

        def row():
            # Any two of them overflow if added.
            return [
                np.full(shape, largest.get(np.dtype(dtype).name, 3), dtype)
                for shape, dtype in kinds
            ]

        rows, expected = [row()], [True]
        for i, (shape, dtype) in enumerate(kinds):
            if 0 not in shape and dtype != np.int32:
                rows.append(row())
                rows[-1][i][tuple(size - 1 for size in shape)] = [np.inf, -np.inf, np.nan][i % 3]
                expected.append(False)
        self.assertGreater(len(rows), 20)
        results = stepping.run(
            mode, lambda: None, lambda _, *grads: _gradients.finite_here(list(grads)), rows
        )
        self.assertEqual([bool(result) for result in results], expected)

    @crossed.product(mode=stepping.STATELESS, dtype=FLOATS + [np.complex64])
    def test_large_tensors(self, mode, dtype):
        """Whose squares are summed first: what is too large for that is finite all the same."""
        largest = _HARD.get(dtype, _HARD[np.float32])[0]
        size = _gradients._LARGE
        arrays = [np.full([size], value, dtype) for value in (0, 1, largest, -largest)]
        for place, value in ((0, np.nan), (size // 3, np.inf), (size - 1, -np.inf)):
            for fill in (0, largest):
                arrays.append(np.full([size], fill, dtype))
                arrays[-1][place] = value
        arrays.append(np.full([size], np.inf, dtype))
        arrays[-1][::2] = -np.inf
        self.assertEqual(_verdicts(mode, dtype, arrays), [True] * 4 + [False] * 7)

    @crossed.product(mode=modes.ALL, case=SPARSE)
    def test_sparse_ones_are_looked_at_by_what_they_add_up_to_in_each_row(self, mode, case):
        dtype, values, indices, finite = case
        given = np.array(values, dtype), np.array(indices, np.int32)
        found = _is_finite(
            mode, given, lambda *parts: {"a": [tf.IndexedSlices(*parts), None], "b": tf.ones([2])}
        )
        self.assertEqual(found, finite)

    @parameterized.parameters(*modes.GRAPH, "eager", "function")
    def test_ragged_ones_are_looked_at_by_their_flat_values(self, mode):
        def ragged(values):
            return [tf.RaggedTensor.from_row_lengths(values, [2, 0, 1]), tf.ones([2])]

        arrays = [[1, value, 2] for value in (1.0, 3e38, NAN, INF, -INF)]
        verdicts = _verdicts(mode, np.float32, arrays, ragged)
        self.assertEqual(verdicts, [True, True, False, False, False])

    @crossed.product(name=("float8_e5m2", "float8_e4m3fn"), mode=("graph_v2", "eager", "function"))
    def test_float8(self, name, mode):
        homes = (tf, tf.dtypes, getattr(tf.dtypes, "experimental", None))
        found = [getattr(home, name) for home in homes if hasattr(home, name)]
        if not found:
            raise unittest.SkipTest(f"this TensorFlow has no {name}")
        verdicts = _verdicts(
            mode, np.float32, [[1, 1], [1, NAN]], lambda tensor: [tf.cast(tensor, found[0])]
        )
        self.assertEqual(verdicts, [True, False])

    @crossed.product(
        mode=("graph_v2", "eager", "function"),
        case=(
            ("string", lambda: [tf.ones([2]), tf.constant("a")]),
            ("string", lambda: {"a": None, "b": (tf.constant([["a"]]),)}),
            ("string", lambda: ["a"]),
            ("object", lambda: [object()]),
        ),
    )
    def test_what_is_no_number_raises(self, mode, case):
        named, make = case
        with modes.entered(mode) as entered, self.assertRaisesRegex(TypeError, named):
            entered.compile(lambda: _gradients.finite_here(make()))()

    def test_unknown_shapes(self):
        for shape in ([], [3], [2, 2], [0]):
            grads = (np.zeros(shape, np.float32), np.ones([2], np.float16))
            self.assertTrue(_is_finite("graph_v2", grads, static_shapes=False))
            grads = (np.full(shape, NAN, np.float32), np.ones([2], np.float16))
            self.assertEqual(_is_finite("graph_v2", grads, static_shapes=False), 0 in shape)

    @parameterized.parameters("graph_v2", "eager")
    def test_takes_variables_arrays_and_numbers(self, mode):
        with modes.entered(mode) as entered:
            for leaf in (np.ones([2], np.float32), 1.0, 2, tf1.Variable([1.0, 2.0])):
                for bad in (None, np.array([1, INF], np.float64), NAN):
                    finite = entered.value(_gradients.finite_here([leaf, bad]))
                    self.assertEqual(finite, bad is None, (leaf, bad))


def _unscaled(mode, grad, scale, build=lambda tensor: tensor):
    """Returns `unscale` of a gradient made of an array, in `mode`."""

    def step(_, grad, scale):
        (unscaled,) = _gradients.unscale([build(grad)], _gradients.Division(1.0 / scale))
        sparse = isinstance(unscaled, tf.IndexedSlices)
        return (unscaled.values, unscaled.indices, unscaled.dense_shape) if sparse else unscaled

    (result,) = stepping.run(mode, lambda: None, step, [(grad, np.float32(scale))])
    return result


class UnscaleTest(modes.EagerTestCase):
    @crossed.product(mode=stepping.STATELESS, dtype=COMPLEX)
    def test_multiplies_in_the_dtype_of_the_gradient(self, mode, dtype):
        result = _unscaled(mode, np.array([512, -3072], dtype), 1024)
        self.assertEqual(result.dtype, np.dtype(dtype))
        self.assertAllEqual(result.astype(np.complex128), [0.5, -3])

    @parameterized.parameters("graph_v2", "eager", "function")
    def test_ragged_stays_ragged(self, name):
        with modes.entered(name) as mode:

            def unscale():
                grad = tf.ragged.constant([[2.0], [4.0, 6.0]])
                (unscaled,) = _gradients.unscale([grad], _gradients.Division(tf.constant(0.5)))
                return unscaled.to_tensor(-1.0)

            self.assertAllEqual(mode.compile(unscale)(), [[1.0, -1.0], [2.0, 3.0]])

    @crossed.product(
        mode=("graph_v2", "eager", "function"),
        function=("multiply", "multiply_as_v1", "divide"),
        unscale=(_gradients.unscale, _gradients.unscale_and_test),
    )
    def test_strings_raise(self, mode, function, unscale):
        with modes.entered(mode) as entered:
            for _ in range(3):  # Eager mode compiles the second.
                division = _gradients.Division(tf.constant(0.5), getattr(_gradients, function))
                with self.assertRaisesRegex(TypeError, "must be numbers, got .* dtype string"):
                    entered.compile(lambda: unscale([tf.constant("a")], division))()

    def test_sparse_without_a_dense_shape_stays_without(self):
        with tf.Graph().as_default():
            grad = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
            (result,) = _gradients.unscale([grad], _gradients.Division(tf.constant(0.5)))
            self.assertIsInstance(result, tf.IndexedSlices)
            self.assertIsNone(result.dense_shape)

    def test_one_operation_for_each_and_three_in_float16(self):
        with tf.Graph().as_default() as graph:
            grads = [tf1.placeholder(tf.float16, [2]) for _ in range(50)]
            grads += [tf1.placeholder(tf.float32, None) for _ in range(50)]
            before = len(graph.get_operations())
            _gradients.unscale(grads, _gradients.Division(tf1.placeholder(tf.float32, [])))
            # And eight for the reciprocal: two for a NaN in place of zero, the rest for float16.
            self.assertEqual(len(graph.get_operations()) - before, 50 * 3 + 50 + 8)

    def test_nothing_to_unscale(self):
        for _ in range(3):
            division = _gradients.Division(tf.constant(0.5))
            self.assertEqual(_gradients.unscale([None, None], division), [None, None])
            self.assertEqual(_gradients.unscale([], division), [])
