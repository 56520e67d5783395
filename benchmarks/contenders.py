"""The contenders: apply steps of this package, of its peers, and of neither.

Each contender is given the same gradients of a scaled loss, and unscales, tests and applies them.
It is called as users call it. v1's `minimize` computes gradients by the optimizer that is wrapped,
which here takes the given ones for computed; that of tf_keras, which `fit` calls with a tape, is
given something that stands for one. Keras 3's `fit` calls `apply`.
"""

import dataclasses
import functools
import importlib
import importlib.util
from typing import Callable, Optional

import tensorflow as tf

from tf_lossscale_compat import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    StepRecord,
)
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

SCALE = 2.0**10
RATE = 1e-6
# Never reached while measuring: growth takes the same operations as none.
PERIOD = 10**6


@dataclasses.dataclass(frozen=True)
class Contender:
    """One thing to measure.

    Attributes:
      name: str, what the tables call it.
      generation: "v1", "keras3" or "tf_keras", whose optimizer it is around.
      make: function that returns an optimizer; called where variables may be made.
      apply: function of an optimizer, gradients and variables: the step.
      peer: name of the contender that it is held against; None for peers and baselines.
    """

    name: str
    generation: str
    make: Callable
    apply: Callable
    peer: Optional[str] = None

    @property
    def is_fixed(self):
        """True if the loss scale stays as it is."""
        fixed = ("fixed", "factor", "conditional alone")
        return any(word in self.name for word in fixed)

    @property
    def is_baseline(self):
        """True if there is no loss scale."""
        return self.name == baseline(self.generation)


class _Given:
    """Takes gradients that are there already for computed ones; mixed into v1's optimizers."""

    def __init__(self):
        super().__init__(RATE)
        self.given = []

    def compute_gradients(self, loss, *args, **kwargs):
        if callable(loss):  # As an optimizer does, so that scaling it counts.
            loss()
        return list(self.given)


class _GivenSGD(_Given, tf1.train.GradientDescentOptimizer):
    pass


class _GivenAdam(_Given, tf1.train.AdamOptimizer):
    pass


# What all contenders are around: v1's class, and the name of that of a Keras.
OPTIMIZERS = {"sgd": (_GivenSGD, "SGD"), "adam": (_GivenAdam, "Adam")}


class _GivenTape:
    """Stands for a `tf.GradientTape` that has recorded a loss: the gradients are there already."""

    def __init__(self, given):
        self._given = given

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def gradient(self, *_):
        return list(self._given)


def _around(given_class, wrap):
    given = given_class()
    return given, wrap(given)


def _apply_v1(optimizer, gradients, variables):
    given, outer = optimizer
    given.given = list(zip(gradients, variables))
    return outer.minimize(lambda: tf.constant(1.0), var_list=variables)


def _apply(optimizer, gradients, variables):
    return optimizer.apply(gradients, variables)


def _minimize(optimizer, gradients, variables):
    return optimizer.minimize(tf.constant(1.0), variables, tape=_GivenTape(gradients))


def _v1_contenders(given_class):
    def v1(wrap):
        return functools.partial(_around, given_class, wrap)

    def recorded(opt, names):
        optimizer = ours(opt, ours_dynamic())
        StepRecord(optimizer, names=names)
        return optimizer

    theirs = getattr(tf1, "mixed_precision", tf1.train.experimental)
    theirs_dynamic = functools.partial(
        theirs.DynamicLossScale, initial_loss_scale=SCALE, increment_period=PERIOD
    )
    peer = theirs.MixedPrecisionLossScaleOptimizer
    ours = experimental.MixedPrecisionLossScaleOptimizer
    ours_dynamic = functools.partial(experimental.DynamicLossScale, SCALE, PERIOD)
    exponential = functools.partial(ExponentialUpdateLossScaleManager, SCALE, PERIOD)
    plain = v1(lambda opt: opt)
    yield Contender(baseline("v1"), "v1", plain, _apply_v1)
    yield _in_conditional("v1", plain, _apply_v1)
    fixed, dynamic = "tf.compat.v1, fixed", "tf.compat.v1, dynamic"
    for name, wrap, against in (
        (fixed, lambda opt: peer(opt, theirs.FixedLossScale(SCALE)), None),
        (dynamic, lambda opt: peer(opt, theirs_dynamic()), None),
        ("ours, v1, fixed", lambda opt: ours(opt, experimental.FixedLossScale(SCALE)), fixed),
        ("ours, v1, dynamic", lambda opt: ours(opt, ours_dynamic()), dynamic),
        ("ours, v1, recorded", lambda opt: recorded(opt, False), "ours, v1, dynamic"),
        ("ours, v1, recorded with names", lambda opt: recorded(opt, True), "ours, v1, dynamic"),
        # Both look at the gradients.
        ("ours, contrib, fixed", lambda opt: _contrib(opt, FixedLossScaleManager(SCALE)), dynamic),
        ("ours, contrib, exponential", lambda opt: _contrib(opt, exponential()), dynamic),
    ):
        yield Contender(name, "v1", v1(wrap), _apply_v1, against)


def _contrib(opt, manager):
    # The peer keeps sparse gradients; r1.15's way writes the whole table's.
    return contrib.LossScaleOptimizer(opt, manager, keep_sparse=True)


def _in_conditional(generation, make, apply):
    """A step with what any dynamic loss scaling takes of TensorFlow, and nothing else.

    Each gradient is multiplied once, and the optimizer is in a conditional that cannot be decided
    before the step runs.
    """

    def step(optimizer, gradients, variables):
        if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
            with tf.init_scope():  # No variables are made in a branch.
                optimizer.build(variables)
        factor = tf.constant(1 / SCALE)
        gradients = [
            tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
            if isinstance(gradient, tf.IndexedSlices)
            else gradient * factor
            for gradient in gradients
        ]
        first = gradients[0]
        first = first.values if isinstance(first, tf.IndexedSlices) else first

        def applied():
            done = apply(optimizer, gradients, variables)
            return done if isinstance(done, tf.Operation) else tf.no_op()

        return tf.cond(tf.math.is_finite(tf.reshape(first, [-1])[0]), applied, tf.no_op)

    return Contender(alone(generation), generation, make, step, f"{_PEERS[generation]}, dynamic")


_PEERS = {"v1": "tf.compat.v1", "keras3": "keras3", "tf_keras": "tf_keras"}


def alone(generation):
    """The name of the contender that has TensorFlow's part of loss scaling and nothing else."""
    return f"{generation}, conditional alone"


def _keras_contenders(generation, keras, name):
    from tf_lossscale_compat.keras import mixed_precision

    ours = mixed_precision.LossScaleOptimizer

    def plain(**kwargs):
        return getattr(keras.optimizers, name)(RATE, **kwargs)

    apply = _apply if generation == "keras3" else _minimize
    yield Contender(baseline(generation), generation, plain, apply)
    yield _in_conditional(generation, plain, apply)
    if generation == "keras3":
        fixed = "keras3, loss_scale_factor"
        yield Contender(fixed, generation, lambda: plain(loss_scale_factor=SCALE), apply)
        own = keras.optimizers.LossScaleOptimizer
    else:
        fixed = "tf_keras, fixed"
        own = keras.mixed_precision.LossScaleOptimizer
        yield Contender(fixed, generation, lambda: own(plain(), False, SCALE), apply)
    make_own = functools.partial(own, initial_scale=SCALE, dynamic_growth_steps=PERIOD)
    dynamic = f"{generation}, dynamic"
    yield Contender(dynamic, generation, lambda: make_own(plain()), apply)
    yield Contender(
        f"ours, {generation}, fixed", generation, lambda: ours(plain(), False, SCALE), apply, fixed
    )
    yield Contender(
        f"ours, {generation}, dynamic",
        generation,
        lambda: ours(plain(), True, SCALE, PERIOD),
        apply,
        dynamic,
    )


def contenders(optimizer="sgd"):
    """Returns all that can be measured beside the installed TensorFlow, baselines first.

    Args:
      optimizer: str, of `OPTIMIZERS`: what they are around.
    """
    given_class, name = OPTIMIZERS[optimizer]
    found = list(_v1_contenders(given_class))
    if importlib.util.find_spec("keras"):
        keras = importlib.import_module("keras")
        if keras.__version__.startswith("3"):
            found += _keras_contenders("keras3", keras, name)
    if importlib.util.find_spec("tf_keras"):
        found += _keras_contenders("tf_keras", importlib.import_module("tf_keras"), name)
    return found


def baseline(generation):
    """The name of the contender without loss scaling."""
    return f"{generation}, no loss scale"
