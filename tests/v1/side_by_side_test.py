"""The original classes and this package's train the same network in one process, bit for bit.

A network is trained by each of the two, on the same data and from the same start, with NaN, +inf
and -inf put into a gradient at random steps. After every step their variables, slots, global steps,
loss scales and counters have to be the same bits.
"""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import originals
from tests.v1_optimizers import loss_of, sgd
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

# In eager mode a step takes many times longer than in a graph.
STEPS = {"graph": 300, "eager": 150}
SIDES = ("original", "ours")
OPTIMIZERS = {
    "gradient_descent": lambda: sgd(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
}
SHAPES = {"w1": [4, 6], "w2": [6, 3], "spoilt": [19]}
# Policy: (of contrib?, function that makes it in a namespace).
POLICIES = {
    "contrib_fixed": (True, lambda home: home.FixedLossScaleManager(96)),
    "contrib_exponential": (
        True,
        lambda home: home.ExponentialUpdateLossScaleManager(2**15, 5, 2, 3, 0.8),
    ),
    "fixed": (False, lambda home: home.FixedLossScale(96)),
    "dynamic": (False, lambda home: home.DynamicLossScale(2**15, 5, 2.0)),
}
# As eager mode takes longer, there the scales that move are compared with every optimizer and the
# fixed ones with Adam alone.
ALL = [
    (mode, policy, optimizer)
    for mode in ("graph", "eager")
    for policy in POLICIES
    for optimizer in OPTIMIZERS
    if mode == "graph" or optimizer == "adam" or not policy.endswith("fixed")
]


def pairs(wanted):
    """The policies and optimizers for which this TensorFlow has an original, in a mode."""
    homes = {True: originals.contrib(), False: originals.experimental()}
    return [
        (policy, optimizer)
        for mode, policy, optimizer in ALL
        if mode == wanted and homes[POLICIES[policy][0]] is not None
    ]


def step_data(step):
    """(inputs, targets, poison) of a step; the poison is added to the gradient of `spoilt`."""
    random = np.random.RandomState(1000 + step)
    inputs = random.uniform(-1, 1, [8, 4]).astype(np.float32)
    targets = np.sin(3 * inputs[:, :3])
    poison = np.zeros(SHAPES["spoilt"], np.float32)
    if random.uniform() < 0.15:
        # Only this element: a loss scale that lets it through trains on with the others.
        poison[random.randint(len(poison))] = (np.nan, np.inf, -np.inf)[random.randint(3)]
    return inputs, targets, poison


class Training:
    """One network with its optimizer, of one of the two sides."""

    def __init__(self, side, policy, optimizer):
        of_contrib, make_policy = POLICIES[policy]
        if side == "ours":
            namespace = contrib if of_contrib else experimental
        else:
            namespace = originals.contrib() if of_contrib else originals.experimental()
        random = np.random.RandomState(7)
        self.variables = {
            name: tf1.Variable(random.normal(0, 0.5, shape).astype(np.float32))
            for name, shape in SHAPES.items()
        }
        self.global_step = tf1.Variable(0, trainable=False, dtype=tf.int64)
        self.policy = make_policy(namespace)
        self.inner = OPTIMIZERS[optimizer]()
        name = "LossScaleOptimizer" if of_contrib else "MixedPrecisionLossScaleOptimizer"
        wrapper = getattr(namespace, name)
        for cls in (wrapper, type(self.policy)):
            if originals.is_original(cls) != (side == "original"):
                raise AssertionError("{} is on the wrong side".format(cls))
        self.optimizer = wrapper(self.inner, self.policy)

    def _loss(self, inputs, targets, poison):
        var = self.variables
        outputs = tf.matmul(tf.tanh(tf.matmul(inputs, var["w1"])), var["w2"])
        spoilt = tf.reduce_sum((var["spoilt"] + poison) * var["spoilt"])
        return tf.reduce_mean(tf.square(outputs - targets)) + spoilt

    def step(self, *batch):
        """Takes a step; in a graph returns the operation for it."""
        return self.optimizer.minimize(
            loss_of(lambda: self._loss(*batch)),
            global_step=self.global_step,
            var_list=list(self.variables.values()),
        )

    def state(self):
        """Returns {name: variable or tensor} of all that a step can change."""
        state = dict(self.variables, global_step=self.global_step)
        for slot in self.inner.get_slot_names():
            for name, var in self.variables.items():
                state["{}/{}".format(name, slot)] = self.inner.get_slot(var, slot)
        for var in self.inner.variables():
            for power in ("beta1_power", "beta2_power"):  # Adam's, which are no slots.
                if power in var.name:
                    state[power] = var
        state["scale"] = getattr(self.policy, "get_loss_scale", self.policy)()
        for counter in ("_num_good_steps", "_num_bad_steps"):
            if hasattr(self.policy, counter):
                state[counter] = getattr(self.policy, counter)
        return state


def report(states):
    """Compares states of the two sides after each step, of which the first is that of the start.

    Returns:
      A dict with the first difference, or None, and with what happened to the original meanwhile.
    """
    difference = None
    for step, (original, ours) in enumerate(states):
        bits = [
            {name: (value.dtype.name, value.tobytes()) for name, value in state.items()}
            for state in (original, ours)
        ]
        names = [name for name in {**original, **ours} if bits[0].get(name) != bits[1].get(name)]
        if names:
            name = names[0]
            difference = "step {}: {}: {} against {}".format(
                step, name, original.get(name), ours.get(name)
            )
            break
    history = {name: np.array([of[name] for of, _ in states]) for name in ("scale", "global_step")}
    changes = np.diff(history["scale"])
    rest = [value for name, value in states[-1][0].items() if not name.startswith("spoilt")]
    return {
        "difference": difference,
        "skipped": int((np.diff(history["global_step"]) == 0).sum()),
        "grown": int((changes > 0).sum()),
        "shrunk": int((changes < 0).sum()),
        "finite": all(bool(np.isfinite(value).all()) for value in rest),
    }


def compare_in_graph():
    """Trains all pairs in one graph and session; returns {"policy optimizer": report}."""
    with tf.Graph().as_default():
        places = [
            tf1.placeholder(tf.float32, [8, 4]),
            tf1.placeholder(tf.float32, [8, 3]),
            tf1.placeholder(tf.float32, SHAPES["spoilt"]),
        ]
        trainings = {pair: [Training(side, *pair) for side in SIDES] for pair in pairs("graph")}
        steps = [training.step(*places) for both in trainings.values() for training in both]
        initial = {pair: [each.state() for each in both] for pair, both in trainings.items()}
        # One run for a step and for what it left behind, so reads have to wait for it.
        with tf.control_dependencies(steps):
            states = {
                pair: [tf.nest.map_structure(_read, training.state()) for training in both]
                for pair, both in trainings.items()
            }
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            history = [session.run(initial)]
            for step in range(STEPS["graph"]):
                history.append(session.run(states, dict(zip(places, step_data(step)))))
    return {" ".join(pair): report([after[pair] for after in history]) for pair in trainings}


def _read(value):
    """The value as of now, within the control dependencies in force."""
    return value.read_value() if hasattr(value, "read_value") else tf.identity(value)


def compare_eagerly():
    """Trains all pairs eagerly; returns as `compare_in_graph` does."""
    batches = [[tf.constant(part) for part in step_data(step)] for step in range(STEPS["eager"])]
    reports = {}
    for pair in pairs("eager"):
        both = [Training(side, *pair) for side in SIDES]
        states = [list(map(_arrays, both))]
        for batch in batches:
            for training in both:
                training.step(*batch)
            states.append(list(map(_arrays, both)))
        reports[" ".join(pair)] = report(states)
    return reports


def _arrays(training):
    return {name: value.numpy() for name, value in training.state().items()}


class SideBySideTest(parameterized.TestCase, tf.test.TestCase):
    reports = {}

    def reports_of(self, mode):
        """All pairs of a mode are trained at once, when the first of them is asked for."""
        if mode not in self.reports:
            if mode == "graph":
                self.reports[mode] = compare_in_graph()
            else:
                self.reports[mode] = originals.call_eagerly(
                    "tests.v1.side_by_side_test", "compare_eagerly", [], self.get_temp_dir()
                )
        return self.reports[mode]

    @parameterized.parameters(*ALL)
    def test_same_bits_after_every_step(self, mode, policy, optimizer):
        """In a graph with a Session, and in eager mode."""
        if (policy, optimizer) not in pairs(mode):
            self.skipTest("this TensorFlow has no original of {} to compare with".format(policy))
        report = self.reports_of(mode)["{} {}".format(policy, optimizer)]
        self.assertIsNone(report["difference"])
        # There was something to compare: a training that went on, with and without its steps.
        self.assertTrue(report["finite"])
        spoilt = sum(not np.isfinite(step_data(step)[-1]).all() for step in range(STEPS[mode]))
        self.assertGreater(spoilt, 15)
        self.assertEqual(0 if policy == "fixed" else spoilt, report["skipped"])
        if not policy.endswith("fixed"):
            self.assertGreater(report["grown"], 5)
            self.assertGreater(report["shrunk"], 5)
