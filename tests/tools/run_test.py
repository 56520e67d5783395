"""`python -m tf_lossscale_compat.run`: what a script finds there, and how it ends."""

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from tests import originals, processes
from tf_lossscale_compat import run
from tf_lossscale_compat._core import _tf

# What a TensorFlow 1 script looks like; nothing in it knows of this package.
TF1_SCRIPT = '''\
"""Trains one weight."""
from __future__ import absolute_import, division, print_function

import atexit
import json
import os
import pickle
import sys

import tensorflow as tf
from tensorflow import app, logging
from tensorflow.contrib.mixed_precision import ExponentialUpdateLossScaleManager
from tensorflow.python.framework import ops

import beside

flags = tf.app.flags
flags.DEFINE_integer("steps", 1, "How many steps to take.")
FLAGS = flags.FLAGS


def main(argv):
    x = tf.placeholder(tf.float32, [None])
    w = tf.get_variable("w", [], tf.float32, tf.ones_initializer())
    step = tf.train.get_or_create_global_step()
    with tf.variable_scope("scaling"):
        manager = ExponentialUpdateLossScaleManager(8.0, 2, 1, decr_ratio=0.5)
    optimizer = beside.wrap(tf.train.MomentumOptimizer(0.25, 0.5), manager)
    train_op = optimizer.minimize(tf.reduce_sum(w * x), global_step=step)
    history = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(FLAGS.steps):
            session.run(train_op, {x: [1.0, float("inf") if number == 1 else 1.0]})
            values = session.run([w, step, manager.get_loss_scale()])
            history.append([float(value) for value in values])
    me = sys.modules["__main__"]
    print(json.dumps({
        "history": history,
        "sys.argv": sys.argv,
        "path": sys.path[0],
        "file": __file__,
        "main": me.__dict__ is globals() and me.main is main,
        "doc": me.__doc__,
        "spec": __spec__,
        "pickled": pickle.loads(pickle.dumps(main)) is main,
        "variables": sorted(v.name for v in tf.global_variables()),
        "graph": ops.get_default_graph() is tf.get_default_graph(),
        "from imports": app.flags is tf.app.flags and callable(logging.info),
    }))
    sys.stdout.flush()
    atexit.register(print, "at exit")
    sys.exit(7)


if __name__ == "__main__":
    tf.app.run()
'''
BESIDE = """\
import tensorflow as tf


def wrap(optimizer, manager):
    assert tf.placeholder and tf.Session
    return tf.contrib.mixed_precision.LossScaleOptimizer(optimizer, manager)
"""
# The first loss scale 8 doubles after two finite steps and is halved by the one that is not.
HISTORY = [
    [0.5, 1.0, 8.0],
    [0.5, 1.0, 4.0],
    [-0.25, 2.0, 4.0],
    [-1.125, 3.0, 8.0],
]


class RunTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.folder = os.path.realpath(folder)

    def write(self, name, text):
        return processes.write(self.folder, name, text)

    def run_script(self, *arguments, start=originals.child, **environment):
        return start(["-m", "tf_lossscale_compat.run", *arguments], **environment)


class ScriptTest(RunTestCase):
    def test_unmodified_tensorflow_1_script(self):
        path = self.write("project/train.py", TF1_SCRIPT)
        self.write("project/beside.py", BESIDE)
        # By a link: Python looks for modules where the script really is.
        link = os.path.join(self.folder, "link.py")
        os.symlink(path, link)
        status, out, err = self.run_script(link, "--steps", "4", "--", "--tf2", "-h")
        self.assertEqual(7, status, err)
        *_, found, end = out.splitlines()
        self.assertEqual("at exit", end)
        found = json.loads(found)
        self.assertEqual(HISTORY, found["history"])
        self.assertEqual([link, "--steps", "4", "--", "--tf2", "-h"], found["sys.argv"])
        self.assertEqual(os.path.join(self.folder, "project"), found["path"])
        self.assertEqual(link, found["file"])
        self.assertEqual("Trains one weight.", found["doc"])
        self.assertIsNone(found["spec"])
        for check in ("main", "pickled", "graph", "from imports"):
            self.assertTrue(found[check], check)
        self.assertContainsSubset(
            ["scaling/loss_scale:0", "scaling/good_steps:0", "w/Momentum:0"], found["variables"]
        )
        self.assertNotIn("Traceback", err)

    @absltest.skipIf(originals.IS_TF1, "on TensorFlow 1.15 TensorFlow stays as it is")
    @parameterized.parameters("import tensorflow as tf", "import tensorflow.compat.v1 as tf")
    def test_script_that_names_the_compatible_api_within_it(self, statement):
        path = self.write(
            "script.py",
            f"{statement}\n"
            "from tensorflow.compat import v1\n"
            "import tensorflow.compat.v1 as again\n"
            "assert tf.compat.v1.train.AdamOptimizer is tf.train.AdamOptimizer\n"
            "assert tf.compat.v1.Session is v1.Session is again.compat.v1.Session is tf.Session\n"
            "assert not hasattr(tf.compat.v2, 'Session') and tf.compat.v2.function\n"
            "assert tf.compat.as_text(b'x') == 'x' and tf.compat.v1.compat.as_bytes('x') == b'x'\n"
            "assert tf.contrib.mixed_precision.LossScaleOptimizer and tf.placeholder\n",
        )
        status, _, err = self.run_script(path, start=originals.fork)
        self.assertEqual(0, status, err)

    @absltest.skipIf(originals.IS_TF1, "on TensorFlow 1.15 TensorFlow stays as it is")
    def test_installed_packages_are_given_tensorflow_as_it_is(self):
        show = "import tensorflow as tf; has = hasattr(tf, 'placeholder')\n"
        self.write("site-packages/newer.py", show)
        self.write("site-packages/older/__init__.py", "")
        self.write("site-packages/older/module.py", show)
        self.write("other/onpath.py", show)
        path = self.write(
            "script.py",
            "import sys, newer, older.module, onpath, tensorflow as tf\n"
            "sys.stdout.write('%s %s %s %s %s' % (hasattr(tf, 'placeholder'), newer.has,"
            " older.module.has, onpath.has, tf.executing_eagerly()))\n",
        )
        places = ("site-packages", "other")
        path_variable = os.pathsep.join(
            [os.path.join(self.folder, place) for place in places] + sys.path[1:] + [originals.ROOT]
        )
        status, out, err = self.run_script(
            "--tf1", "older", path, PYTHONPATH=path_variable, start=originals.fork
        )
        self.assertEqual((0, "True False True True False"), (status, out), err)

    @absltest.skipIf(originals.IS_TF1, "for code of TensorFlow 2")
    def test_with_tf2_only_contrib_is_added(self):
        path = self.write(
            "script.py",
            "import sys, tensorflow as tf\n"
            "manager = tf.contrib.mixed_precision.FixedLossScaleManager(4)\n"
            "sys.stdout.write('%s %s' % (manager.get_loss_scale().numpy(), tf.Variable))\n"
            "sys.exit(hasattr(tf, 'placeholder'))",
        )
        status, out, err = self.run_script("--tf2", path, start=originals.fork)
        self.assertEqual(0, status, err)
        self.assertStartsWith(out, "4.0 <class")

    def test_error_of_the_script(self):
        path = self.write(
            "script.py",
            "import tensorflow as tf\n"
            "def train():\n"
            "    try:\n"
            "        import no_such_module\n"
            "    except ImportError as error:\n"
            "        raise ValueError('from the script') from error\n"
            "train()\n",
        )
        status, out, err = self.run_script(path, start=originals.fork)
        self.assertEqual((1, ""), (status, out), err)
        traceback = err[err.index("Traceback") :]
        self.assertEndsWith(traceback, "ValueError: from the script\n")
        self.assertEqual(2, traceback.count("Traceback (most recent call last)"))
        files = [line.split('"')[1] for line in traceback.splitlines() if "  File " in line]
        self.assertEqual([path] * 2, files[-2:])  # Before these comes what ran the script.

    def test_script_that_does_not_parse(self):
        path = self.write("script.py", "print 'of Python 2'\n")
        status, out, err = self.run_script(path, start=originals.fork)
        self.assertEqual((1, ""), (status, out))
        self.assertIn(f'  File "{path}", line 1', err)

    @pytest.mark.slow
    @absltest.skipIf(not _tf.at_least(2, 16), "tf.layers works without more")
    def test_what_tf_layers_needs_is_said(self):
        path = self.write(
            "script.py",
            "import tensorflow as tf\n"
            "print(tf.layers.dense(tf.placeholder(tf.float32, [None, 2]), 3).shape[1])\n",
        )
        status, _, err = self.run_script(path, TF_USE_LEGACY_KERAS="", start=originals.fork)
        self.assertEqual(1, status)
        self.assertIn("AttributeError: `dense` is not available with Keras 3", err)
        self.assertRegex(
            err,
            "\ntf_lossscale_compat.run: In TensorFlow 2.16 and later, tf.layers.*"
            "TF_USE_LEGACY_KERAS=1 before Python starts",
        )
        # And it is true.
        if importlib.util.find_spec("tf_keras") is not None:
            status, out, err = self.run_script(path, TF_USE_LEGACY_KERAS="1")
            self.assertEqual((0, "3"), (status, out.strip()), err)


class ArgumentsTest(RunTestCase):
    """Refused before anything of this process is changed, so that these need no other process."""

    def call(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with mock.patch.object(run._importer, "install_contrib") as ran:
                with self.assertRaises(SystemExit) as caught:
                    run.main(list(arguments))
        ran.assert_not_called()
        return caught.exception.code, out.getvalue(), err.getvalue()

    @parameterized.parameters(
        ([], "required: SCRIPT"),
        (["--"], "required: SCRIPT"),
        (["--tf1"], "--tf1: expected one argument"),
        (["-x", "script.py"], "unrecognized arguments: -x"),
        (["no/such/script.py"], "cannot open SCRIPT 'no/such/script.py': No such file"),
        (["."], "cannot open SCRIPT '.': Is a directory"),
    )
    def test_refused(self, arguments, message):
        code, out, err = self.call(*arguments)
        self.assertEqual((2, ""), (code, out))
        self.assertIn("usage: python -m tf_lossscale_compat.run", err)
        self.assertIn(message, err)

    def test_help(self):
        code, out, err = self.call("--help")
        self.assertEqual((0, ""), (code, err))
        self.assertIn("SCRIPT ...", out)
