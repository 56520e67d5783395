"""Users' own optimizers and training loops of TensorFlow 1 around and inside of a loss scale.

Each is run with the original, where the installed TensorFlow has it, and with this package, for as
many steps, some of them not finite; every weight, slot, loss scale and counter has to be the same.
"""

import re

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, originals
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
STEPS = 24


def with_contrib(api, optimizer):
    manager = api.ExponentialUpdateLossScaleManager(2.0**10, 4, 2, 2.0, 0.5)
    return api.LossScaleOptimizer(optimizer, manager)


def with_experimental(api, optimizer):
    return api.MixedPrecisionLossScaleOptimizer(optimizer, api.DynamicLossScale(2.0**10, 4))


KINDS = {
    "contrib": (with_contrib, contrib, originals.contrib()),
    "mixed": (with_experimental, experimental, originals.experimental()),
}


class AdamWeightDecay(tf1.train.Optimizer):
    """As in BERT: overrides `apply_gradients`, makes its moments there with `get_variable`."""

    def __init__(self, rate=0.05, decay=0.01):
        super().__init__(False, "AdamWeightDecay")
        self.rate, self.decay = rate, decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, param in grads_and_vars:
            if grad is None or param is None:
                continue
            grad = tf.convert_to_tensor(grad)
            base = re.match("^(.*):\\d+$", param.name).group(1)
            moments = [
                tf1.get_variable(
                    f"{base}/{which}",
                    shape=param.shape.as_list(),
                    trainable=False,
                    initializer=tf1.zeros_initializer(),
                )
                for which in ("adam_m", "adam_v")
            ]
            m = 0.9 * moments[0] + 0.1 * grad
            v = 0.999 * moments[1] + 0.001 * tf.square(grad)
            update = m / (tf.sqrt(v) + 1e-6) + self.decay * param
            assignments += [
                tf1.assign(param, param - self.rate * update),
                tf1.assign(moments[0], m),
                tf1.assign(moments[1], v),
            ]
        if global_step is not None:
            assignments.append(tf1.assign_add(global_step, 1))
        return tf.group(*assignments, name=name)


class Network:
    """An embedding and a dense layer; its loss on batches, some of which overflow."""

    def __init__(self):
        values = np.random.RandomState(0).normal(size=(6, 3)).astype(np.float32)
        self.table = tf1.get_variable("table", initializer=values)
        self.kernel = tf1.get_variable("kernel", initializer=values[:3, :2].copy())
        self.ids = tf1.placeholder(tf.int32, [4])
        self.factor = tf1.placeholder(tf.float32, [])

    def loss(self):
        rows = tf.gather(tf.convert_to_tensor(self.table), self.ids)
        return tf.reduce_mean(tf.square(tf.matmul(rows, self.kernel) - 1.0)) * self.factor

    def batches(self):
        random = np.random.RandomState(1)
        for step in range(STEPS):
            factor = np.inf if step in (3, 9, 10, 17) else 1.0
            yield {self.ids: random.randint(0, 6, size=4), self.factor: factor}


def adam_weight_decay_with_clipping(wrap, net, global_step):
    optimizer = wrap(AdamWeightDecay())
    grads, variables = zip(*optimizer.compute_gradients(net.loss()))
    finite = tf.reduce_all([tf.reduce_all(tf1.is_finite(grad)) for grad in grads])
    norm = tf1.cond(finite, lambda: tf1.global_norm(grads), lambda: tf.constant(1.0))
    grads, _ = tf.clip_by_global_norm(grads, 0.5, use_norm=norm)
    return optimizer.apply_gradients(list(zip(grads, variables)), global_step)


def moving_averages_around(wrap, net, global_step):
    step = wrap(tf1.train.MomentumOptimizer(0.05, 0.9)).minimize(net.loss(), global_step)
    averages = tf1.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([step]):
        return averages.apply([net.table, net.kernel])


def accumulation_in_a_conditional(wrap, net, global_step):
    # As in BERT: two micro-batches are added up, then applied in the branch of a conditional.
    optimizer = wrap(tf1.train.MomentumOptimizer(0.05, 0.9))
    micro = tf1.get_variable("micro", initializer=0, trainable=False)
    pairs = optimizer.compute_gradients(net.loss(), [net.table, net.kernel])
    sums = [
        tf1.get_variable(f"sum{i}", initializer=np.zeros(v.shape.as_list(), "f"), trainable=False)
        for i, (_, v) in enumerate(pairs)
    ]
    first = tf.equal(micro % 2, 0)
    added = [
        tf1.assign(total, tf1.cond(first, lambda g=g: g, lambda t=total, g=g: t + g))
        for total, g in zip(sums, [tf.convert_to_tensor(g) for g, _ in pairs])
    ]
    with tf.control_dependencies([first, *added]):
        return tf1.cond(
            first,
            lambda: tf.group(tf1.assign_add(micro, 1)),
            lambda: tf.group(
                optimizer.apply_gradients([(g, v) for g, (_, v) in zip(added, pairs)], global_step),
                tf1.assign_add(micro, 1),
            ),
        )


def wrapped_twice(wrap, net, global_step):
    return wrap(wrap(tf1.train.MomentumOptimizer(0.05, 0.9))).minimize(net.loss(), global_step)


HABITS = (
    adam_weight_decay_with_clipping,
    moving_averages_around,
    accumulation_in_a_conditional,
    wrapped_twice,
)


def train(habit, make, api, mode_name="graph_v1"):
    """Returns all variables after each step, a list of dicts by name."""
    with modes.entered(mode_name) as mode:
        tf1.set_random_seed(0)
        net = Network()
        global_step = tf1.train.get_or_create_global_step()
        step = habit(lambda optimizer: make(api, optimizer), net, global_step)
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        history = []
        for batch in net.batches():
            mode.run(step, batch)
            history.append(mode.run(variables))
        return history


class HabitsTest(parameterized.TestCase):
    @crossed.product(
        habit=[habit.__name__ for habit in HABITS],
        # Those first that this TensorFlow has an original of: most habits run with the first.
        kind=sorted(KINDS, key=lambda kind: KINDS[kind][2] is None),
        mode=modes.GRAPH,
    )
    def test_as_with_the_original(self, habit, kind, mode):
        make, ours, original = KINDS[kind]
        habit = globals()[habit]
        history = train(habit, make, ours, mode)
        for name, value in history[-1].items():
            self.assertTrue(np.all(np.isfinite(value)), name)
        self.assertFalse(np.array_equal(history[-1]["kernel"], history[0]["kernel"]))
        np.testing.assert_array_equal(history[3]["kernel"], history[2]["kernel"])  # Skipped.
        if original is None or (kind == "contrib" and mode == "graph_v2"):
            return  # Names are those that contrib made by default, of the former conditional.
        theirs = train(habit, make, original, mode)
        for ours_then, theirs_then in zip(history, theirs):
            self.assertEqual(sorted(ours_then), sorted(theirs_then))
            for name, value in ours_then.items():
                np.testing.assert_array_equal(value, theirs_then[name], name)
