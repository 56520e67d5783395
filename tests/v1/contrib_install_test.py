"""The opt-in `tf.contrib.mixed_precision`: every form of import, and no other name."""

import os
import sys

import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_lossscale_compat
from tests import forks, originals, processes
from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import mixed_precision

HOME = "tensorflow.contrib.mixed_precision"
# Each binds `found` to a module that has the classes.
NAMESPACES = [
    "import tensorflow as tf; found = tf.contrib.mixed_precision",
    "import tensorflow.compat.v1 as tf; found = tf.contrib.mixed_precision",
    "from tensorflow.compat import v1 as tf; found = tf.contrib.mixed_precision",
    "import tensorflow as tf; found = tf.compat.v1.contrib.mixed_precision",
    "from tensorflow import contrib; found = contrib.mixed_precision",
    "from tensorflow.contrib import mixed_precision as found",
    f"import {HOME} as found",
    f"from {HOME}.python import loss_scale_manager as found",
    f"from {HOME}.python import loss_scale_optimizer as found",
]
CLASSES = [
    f"from {home} import {name} as found"
    for name in mixed_precision.__all__
    for home in (HOME, f"{HOME}.python.loss_scale_{name.split('Scale')[1].lower()}")
]


def run(code):
    namespace = {}
    exec(code, namespace)
    return namespace["found"]


@absltest.skipIf(originals.IS_TF1, "TensorFlow 1.15 has a tf.contrib of its own")
class InstalledTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        assert not hasattr(tf, "contrib"), "importing the package installs nothing"
        assert tf_lossscale_compat.install_contrib() is True

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        for api in _tf.api_modules():
            del api.contrib
        for name in [name for name in sys.modules if name.startswith("tensorflow.contrib")]:
            del sys.modules[name]

    @parameterized.parameters(*NAMESPACES)
    def test_namespace(self, code):
        self.assertIs(run(code), mixed_precision)

    @parameterized.parameters(*CLASSES)
    def test_class(self, code):
        self.assertIs(run(code), getattr(mixed_precision, code.split()[3]))

    @parameterized.parameters(
        ("import tensorflow as tf; tf.contrib.slim", AttributeError),
        ("import tensorflow.contrib.slim", ModuleNotFoundError),
        ("from tensorflow.contrib import slim", ImportError),
        (f"from {HOME} import Policy", ImportError),
    )
    def test_other_names_are_not_there(self, code, error):
        with self.assertRaisesRegex(error, "slim|Policy"):
            run(code)

    def test_twice_is_once(self):
        contrib = tf.contrib
        self.assertIs(tf_lossscale_compat.install_contrib(), True)
        self.assertIs(tf.contrib, contrib)


class AnotherContribTest(absltest.TestCase):
    def test_it_stays(self):
        program = (
            "import tensorflow as tf, tf_lossscale_compat\n"
            "tf.contrib = other = getattr(tf, 'contrib', None) or object()\n"
            "assert tf_lossscale_compat.install_contrib() is False and tf.contrib is other\n"
        )
        status, _, err = forks.run(["-c", program], processes.environment(), os.getcwd(), 120)
        self.assertEqual(status, 0, err)
