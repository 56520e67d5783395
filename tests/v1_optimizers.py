"""The two v1 loss-scale optimizers, and what tests of both need."""

import itertools

import tensorflow as tf

from tests import rules
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    FixedLossScale,
    FixedLossScaleManager,
)
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1

OPTIMIZERS = {"contrib": LossScaleOptimizer, "mixed": MixedPrecisionLossScaleOptimizer}
BOTH = tuple(OPTIMIZERS)


class OwnManager(ExponentialUpdateLossScaleManager):
    """A user's, with an update of its own."""

    def update_loss_scale(self, finite_grads):
        return super().update_loss_scale(finite_grads)


class LooksAtGradients(DynamicLossScale):
    """A user's, whose update may look at the gradients."""

    def update(self, grads):
        return super().update(grads)


def sgd(rate=1.0):
    return tf1.train.GradientDescentOptimizer(rate)


def wrapped_in(opt):
    """The optimizer that a v1 loss-scale optimizer wraps; of any other that one itself."""
    return getattr(opt, "_opt", getattr(opt, "_optimizer", opt))


def fixed_for(which, scale):
    """A fixed loss scale of the kind that this optimizer takes."""
    return (FixedLossScaleManager if which == "contrib" else FixedLossScale)(scale)


def dynamic_for(which, start=8.0, period=2000, factor=2.0):
    """A loss scale that moves, of the kind that this optimizer takes; both act alike."""
    if which == "contrib":
        return ExponentialUpdateLossScaleManager(start, period, 1, factor, 1 / factor)
    return DynamicLossScale(start, period, factor)


def state_of(policy):
    """The variables of what `dynamic_for` makes: scale and good steps."""
    if isinstance(policy, DynamicLossScale):
        return [policy.current_loss_scale, policy.good_steps]
    return policy.variables()[:2]


def dynamic():
    return DynamicLossScale(8.0, increment_period=2, multiplier=2.0)


def exponential():
    """A manager that acts as `dynamic` does."""
    return ExponentialUpdateLossScaleManager(8.0, 2, 1, incr_ratio=2.0, decr_ratio=0.5)


def moved(state, finite):
    """Scale and good steps of `dynamic` and `exponential` after one more step."""
    return rules.dynamic(state, finite, 2)


def states(flags):
    """Scale and good steps after each of the steps that were finite or not."""
    return list(itertools.accumulate([(8.0, 0)] + list(flags), moved))[1:]


def loss_of(function):
    """A loss as users of the mode give it: a tensor in a graph, else a callable."""
    graph = tf1.get_default_graph()
    return function if tf.executing_eagerly() or graph.building_function else function()


class Around(tf1.train.Optimizer):
    """Hands everything on, as wrappers of users do."""

    def __init__(self, opt):
        super().__init__(False, "Around")
        self._optimizer = opt

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args, **kwargs):
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args, **kwargs):
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args, **kwargs):
        return self._optimizer.variables(*args, **kwargs)


class Bypassing(Around):
    """As TensorFlow 1.15's `tf.contrib.opt.MovingAverageOptimizer`: calls no base constructor."""

    def __init__(self, opt):
        self._optimizer = opt
