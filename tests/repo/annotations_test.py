"""Every public function, method and property of the package says what it takes and returns.

Checkers take what is not annotated for anything, so nothing else would tell that one is missing.
"""

import importlib
import inspect
import pathlib

import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tests.repo.public_api_test import MODULES, PACKAGE
from tf_lossscale_compat import checkpoint, keras

FOLDER = str(pathlib.Path(tf_lossscale_compat.__file__).resolve().parent)
# Besides names without an underscore: what users call, and what a subclass of theirs does.
SPECIAL = (
    "__call__",
    "__float__",
    "__getitem__",
    "__init__",
    "__int__",
    "__len__",
    "__new__",
    "_add_weight",
)


def is_ours(function):
    """Returns whether a function's source is a `def` of this package."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and str(pathlib.Path(code.co_filename).resolve()).startswith(FOLDER)


def functions_of(cls):
    """Yields (name, function) of what a class and its bases define in this package."""
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if name.startswith("_") and name not in SPECIAL:
                continue
            if isinstance(member, property):
                member = member.fget
            function = getattr(member, "__func__", member)  # Of class and static methods.
            if inspect.isfunction(inspect.unwrap(function)) and is_ours(function):
                yield f"{base.__name__}.{name}", function


def surface(objects):
    """Returns {name: function} of functions and classes, with their methods and properties."""
    found = {}
    for each in objects:
        if inspect.isclass(each):
            found.update(functions_of(each))
        elif callable(each) and is_ours(each):
            found[each.__name__] = each
    return found


def lacks(function):
    """Returns what of a function has no annotation, a list of str."""
    signature = inspect.signature(function)
    missing = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is inspect.Parameter.empty and parameter.name not in ("self", "cls")
    ]
    return missing + ["return"] * (signature.return_annotation is inspect.Signature.empty)


def exported(module):
    found = [getattr(module, name) for name in module.__all__]
    return [each for each in found if getattr(each, "__module__", "").startswith(PACKAGE)]


class AnnotationsTest(parameterized.TestCase):
    @parameterized.parameters(*MODULES)
    def test_of_module(self, name):
        found = surface(exported(importlib.import_module(name)))
        self.assertNotEmpty(found)
        for function in found.values():
            self.assertTrue(is_ours(function))
        self.assertEqual({name: lacks(f) for name, f in found.items() if lacks(f)}, {})

    def test_of_what_functions_return(self):
        found = surface((checkpoint.LossScaleState,))
        self.assertEqual({name: lacks(f) for name, f in found.items() if lacks(f)}, {})

    def test_of_what_the_optimizers_of_this_keras_add(self):
        for public in (
            keras.mixed_precision.LossScaleOptimizer,
            keras.mixed_precision.experimental.LossScaleOptimizer,
        ):
            wrapped = public(tf.keras.optimizers.SGD(), loss_scale=8)
            found = surface([type(wrapped)])
            self.assertTrue([name for name in found if name.endswith(".apply_gradients")])
            self.assertEqual({name: lacks(f) for name, f in found.items() if lacks(f)}, {})
