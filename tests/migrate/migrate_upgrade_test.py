"""Scripts of TensorFlow 1 and 2, rewritten, train on this TensorFlow.

One is rewritten by TensorFlow's own `tf_upgrade_v2` before or after this tool. All of them run in
one process, since starting TensorFlow is what takes the time.
"""

import io
import json
import os
import pathlib
import tempfile
import unittest

import pytest
from absl.testing import absltest

pytest.importorskip("tensorflow", reason="rewritten scripts train, which needs TensorFlow")
pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

import tensorflow as tf

import tf_lossscale_compat
from tests import forks
from tf_lossscale_compat.migrate import _source

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
SECONDS = 240

CONTRIB = """
import json

import numpy as np
import tensorflow as tf
from tensorflow.contrib.mixed_precision import ExponentialUpdateLossScaleManager
from tensorflow.contrib.mixed_precision.python import loss_scale_manager as lsm_lib


class Manager(ExponentialUpdateLossScaleManager):
    def variables(self):
        return [self._loss_scale, self._num_good_steps, self._num_bad_steps]


def train(steps):
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 2])
        w = tf.get_variable("w", [2, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        step = tf.train.get_or_create_global_step()
        manager = Manager(2.0**127, 20, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
        assert isinstance(manager, lsm_lib.LossScaleManager)
        optimizer = tf.contrib.mixed_precision.LossScaleOptimizer(
            tf.train.MomentumOptimizer(0.1, 0.5), manager
        )
        train_op = optimizer.minimize(loss, global_step=step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op, {x: np.ones([4, 2])})
            return session.run([step, loss, manager.variables()[0]], {x: np.ones([4, 2])})


print(json.dumps([float(each) for each in train(40)]))
"""

TRAIN = """
import json

import tensorflow as tf
from tensorflow.mixed_precision import experimental as mixed_precision


def train():
    with tf.Graph().as_default():
        w = tf.compat.v1.get_variable("w", initializer=[3.0, 4.0])
        loss_scale = tf.train.experimental.DynamicLossScale(2.0**127, increment_period=20)
        opt = tf.compat.v1.train.GradientDescentOptimizer(0.25)
        opt = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer(opt, loss_scale)
        assert isinstance(loss_scale, (mixed_precision.LossScale, tf.Tensor))
        loss = tf.reduce_sum(tf.square(w))
        train_op = opt.minimize(loss)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(40):
                session.run(train_op)
            return session.run([loss, tf.identity(loss_scale(), name="loss_scale")])


print(json.dumps([float(each) for each in train()]))
"""


def upgraded(source):
    """Returns what tf_upgrade_v2 makes of a source."""
    from tensorflow.tools.compatibility import ast_edits, tf_upgrade_v2

    upgrader = ast_edits.ASTCodeUpgrader(tf_upgrade_v2.TFAPIChangeSpec())
    out = io.StringIO()
    upgrader.process_opened_file("in.py", io.StringIO(source), "out.py", out)
    return out.getvalue()


def migrated(source):
    result = _source.migrate(source)
    if result.findings:
        raise AssertionError(result.findings)
    return result.text


def run(*sources):
    """Runs scripts in one process of their own; returns their last lines, read as JSON."""
    package = pathlib.Path(tf_lossscale_compat.__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"script{number}.py") for number in range(len(sources))]
        for path, source in zip(paths, sources):
            with open(path, "w", encoding="utf-8") as file:
                file.write(source)
        code = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path)\n"
        environment = dict(os.environ, PYTHONPATH=str(package.parent), TF_CPP_MIN_LOG_LEVEL="2")
        status, out, err = forks.run(["-c", code, *paths], environment, folder, SECONDS)
    if status:
        raise AssertionError(f"ended with {status}\n{err[-3000:]}")
    return [json.loads(line) for line in out.splitlines() if line.startswith("[")]


@unittest.skipIf(VERSION < (2, 4), "tf_upgrade_v2 of these versions does not know this TensorFlow")
class UpgradeTest(absltest.TestCase):
    def test_rewritten_scripts_train(self):
        before, after = migrated(upgraded(CONTRIB)), upgraded(migrated(CONTRIB))
        for text in (before, after):
            self.assertNotIn("tf.contrib", text)
            self.assertNotIn("tensorflow.contrib", text)
            self.assertIn("tf.compat.v1.Session", text)
            self.assertEqual(migrated(text), text)
        results = run(before, after, migrated(TRAIN))
        for steps, loss, scale in results[:2]:
            # Scaled by 2**127 the gradients overflow, so the first steps are skipped.
            self.assertBetween(steps, 30, 39)
            self.assertLess(loss, 1e-2)
            self.assertBetween(scale, 2.0**118, 2.0**127)
        self.assertEqual(results[0], results[1])
        loss, scale = results[2]
        self.assertLess(loss, 1e-3)
        self.assertBetween(scale, 2.0**110, 2.0**127)
