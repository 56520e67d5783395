"""Gradients of any kind and dtype: divided, tested, by functions compiled once per signature."""

import gc
import itertools
import types
import unittest
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, replicas, stepping
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic, dynamic_for, sgd, wrapped_in
from tf_lossscale_compat import DynamicLossScale, ExponentialUpdateLossScaleManager, FixedLossScale
from tf_lossscale_compat._core import _gradients, _tf
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

try:
    from tensorflow.python.framework import kernels
except ImportError:
    kernels = None

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


class UnscaleTest(modes.EagerTestCase):
    @crossed.product(mode=stepping.STATELESS, dtype=COMPLEX)
    def test_multiplies_in_the_dtype_of_the_gradient(self, mode, dtype):
        def unscale(_, grad, scale):
            return _gradients.unscale([grad], _gradients.Division(1.0 / scale))[0]

        inputs = [(np.array([512, -3072], dtype), np.float32(1024))]
        (result,) = stepping.run(mode, lambda: None, unscale, inputs)
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
        function=("multiply", "multiply_as_originals", "divide"),
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


def _counting():
    """A compiled function that adds a number to tensors, and a list that its Python runs fill."""
    runs = []

    def add(tensors, number=0):
        runs.append("eager" if tf.executing_eagerly() else "traced")
        return [tensor + tf.cast(number, tensor.dtype) for tensor in tensors]

    return _gradients.Compiled(add), runs


def kept(function):
    """Returns the number of signatures that a compiled function remembers."""
    return function._kept.cache_info().currsize


def _graphs():
    """Returns the number of graphs of functions in this process."""
    gc.collect()
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


class CompiledTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        if not _tf.compiled_gives_same_bits():
            self.skipTest(
                "functions of this TensorFlow take small numbers for zero; eager does not"
            )

    def test_each_signature_by_itself(self):
        """Shapes, dtypes, and arguments that are no tensors."""
        function, runs = _counting()
        lists = [[tf.ones([2])], [tf.ones([3])], [tf.ones([2]), tf.ones([2])]]
        lists += [[tf.ones([2], tf.float16)], [tf.ones([2, 1])], [tf.ones([])]]
        for _ in range(5):
            for tensors in lists:
                for number in (1, 2):
                    for result, tensor in zip(function(tensors, number), tensors):
                        self.assertEqual(result.dtype, tensor.dtype)
                        self.assertAllEqual(result, tensor.numpy() + number)
        self.assertEqual(runs, ["eager"] * 2 * len(lists) + ["traced"] * 2 * len(lists))

    def test_unscaling_and_testing_sparse_gradients_traces_once(self):
        def grads(rows):
            indices = tf.range(rows)
            return [tf.ones([3]), None, tf.IndexedSlices(tf.ones([rows, 2]), indices)]

        known = []
        for rows in range(1, 5):
            dense, none, sparse = _gradients.unscale(
                grads(rows), _gradients.Division(tf.constant(0.5))
            )
            self.assertIsNone(none)
            self.assertAllEqual(dense, [0.5] * 3)
            self.assertAllEqual(sparse.values, np.full([rows, 2], 0.5))
            self.assertTrue(bool(_gradients.finite_here([dense, none, sparse])))
            bad = tf.IndexedSlices(sparse.values + float("inf"), sparse.indices)
            self.assertFalse(bool(_gradients.finite_here([dense, none, bad])))
            known.append([kept(each) for each in (_gradients.multiply, _gradients._test)])
        self.assertEqual(known, known[:1] * 4)

    @mock.patch.object(_gradients, "CAPACITY", 4)
    def test_graphs_of_signatures_no_longer_used_are_dropped(self):
        function, runs = _counting()
        for size in range(8):  # Those that come once are never traced.
            function([tf.zeros([size])])
        self.assertEqual(runs, ["eager"] * 8)
        self.assertEqual(kept(function), 4)
        before = _graphs()
        for size in range(12):
            for _ in range(3):
                function([tf.zeros([size])])
        self.assertEqual(runs.count("traced"), 12)
        self.assertLessEqual(_graphs() - before, 4)
        # And the one used all the time stays.
        del runs[:]
        for size in range(12):
            function([tf.zeros([size])])
            function([tf.zeros([12])])
        self.assertEqual(runs.count("traced"), 1)

    def test_runs_on_the_device_of_each_call(self):
        with tf.device("/cpu:1"):
            tensors = [tf.ones([2])] * 2
        function, runs = _counting()
        for device in ("/cpu:1", "/cpu:1", "/cpu:2", "/cpu:1", "/cpu:0"):
            with tf.device(device):
                (result, _) = function(tensors)
            self.assertEqual(result.device[-1], device[-1])
        self.assertEqual(runs, ["eager", "traced"])
        self.assertGreater(replicas.CPUS, 2)

    def test_gradients_flow_through(self):
        variable = tf.Variable(3.0)
        for _ in range(3):
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    loss = 8.0 * variable**2
                (unscaled,) = _gradients.unscale(
                    [inner.gradient(loss, variable)], _gradients.Division(tf.constant(0.125))
                )
            self.assertAllClose(unscaled, 6.0)
            self.assertAllClose(tape.gradient(unscaled, variable), 2.0)

    def test_does_without_the_private_call(self):
        """A TensorFlow to come may lack it."""

        class Public:
            def __call__(self, tensors):
                return tensors[::-1]

        self.assertEqual(_gradients.call_flat(Public(), (1, 2)), [2, 1])
        tensors = [tf.constant([[1.0]]), tf.constant(2)]
        public = [types.SimpleNamespace(dtype=each.dtype, shape=each.shape) for each in tensors]
        self.assertEqual(_gradients.signature_of(tensors), _gradients.signature_of(public))
        if tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (2, 3):
            function, runs = _counting()
            call = mock.patch.object(
                _gradients, "call_flat", lambda concrete, tensors: concrete(tensors)
            )
            with call:
                for value in (1.0, 2.0, 3.0):
                    self.assertAllEqual(function([tf.constant(value)] * 2, 1), [value + 1] * 2)
            self.assertEqual(runs, ["eager", "traced"])


@unittest.skipUnless(
    hasattr(tf.debugging, "enable_check_numerics"), "this TensorFlow checks no numbers"
)
class CheckNumericsTest(modes.EagerTestCase):
    """With every number checked, healthy steps raise nothing."""

    def setUp(self):
        super().setUp()
        tf.debugging.enable_check_numerics()
        self.addCleanup(tf.debugging.disable_check_numerics)

    def results(self, mode, step, number):
        with modes.entered(mode) as entered:
            step = entered.compile(step)
            return [step() for _ in range(number)]

    @crossed.product(optimizer=BOTH, mode=modes.IMMEDIATE[:2])
    def test_optimizers(self, optimizer, mode):
        weight = tf1.Variable(1.0, use_resource=True)
        opt = OPTIMIZERS[optimizer](sgd(), dynamic_for(optimizer, period=2))

        def step():
            opt.minimize(lambda: 3.0 * weight, var_list=[weight])
            return tf.identity(weight)

        self.assertEqual(self.results(mode, step, 4), [-2.0, -5.0, -8.0, -11.0])

    @crossed.product(
        make=(
            lambda: tf.fill([2**19], 3e19),  # The sum of whose squares overflows.
            lambda: tf.IndexedSlices(tf.constant([[3e38], [3e38]]), tf.constant([0, 1])),
        ),
        mode=modes.IMMEDIATE[:2],
    )
    def test_tested_in_one_pass(self, make, mode):
        policy = dynamic()
        self.assertEqual(self.results(mode, lambda: policy.update([make()])[1], 3), [True] * 3)
        self.assertEqual(float(policy), 16.0)


DTYPES = ("float32", "float16", "bfloat16")
# What holds no data on a device: the graph's own means, and names of functions.
STRUCTURE = ("Const", "NoOp", "Placeholder", "StatefulPartitionedCall", "PartitionedCall")

# Variables of int32, r1.15's counters, are kept on the CPU by TensorFlow itself.
STATE = ("VarHandleOp", "AssignVariableOp", "AssignAddVariableOp", "ReadVariableOp")

WITH_KERNELS = {
    "contrib": lambda: LossScaleOptimizer(
        sgd(), ExponentialUpdateLossScaleManager(8.0, 2), keep_sparse=True
    ),
    "dynamic": lambda: MixedPrecisionLossScaleOptimizer(sgd(), DynamicLossScale(8.0)),
    "fixed": lambda: MixedPrecisionLossScaleOptimizer(
        sgd(), FixedLossScale(8.0, skip_nonfinite=True)
    ),
}


def device_types(op, types):
    """Returns the kinds of devices that have a kernel of `op` for these types of its attributes."""
    found = set()
    for kernel in kernels.get_registered_kernels_for_op(op).kernel:
        allowed = {each.name: each.allowed_values.list.type for each in kernel.constraint}
        if all(types.get(name) in values for name, values in allowed.items()):
            found.add(kernel.device_type)
    return found


def without_kernel(graph):
    """Returns the operations of a graph, and of what it calls, that have no kernel for GPUs."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    missing = set()
    for node in nodes:
        types = {name: value.type for name, value in node.attr.items() if value.type}
        on_cpu = node.op in STATE and tf.int32.as_datatype_enum in types.values()
        if node.op in STRUCTURE or on_cpu:
            continue
        if not device_types(node.op, types) & {"GPU", "DEFAULT"}:
            missing.add((node.op, tuple(tf.as_dtype(each).name for each in types.values())))
    return missing


def has_gpu_kernels():
    if kernels is None:
        return False
    return "GPU" in device_types("MatMul", {"T": tf.float32.as_datatype_enum})


@unittest.skipUnless(has_gpu_kernels(), "this TensorFlow has no kernels for GPUs")
class GpuKernelsTest(modes.EagerTestCase):
    """An operation without a kernel for GPUs would run on the CPU, on copies, in every step."""

    def check(self, step, plain):
        """Holds what `step` adds to what `plain` needs, both functions of a list of gradients."""
        missing = []
        for build in (step, plain):
            with tf.Graph().as_default() as graph:
                build()
            missing.append(without_kernel(graph))
        self.assertEqual(missing[0] - missing[1], set())

    def gradients(self, dtype, sparse):
        """Pairs of gradients, small and large ones, and variables."""
        pairs = []
        for shape in ([4, 4], [3], [1024, 512]):
            variable = tf1.Variable(tf.zeros(shape, dtype), use_resource=True)
            gradient = tf1.placeholder(dtype, shape)
            if sparse:
                indices = tf1.placeholder(tf.int32, [None])
                gradient = tf.IndexedSlices(gradient, indices, tf.constant(shape, tf.int32))
            pairs.append((gradient, variable))
        return pairs

    @parameterized.parameters(
        *itertools.product(WITH_KERNELS, DTYPES, (False, True), modes.GRAPH, (False, True))
    )
    def test_v1(self, name, dtype, sparse, mode, scales):
        multiplies = device_types("Mul", {"T": tf.as_dtype(dtype).as_datatype_enum})
        if "GPU" not in multiplies:
            self.skipTest(f"this TensorFlow multiplies no {dtype} on GPUs")

        def step(make):
            pairs = self.gradients(dtype, sparse)
            opt = make()
            if not scales:
                opt.apply_gradients(pairs)
                return
            wrapped_in(opt).compute_gradients = lambda loss, *args, **kwargs: pairs
            opt.minimize(tf.constant(1.0), tf1.train.get_or_create_global_step())

        with modes.control_flow(1 if mode == "graph_v1" else 2):
            self.check(lambda: step(WITH_KERNELS[name]), lambda: step(sgd))

    @parameterized.parameters(*itertools.product(DTYPES[:2], (False, True)))
    def test_in_a_function(self, dtype, sparse):
        home = keras_homes.available()[0]

        def traced(wrapped):
            variables = [tf.Variable(tf.zeros(shape, dtype)) for shape in ([4, 4], [1024, 512])]
            opt = home.SGD(0.1)
            if wrapped:
                opt = mixed_precision.LossScaleOptimizer(opt, initial_scale=8)

            def step(*grads):
                if sparse:
                    grads = [tf.IndexedSlices(g, tf.range(g.shape[0]), g.shape) for g in grads]
                pairs = list(zip(grads, variables))
                opt.apply_gradients(pairs, **({"scaled": True} if wrapped else {}))

            specs = [tf.TensorSpec(variable.shape, dtype) for variable in variables]
            return tf.function(step, autograph=False).get_concrete_function(*specs).graph

        missing = [without_kernel(traced(wrapped)) for wrapped in (True, False)]
        self.assertEqual(missing[0] - missing[1], set())
