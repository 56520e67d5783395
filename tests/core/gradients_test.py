"""Scaling, unscaling and the finite test: dense, sparse, None, nested, any dtype."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import conftest, modes, stepping
from tf_lossscale_compat._core import _gradients

pytestmark = pytest.mark.usefixtures("kept_kernels")

hypothesis, st = conftest.hypothesis_or_skip()

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

Pair = collections.namedtuple("Pair", ["first", "second"])


def _cases(dtypes):
    return [
        (mode + "_" + np.dtype(dtype).name, mode, dtype)
        for mode in stepping.STATELESS
        for dtype in dtypes
    ]


def _finite(mode, values, build=lambda *tensors: list(tensors), **options):
    """Returns what `all_finite` says of `build(*values)` in `mode`."""
    (result,) = stepping.run(
        mode,
        lambda: None,
        lambda _, *tensors: _gradients.all_finite(build(*tensors)),
        [values],
        **options,
    )
    assert result.shape == () and result.dtype == np.bool_, result
    return bool(result)


def _verdicts(mode, dtype, arrays, build=lambda *tensors: list(tensors)):
    """Returns what `all_finite` says of each of `arrays`, all of one shape, in one graph."""
    rows = [(np.array(array, dtype),) for array in arrays]
    results = stepping.run(
        mode, lambda: None, lambda _, tensor: _gradients.all_finite(build(tensor)), rows
    )
    return [bool(result) for result in results]


class AllFiniteTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*_cases(FLOATS))
    def test_floats(self, mode, dtype):
        largest, subnormal = _HARD[dtype]
        nan, inf = float("nan"), float("inf")
        arrays = [
            [0.0, 1.0, -1.0],
            [largest, largest, largest],
            [-largest, -largest, -largest],
            [largest, -largest, subnormal],
            [nan, 0, 0],
            [0, 0, nan],
            [0, inf, 0],
            [-inf, 0, 0],
            [inf, -inf, 0],
            [nan, inf, -inf],
        ]
        self.assertEqual(_verdicts(mode, dtype, arrays), [True] * 4 + [False] * 6)

    @parameterized.named_parameters(*_cases(COMPLEX))
    def test_complex_is_finite_if_both_parts_are(self, mode, dtype):
        nan, inf = float("nan"), float("inf")
        parts = [(0, 0), (3e38, -3e38), (nan, 0), (0, nan), (inf, 1), (1, -inf), (inf, -inf)]
        arrays = [[0, complex(*pair)] for pair in parts]
        self.assertEqual(_verdicts(mode, dtype, arrays), [True] * 2 + [False] * 5)

    @parameterized.named_parameters(*_cases(INTEGERS + [np.bool_]))
    def test_integers_are_finite(self, mode, dtype):
        if dtype == np.bool_:
            arrays = [[True, False]]
        else:
            arrays = [[np.iinfo(dtype).min, np.iinfo(dtype).max]]
        self.assertEqual(_verdicts(mode, dtype, arrays), [True])
        # And they hide no neighbour that is not.
        values = (np.array(arrays[0], dtype), np.array(float("nan"), np.float32))
        self.assertFalse(_finite(mode, values))

    @parameterized.named_parameters(*_cases([np.float16, np.float32]))
    def test_agrees_with_numpy_on_any_array(self, mode, dtype):
        width = np.dtype(dtype).itemsize * 8
        # By their bits, so that subnormals and every kind of NaN come up.
        numbers = st.integers(0, 2**width - 1).map(
            lambda bits: float(np.array(bits, "uint{}".format(width)).view(dtype))
        )
        special = st.sampled_from([float("nan"), float("inf"), float("-inf")])
        samples = []

        @hypothesis.settings(max_examples=15)
        @hypothesis.given(
            st.lists(numbers, min_size=4, max_size=4),
            st.lists(st.one_of(numbers, special), min_size=4, max_size=4),
        )
        def collect(first, second):
            first = [number if np.isfinite(number) else 1.0 for number in first]
            samples.extend([first, second])

        collect()
        arrays = [np.array(sample, dtype).reshape(2, 2) for sample in samples]
        expected = [bool(np.isfinite(array).all()) for array in arrays]
        self.assertGreater(sum(expected), 3)
        self.assertGreater(len(expected) - sum(expected), 3)
        self.assertEqual(_verdicts(mode, dtype, arrays), expected)

    @parameterized.parameters(*stepping.STATELESS)
    def test_finds_the_bad_one_among_many_of_all_shapes_and_sizes(self, mode):
        """Small ones are joined to be tested, by shape and dtype; none may get lost in that."""
        shapes = [[], [], [1], [7], [0], [2, 3], [5, 3], [5, 3], [0, 3], [3, 5], [3, 3, 2, 4]]
        shapes += [[3, 3, 5, 4], [1, 1, 2, 4], [2, 3, 4], [2, 1, 4], [200, 100], [130, 130]]
        shapes += [[20000]]
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
            mode, lambda: None, lambda _, *grads: _gradients.all_finite(list(grads)), rows
        )
        self.assertEqual([bool(result) for result in results], expected)

    @parameterized.parameters(*stepping.STATELESS)
    def test_opposite_infinities_do_not_cancel(self, mode):
        for dtype in (np.float16, np.float32, np.float64):
            one, other = np.array([np.inf, 1], dtype), np.array([-np.inf, 1], dtype)
            self.assertFalse(_finite(mode, (one, other)))

    @parameterized.named_parameters(*_cases(FLOATS + [np.complex64]))
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

    @parameterized.parameters(*modes.ALL)
    def test_large_and_small_tensors_of_several_dtypes(self, mode):
        shapes = [[_gradients._LARGE], [2, _gradients._LARGE], [5, 3], [_gradients._SMALL + 1]]
        kinds = [(shape, dtype) for shape in shapes for dtype in (np.float32, np.float16)]
        rows, expected = [], []
        for bad in range(-2, len(kinds)):
            rows.append(tuple(np.zeros(shape, dtype) for shape, dtype in kinds))
            if bad == -1:
                for array in rows[-1]:
                    array[...] = _HARD[array.dtype.type][0]
            if bad >= 0:
                rows[-1][bad].flat[1] = (np.nan, np.inf, -np.inf)[bad % 3]
            expected.append(bad < 0)
        results = stepping.run(
            mode, lambda: None, lambda _, *grads: _gradients.all_finite(list(grads)), rows
        )
        self.assertEqual([bool(result) for result in results], expected)

    def test_few_operations_for_many_gradients(self):
        def operations(shapes):
            with tf.Graph().as_default() as graph:
                grads = [tf1.placeholder(tf.float32, shape) for shape in shapes]
                before = len(graph.get_operations())
                _gradients.all_finite(grads)
                return len(graph.get_operations()) - before

        biases, kernels = [[64]] * 9, [[3, 3, 8, 64], [3, 3, 16, 64]] * 4
        few = operations(biases + kernels)
        self.assertEqual(operations(10 * biases + 10 * kernels), few)
        # And two for each that is not small.
        medium = [[150, 150]]
        self.assertEqual(operations(30 * medium) - operations(10 * medium), 40)

    def test_large_gradients_are_not_copied(self):
        with tf.Graph().as_default() as graph:
            grads = [tf1.placeholder(tf.float32, [1000, 1000]) for _ in range(3)]
            grads += [tf1.placeholder(tf.float32, [None, 10]) for _ in range(3)]
            _gradients.all_finite(grads)
            joins = [op for op in graph.get_operations() if op.type == "ConcatV2"]
        self.assertEqual(joins, [])

    @parameterized.parameters(*stepping.STATELESS)
    def test_sparse_values_of_one_row_are_added_up(self, mode):
        """Finite values whose sum is not finite make a non-finite gradient, as if it were dense."""
        rows = [[65504, 0, 65504], [40000, 0, 20000], [65504, 0, -65504]]

        def sparse(indices):
            return lambda values: tf.IndexedSlices(values, tf.constant(indices), tf.constant([9]))

        same, different = (
            _verdicts(mode, np.float16, rows, sparse(indices)) for indices in ([5, 1, 5], [5, 1, 2])
        )
        self.assertEqual(same, [False, True, True])
        self.assertEqual(different, [True, True, True])

    @parameterized.parameters(*stepping.STATELESS)
    def test_structures_without_tensors_are_finite(self, mode):
        unused = (np.float32("nan"),)
        for structure in ([], (), {}, None, [None, [None]], {"a": None}):
            self.assertTrue(_finite(mode, unused, lambda _, s=structure: s))

    @parameterized.parameters(*stepping.STATELESS)
    def test_nested_structures_and_one_tensor(self, mode):
        def build(kind, x, y):
            return {
                "list": [x, [y]],
                "tuple": (x, (y,)),
                "dict": {"x": x, "y": {"z": y}},
                "named": Pair(x, Pair(None, y)),
                "mixed": {"x": [(x, None)], "y": Pair([], y)},
                "one": y,
            }[kind]

        good, bad = np.zeros([2], np.float32), np.array([0, float("-inf")], np.float32)
        for kind in ("list", "tuple", "dict", "named", "mixed", "one"):
            results = stepping.run(
                mode,
                lambda: None,
                lambda _, x, y, kind=kind: _gradients.all_finite(build(kind, x, y)),
                [(good, good), (good, bad)],
            )
            self.assertEqual([bool(result) for result in results], [True, False], kind)

    @parameterized.named_parameters(*_cases(FLOATS + COMPLEX + [np.int32]))
    def test_a_zero_size_gradient_is_finite(self, mode, dtype):
        for shape in ([0], [0, 3], [2, 0, 5]):
            self.assertTrue(_finite(mode, (np.zeros(shape, dtype),)))
        empty = np.zeros([0, 2], dtype)
        self.assertFalse(_finite(mode, (empty, np.float32("nan"))))

    @parameterized.parameters(*stepping.STATELESS)
    def test_an_empty_sparse_gradient_is_finite(self, mode):
        def sparse(values):
            return [tf.IndexedSlices(values, tf.zeros([0], tf.int64), tf.constant([4, 2]))]

        self.assertTrue(_finite(mode, (np.zeros([0, 2], np.float32),), sparse))

    def test_unknown_shapes(self):
        for shape in ([], [3], [2, 2], [0]):
            grads = (np.zeros(shape, np.float32), np.ones([2], np.float16))
            self.assertTrue(_finite("graph_v2", grads, static_shapes=False))
            grads = (np.full(shape, float("nan"), np.float32), np.ones([2], np.float16))
            self.assertEqual(_finite("graph_v2", grads, static_shapes=False), 0 in shape)

    @parameterized.parameters("graph_v2", "eager")
    def test_takes_variables_arrays_and_numbers(self, mode):
        with modes.entered(mode):
            for leaf in (np.ones([2], np.float32), 1.0, 2, tf1.Variable([1.0, 2.0])):
                for bad in (None, np.array([1, float("inf")], np.float64), float("nan")):
                    finite = _gradients.all_finite([leaf, bad])
                    if mode in modes.GRAPH:
                        with tf1.Session() as session:
                            session.run(tf1.global_variables_initializer())
                            finite = session.run(finite)
                    self.assertEqual(bool(finite), bad is None, (leaf, bad))


class ScaleLossTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*stepping.STATELESS)
    def test_a_scale_above_the_range_of_the_loss_overflows_it(self, mode):
        """So that the step is seen to be non-finite and the scale comes down."""
        rows = [(np.float16(1), np.float32(2.0**32)), (np.float16(0), np.float32(2.0**32))]
        overflown, lost = stepping.run(
            mode, lambda: None, lambda _, loss, scale: _gradients.scale_loss(loss, scale), rows
        )
        self.assertEqual(overflown, np.inf)
        self.assertTrue(np.isnan(lost))

    @parameterized.parameters("graph_v2", "eager")
    def test_takes_what_converts_to_a_tensor(self, mode):
        def step(_, scale):
            return [
                _gradients.scale_loss(loss, scale) for loss in (2.5, np.float64(3), np.float16(4))
            ]

        (results,) = stepping.run(mode, lambda: None, step, [(np.float32(8),)])
        self.assertEqual([result.dtype for result in results], [np.float32, np.float64, np.float16])
        self.assertEqual(list(results), [20, 24, 32])


class UnscaleTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*_cases(COMPLEX))
    def test_multiplies_in_the_dtype_of_the_gradient(self, mode, dtype):
        (result,) = stepping.run(
            mode,
            lambda: None,
            lambda _, grad, reciprocal: _gradients.unscale([grad], reciprocal)[0],
            [(np.array([512, -3072], dtype), np.float32(1 / 1024))],
        )
        self.assertEqual(result.dtype, np.dtype(dtype))
        self.assertAllEqual(result.astype(np.complex128), [0.5, -3])

    @parameterized.named_parameters(*_cases([np.float16, np.float32]))
    def test_sparse_stays_sparse(self, mode, dtype):
        def step(_, values, reciprocal):
            grad = tf.IndexedSlices(values, tf.constant([3, 0]), tf.constant([5, 2]))
            (result,) = _gradients.unscale([grad], reciprocal)
            assert isinstance(result, tf.IndexedSlices), result
            return result.values, result.indices, result.dense_shape

        values = np.array([[8, 16], [24, -32]], dtype)
        ((values, indices, shape),) = stepping.run(
            mode, lambda: None, step, [(values, np.float32(1 / 8))]
        )
        self.assertEqual(values.dtype, np.dtype(dtype))
        self.assertAllEqual(values, [[1, 2], [3, -4]])
        self.assertAllEqual(indices, [3, 0])
        self.assertAllEqual(shape, [5, 2])

    def test_sparse_without_a_dense_shape_stays_without(self):
        with tf.Graph().as_default():
            grad = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
            (result,) = _gradients.unscale([grad], tf.constant(0.5))
            self.assertIsInstance(result, tf.IndexedSlices)
            self.assertIsNone(result.dense_shape)

    def test_one_operation_for_each_and_three_in_float16(self):
        with tf.Graph().as_default() as graph:
            grads = [tf1.placeholder(tf.float16, [2]) for _ in range(50)]
            grads += [tf1.placeholder(tf.float32, None) for _ in range(50)]
            before = len(graph.get_operations())
            _gradients.unscale(grads, tf1.placeholder(tf.float32, []))
            # And eight for the reciprocal: two for a NaN in place of zero, the rest for float16.
            self.assertEqual(len(graph.get_operations()) - before, 50 * 3 + 50 + 8)

    def test_nothing_to_unscale(self):
        with modes.eager_mode():
            for _ in range(3):
                self.assertEqual(_gradients.unscale([None, None], tf.constant(0.5)), [None, None])
                self.assertEqual(_gradients.unscale([], tf.constant(0.5)), [])

    @parameterized.parameters(*stepping.STATELESS)
    def test_does_not_hide_what_is_not_finite(self, mode):
        nan, inf = float("nan"), float("inf")
        (result,) = stepping.run(
            mode,
            lambda: None,
            lambda _, grad, reciprocal: _gradients.unscale([grad], reciprocal)[0],
            [(np.array([nan, inf, -inf, 1], np.float32), np.float32(2.0**-126))],
        )
        self.assertAllEqual(np.isfinite(result), [False, False, False, True])

    @parameterized.parameters(*stepping.STATELESS)
    def test_keeps_zero_size_and_shape(self, mode):
        (result,) = stepping.run(
            mode,
            lambda: None,
            lambda _, grad, reciprocal: _gradients.unscale([grad], reciprocal)[0],
            [(np.zeros([2, 0, 3], np.float32), np.float32(0.5))],
        )
        self.assertEqual(result.shape, (2, 0, 3))
