"""Constructors and public methods take what the originals take: names, order and defaults.

What this package adds to a signature can only be given by keyword, so that no positional call
written for the original can come to mean something else.
"""

import inspect

import tensorflow as tf
from absl.testing import parameterized

from tests import originals
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

CLASSES = [
    (contrib, "LossScaleManager"),
    (contrib, "FixedLossScaleManager"),
    (contrib, "ExponentialUpdateLossScaleManager"),
    (contrib, "LossScaleOptimizer"),
    (experimental, "LossScale"),
    (experimental, "FixedLossScale"),
    (experimental, "DynamicLossScale"),
    (experimental, "MixedPrecisionLossScaleOptimizer"),
]
FUNCTIONS = [
    "enable_mixed_precision_graph_rewrite",
    "disable_mixed_precision_graph_rewrite",
]
# Part of the public face, though underscored: subclasses call or define them.
SPECIAL = ("__init__", "__call__", "_add_weight")


def original_of(namespace, name):
    """The original that `namespace.name` stands for, or None on a TensorFlow without it."""
    home = originals.contrib() if namespace is contrib else originals.experimental()
    return getattr(home, name, None)


def public_members(cls):
    """Names of a class's public methods, properties and constants, and of `SPECIAL`."""
    return [name for name in dir(cls) if not name.startswith("_") or name in SPECIAL]


def parameters(function):
    """[(name, kind, default)] of a function, without what decorators have put around it."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def extensions(original, ours):
    """Checks `ours` against `original`; returns the parameters that only `ours` has.

    Raises:
      AssertionError: a parameter of the original is missing, elsewhere, of another kind or has
        another default.
    """
    theirs, own = parameters(original), parameters(ours)
    if own[: len(theirs)] != theirs:
        raise AssertionError("the original has\n{}\nand this package\n{}".format(theirs, own))
    return own[len(theirs) :]


class SignaturesTest(parameterized.TestCase, tf.test.TestCase):
    def check(self, original, ours, message):
        for name, kind, default in extensions(original, ours):
            self.assertEqual(kind, inspect.Parameter.KEYWORD_ONLY, message + ": " + name)
            self.assertIsNot(default, inspect.Parameter.empty, message + ": " + name)

    @parameterized.parameters(*CLASSES)
    def test_class(self, namespace, name):
        """The constructor and every public method or property of a class."""
        original = original_of(namespace, name)
        if original is None:
            self.skipTest("this TensorFlow has no {} to compare with".format(name))
        self.assertTrue(originals.is_original(original))
        ours = getattr(namespace, name)
        self.assertEqual(name, original.__name__)
        members = public_members(original)
        self.assertIn("__init__", members)
        compared = 0
        for member in members:
            self.assertTrue(hasattr(ours, member), member)
            theirs, own = getattr(original, member), getattr(ours, member)
            self.assertEqual(callable(theirs), callable(own), member)
            self.assertEqual(
                isinstance(inspect.getattr_static(original, member), (classmethod, property)),
                isinstance(inspect.getattr_static(ours, member), (classmethod, property)),
                member,
            )
            if isinstance(theirs, int):
                self.assertEqual(theirs, own, member)
            elif callable(theirs) and theirs is not object.__init__:
                self.check(theirs, own, "{}.{}".format(name, member))
                compared += 1
        self.assertGreaterEqual(compared, 2)

    @parameterized.parameters(*FUNCTIONS)
    def test_function(self, name):
        """The functions that stand beside the classes."""
        original = getattr(originals.experimental(), name, None)
        if original is None:
            self.skipTest("this TensorFlow has no {} to compare with".format(name))
        self.assertTrue(originals.is_original(original))
        self.check(original, getattr(experimental, name), name)
