"""The Keras families that there are beside the installed TensorFlow.

for home in keras_homes.available():
    optimizer = home.SGD(0.1)
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import pickle
import typing

import numpy as np
import pytest
import tensorflow as tf

from tests import crossed, modes, originals
from tf_lossscale_compat.keras import mixed_precision

# The classes that are tested.
Stable, Older = mixed_precision.LossScaleOptimizer, mixed_precision.experimental.LossScaleOptimizer
VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])


def slow_on_the_newest(test):
    """Marks a long test as `slow` there: README's command leaves it to the matrix."""
    return pytest.mark.slow(test) if VERSION >= (2, 21) else test


# Kinds of optimizers, as `Home.kind` has them.
BEFORE_3 = ("current", "v2")
NEWER = ("current", "keras3")
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda opt: pickle.loads(pickle.dumps(opt))}


def copies(opt):
    """Returns copies of a wrapper, made in each way in which its Keras copies inner optimizers."""
    made = []
    for way in COPIES.values():
        try:
            way(opt.inner_optimizer)
        except Exception:  # Some Kerases' optimizers cannot be copied, or not with every argument.
            continue
        made.append(way(opt))
    return made


@dataclasses.dataclass(frozen=True)
class Home:
    """A family of optimizers, and the Keras that goes with it."""

    name: str  # keras3; tf_keras and legacy, from 2.11 on; tf.keras before
    keras: typing.Any  # The module with layers, models and so on.
    optimizers: typing.Any  # The module with this family's optimizers.

    @property
    def kind(self):
        """keras3, current (the optimizers that 2.11 brought) or v2 (`OptimizerV2`)."""
        return {"keras3": "keras3", "current": "current"}.get(self.name, "v2")

    @property
    def counts_skipped(self):
        """True if this Keras' own loss-scale class counts skipped steps as iterations."""
        return self.kind != "keras3" and VERSION >= (2, 3)

    def before(self, major, minor):
        """Returns whether this is a Keras 3 older than that version."""
        if self.kind != "keras3":
            return False
        return tuple(int(part) for part in self.keras.__version__.split(".")[:2]) < (major, minor)

    def __getattr__(self, name):
        return getattr(self.optimizers, name)

    def __repr__(self):
        return self.name

    def own(self, api=None):
        """This Keras' own loss-scale optimizer of that API, or None; without one, of the last."""
        home = self.keras.mixed_precision
        older = getattr(getattr(home, "experimental", None), "LossScaleOptimizer", None)
        if api == "experimental":
            return older
        return getattr(home, "LossScaleOptimizer", None if api else older)

    def wrapped_in_own(self, inner, initial_scale=8.0, growth_steps=2000):
        """An optimizer in that class; with a fixed scale if `growth_steps` is None."""
        cls, dynamic = self.own(), growth_steps is not None
        if cls is self.own("experimental"):
            make = originals.experimental().DynamicLossScale
            return cls(inner, make(initial_scale, growth_steps) if dynamic else initial_scale)
        options = {} if dynamic else {"dynamic": False}  # Which Keras 3 lacks.
        options["dynamic_growth_steps"] = growth_steps
        return cls(inner, initial_scale=initial_scale, **options)

    def model(self, *layers, inputs, **kwargs):
        """A built `Sequential` of `layers` for inputs of this shape, without the batch."""
        return self.keras.Sequential([self.keras.layers.InputLayer(inputs, **kwargs), *layers])

    def dense_model(self, units=2, inputs=3):
        """A model with one dense layer, whose weights are the same at each call."""
        keras = self.keras
        kernel = keras.initializers.Constant(0.25)
        return self.model(
            keras.layers.Dense(units, kernel_initializer=kernel, bias_initializer="ones"),
            inputs=(inputs,),
        )

    def variable(self, value=1.0):
        """A float32 variable as that Keras' layers have them."""
        value = np.asarray(value, np.float32)
        return self.keras.Variable(value) if self.kind == "keras3" else tf.Variable(value)

    def clear_session(self):
        """Forgets names and graphs; without a search for garbage, which takes longer than most."""
        clear = self.keras.backend.clear_session
        if self.kind == "keras3":
            clear(free_memory=False)
        else:
            clear()

    def numpy(self, value):
        """The value of a variable or tensor as NumPy, in eager mode or in Keras' own session."""
        if self.kind == "keras3":
            return np.asarray(value)
        return np.asarray(self.keras.backend.get_value(value))

    def variables(self, optimizer):
        """All variables of an optimizer of this family, which of some a method returns."""
        variables = optimizer.variables
        is_method = callable(variables) and self.kind != "keras3"
        return list(variables() if is_method else variables)

    @contextlib.contextmanager
    def policy(self, name):
        """Context in which layers are made with the policy `name`."""
        if VERSION < (2, 0) and name == "float32":  # Layers there take no other.
            yield
            return
        api = self.keras.mixed_precision
        if not hasattr(api, "set_global_policy"):
            api = api.experimental
        set_policy = getattr(api, "set_global_policy", None) or api.set_policy
        before = api.global_policy()
        set_policy(name)
        try:
            yield
        finally:
            # Before 2.4 any policy that is set, even the default, shuts out the graph rewrite.
            set_policy(None if VERSION < (2, 4) else before)


def number(value):
    """The value of a scalar variable or tensor in eager mode, or a number itself, as a float."""
    return float(value.numpy() if hasattr(value, "numpy") else value)


def compiled(mode, function):
    if mode == "eager":
        return function
    return modes.compiled(function) if mode == "jit" else tf.function(function, autograph=False)


def variables_of(home, *values):
    return [home.variable(value) for value in values]


def arrays(variables):
    return [np.array(variable.numpy()) for variable in variables]


def sibling(public, home):
    """The class of this package that stands for `public` around that home's optimizers."""
    return type(public(home.SGD(1.0), loss_scale=8.0))


def available():
    """The homes that this environment has; a missing one shows in the matrix as fewer tests."""
    if VERSION < (2, 11):
        homes = [Home("v2", tf.keras, tf.keras.optimizers)]
        if VERSION >= (2, 9):
            homes.append(Home("current", tf.keras, tf.keras.optimizers.experimental))
        return homes
    if VERSION < (2, 16):
        return [
            Home("current", tf.keras, tf.keras.optimizers),
            Home("legacy", tf.keras, tf.keras.optimizers.legacy),
        ]
    keras = importlib.import_module("keras")
    homes = [Home("keras3", keras, keras.optimizers)]
    if importlib.util.find_spec("tf_keras"):  # Which TensorFlow does not ask for.
        tf_keras = importlib.import_module("tf_keras")
        homes.append(Home("current", tf_keras, tf_keras.optimizers))
        homes.append(Home("legacy", tf_keras, tf_keras.optimizers.legacy))
    return homes


def each(*others, kind=None, since=(1, 15)):
    """Decorates a test to run for each home, times each of `others`.

    Only for those of `kind`, a kind or a tuple of kinds, and from a version of TensorFlow on. Where
    there is none of these, the test skips.
    """
    kinds = (kind,) if isinstance(kind, str) else kind
    homes = [home for home in available() if not kinds or home.kind in kinds]

    def decorate(test):
        if homes and since <= VERSION:
            # Each family by itself: the choice is the same where tf_keras is missing.
            groups = [list(itertools.product([home], *others)) for home in homes]
            return crossed.groups(*groups)(test)

        @functools.wraps(test)
        def skip(self):
            wanted = f"{kinds or 'any'} optimizers from TensorFlow {since} on"
            self.skipTest(f"{wanted}, not those beside {tf.__version__}")

        return skip

    return decorate
