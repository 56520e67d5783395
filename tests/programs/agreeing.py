"""A process of several that agree on each step through their parent, which ANDs their flags.

Arguments: for each step 1 if this process's gradient is infinite, else 0. Prints "flag 0" or
"flag 1" and reads the parent's answer, for contrib's optimizer in a Session and then for a Keras
optimizer in a function; at last "done" with weight, scale and counter of both.
"""

import os
import sys

import numpy as np
import tensorflow as tf

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests import keras_homes, modes
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
FAULTS = [argument == "1" for argument in sys.argv[1:]]
GRADIENTS = [np.float32(np.inf if fault else 1.0) for fault in FAULTS]


def ask_parent(finite):
    print("flag", int(finite), flush=True)
    return sys.stdin.readline().strip() == "1"


def agree(finite):
    agreed = tf.numpy_function(ask_parent, [finite], tf.bool)
    agreed.set_shape([])
    return agreed


def with_contrib():
    with modes.entered("graph_v1") as mode:
        weight = tf1.Variable(0.0)
        manager = contrib.ExponentialUpdateLossScaleManager(
            8.0, 2, decr_every_n_nan_or_inf=1, decr_ratio=0.5
        )
        sgd = tf1.train.GradientDescentOptimizer(1.0)
        opt = contrib.LossScaleOptimizer(sgd, manager, agree=agree)
        step = mode.compile(lambda grad: opt.apply_gradients([(grad, weight)]), modes.scalar())
        for gradient in GRADIENTS:
            step(gradient)
        good_steps = opt.variables()[1]
        return [mode.value(v) for v in (weight, manager.get_loss_scale(), good_steps)]


def with_keras():
    home = keras_homes.available()[0]
    with modes.eager_mode():
        weight = (home.keras if home.kind == "keras3" else tf).Variable(0.0)
        loss_scale = experimental.DynamicLossScale(8, 2)
        opt = mixed_precision.LossScaleOptimizer(home.SGD(1.0), loss_scale=loss_scale, agree=agree)

        @tf.function(autograph=False, input_signature=[modes.scalar()])
        def step(gradient):
            opt.apply_gradients([(gradient, weight)], scaled=False)

        for gradient in GRADIENTS:
            step(gradient)
        return [home.numpy(weight), float(loss_scale), loss_scale.good_steps.numpy()]


print("done", "contrib {} {} {}; keras {} {} {}".format(*with_contrib(), *with_keras()))
