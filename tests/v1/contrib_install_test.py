"""The opt-in `tf.contrib.mixed_precision`: every way in, nothing beside it, and no trace after."""

import importlib
import importlib.util
import os
import pickle
import re
import sys

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_lossscale_compat
from tests import keras_homes, originals
from tf_lossscale_compat import _contrib_successors
from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import mixed_precision as ours

NAMES = sorted(ours.__all__)
MANAGERS = [name for name in NAMES if name.endswith("Manager")]
# Each binds `found` to the namespace or class that the comment names.
ATTRIBUTES = [
    "import tensorflow as tf; found = tf.contrib.mixed_precision",
    "import tensorflow.compat.v1 as tf; found = tf.contrib.mixed_precision",
    "from tensorflow.compat import v1 as tf; found = tf.contrib.mixed_precision",
    "import tensorflow as tf; found = tf.compat.v1.contrib.mixed_precision",
    "import tensorflow.contrib as contrib; found = contrib.mixed_precision",
    "from tensorflow import contrib; found = contrib.mixed_precision",
    "from tensorflow.contrib import mixed_precision as found",
    "import tensorflow.contrib.mixed_precision as found",
    "import tensorflow.contrib.mixed_precision; found = tensorflow.contrib.mixed_precision",
]
HOME = "tensorflow.contrib.mixed_precision"
# Code that asks for what is not there, and a part of the error, which says where to look instead.
UNKNOWN = [
    ("import tensorflow as tf; tf.contrib.slim", "import tf_slim as slim"),
    ("import tensorflow.compat.v1 as tf; tf.contrib.layers", "import tf_slim"),
    ("import tensorflow as tf; tf.contrib.layers.layer_norm", "import tf_slim"),
    ("import tensorflow as tf; tf.contrib.mixed_precision.Policy",),
    ("import tensorflow as tf; tf.contrib.mixed_precision.python.loss_scale_manager.Policy",),
    ("import tensorflow as tf; tf.contrib.unheard_of", "LossScaleOptimizer.$"),
    ("import tensorflow.contrib.slim",),
    ("import tensorflow.contrib.slim.nets as nets",),
    ("from tensorflow.contrib import slim",),
    ("from tensorflow.contrib import layers", "import tf_slim"),
    ("from tensorflow.contrib.layers import instance_norm", "tf_slim.layers.normalization"),
    ("from tensorflow.contrib.slim import nets",),
    ("from tensorflow.contrib.training import HParams", "has no `HParams`"),
    ("from tensorflow.contrib.mixed_precision import Policy",),
    ("from tensorflow.contrib.mixed_precision.python import policy",),
    ("from tensorflow.contrib.mixed_precision.python.loss_scale_manager import Policy",),
]


def run(code):
    namespace = {}
    exec(code, namespace)
    return namespace


def contrib_modules():
    return sorted(name for name in sys.modules if name.startswith("tensorflow.contrib"))


class SuccessorsTest(absltest.TestCase):
    """What replaces a name of contrib is there, on the newest TensorFlow with tf-slim."""

    def test_names_that_are_said_to_be_there(self):
        if keras_homes.VERSION < (2, 21):
            self.skipTest("the names are those of the newest TensorFlow")
        import tf_slim

        layers = "l2_regularizer layer_norm xavier_initializer group_norm instance_norm repeat"
        members = {**_contrib_successors._MOVED, "layers": layers, "losses": "hinge_loss"}
        members["metrics"] = "streaming_mean streaming_accuracy"
        names = [f"{module}.{name}" for module in members for name in members[module].split()]
        for name in [*names, *_contrib_successors._NEW_NAMES]:
            advice = _contrib_successors.successor(f"tf.contrib.{name}")
            new = re.match("`([a-z0-9_A-Z.]+)`", advice).group(1)
            if "rnn_cell" in new:  # Keras 3 lacks them, which is a step of its own.
                continue
            if "import group_norm" in advice or "import instance_norm" in advice:
                found = hasattr(importlib.import_module("tf_slim.layers.normalization"), new)
            else:
                root, *rest = new.split(".")
                found = {"tf": tf, "tf_slim": tf_slim}[root]
                for each in rest:
                    found = getattr(found, each, None)
            self.assertTrue(found, f"{name}: {advice}")

    def test_names_that_went_nowhere(self):
        gone = _contrib_successors._REMOVED
        names = [f"{module}.{name}" for module in gone for name in gone[module].split()]
        for name in ["rnn.LSTMBlockCell", "estimator.DNNEstimator", "eager.Iterator", *names]:
            self.assertIsNone(_contrib_successors.successor(f"tf.contrib.{name}"), name)


@absltest.skipIf(originals.IS_TF1, "TensorFlow 1.15 has a tf.contrib of its own")
class InstalledTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(tf_lossscale_compat.uninstall_contrib)
        self.assertIs(tf_lossscale_compat.install_contrib(), True)

    @parameterized.parameters(*ATTRIBUTES)
    def test_namespace(self, code):
        found = run(code)["found"]
        for name in NAMES:
            self.assertIs(getattr(found, name), getattr(ours, name))

    @parameterized.parameters(*NAMES)
    def test_import_of_a_class(self, name):
        self.assertIs(run(f"from {HOME} import {name} as found")["found"], getattr(ours, name))

    @parameterized.parameters(
        *[("loss_scale_manager", name) for name in MANAGERS],
        ("loss_scale_optimizer", "LossScaleOptimizer"),
    )
    def test_import_from_inside(self, module, name):
        for code in (
            f"from {HOME}.python import {module} as m; found = m.{name}",
            f"from {HOME}.python.{module} import {name} as found",
            f"import {HOME}.python.{module} as m; found = m.{name}",
            f"import tensorflow as tf; found = tf.contrib.mixed_precision.python.{module}.{name}",
        ):
            with self.subTest(code):
                self.assertIs(run(code)["found"], getattr(ours, name))

    def test_star_import_brings_the_public_names(self):
        namespace = run(f"from {HOME} import *")
        self.assertEqual(sorted(set(namespace) - {"__builtins__", "python"}), NAMES)

    @parameterized.parameters(*UNKNOWN)
    def test_what_is_not_there(self, code, part="is not available"):
        imports = code.startswith("from") or "contrib" in code.split(";")[0]
        error = ModuleNotFoundError if imports else AttributeError
        with self.assertRaisesRegex(error, r"tf\.contrib\.\S+ is not available") as caught:
            run(code)
        self.assertRegex(str(caught.exception), part)
        for name in ["tf.contrib.mixed_precision", *NAMES]:
            self.assertIn(name, str(caught.exception))

    @parameterized.parameters("layers", "rnn", "slim")
    def test_what_needs_keras_2(self, name):
        with self.assertRaises(AttributeError) as caught:
            getattr(tf.contrib, name)
        works = hasattr(tf.compat.v1.layers, "dense")
        if "TF_USE_LEGACY_KERAS" not in os.environ:
            self.assertEqual(works, not _tf.at_least(2, 16))
        check = self.assertNotIn if works else self.assertIn
        check("TF_USE_LEGACY_KERAS=1 before Python starts", str(caught.exception))

    def test_code_that_probes_for_contrib_gets_an_honest_answer(self):
        self.assertFalse(hasattr(tf.contrib, "slim"))
        self.assertTrue(hasattr(tf.contrib, "mixed_precision"))
        self.assertIsNotNone(importlib.util.find_spec(HOME))
        self.assertIn("mixed_precision", dir(tf.contrib))

    def test_modules_can_be_reloaded(self):
        module = importlib.reload(sys.modules[HOME])
        self.assertIs(module.LossScaleOptimizer, ours.LossScaleOptimizer)

    def test_classes_can_be_pickled(self):
        pickled = pickle.dumps(tf.contrib.mixed_precision.FixedLossScaleManager)
        tf_lossscale_compat.uninstall_contrib()
        self.assertIs(pickle.loads(pickled), ours.FixedLossScaleManager)

    def test_other_imports_fail_as_ever(self):
        with self.assertRaisesRegex(ModuleNotFoundError, "No module named 'tensorflow.contribs'"):
            run("import tensorflow.contribs")
        with self.assertRaises(ImportError) as caught:
            run("from tensorflow import no_such_name")
        self.assertNotIn("contrib", str(caught.exception))


@absltest.skipIf(originals.IS_TF1, "TensorFlow 1.15 has a tf.contrib of its own")
class UninstalledTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(tf_lossscale_compat.uninstall_contrib)

    def homes(self):
        return [run(code)["tf"] for code in ("import tensorflow as tf", *IMPORTS_OF_V1)]

    def test_nothing_is_installed_by_importing_the_package(self):
        self.assertFalse(hasattr(tf, "contrib"))
        self.assertEmpty(contrib_modules())

    def test_adds_nothing_but_contrib_and_leaves_no_trace(self):
        self.homes()  # What importing these adds is TensorFlow's.
        before = [dict(vars(home)) for home in self.homes()]
        listed = [list(getattr(home, "__all__", [])) for home in self.homes()]
        modules, finders = set(sys.modules), list(sys.meta_path)
        tf_lossscale_compat.install_contrib()
        for home, attributes in zip(self.homes(), before):
            changed = {
                name for name, value in vars(home).items() if attributes.get(name) is not value
            }
            self.assertEqual({"contrib"}, changed)
        added = set(sys.modules) - modules
        self.assertNotEmpty(added)
        self.assertEqual([name for name in added if not name.startswith("tensorflow.contrib")], [])
        self.assertTrue(tf_lossscale_compat.uninstall_contrib())
        self.assertEqual(before, [dict(vars(home)) for home in self.homes()])
        self.assertEqual(listed, [list(getattr(home, "__all__", [])) for home in self.homes()])
        self.assertEqual(modules, set(sys.modules))
        self.assertEqual(finders, sys.meta_path)

    @parameterized.parameters(*ATTRIBUTES)
    def test_names_are_gone_again(self, code):
        tf_lossscale_compat.install_contrib()
        run(code)
        tf_lossscale_compat.uninstall_contrib()
        with self.assertRaises((AttributeError, ImportError)) as caught:
            run(code)
        self.assertNotIn("install_contrib", str(caught.exception))

    def test_twice_is_once(self):
        self.assertTrue(tf_lossscale_compat.install_contrib())
        contrib, finders = tf.contrib, list(sys.meta_path)
        self.assertTrue(tf_lossscale_compat.install_contrib())
        self.assertIs(tf.contrib, contrib)
        self.assertEqual(finders, sys.meta_path)
        self.assertTrue(tf_lossscale_compat.uninstall_contrib())
        self.assertFalse(tf_lossscale_compat.uninstall_contrib())
        self.assertFalse(hasattr(tf, "contrib"))

    def test_contrib_of_someone_else_stays(self):
        other = object()
        tf.contrib = other
        self.addCleanup(delattr, tf, "contrib")
        self.assertIs(tf_lossscale_compat.install_contrib(), False)
        self.assertIs(tf.contrib, other)
        self.assertEmpty(contrib_modules())
        self.assertFalse(tf_lossscale_compat.uninstall_contrib())
        self.assertIs(tf.contrib, other)

    def test_contrib_that_someone_else_put_in_its_place_stays(self):
        tf_lossscale_compat.install_contrib()
        other = object()
        tf.contrib = other
        self.addCleanup(delattr, tf, "contrib")
        self.assertTrue(tf_lossscale_compat.uninstall_contrib())
        self.assertIs(tf.contrib, other)


IMPORTS_OF_V1 = ("import tensorflow.compat.v1 as tf", "from tensorflow.compat import v1 as tf")


@absltest.skipIf(not originals.IS_TF1, "only TensorFlow 1.15 has a tf.contrib of its own")
class RealContribTest(absltest.TestCase):
    def test_the_real_contrib_stays(self):
        # Asking for them imports their module.
        install = tf_lossscale_compat.install_contrib
        uninstall = tf_lossscale_compat.uninstall_contrib
        contrib, modules, finders = tf.contrib, set(sys.modules), list(sys.meta_path)
        self.assertIs(install(), False)
        self.assertFalse(uninstall())
        self.assertIs(tf.contrib, contrib)
        self.assertEqual(modules, set(sys.modules))
        self.assertEqual(finders, sys.meta_path)
        self.assertTrue(originals.is_original(tf.contrib.mixed_precision.LossScaleOptimizer))
