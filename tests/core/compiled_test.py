"""Eager steps are compiled once per signature, with a bound on how many there are."""

import gc
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests import modes, replicas
from tf_lossscale_compat._core import _gradients, _tf

pytestmark = pytest.mark.usefixtures("kept_kernels")


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

    def test_rows_of_a_sparse_gradient_may_vary(self):
        function, runs = _counting()
        for rows in range(1, 20):
            dense, sparse = function(
                [tf.ones([2]), tf.ones([rows, 3])], 1, varying_first_dim=frozenset([1])
            )
            self.assertAllEqual(dense, [2, 2])
            self.assertAllEqual(sparse, np.full([rows, 3], 2))
        self.assertEqual(runs, ["eager", "traced"])

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

    @mock.patch.object(_gradients, "CAPACITY", 2)
    def test_no_more_are_kept_if_threads_use_others_while_one_is_compiled(self):
        def doubled(tensors):
            if not tf.executing_eagerly():  # What other threads could call.
                with tf.init_scope():
                    for size in others:
                        function([tf.zeros([size])])
            return [2.0 * tensors[0]]

        function, others = _gradients.Compiled(doubled), []
        function([tf.zeros([1])])
        others += [2, 3, 4]
        function([tf.zeros([1])])
        self.assertEqual(kept(function), 2)

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

    def test_an_error_in_the_function_reaches_the_caller_each_time(self):
        def fail(tensors):
            raise ValueError("no such thing")

        function = _gradients.Compiled(fail)
        for _ in range(3):
            with self.assertRaisesRegex(ValueError, "no such thing"):
                function([tf.ones([2])])

    def test_graphs_are_left_to_themselves(self):
        function, runs = _counting()
        for _ in range(3):
            with tf.Graph().as_default():
                self.assertLen(function([tf.ones([2])]), 1)
        self.assertEqual(runs, ["traced"] * 3)
        self.assertEqual(kept(function), 0)
        outer = tf.function(lambda x: function([x])[0], autograph=False)
        outer(tf.ones([2]))
        self.assertEqual(kept(function), 0)

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
