"""Eager steps are compiled once per structure, with a bound on how many there are."""

import gc
import threading
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, replicas
from tf_lossscale_compat._core import _compiled, _finite, _tf, _unscaling

pytestmark = pytest.mark.usefixtures("kept_kernels")


def _counting():
    """A compiled function that adds a number to tensors, and a list that its Python runs fill."""
    runs = []

    def add(tensors, number=0):
        runs.append("eager" if tf.executing_eagerly() else "traced")
        return [tensor + tf.cast(number, tensor.dtype) for tensor in tensors]

    return _compiled.in_eager_mode(add), runs


def _graphs():
    """Returns the number of graphs of functions in this process."""
    gc.collect()
    return sum(type(thing).__name__ == "FuncGraph" for thing in gc.get_objects())


class CompiledTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        context = modes.eager_mode()
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        if not _tf.functions_compute_as_eager():
            self.skipTest(
                "functions of this TensorFlow take small numbers for zero; eager does not"
            )

    def test_compiles_at_the_second_step_and_then_no_more(self):
        function, runs = _counting()
        for value in range(20):
            results = function([tf.fill([2, 3], float(value)), tf.fill([4], value)], 1)
            self.assertAllEqual(results[0], np.full([2, 3], value + 1))
            self.assertAllEqual(results[1], np.full([4], value + 1))
        self.assertEqual(runs, ["eager", "traced"])

    def test_each_structure_by_itself(self):
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

        before = None
        for rows in range(1, 7):
            dense, none, sparse = _unscaling.unscale(grads(rows), tf.constant(0.5))
            self.assertIsNone(none)
            self.assertAllEqual(dense, [0.5] * 3)
            self.assertAllEqual(sparse.values, np.full([rows, 2], 0.5))
            self.assertTrue(bool(_finite.all_finite([dense, none, sparse])))
            bad = tf.IndexedSlices(sparse.values + float("inf"), sparse.indices)
            self.assertFalse(bool(_finite.all_finite([dense, none, bad])))
            if rows == 3:
                before = _graphs()
        self.assertEqual(_graphs(), before)

    def test_a_structure_that_comes_once_is_never_traced(self):
        function, runs = _counting()
        for size in range(2 * _compiled.CAPACITY):
            function([tf.zeros([size])])
        self.assertEqual(set(runs), {"eager"})
        self.assertLen(function._concrete, _compiled.CAPACITY)

    def test_graphs_of_structures_no_longer_used_are_dropped(self):
        function, runs = _counting()
        before = _graphs()
        for size in range(3 * _compiled.CAPACITY):
            for _ in range(3):
                function([tf.zeros([size])])
        self.assertEqual(runs.count("traced"), 3 * _compiled.CAPACITY)
        self.assertLessEqual(_graphs() - before, _compiled.CAPACITY)
        # And the one used all the time stays.
        del runs[:]
        for size in range(3 * _compiled.CAPACITY):
            function([tf.zeros([size])])
            function([tf.zeros([3 * _compiled.CAPACITY])])
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

    def test_threads_may_share_it(self):
        function, runs = _counting()
        wrong = []

        def work(number):
            with modes.eager_mode():
                for _ in range(20):
                    result = function([tf.fill([3], float(number))], 1)[0].numpy()
                    if result.tolist() != [number + 1.0] * 3:
                        wrong.append(result)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(wrong, [])
        self.assertFalse(any(thread.is_alive() for thread in threads))
        self.assertIn("traced", runs)

    def test_gradients_flow_through(self):
        variable = tf.Variable(3.0)
        for _ in range(3):
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    loss = 8.0 * variable**2
                (unscaled,) = _unscaling.unscale(
                    [inner.gradient(loss, variable)], tf.constant(0.125)
                )
            self.assertAllClose(unscaled, 6.0)
            self.assertAllClose(tape.gradient(unscaled, variable), 2.0)

    def test_an_error_in_the_function_reaches_the_caller_each_time(self):
        def fail(tensors):
            raise ValueError("no such thing")

        function = _compiled.in_eager_mode(fail)
        for _ in range(3):
            with self.assertRaisesRegex(ValueError, "no such thing"):
                function([tf.ones([2])])

    def test_graphs_are_left_to_themselves(self):
        function, runs = _counting()
        for _ in range(3):
            with tf.Graph().as_default():
                self.assertLen(function([tf.ones([2])]), 1)
        self.assertEqual(runs, ["traced"] * 3)
        self.assertEmpty(function._concrete)
        outer = tf.function(lambda x: function([x])[0], autograph=False)
        outer(tf.ones([2]))
        self.assertEmpty(function._concrete)

    def test_does_without_the_private_call(self):
        """A TensorFlow to come may lack it."""

        class Public:
            def __call__(self, tensors):
                return tensors[::-1]

        self.assertEqual(_compiled.call_flat(Public(), (1, 2)), [2, 1])
        tensors = [tf.constant([[1.0]]), tf.constant(2)]
        public = [types.SimpleNamespace(dtype=each.dtype, shape=each.shape) for each in tensors]
        self.assertEqual(_compiled.structure_of(tensors), _compiled.structure_of(public))
        if tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (2, 3):
            function, runs = _counting()
            call = mock.patch.object(
                _compiled, "call_flat", lambda concrete, tensors: concrete(tensors)
            )
            with call:
                for value in (1.0, 2.0, 3.0):
                    self.assertAllEqual(function([tf.constant(value)] * 2, 1), [value + 1] * 2)
            self.assertEqual(runs, ["eager", "traced"])
