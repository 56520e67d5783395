"""Files made to do harm: they end in an answer or an error, and nothing else is read or written."""

import contextlib
import io
import itertools
import os
import random
import shutil
import struct
import sys
import tempfile
import time

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest
from tensorflow.core.protobuf import trackable_object_graph_pb2

from tests import forks, originals, processes
from tf_lossscale_compat import checkpoint
from tf_lossscale_compat._tools import cli, plot
from tf_lossscale_compat.monitoring import _summaries

DATA = os.path.join(originals.ROOT, "tests", "data")
CALL = "import sys\nfrom tf_lossscale_compat._tools import cli\nsys.exit(cli.main(sys.argv[1:]))\n"

# Reads all that is in a folder in a process that may take 2 GiB more than TensorFlow has by itself.
# A line is written before each, so that it is known which one ends the process.
FUZZ = """
import os, resource, sys, time
from tf_lossscale_compat import checkpoint
from tf_lossscale_compat._tools import plot
expected = [checkpoint.find(path) for path in sys.argv[2:]]  # Imports all that is needed.
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), used + (2 << 30)))
found = 0
for name in sorted(os.listdir(sys.argv[1])):
    print(name, flush=True)
    path = os.path.join(sys.argv[1], name)
    begin = time.time()
    try:
        states = plot.read_runs([path]) if name.startswith("logs") else checkpoint.find(path)
        found += 1
        # By their checksums, what is read at all is what was written.
        assert not name.startswith("summed") or states == expected[int(name[7])], states
    except (checkpoint.CheckpointError, ValueError) as error:
        assert name in str(error), error
    assert time.time() - begin < 20, path
print("answers:", found)
"""


def events():
    """The serialized events of a log, one after the other."""
    for step in range(6):
        summary = tf.compat.v1.Summary()
        for tag, value in zip(_summaries.TAGS, (8.0, step, step % 3, 1.0, 64.0)):
            summary.value.add(tag=tag, simple_value=value)
        tensor = summary.value.add(tag=_summaries.SCALE).tensor
        tensor.CopyFrom(tf.compat.v1.make_tensor_proto(4.0))
        yield tf.compat.v1.Event(step=step, wall_time=float(step), summary=summary)


def write_events(path, contents):
    with tf.io.TFRecordWriter(path) as writer:
        for content in contents:
            writer.write(content)


def mutated(contents, chance):
    """A copy of a file's contents with bytes changed, numbers made large, or parts moved."""
    copy = bytearray(contents)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        at, kind = chance.randrange(len(copy)), chance.randrange(5)
        if kind == 0:
            copy[at] = chance.randrange(256)
        elif kind == 1:
            copy[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            number = struct.pack("<Q", chance.choice([0, 2**31 - 1, 2**40, 2**63, 2**64 - 1]))
            copy[at : at + 8] = number
        elif kind == 3:
            del copy[at : at + chance.randrange(1, 64)]
        else:
            begin = chance.randrange(len(copy))
            copy[at:at] = copy[begin : begin + chance.randrange(1, 64)]
        if not copy:
            return b"\0"
    return bytes(copy)


class HostileTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enter_context(tempfile.TemporaryDirectory())

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def script(self, program):
        return processes.write(self.folder, "script.py", program)

    def listed(self):
        return sorted(itertools.chain(*(f + d for _, d, f in os.walk(self.path("files")))))

    @pytest.mark.slow
    def test_modules_in_the_current_folder_are_not_run(self):
        for name in ("json", "glob", "collections", "tempfile", "struct", "numpy"):
            processes.write(self.path("here"), name + ".py", "open('executed', 'w').close()\n")
        for ending in (".index", ".data-00000-of-00001"):
            shutil.copy(os.path.join(DATA, "keras3", "saved-1" + ending), self.path("here"))
        arguments = [self.script(CALL), "checkpoint", "show", "saved-1"]
        status, out, err = forks.alone(
            arguments, processes.environment(), self.path("here"), originals.SECONDS
        )
        self.assertEqual(0, status, err)
        self.assertIn("keras3 by object", out)
        self.assertFalse(os.path.exists(self.path("here", "executed")))

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
    def test_pipe_in_the_place_of_data(self):
        shutil.copy(os.path.join(DATA, "contrib_scoped", "saved.index"), self.folder)
        pipe = self.path("saved.data-00000-of-00001")
        os.mkfifo(pipe)
        self.addCleanup(os.close, os.open(pipe, os.O_RDWR))  # A reader would not wait.
        with self.assertRaisesRegex(checkpoint.CheckpointError, "00001' is not a file"):
            checkpoint.find(self.path("saved"))

    def saved(self, **tensors):
        """The path of a checkpoint with these tensors."""
        path = self.path("saved")
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            save = tf.raw_ops.SaveV2(
                prefix=path,
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=[tf.constant(value) for value in tensors.values()],
            )
            session.run(save)
        return path

    def test_names_that_a_terminal_acts_on(self):
        counter = {"a\x1b[31m/good_steps": np.int64(3)}
        for scale in ({}, {"a\x1b[31m/current_loss_scale": np.float32(8.0)}):
            path = self.saved(**counter, **scale)
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                cli.main(["checkpoint", "show", path])
            self.assertIn("a?[31m", out.getvalue())
            self.assertNotIn("\x1b", out.getvalue())

    def test_object_graph_that_is_an_array_is_not_read(self):
        path = self.saved(
            _CHECKPOINTABLE_OBJECT_GRAPH=[b"one", b"two"],
            current_loss_scale=np.float32(8.0),
            good_steps=np.int64(3),
        )
        self.assertEqual("dynamic by name", checkpoint.read(path).layout)

    def test_object_graph_whose_names_are_its_square(self):
        chain = trackable_object_graph_pb2.TrackableObjectGraph()
        for index in range(100000):
            node = chain.nodes.add()
            node.children.add(node_id=(index + 1) % 100000, local_name="x" * 20)
        fan = trackable_object_graph_pb2.TrackableObjectGraph()
        fan.nodes.add().children.add(node_id=1, local_name="x" * 16000)
        parent = fan.nodes.add()
        for index in range(2000):
            fan.nodes.add()
            parent.children.add(node_id=2 + index, local_name=str(index))
        for graph in (chain, fan):
            path = self.saved(_CHECKPOINTABLE_OBJECT_GRAPH=graph.SerializeToString())
            with self.assertRaisesRegex(checkpoint.CheckpointError, "nested too deeply"):
                checkpoint.find(path)

    def test_object_graph_with_many_names_for_an_object_of_many_values(self):
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        root, node = graph.nodes.add(), graph.nodes.add()
        for index in range(40000):
            root.children.add(node_id=1, local_name=str(index))
            node.attributes.add(checkpoint_key="key")
        path = self.saved(_CHECKPOINTABLE_OBJECT_GRAPH=graph.SerializeToString())
        begin = time.time()
        self.assertEmpty(checkpoint.find(path))
        self.assertLess(time.time() - begin, 30)

    def test_event_that_claims_more_entries_than_there_are(self):
        pytest.importorskip("tensorboard")
        crafted = list(events())[1]
        crafted.summary.value[-1].tensor.tensor_shape.dim.add(size=2**40)
        os.mkdir(self.path("logs"))
        write_events(self.path("logs", "x.tfevents"), [crafted.SerializeToString()])
        (points,) = plot.read_runs([self.path("logs")]).values()
        (good, bad) = [scale for _, scale in points[_summaries.SCALE]]
        self.assertEqual(8.0, np.nanmax([good, bad]))
        self.assertTrue(np.isnan([good, bad]).any())

    def test_changed_checkpoints(self):
        """Each of these files is changed in many ways, and read."""
        if not sys.platform.startswith("linux"):
            self.skipTest("limits of memory are set as Linux has them")
        pytest.importorskip("tensorboard")
        # TensorFlow 1.15 and 2.0 abort on one in 500, as SECURITY.md says.
        number = 20 if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 1) else 100
        sources = [
            (os.path.join("contrib_scoped", "saved"), ".index"),
            (os.path.join("object_optimizer", "saved-1"), ".index"),
            (os.path.join("object_optimizer", "saved-1"), ".data-00000-of-00001"),
        ]
        os.mkdir(self.path("files"))
        for kind, (source, ending) in enumerate(sources):
            with open(os.path.join(DATA, source + ending), "rb") as file:
                contents = file.read()
            for index in range(number):
                to = self.path("files", f"summed-{kind}-{index:04d}")
                os.mkdir(to)
                for each in (".index", ".data-00000-of-00001"):
                    shutil.copy(os.path.join(DATA, source + each), os.path.join(to, "a" + each))
                with open(os.path.join(to, "a" + ending), "wb") as file:
                    file.write(mutated(contents, random.Random(f"{kind} {index}")))
        # The bytes of the file are changed, and those of one record, whose checksum is then right.
        records = [event.SerializeToString() for event in events()]
        for index in range(number):
            chance = random.Random(f"events {index}")
            os.mkdir(self.path("files", f"logs-{index:04d}"))
            to = self.path("files", f"logs-{index:04d}", "x.tfevents")
            at = chance.randrange(len(records))
            changed = [mutated(records[at], chance)] if index % 3 else [records[at]]
            write_events(to, records[:at] + changed + records[at + 1 :])
            if not index % 3:
                with open(to, "rb") as file:
                    contents = mutated(file.read(), chance)
                with open(to, "wb") as file:
                    file.write(contents)
        before = self.listed()
        known = [os.path.join(DATA, source) for source, _ in sources]
        status, out, err = originals.fork([self.script(FUZZ), self.path("files"), *known])
        self.assertEqual(before, self.listed())
        last = out.splitlines()[-1:]
        self.assertEqual(0, status, f"{last} {err[-2000:]}")
        self.assertStartsWith(last[0], "answers: ")
