"""One eager, one graph and one Keras step on the installed TensorFlow; see `nox -s smoke`.

Each is taken with finite gradients, and once more with infinite ones, which are skipped. Prints a
line of JSON: versions, and for each kind of step "ok" or what went wrong.
"""

import json
import platform
import sys

import numpy as np
import tensorflow as tf

from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision as keras
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
COEFFICIENTS = (0.5, float("inf"))


def check(weight, scale):
    """Raises an AssertionError unless one step of two was applied and the scale came down."""
    assert (float(weight), float(scale)) == (0.5, 4.0), f"weight {weight}, loss scale {scale}"


def eager():
    weight = tf.Variable(1.0)
    loss_scale = experimental.DynamicLossScale(8.0)
    sgd = tf1.train.GradientDescentOptimizer(1.0)
    optimizer = experimental.MixedPrecisionLossScaleOptimizer(sgd, loss_scale)
    for coefficient in COEFFICIENTS:
        optimizer.minimize(lambda: weight * coefficient, var_list=[weight])
    check(weight.numpy(), loss_scale().numpy())


def graph():
    with tf.Graph().as_default(), tf1.Session() as session:
        weight, coefficient = tf1.Variable(1.0), tf1.placeholder(tf.float32, [])
        manager = contrib.ExponentialUpdateLossScaleManager(8.0, 1000, 1, 2.0, 0.5)
        sgd = tf1.train.GradientDescentOptimizer(1.0)
        train_op = contrib.LossScaleOptimizer(sgd, manager).minimize(weight * coefficient)
        scale = manager.get_loss_scale()
        session.run(tf1.global_variables_initializer())
        for each in COEFFICIENTS:
            session.run(train_op, {coefficient: each})
        check(*session.run([weight, scale]))


def by_keras():
    dense = tf.keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
    model = tf.keras.Sequential([dense])
    optimizer = keras.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0), initial_scale=8.0)
    model.compile(optimizer, loss=lambda _, output: output)
    for each in COEFFICIENTS:
        model.fit(np.full([2, 1], each, np.float32), np.zeros([2, 1]), verbose=0)
    check(model.get_weights()[0][0, 0], optimizer.loss_scale)


def outcome(step):
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


if __name__ == "__main__":
    tf1.enable_eager_execution()
    found = {"python": platform.python_version(), "tensorflow": tf.__version__}
    found["keras"] = getattr(sys.modules.get("keras", tf.keras), "__version__", "")
    for name, step in (("eager", eager), ("graph", graph), ("keras step", by_keras)):
        found[name] = outcome(step)
    print(json.dumps(found))
