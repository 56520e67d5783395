"""Replays what TensorFlow 1.15.5 and 2.0.4 did, step by step and bit for bit.

The vectors under `tests/conformance` were recorded from the original classes by `record.py`
there. They are replayed through the public update functions alone.
"""

import json
import os

import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import originals
from tests.conformance import record
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

pytestmark = pytest.mark.usefixtures("kept_kernels")

FOLDER = os.path.dirname(record.__file__)
CLASSES = {
    record.EXPONENTIAL_FILE: contrib.ExponentialUpdateLossScaleManager,
    record.DYNAMIC_FILE: experimental.DynamicLossScale,
}


def load(name, part=1):
    """The vectors of a file: the chosen edges, and one in `part` of the random ones."""
    with open(os.path.join(FOLDER, name)) as stream:
        vectors = json.load(stream)["vectors"]
    assert len(vectors) > record.RANDOM_SETS
    return vectors[:14] + vectors[14::part]


def sets_of(vectors):
    return [(vector["arguments"], vector["finite"]) for vector in vectors]


def differences(vectors, histories):
    """Says, a line for each vector at most, where a replay left the record."""
    lines = []
    for vector, replayed in zip(vectors, record.vectors(sets_of(vectors), histories)):
        columns = [name for name in ("scale", "good", "bad") if name in vector]
        recorded, found = (
            list(zip(*[each[name].split() for name in columns])) for each in (vector, replayed)
        )
        steps = [step for step, pair in enumerate(zip(recorded, found)) if pair[0] != pair[1]]
        if steps:
            first = steps[0]
            line = "{} step {}: {}, recorded {}"
            lines.append(line.format(vector["arguments"], first, found[first], recorded[first]))
    return lines


def eager_differences(part):
    """Replays both files eagerly; called in a child process where eager has to be switched on."""
    assert tf.executing_eagerly()
    lines = []
    for name, cls in CLASSES.items():
        vectors = load(name, part)
        lines += differences(vectors, record.run_eagerly(cls, sets_of(vectors)))
    return lines


class ReplayTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(
        ("exponential", record.EXPONENTIAL_FILE), ("dynamic", record.DYNAMIC_FILE)
    )
    def test_graph(self, name):
        """Every vector, bit for bit, in a graph that TensorFlow does not rewrite."""
        vectors = load(name)
        histories = record.run_in_graph(CLASSES[name], sets_of(vectors))
        self.assertEqual([], differences(vectors, histories))

    def test_eager(self, part=40):
        lines = originals.call_eagerly(
            "tests.v1.conformance_test", "eager_differences", [part], self.get_temp_dir()
        )
        self.assertEqual([], lines)


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
