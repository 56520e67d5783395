"""Replays what TensorFlow 1.15.5 and 2.0.4 did, step by step and bit for bit.

The vectors under `tests/conformance` were recorded from the original classes by `record.py`
there. They are replayed through the public update functions alone.
"""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import originals
from tests.conformance import record
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

FOLDER = os.path.join(originals.ROOT, "tests", "conformance")
EXPONENTIAL = os.path.join(FOLDER, record.EXPONENTIAL_FILE)
DYNAMIC = os.path.join(FOLDER, record.DYNAMIC_FILE)


class _Manager:
    """Drives an `ExponentialUpdateLossScaleManager` and shows its state."""

    counters = ("good", "bad")

    def __init__(self, arguments):
        self._manager = contrib.ExponentialUpdateLossScaleManager(**arguments)

    def step(self, flag, _):
        return self._manager.update_loss_scale(flag)

    def state(self):
        return [self._manager.get_loss_scale()] + self._manager.variables()[1:]


class _DynamicLossScale:
    """Drives a `DynamicLossScale` and shows its state."""

    counters = ("good",)

    def __init__(self, arguments):
        self._loss_scale = experimental.DynamicLossScale(**arguments)

    def step(self, _, grads):
        return self._loss_scale.update(grads)[0]

    def state(self):
        loss_scale = self._loss_scale
        return [loss_scale(), loss_scale.good_steps]


def _driver(path):
    return _Manager if path == EXPONENTIAL else _DynamicLossScale


def replay_in_graph(path, vectors, optimize):
    """Runs all vectors side by side in one graph.

    Args:
      path: the file that the vectors are from.
      vectors: list of vectors.
      optimize: whether TensorFlow may rewrite the graph, as it does unless told otherwise.

    Returns:
      list with, for each vector, the list of its state after each step.
    """
    config = tf1.ConfigProto()
    if not optimize:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    with tf.Graph().as_default():
        drivers = [_driver(path)(vector["arguments"]) for vector in vectors]
        finite = tf1.placeholder(tf.bool, [len(vectors)])
        grads = tf1.placeholder(tf.float32, [len(vectors)])
        updates = [
            driver.step(flag, [grad])
            for driver, flag, grad in zip(drivers, tf.unstack(finite), tf.unstack(grads))
        ]
        update = tf.group(*updates)
        state = [tf.stack(column) for column in zip(*[driver.state() for driver in drivers])]
        history = []
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            for step in range(len(vectors[0]["finite"])):
                flags = [vector["finite"][step] for vector in vectors]
                values = [0.5 if flag else (np.nan, np.inf, -np.inf)[step % 3] for flag in flags]
                session.run(update, {finite: flags, grads: values})
                history.append(session.run(state))
    return [
        [[column[index] for column in columns] for columns in history]
        for index in range(len(vectors))
    ]


def replay_eagerly(path, vectors):
    """Runs the vectors one after the other in eager mode; returns as `replay_in_graph` does."""
    finite = [tf.constant(0.5)]
    nonfinite = [[tf.constant(bad)] for bad in (np.nan, np.inf, -np.inf)]
    histories = []
    for vector in vectors:
        driver = _driver(path)(vector["arguments"])
        history = []
        for step, flag in enumerate(vector["finite"]):
            returned = driver.step(flag, finite if flag else nonfinite[step % 3])
            if returned is not None:
                raise AssertionError("an update returned {!r} in eager mode".format(returned))
            history.append([np.asarray(value.numpy()) for value in driver.state()])
        histories.append(history)
    return histories


def _power_of_two(vector):
    return np.frexp(vector["arguments"].get("multiplier", 2.0))[0] == 0.5


def differences(path, vectors, histories):
    """Says, a line for each vector at most, where a replay left the record."""
    lines = []
    for index, (vector, history) in enumerate(zip(vectors, histories)):
        for step, (scale, *counters) in enumerate(history):
            recorded = [vector[name][step] for name in _driver(path).counters]
            if scale.tobytes() != vector["scale"][step].tobytes() or counters != recorded:
                lines.append(
                    "vector {} {} step {}: scale {!r}, counters {}; recorded {!r}, {}".format(
                        index,
                        vector["arguments"],
                        step,
                        float(scale),
                        [int(count) for count in counters],
                        float(vector["scale"][step]),
                        [int(count) for count in recorded],
                    )
                )
                break
    return lines


def some(vectors, part=4):
    """The chosen edges and one in `part` of the random vectors, for what takes long."""
    return vectors[:14] + vectors[14::part]


def eager_differences(every):
    """Replays both files eagerly; called in a child process where eager has to be switched on.

    Args:
      every: whether all vectors are replayed and not `some`, as here they go one by one.
    """
    if not tf.executing_eagerly():
        raise AssertionError("eager mode is off")
    results = {}
    for path in (EXPONENTIAL, DYNAMIC):
        _, vectors = record.load(path)
        if not every:
            vectors = some(vectors, 10)
        results[path] = [len(vectors), differences(path, vectors, replay_eagerly(path, vectors))]
    return results


class ReplayTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(("exponential", EXPONENTIAL), ("dynamic", DYNAMIC))
    def test_graph(self, path):
        """Every vector, bit for bit, in a graph that TensorFlow does not rewrite."""
        _, vectors = record.load(path)
        histories = replay_in_graph(path, vectors, optimize=False)
        self.assertEqual([], differences(path, vectors, histories))

    def test_rewritten_graph_exponential(self):
        """Bit for bit in a graph as users run it: nothing in the manager's rule is rewritten."""
        vectors = some(record.load(EXPONENTIAL)[1])
        histories = replay_in_graph(EXPONENTIAL, vectors, optimize=True)
        self.assertEqual([], differences(EXPONENTIAL, vectors, histories))

    def test_rewritten_graph_dynamic(self):
        """Bit for bit for powers of two, an ulp per division for any other multiplier.

        TensorFlow replaces division by a constant by multiplication with its reciprocal, in the
        original's graph as in this one. So each step is held against the exact rule applied to
        the replay's own last scale, and the counters against the record.
        """
        vectors = some(record.load(DYNAMIC)[1])
        histories = replay_in_graph(DYNAMIC, vectors, optimize=True)
        exact = [i for i, vector in enumerate(vectors) if _power_of_two(vector)]
        self.assertGreater(len(exact), 15)
        self.assertEqual(
            [],
            differences(DYNAMIC, [vectors[i] for i in exact], [histories[i] for i in exact]),
        )
        for vector, history in zip(vectors, histories):
            multiplier = np.float32(vector["arguments"].get("multiplier", 2.0))
            last = np.float32(vector["arguments"].get("initial_loss_scale", 2.0**15))
            recorded_last, changes = last, 0
            for step, (scale, good) in enumerate(history):
                message = "{} step {}".format(vector["arguments"], step)
                recorded = vector["scale"][step]
                self.assertEqual(good, vector["good"][step], message)
                if recorded == recorded_last:
                    self.assertEqual(scale, last, message)
                elif vector["finite"][step]:
                    self.assertEqual(scale, last * multiplier, message)
                    changes += 1
                else:
                    exactly = np.maximum(last / multiplier, np.float32(1))
                    self.assertLessEqual(abs(scale - exactly), np.spacing(exactly), message)
                    changes += 1
                # Never more than two ulps for each change of the scale since the start.
                tolerance = 2 * changes * 2.0**-23 * float(recorded)
                self.assertLessEqual(abs(float(scale) - float(recorded)), tolerance, message)
                last, recorded_last = scale, recorded

    def check_eager(self, every, least):
        results = originals.call_eagerly(
            "tests.v1.conformance_test", "eager_differences", [every], self.get_temp_dir()
        )
        self.assertCountEqual([EXPONENTIAL, DYNAMIC], results)
        for path, (count, lines) in results.items():
            self.assertEqual([], lines, path)
            self.assertGreaterEqual(count, least)

    def test_eager(self):
        """Bit for bit in eager mode, the chosen edges and a tenth of the rest."""
        self.check_eager(every=False, least=30)

    @pytest.mark.slow
    def test_every_vector_eagerly(self):
        self.check_eager(every=True, least=200)


class RecordTest(tf.test.TestCase):
    def test_record_again(self):
        """Recording an installed original again gives the committed file."""
        if originals.VERSION not in record.RECORDED_BY:
            self.skipTest("only TensorFlow 1.15.5 and 2.0.4 have what the vectors were taken from")
        name = record.RECORDED_BY[originals.VERSION]
        status, out, err = originals.child([os.path.join(FOLDER, "record.py"), self.get_temp_dir()])
        self.assertEqual(0, status, out + err)
        with open(os.path.join(self.get_temp_dir(), name)) as again:
            with open(os.path.join(FOLDER, name)) as committed:
                self.assertEqual(committed.read(), again.read())
