"""Writes small checkpoints of trainings with the original classes, and what came after.

    python tests/data/write_checkpoints.py OUTDIR

Under TensorFlow 1.15.5 it trains with `tf.contrib.mixed_precision` and with
`tf.train.experimental` in graphs and saves by name (`tf.compat.v1.train.Saver`). Under TensorFlow
2.0.4 it trains eagerly with `tf.train.experimental` and saves by object (`tf.train.Checkpoint`).
For each case it leaves `OUTDIR/CASE/saved.*` and `OUTDIR/CASE/continued.json`: the bits of
every variable when the checkpoint was written and after each of the steps that followed it.

The losses are element-wise, so that no kernel sums in an order of its own, and the variables are
shorter than a SIMD register: between 2.4 and 2.10 Adam's vectorized square root became another,
and eight elements at a time would come out up to a few ulps apart, whoever applies them.
The tests build the same graphs from the functions here, with this package's classes in the place
of the originals.
"""

import collections
import contextlib
import json
import os
import sys

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

SIZES = {"w": 3, "u": 2}
STEPS_BEFORE = 9
STEPS_AFTER = 16
# Steps with a non-finite gradient: some before the checkpoint is written, some after it.
NONFINITE = {2: np.nan, 3: np.inf, 7: -np.inf, 11: np.inf, 12: np.nan, 13: -np.inf, 20: np.nan}

Classes = collections.namedtuple("Classes", ["contrib", "experimental"])


def step_data(step):
    """Returns {name: (target, poison)}: what variable `name` is pulled to, and what spoils it."""
    random = np.random.RandomState(step)
    data = {}
    for name, size in SIZES.items():
        poison = np.zeros(size, np.float32)
        target = random.uniform(-1, 1, size).astype(np.float32)
        if step in NONFINITE and (name == "w" or step % 2):
            poison[step % size] = NONFINITE[step]
        data[name] = (target, poison)
    return data


def variables():
    """Makes the trained variables, {name: variable}."""
    return {
        name: tf1.Variable(np.linspace(-1, 1, size).astype(np.float32), name=name)
        for name, size in SIZES.items()
    }


def loss_of(variable, target, poison):
    return tf.reduce_sum(tf.square(variable - target)) + tf.reduce_sum(poison * variable)


class GraphTraining:
    """A training in a TF1-style graph: `losses` to build on, then steps in the default session."""

    def __init__(self):
        self.variables = variables()
        self.feeds = {
            name: (tf1.placeholder(tf.float32, [size]), tf1.placeholder(tf.float32, [size]))
            for name, size in SIZES.items()
        }
        self.losses = {
            name: loss_of(variable, *self.feeds[name]) for name, variable in self.variables.items()
        }
        self.global_step = tf1.train.get_or_create_global_step()
        # Lists of operations; each list is run by itself, in order.
        self.phases = []
        self.every = None

    def minimize(self, optimizer, name, counted):
        """Adds the phase that minimizes the loss of one variable, maybe counted as a step."""
        self.phases.append(
            optimizer.minimize(
                self.losses[name],
                global_step=self.global_step if counted else None,
                var_list=[self.variables[name]],
            )
        )

    def take(self, step):
        feed = {}
        for name, values in step_data(step).items():
            feed.update(zip(self.feeds[name], values))
        if self.every is not None:
            feed[self.every] = step % 3 == 2
        for phase in self.phases:
            tf1.get_default_session().run(phase, feed)

    def state(self):
        """Returns {name: array} of all global variables."""
        saved = tf1.global_variables()
        return dict(zip([v.op.name for v in saved], tf1.get_default_session().run(saved)))

    def save(self, prefix):
        """Saves by name."""
        session = tf1.get_default_session()
        tf1.train.Saver().save(session, prefix, write_meta_graph=False, write_state=False)


def contrib_two_optimizers(classes):
    """Two loss-scaled Adams in one graph, after a conditional of the user's own."""
    training = GraphTraining()
    rate = tf1.cond(training.global_step < 6, lambda: tf.constant(0.25), lambda: tf.constant(0.125))
    for name, arguments in (("w", (2**10, 2, 2, 2, 0.8)), ("u", (3.0, 3, 1, 1.7, 1.0 / 3))):
        manager = classes.contrib.ExponentialUpdateLossScaleManager(*arguments)
        optimizer = classes.contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(rate), manager)
        training.minimize(optimizer, name, counted=name == "w")
    return training


def contrib_scoped(classes):
    """Managers in a variable scope, optimizers in a name scope, the fixed manager first."""
    training = GraphTraining()
    with tf1.variable_scope("scaling"):
        manager = classes.contrib.ExponentialUpdateLossScaleManager(64.0, 2, incr_ratio=4)
        fixed = classes.contrib.FixedLossScaleManager(128.0)
    with tf1.name_scope("train"):
        for name, this in (("u", fixed), ("w", manager)):
            optimizer = classes.contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(0.1), this)
            training.minimize(optimizer, name, counted=name == "w")
    return training


def contrib_accumulation(classes):
    """Gradients summed over steps and applied in a branch of a `tf.cond`, as for BERT."""
    manager = classes.contrib.ExponentialUpdateLossScaleManager(2**8, 1, 1, 2, 0.5)
    optimizer = classes.contrib.LossScaleOptimizer(tf1.train.AdamOptimizer(0.1), manager)
    training = GraphTraining()
    training.every = tf1.placeholder(tf.bool, [])
    grads_and_vars = optimizer.compute_gradients(
        training.losses["w"] + training.losses["u"],
        [training.variables["w"], training.variables["u"]],
    )
    sums = [
        tf1.Variable(np.zeros(var.shape.as_list(), np.float32), trainable=False, name="accumulated")
        for _, var in grads_and_vars
    ]
    training.phases = [
        tf.group(*[tf1.assign_add(total, grad) for total, (grad, _) in zip(sums, grads_and_vars)]),
        tf1.cond(
            training.every,
            lambda: optimizer.apply_gradients(
                # A list, for the contrib of TensorFlow 1.15 goes over it twice.
                [(tf.identity(total), var) for total, (_, var) in zip(sums, grads_and_vars)],
                global_step=training.global_step,
            ),
            tf.no_op,
        ),
        tf1.cond(
            training.every,
            lambda: tf.group(*[tf1.assign(total, tf.zeros_like(total)) for total in sums]),
            tf.no_op,
        ),
    ]
    return training


def mixed_precision_optimizers(classes):
    """Two dynamic loss scales and a fixed one between them, each around an Adam."""
    training = GraphTraining()
    make = classes.experimental
    # A fixed scale lets non-finite gradients through; here they are not the point.
    training.losses["u"] = tf.reduce_sum(
        tf.square(training.variables["u"] - training.feeds["u"][0])
    )
    for name, loss_scale in (
        ("w", make.DynamicLossScale(2**8, 2, 4.0)),
        ("u", make.FixedLossScale(16.0)),
        ("w", make.DynamicLossScale(2**4, 3, 2.0)),
    ):
        optimizer = make.MixedPrecisionLossScaleOptimizer(tf1.train.AdamOptimizer(0.1), loss_scale)
        training.minimize(optimizer, name, counted=not training.phases)
    return training


class OptimizerTraining:
    """An eager training saved by objects, all of which `checkpoint` holds."""

    def __init__(self, classes):
        make = classes.experimental
        self.loss_scale = make.DynamicLossScale(2.0**8, 2, 4.0)
        self.optimizer = make.MixedPrecisionLossScaleOptimizer(
            tf1.train.AdamOptimizer(0.1), self.loss_scale
        )
        self.variables = variables()
        self.global_step = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
        self.checkpoint = tf.train.Checkpoint(
            optimizer=self.optimizer, global_step=self.global_step, **self.variables
        )

    def take(self, step):
        data = step_data(step)
        self.optimizer.minimize(
            lambda: sum(loss_of(self.variables[name], *data[name]) for name in SIZES),
            global_step=self.global_step,
            var_list=[self.variables[name] for name in SIZES],
        )

    def state(self):
        """Returns {name: array}."""
        # pylint: disable=protected-access
        state = dict(self.variables, global_step=self.global_step)
        state["loss_scale"] = self.loss_scale._current_loss_scale
        state["good_steps"] = self.loss_scale._num_good_steps
        adam = self.optimizer._optimizer
        for name, var in self.variables.items():
            for slot in ("m", "v"):
                state["{}/{}".format(name, slot)] = adam.get_slot(var, slot)
        for var in adam.variables():
            if "power" in var.name:
                state[var.name.split("/")[-1].split(":")[0]] = var
        return {name: variable.numpy() for name, variable in state.items()}

    def save(self, prefix):
        """Saves by object at `prefix` + "-1"."""
        self.checkpoint.save(prefix)


BY_NAME = {
    build.__name__: build
    for build in (
        contrib_two_optimizers,
        contrib_scoped,
        contrib_accumulation,
        mixed_precision_optimizers,
    )
}
BY_OBJECT = {"object_optimizer": OptimizerTraining}


def bits_of(training):
    """The bits of all variables, {name: hexadecimal}, big-endian so that it can be read."""
    return {
        name: np.asarray(value).astype(np.asarray(value).dtype.newbyteorder(">")).tobytes().hex()
        for name, value in training.state().items()
    }


def continued(training):
    """Takes the steps after the checkpoint; returns the bits of all variables after each."""
    history = []
    for step in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
        training.take(step)
        history.append(bits_of(training))
    return history


def train_and_save(training, prefix):
    """Trains, saves at `prefix`, trains on.

    Returns:
      (state when saved, list of the states after each further step).
    """
    for step in range(STEPS_BEFORE):
        training.take(step)
    saved = bits_of(training)
    training.save(prefix)
    return saved, continued(training)


def dump(path, saved, history):
    with open(path, "w") as stream:
        lines = [json.dumps(state, sort_keys=True) for state in [saved] + history]
        stream.write('{{"tensorflow": "{}", "states": [\n'.format(tf.__version__))
        stream.write(",\n".join(lines) + "\n]}\n")


def load(path):
    """Returns (state when the checkpoint was written, states after each step that followed)."""
    with open(path) as stream:
        states = json.load(stream)["states"]
    return states[0], states[1:]


def main(outdir):
    if tf.__version__ not in ("1.15.5", "2.0.4"):
        raise SystemExit("write_checkpoints.py: run it under TensorFlow 1.15.5 or 2.0.4.")
    in_graph = tf.__version__ == "1.15.5"
    contrib = tf.contrib.mixed_precision if in_graph else None
    classes = Classes(contrib, tf1.train.experimental)
    for name, make in (BY_NAME if in_graph else BY_OBJECT).items():
        folder = os.path.join(outdir, name)
        os.makedirs(folder, exist_ok=True)
        with contextlib.ExitStack() as stack:
            if in_graph:
                stack.enter_context(tf.Graph().as_default())
                session = stack.enter_context(tf1.Session())
            training = make(classes)
            if in_graph:
                session.run(tf1.global_variables_initializer())
            saved, history = train_and_save(training, os.path.join(folder, "saved"))
        dump(os.path.join(folder, "continued.json"), saved, history)
        print(name, " ".join(sorted(saved)))


if __name__ == "__main__":
    main(*sys.argv[1:])
