"""The steps that `migrate` ends with, for `--to`."""

import json
import os
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from tests.migrate.migrate_command_test import FolderTestCase, call
from tf_lossscale_compat.migrate import _next

HEAD = "import tensorflow as tf\nimport tf_lossscale_compat\n"
UPGRADE = "tf_upgrade_v2 --mode SAFETY --reportfile tf_upgrade_v2.log"
SWITCH = "TF_USE_LEGACY_KERAS"
STEPS = {
    "upgrade": f"\n    {UPGRADE} --infile a.py --outfile a.py\n",
    "by hand": "\n    import tensorflow.compat.v1 as tf\n",
    "behavior": "\n    tf.compat.v1.disable_v2_behavior()\n",
    "behavior of compat.v1": "\n    tf.disable_v2_behavior()\n",
    "slim": "\n    pip install tf-slim\n",
    "batch_norm": '\n    sys.modules["tf_keras.legacy_tf_layers.normalization"] = normalization\n',
    "keras": "Keras 3 lacks this in graphs. Stay with Keras 2:\n\n"
    f"    pip install --no-deps 'tf_keras==2.21.*'\n    export {SWITCH}=1\n",
    "choice": "change the places that say `on Keras 3`, or leave them and stay with Keras 2",
}


class StepsTest(FolderTestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ))
        os.environ.pop(SWITCH, None)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def check_steps(self, text, *steps, to="2.21"):
        self.write("a.py", text)
        _, out, err = call("a.py", "--to", to)
        self.assertNotIn(b"next, on", out)
        self.assertEqual([name for name, step in STEPS.items() if step in err], list(steps), err)
        self.assertEqual(f"\nnext, on TensorFlow {to}:\n\n1. " in err, bool(steps))
        self.assertEqual(f"\n{len(steps)}. " in err, bool(steps))

    @parameterized.parameters(
        ("tf.placeholder(x)", "upgrade", "behavior"),
        ("tf.train.AdamOptimizer(x)", "upgrade", "behavior"),
        ("from tensorflow.python.ops import math_ops\ntf.log(x)", "by hand", "behavior"),
        ("tf.log(x)\ntf.disable_v2_behavior()", "upgrade"),
        ("tf.compat.v1.placeholder(x)", "behavior"),
        ("tf.compat.v1.disable_eager_execution()\ntf.compat.v1.log(x)",),
        ("tf.layers.dense(x)", "upgrade", "behavior", "keras"),
        ("tf.compat.v1.nn.rnn_cell.LSTMCell(x)", "behavior", "keras"),
        ("tf.Session()\ntf.keras.layers.Dense(1)", "upgrade", "behavior"),
        ("tf.Session()\ntf.keras.layers.Dense(1)\nm.fit(x)", "upgrade", "behavior", "keras"),
        ("tf.Session()\ntf.keras.regularizers.l1(1)", "upgrade", "behavior", "keras"),
        ("tf.Session()\ntf.keras.backend.set_session(s)", "upgrade", "behavior", "keras"),
        ("tf.compat.v1.Session()\ntf.compat.v1.keras.losses.MeanSquaredError()", "behavior"),
        ("tf.layers.dense(x)\ntf.disable_v2_behavior()\nself.compiled_loss",)
        + ("upgrade", "keras", "choice"),
        ("self.compiled_loss  # tf-lossscale: checked",),
        ("self.compiled_loss", "choice"),
        ("tf.contrib.layers.fully_connected(x)", "slim"),
        ("import tf_slim\ntf_slim.batch_norm(x)", "slim", "batch_norm"),
        ("import tf_slim\ntf_slim.batch_norm(x)\nimport tf_keras.legacy_tf_layers as n", "slim"),
        ("from tensorflow.core.framework import graph_pb2\ntf.log(x)", "by hand", "behavior"),
        ("tf.keras.layers.Dense(1), tf.function, tf.math.log(x)",),
    )
    def test_steps(self, code, *steps):
        self.check_steps(f"{HEAD}{code}\n", *steps)

    def test_the_import_of_compat_v1(self):
        text = "import tensorflow.compat.v1 as tf\nimport tf_lossscale_compat\ntf.placeholder(x)\n"
        self.check_steps(text, "behavior of compat.v1")

    @parameterized.parameters(
        ("", "", ["LSC417 `net.build`"], ["LSC419 `self.ema`"]),
        ("    def build(self, shape): pass\n", "", [], ["LSC419 `self.ema`"]),
        ("", "tf.train.experimental.LossScale\n", ["LSC417 `net.build`"], ["LSC419 `self.ema`"]),
    )
    def test_a_model_of_another_file(self, method, ours, in_train, in_model):
        head = f"import tensorflow as tf\n{ours}"
        model = f"class Net(tf.keras.Model):\n{method}    def f(self):\n        self.ema = {{}}\n"
        for value, number in (
            ("[tf.Variable(v, trainable=False) for v in self.variables]", 1),
            ("None", 0),
        ):
            self.write("model.py", head + model.format(value))
            self.write(
                "train.py", HEAD + "from model import Net\nnet = Net()\nnet.build((None, 4))\n"
            )
            self.write("save.py", "model.save_weights(path)\n")
            for paths, saves in ((["."], 1), (["model.py", "train.py"], 0)):
                err = call(*paths)[2]
                for file, found in (("train.py", in_train), ("model.py", in_model)):
                    lines = [line for line in err.splitlines() if file in line and "LSC4" in line]
                    expected = [each for each in found if "419" not in each or number * saves]
                    self.assertLen(lines, len(expected), err)
                    for line, each in zip(lines, expected):
                        self.assertIn(f": {each}: on Keras 3 ", line)

    @parameterized.parameters(
        ("from model import Net", "model.py", True),
        ("import net.model as net", "net/model.py", True),
        ("  from . import (data,\n    net)  # model", "net/__init__.py", True),
        ("from .net.model import Net", "net/model.py", True),
        ("import other", "model.py", True),  # Which imports it.
        ("import os  # model", "model.py", False),
        ("from model import Net", "lib/model.py", False),
    )
    def test_a_file_that_one_with_a_loss_scale_imports(self, statement, name, is_looked_at):
        self.write("src/main.py", f"{statement}\n")
        self.write("src/other.py", "from model import *\n")
        model = "import tensorflow as tf\nself.compiled_loss(y, p)\n"
        for path in (name, "model_of_none.py"):
            self.write(f"src/{path}", model)
        # Words alone are no loss scale.
        self.write("src/word.py", "import model_of_none, tensorflow  # loss_scale\n")
        self.assertEqual(call("src")[0], 0)
        self.write("src/main.py", f"{HEAD}if True:\n  {statement}\n")
        code, _, err = call("src")
        self.assertEqual((code, err.count(": LSC401 ")), (is_looked_at, is_looked_at), err)
        self.assertIn(f"src/{name}:2:1: LSC401 " if is_looked_at else "", err)

    def test_a_notebook_imports_a_file(self):
        cell = {"cell_type": "code", "source": [*HEAD.splitlines(True), "from model import Net"]}
        self.write("a.ipynb", json.dumps({"cells": [cell]}, indent=1))
        self.write("model.py", "import tensorflow as tf\nself.compiled_loss(y, p)\n")
        self.write("data.py", "import tensorflow as tf\nself.compiled_loss(y, p)\n")
        self.assertIn("3 files looked at, 0 to rewrite, 1 place left", call(".")[2])

    def test_older_versions(self):
        self.check_steps(f"{HEAD}tf.layers.dense(x)", to="1.15")
        self.check_steps(f"{HEAD}tf.layers.dense(x)", "upgrade", "behavior", to="2.15")
        self.check_steps(f"{HEAD}tf.contrib.slim.batch_norm(x)", "slim", to="2.15")
        os.environ[SWITCH] = "1"
        self.check_steps(f"{HEAD}tf.layers.dense(x)", "upgrade", "behavior")

    def test_files_without_loss_scaling_have_none(self):
        self.check_steps("import tensorflow as tf\ntf.layers.dense(tf)")

    def test_other_names_of_contrib_are_counted(self):
        text = "import tensorflow as tf\ntf.contrib.slim.{0}, tf.contrib.slim.y, tf.contrib.eager"
        for name in ("a.py", "b.py"):
            self.write(name, text.format(name[0]))
        self.write("c.py", HEAD + "tf.contrib.layers\n" * 3)
        code, _, err = call("a.py", "b.py")
        self.assertEqual(code, 0)
        self.assertIn("0 places left to a person", err)
        self.assertIn(
            "1. `tf.contrib` was removed in TensorFlow 2.0. Files without loss scaling have 6 names"
            " of it in 2 files (`slim` 4, `eager` 2): `--contrib` lists them, with what to write.",
            err,
        )
        self.assertNotIn("tf.contrib", call("a.py", "--to", "1.15")[2])
        code, _, err = call(".", "--contrib")
        self.assertEqual(code, 1)
        self.assertIn("a.py:2:1: LSC211 `tf.contrib.slim.a` was removed in TensorFlow 2.0", err)
        self.assertIn("c.py:3:1: LSC211 `tf.contrib.layers` was removed in TensorFlow 2.0", err)
        self.assertIn(", 3 times in this file\n", err)
        self.assertIn("7 places left to a person", err)
        self.assertNotIn("without loss scaling", err)

    def test_names_of_contrib_are_counted_or_reported(self):
        check = "isinstance(o, tf.keras.mixed_precision.LossScaleOptimizer)\ntf.contrib.slim\n"
        self.write("a.py", "import tensorflow as tf\n" + check)
        made = "tf.keras.mixed_precision.LossScaleOptimizer(o, dynamic={})\n"
        self.write("b.py", "import tensorflow as tf\n" + made.format(True))
        for option in ("--diff", "--write"):
            _, _, err = call(".", option)
            self.assertIn("LSC211 `tf.contrib.slim`", err)
            self.assertNotIn("without loss scaling", err)
        self.write("a.py", HEAD + "tf.contrib.slim  # tf-lossscale: checked\n")
        self.assertNotIn("without loss scaling", call("a.py")[2])

    def test_what_is_listed(self):
        code = "tf.placeholder, tf.Session, tf.log, tf.to_float, tf.placeholder\n"
        for number in range(6):
            self.write(f"{number} .py", HEAD + code)
        self.write("2 .py", f"{HEAD}{code}if __name__ == '__main__': main()\n")
        _, _, err = call(".")
        self.assertIn(
            "1. ./0 .py, ./1 .py, ./2 .py, ./3 .py and 2 more files (`tf.placeholder`,"
            " `tf.Session`, `tf.log` and 1 more names): only `tf.compat.v1` has this",
            err,
        )
        self.assertIn(f"\n    {UPGRADE} --infile './5 .py' --outfile './5 .py'\n", err)
        self.assertIn("2. In ./2 .py, below the imports", err)
        with_line = "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\n"
        main = "if __name__ == '__main__': main()\n"
        self.write("main.py", with_line + main)  # Another program.
        self.assertIn("2. In ./2 .py, below the imports", call(".")[2])
        self.write("3 .py", f"{HEAD}{code}{main}")
        self.assertIn("2. In ./2 .py, ./3 .py, below the imports", call(".")[2])
        self.write("main.py", with_line)  # They may import it.
        self.assertNotIn("2. In", call(".")[2])

    def test_where_they_are_said(self):
        self.write("a.py", HEAD + "tf.placeholder\ntf.contrib.mixed_precision.LossScaleOptimizer\n")
        for option in ("--diff", "--write"):
            code, out, err = call("a.py", option)
            self.assertEqual(code, 0)
            self.assertEqual(out.count(b"\n+"), option == "--diff" and 2)
            self.assertIn("0 not handled\n\nnext, on TensorFlow 2.21:\n\n1. a.py (", err)
        self.assertNotIn("next, on", call("a.py", "--check")[2])

    @parameterized.parameters("", "2", "1.14", "two", "2.x", "2.21rc0")
    def test_no_version(self, version):
        code, _, err = call("a.py", "--to", version)
        self.assertEqual(code, 2)
        self.assertIn(
            f"--to takes a version of TensorFlow, 1.15 or later, such as 2.15, not {version!r}", err
        )

    def test_a_check_in_a_file_that_was_not_named(self):
        made = "opt = tf.keras.mixed_precision.LossScaleOptimizer(opt, True)\n"
        for code, paths, is_said in (
            (made, ["a.py"], 1),
            (made, ["."], 0),
            ("tf.nn\n", ["a.py"], 0),
        ):
            self.write("a.py", "import tensorflow as tf\ntf.nn\n" + code)
            for option in ("--check", "--write"):
                self.assertEqual(call(*paths, option)[2].count("name all files, or"), is_said)
        self.assertNotIn("name all files, or", call("a.py")[2])


class TableTest(absltest.TestCase):
    def test_the_names_of_tensorflow_1_are_in_compat_v1_alone(self):
        tf = pytest.importorskip("tensorflow")
        if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 0):
            self.skipTest("all names are those of TensorFlow 1")
        for name in dir(tf):
            self.assertFalse(_next._TENSORFLOW_1.match(name), name)
        for part in ("train", "losses", "metrics", "summary", "nn", "data", "image"):
            for name in dir(getattr(tf, part, None)):
                self.assertFalse(_next._TENSORFLOW_1.match(f"{part}.{name}"), f"{part}.{name}")
        found = [name for name in dir(tf.compat.v1) if _next._TENSORFLOW_1.match(name)]
        self.assertGreater(len(found), 40)

    def test_the_line_for_behavior_runs_below_either_import(self):
        tf = pytest.importorskip("tensorflow")
        if tuple(map(int, tf.__version__.split(".")[:2])) < (2, 3):
            self.skipTest("`compat.v1` has no `compat.v1` of its own there")
        for module in (tf, tf.compat.v1):
            self.assertTrue(callable(module.compat.v1.disable_v2_behavior))
