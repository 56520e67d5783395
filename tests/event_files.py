"""The contents of event files, read with what every TensorFlow has."""

import glob
import os
import shutil
import tempfile

import tensorflow as tf

tf1 = tf.compat.v1

PREFIX = "loss_scale/"


def folder(test):
    """A new folder, which is there until the test is over."""
    path = tempfile.mkdtemp()
    test.addCleanup(shutil.rmtree, path, ignore_errors=True)
    return path


def number(value):
    """The scalar in a `Summary.Value` of a TensorFlow 1 or 2 writer."""
    if value.HasField("simple_value"):
        return value.simple_value
    assert value.metadata.plugin_data.plugin_name == "scalars"
    return float(tf.make_ndarray(value.tensor))


def read(folder):
    """{tag without prefix: [(step, value)]} of this package's tags, in the order of writing."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*tfevents*"))):
        for event in tf1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag.startswith(PREFIX):
                    tag = value.tag[len(PREFIX) :]
                    found.setdefault(tag, []).append((event.step, number(value)))
    return found


def points(folder):
    """[(step, skipped steps, of these in a row, scale)] in the order of writing."""
    found = read(folder)
    series = [found[tag] for tag in ("skipped_steps", "consecutive_skips", "scale")]
    steps = [[step for step, _ in each] for each in series]
    assert steps[0] == steps[1] == steps[2], steps
    return [(step, *(value for _, value in values)) for step, *values in zip(steps[0], *series)]
