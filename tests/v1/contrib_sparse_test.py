"""Embeddings under contrib's optimizer: dense gradients as in r1.15, or sparse ones if asked for.

Momentum and RMSProp move all rows by a dense gradient but only some by a sparse one, so what
`compute_gradients` returns decides what a model becomes.
"""

import itertools
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, originals, stepping
from tests.v1_optimizers import loss_of, sgd
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1

TABLE = np.arange(8, dtype=np.float32).reshape(4, 2)
# Rows looked up in each of three steps; one of them twice in the same step.
STEPS = ([0, 2], [1, 1], [2, 0])
LEARNING_RATE, MOMENTUM = 0.25, 0.5

OPTIMIZERS = {
    "sgd": lambda: sgd(LEARNING_RATE),
    "momentum": lambda: tf1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM),
    "nesterov": lambda: tf1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM, use_nesterov=True),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(LEARNING_RATE, momentum=MOMENTUM),
    "adam": lambda: tf1.train.AdamOptimizer(LEARNING_RATE),
    "adagrad": lambda: tf1.train.AdagradOptimizer(LEARNING_RATE),
}
# What tf.contrib of TensorFlow 1.15.5 makes of the table in three steps.
MEASURED = {
    "momentum": [[-1.375, -0.375], [0.5, 1.5], [2.625, 3.625], [6.0, 7.0]],
    "nesterov": [[-1.6875, -0.6875], [0.25, 1.25], [2.3125, 3.3125], [6.0, 7.0]],
    "rmsprop": [
        [-1.1822242736816406, -0.18222427368164062],
        [1.0337649583816528, 2.0337650775909424],
        [2.8177757263183594, 3.8177757263183594],
        [6.0, 7.0],
    ],
}
SAME_BOTH_WAYS = ("sgd", "adam", "adagrad")


def _loss(table, rows):
    """2 * the sum of the rows looked up: each gives a gradient of 2."""

    return loss_of(lambda: 2.0 * tf.reduce_sum(tf.gather(table, rows)))


def _dense(rows):
    gradient = np.zeros_like(TABLE)
    np.add.at(gradient, rows, 2.0)
    return gradient


def _wrap(cls=contrib.LossScaleOptimizer, manager=contrib.FixedLossScaleManager, **options):
    return lambda opt: cls(opt, manager(8.0), **options)


def _trained(name, optimizer, wrap, clip=False):
    """The table after each of three steps."""
    with stepping.entered(name) as mode:
        table = tf1.Variable(TABLE, name="table")
        opt = wrap(OPTIMIZERS[optimizer]())

        def step(rows):
            if not clip:
                return opt.minimize(_loss(table, rows), var_list=[table])
            pairs = opt.compute_gradients(_loss(table, rows), [table])
            grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 1.0)
            return opt.apply_gradients([(grads[0], table)])

        call = mode.compile(step, tf.TensorSpec([2], tf.int32))
        tables = []
        for rows in STEPS:
            call(np.array(rows, np.int32))
            tables.append(mode.value(tf.identity(table)))
    return tables


def _momentum(clip=False, sparse=False):
    """Returns what Momentum makes of the table, in NumPy, by a dense or sparse gradient."""
    table, slot, tables = TABLE.copy(), np.zeros_like(TABLE), []
    for rows in STEPS:
        gradient = _dense(rows)
        if clip:
            gradient /= max(np.sqrt((gradient**2).sum()), 1.0)
        touched = np.isin(np.arange(len(TABLE)), rows) if sparse else np.full(len(TABLE), True)
        slot[touched] = MOMENTUM * slot[touched] + gradient[touched]
        table[touched] -= LEARNING_RATE * slot[touched]
        tables.append(table.copy())
    return tables


def _gradient(name, optimizer, dtype=np.float32, rows=(2, 0, 2)):
    """Returns what `compute_gradients` gives for a table; `check` checks it while it is made."""
    kinds = []
    with stepping.entered(name) as mode:
        table = tf1.Variable(TABLE.astype(dtype), name="table")
        unused = tf1.Variable([1.0], name="unused")

        def step(rows):
            pairs = optimizer().compute_gradients(_loss(table, rows), [table, unused])
            ((grad, of_table), (none, of_unused)) = pairs
            assert of_table is table and none is None and of_unused is unused, pairs
            kinds.append(type(grad))
            return tf.convert_to_tensor(grad)

        call = mode.compile(step, tf.TensorSpec([len(rows)], tf.int32))
        gradient = call(np.array(rows, np.int32))
    return gradient, issubclass(kinds[-1], tf.IndexedSlices)


class ComputeGradientsTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.product(name=modes.ALL, which=("dense", "keep_sparse", "mixed"))
    def test_gradients_of_embeddings_are_dense_or_stay_sparse(self, name, which):
        if which == "mixed":
            make = lambda: MixedPrecisionLossScaleOptimizer(sgd(), 8.0)  # noqa: E731
        else:
            make = lambda: _wrap(keep_sparse=which == "keep_sparse")(sgd())  # noqa: E731
        gradient, is_sparse = _gradient(name, make)
        self.assertEqual(is_sparse, which != "dense")
        self.assertAllEqual(gradient, _dense([2, 0, 2]))

    @parameterized.parameters(*modes.ALL)
    def test_rows_are_added_up_before_they_are_scaled_down(self, name):
        """As in r1.15, where float16 sums of scaled gradients overflow."""
        with stepping.entered(name) as mode:
            table = tf1.Variable(TABLE.astype(np.float16))
            opt = _wrap()(sgd())

            def step(rows):
                # A scaled gradient is 48000.0, and two of them are too much.
                factor = tf.constant(6000.0, tf.float16)
                loss = loss_of(lambda: tf.reduce_sum(tf.gather(table, rows) * factor))
                pairs = opt.compute_gradients(loss, [table])
                return tf.cast(pairs[0][0], tf.float32)

            call = mode.compile(step, tf.TensorSpec([2], tf.int32))
            self.assertAllClose(call(np.array([0, 1], np.int32))[:2], np.full([2, 2], 6000.0))
            twice = call(np.array([0, 0], np.int32))
            self.assertAllEqual(twice[0], [np.inf, np.inf])

    @crossed.parameters(*itertools.product((False, True), ("graph_v1", "graph_v2", "eager")))
    def test_apply_gradients_hands_on_what_it_is_given(self, keep_sparse, name):
        class Seeing(tf1.train.GradientDescentOptimizer):
            def apply_gradients(self, grads_and_vars, *args, **kwargs):
                self.seen = list(grads_and_vars)
                return super().apply_gradients(self.seen, *args, **kwargs)

        with modes.entered(name) as mode:
            table = tf1.Variable(TABLE)
            inner = Seeing(1.0)
            opt = _wrap(keep_sparse=keep_sparse)(inner)

            def step():
                grad = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
                return opt.apply_gradients([(grad, table)])

            mode.compile(step)()
            self.assertIsInstance(inner.seen[0][0], tf.IndexedSlices)
            self.assertAllEqual(mode.value(tf.identity(table)), TABLE - [[0], [1], [0], [0]])


class TrainingTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.parameters(*itertools.product(modes.ALL, (False, True)))
    def test_momentum_moves_all_rows(self, name, clip):
        self.assertAllClose(_trained(name, "momentum", _wrap(), clip), _momentum(clip), rtol=1e-6)

    # XLA has no sparse Momentum.
    @parameterized.parameters(*[name for name in modes.ALL if name != "jit"])
    def test_momentum_with_keep_sparse_moves_the_rows_looked_up(self, name):
        tables = _trained(name, "momentum", _wrap(keep_sparse=True))
        self.assertAllClose(tables, _momentum(sparse=True), rtol=1e-6)
        self.assertNotAllClose(tables[-1], _momentum()[-1])

    @crossed.parameters(
        *itertools.product(SAME_BOTH_WAYS, ("graph_v1", "graph_v2", "eager", "function"))
    )
    def test_others_train_alike_both_ways(self, optimizer, name):
        dense = _trained(name, optimizer, _wrap())
        sparse = _trained(name, optimizer, _wrap(keep_sparse=True))
        self.assertAllClose(dense, sparse, rtol=1e-6, atol=1e-6)

    @crossed.parameters(
        *itertools.product(("graph_v1", "graph_v2"), sorted(OPTIMIZERS), (False, True))
    )
    def test_trains_as_the_original(self, name, optimizer, clip):
        original = originals.contrib()
        if original is None:
            raise unittest.SkipTest("only TensorFlow 1.15 has tf.contrib")
        theirs = _trained(
            name,
            optimizer,
            _wrap(original.LossScaleOptimizer, original.FixedLossScaleManager),
            clip,
        )
        self.assertAllEqual(_trained(name, optimizer, _wrap(), clip), theirs)

    @crossed.parameters(*itertools.product(modes.ALL, sorted(MEASURED)))
    def test_numbers_of_the_original(self, name, optimizer):
        table = _trained(name, optimizer, _wrap())[-1]
        self.assertAllClose(table, MEASURED[optimizer], rtol=1e-6)
