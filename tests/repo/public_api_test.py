"""The public names stay: names, parameters and options are those of tests/public_api.txt.

A change of that file is a change that users see, and belongs into CHANGELOG.md. To write it anew,
where tf_keras is installed, as the optimizers of all kinds of Keras are there then:

    PYTHONPATH=. python tests/repo/public_api_test.py

Annotations are not compared.
"""

import importlib
import inspect
import pathlib
import re

import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes
from tf_lossscale_compat import __main__ as command

ROOT = pathlib.Path(__file__).resolve().parents[2]
SNAPSHOT = ROOT / "tests" / "public_api.txt"
PACKAGE = "tf_lossscale_compat"
# docs/api/index.md says so.
MODULES = (
    PACKAGE,
    f"{PACKAGE}.contrib.mixed_precision",
    f"{PACKAGE}.keras.callbacks",
    f"{PACKAGE}.keras.mixed_precision",
    f"{PACKAGE}.keras.mixed_precision.experimental",
    f"{PACKAGE}.loss_scale",
    f"{PACKAGE}.mixed_precision.experimental",
    f"{PACKAGE}.train.experimental",
)
# Subclasses define or call these.
SPECIAL = ("__call__", "_add_weight")
PLAIN = (type(None), bool, int, float, str)


def parameters(function, leave_out=0):
    """Returns the parameters of a function as text, without the first `leave_out`."""

    def shown(each):
        plain = each.default is each.empty or isinstance(each.default, PLAIN)
        return each.replace(annotation=each.empty, default=each.default if plain else ...)

    signature = inspect.signature(function)
    kept = [shown(each) for each in list(signature.parameters.values())[leave_out:]]
    text = str(signature.replace(parameters=kept, return_annotation=signature.empty))
    return text.replace("Ellipsis", "...")


def of_package(cls):
    """Returns those of a class's bases, itself included, that this package defines."""
    return [base for base in cls.__mro__ if base.__module__.split(".")[0] == PACKAGE]


def members(cls, without=()):
    """Yields a line for each public member of a class that this package defines."""
    held = {}
    for base in reversed(of_package(cls)):
        if base not in without:
            held.update(vars(base))
    for name, value in sorted(held.items()):
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(value, (classmethod, staticmethod)):
            first = isinstance(value, classmethod)
            yield f".{name}{parameters(value.__func__, first)}"
        elif inspect.isfunction(value):
            yield f".{name}{parameters(value, 1)}"
        else:
            yield f".{name}"


def of_family(cls):
    """The bases that a Keras optimizer has of the Keras that is installed."""
    kind = getattr(cls, "_tflsc_family", None)
    bases = kind.optimizer_base.__mro__ if hasattr(kind, "optimizer_base") else ()
    return [base for base in bases if base.__name__ != "KerasOptimizerBase"]  # Which all have.


def constructor(cls):
    """Returns the parameters of a class's constructor as text."""
    for name in ("__init__", "__new__"):
        for base in of_package(cls):
            if name in vars(base):
                function = vars(base)[name]
                return parameters(getattr(function, "__func__", function), 1)
    return "()"


def described(name, value, public=()):
    """Yields lines that say what a public name stands for, and which of its bases are `public`."""
    if inspect.ismodule(value):
        yield f"{name}: module"
    elif inspect.isclass(value):
        # What it can be caught or looked for as.
        kinds = [
            base.__qualname__
            for base in value.__mro__[1:]
            if base.__module__ == "builtins" or base in public
            if base not in (object, BaseException, Exception)
        ]
        yield name + constructor(value) + "".join(f" < {kind}" for kind in kinds)
        yield from (name + line for line in members(value, of_family(value)))
    elif callable(value):
        yield name + parameters(value)
    else:
        yield name


def of_modules():
    """The names that the modules export; what has several names has its members under one."""
    exported = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            exported[f"{module_name}.{name}"] = getattr(module, name)
    lines, classes = [], {}
    public = list(filter(inspect.isclass, exported.values()))
    for name, value in exported.items():
        if value in public and classes.setdefault(value, name) != name:
            lines.append(f"{name} = {classes[value]}")
        else:
            lines += described(name, value, public)
    return lines


def of_keras(home):
    """The members that the Keras optimizer has for one family alone."""
    public = importlib.import_module(f"{PACKAGE}.keras.mixed_precision").LossScaleOptimizer
    cls = type(public(home.SGD(0.1)))
    common = set(members(public, of_family(public)))
    return [f"LossScaleOptimizer{line}" for line in members(cls) if line not in common]


def of_command():
    """The options of `tf-lossscale migrate`."""
    parser = command._parser()._actions[-1].choices["migrate"]
    options = [" ".join(each.option_strings) or each.metavar for each in parser._actions]
    return [f"tf-lossscale migrate: {each}" for each in options if each != "-h --help"]


def sections():
    """Returns {title: lines} of what there is in this environment."""
    found = {"modules": of_modules(), "commands": of_command()}
    for home in keras_homes.available():
        found.setdefault(f"keras {home.kind}", of_keras(home))
    return found


def recorded():
    """Returns {title: lines} of the file."""
    if not SNAPSHOT.exists():
        return {}
    parts = re.split(r"^\[(.+)\]\n", SNAPSHOT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text.split("\n")[:-1] for title, text in zip(parts[1::2], parts[2::2])}


def write():
    every = {**recorded(), **sections()}
    text = "".join(f"[{title}]\n" + "\n".join([*every[title], ""]) for title in sorted(every))
    SNAPSHOT.write_text(text, encoding="utf-8")


class PublicApiTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sections, cls.recorded = sections(), recorded()

    @parameterized.parameters("modules", "commands", "keras keras3", "keras current", "keras v2")
    def test_what_is_public_stays(self, title):
        if title not in self.sections:
            self.skipTest(f"no {title} beside TensorFlow {tf.__version__}")
        self.assertGreater(len(self.recorded[title]), 3)
        self.assertEqual(
            self.sections[title],
            self.recorded[title],
            "what is public has changed; if it is meant to, see the top of this file",
        )

    def test_what_the_package_imports_has_private_names(self):
        package = importlib.import_module(PACKAGE)
        public = {name for name in vars(package) if not name.startswith("_")} - set(dir(package))
        homes = {name: getattr(vars(package)[name], "__name__", "") for name in public}
        self.assertEqual({k: v for k, v in homes.items() if not v.startswith(PACKAGE)}, {})

    def test_apply_gradients_says_what_scaled_is(self):
        public = importlib.import_module(f"{PACKAGE}.keras.mixed_precision").LossScaleOptimizer
        for home in keras_homes.available():
            cls = type(public(home.SGD(0.1)))
            self.assertIn("scaled: bool,", cls.apply_gradients.__doc__)
            self.assertIn("of at least float32 on Keras 3", cls.scale_loss.__doc__)

    def test_the_reference_names_the_modules(self):
        text = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
        section = text.partition("<!-- public modules -->")[2].split("\n\n")[1]
        named = re.findall(r"^- `([\w.]+)`", section, re.MULTILINE)
        self.assertEqual(named, list(MODULES))


class MissingNamesTest(parameterized.TestCase):
    """Who looks for a name in the wrong module is told where it is."""

    @parameterized.parameters(
        ("", "LossScaleOptimizer"),
        ("", "MixedPrecisionLossScaleOptimizer"),
        (".keras", "LossScaleOptimizer"),
        (".contrib", "LossScaleOptimizer"),
        (".mixed_precision.experimental", "LossScaleOptimizer"),
        (".train.experimental", "LossScaleOptimizer"),
        (".keras.mixed_precision", "Policy"),
        (".keras.mixed_precision.experimental", "set_policy"),
        (".mixed_precision", "set_global_policy"),
        (".keras.mixed_precision", "DynamicLossScale"),
        ("", "LossScaleCallback"),
        (".train", "DynamicLossScale"),
    )
    def test_says_where_it_is(self, module, name):
        module = importlib.import_module(PACKAGE + module)
        new = ", from 2.4 on as set_global_policy" * (name == "set_policy")
        cures = (f"stays in Keras, in tf.keras.mixed_precision{new}.",)
        if name.endswith("Optimizer"):
            homes = "keras.mixed_precision.LossScale", "contrib.mixed_precision.Lo"
            cures = tuple(f"{PACKAGE}.{home}" for home in homes)
        elif "olicy" not in name:
            home = PACKAGE + ".keras.callbacks" * (name == "LossScaleCallback")
            cures = (f"Write: from {home} import {name}.",)
        with self.assertRaises(AttributeError) as attribute:
            getattr(module, name)
        with self.assertRaises(ImportError) as imported:
            exec(f"from {module.__name__} import {name}", {})
        for each in (attribute, imported):
            for cure in (f"{module.__name__!r} has no attribute {name!r}", *cures):
                self.assertIn(cure, str(each.exception))
        self.assertFalse(hasattr(module, name))

    def test_other_names_and_submodules(self):
        with self.assertRaisesRegex(AttributeError, "has no attribute 'nothing'$"):
            importlib.import_module(PACKAGE).nothing  # noqa: B018
        exec(f"from {PACKAGE} import migrate", {})
        exec(f"from {PACKAGE}.keras import _lookup, callbacks", {})


if __name__ == "__main__":
    write()
