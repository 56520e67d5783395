"""Common parts of the rehearsals' graph programs: faults, float32 storage, the training loop.

A program is a function `build(api)`. `api` is the module that its import line names: TensorFlow's
own or this package's. It makes its graph and returns a `Built`.
"""

import collections

import numpy as np
import tensorflow as tf

from tests import modes

tf1 = tf.compat.v1

STEPS = 300
# What the losses of a step's micro-batches are multiplied with. In float16 2**40 overflows at any
# scale, in float32 at those from 2**100 on that the program there has.
HUGE = 2.0**40
FAULTS = {
    75: (HUGE, 1.0),
    76: (HUGE, HUGE),
    130: (1.0, np.inf),
    185: (1.0, -HUGE),
    186: (np.nan, 1.0),
    187: (HUGE, 1.0),
    299: (1.0, HUGE),
}

Built = collections.namedtuple(
    "Built",
    [
        "train_op",
        "loss",
        "grads",  # The unscaled gradients of this micro-batch, before they are clipped.
        "weight",  # Placeholder of what the loss is multiplied with.
        "batches",  # Iterator over each step's micro-batches, lists of feeds without `weight`.
        "first",  # What the loss is multiplied with until the first step is applied; see `train`.
    ],
)


def _feeds(built, history):
    """Yields the feeds of each step's micro-batches."""
    for step in range(STEPS):
        begun = step and history["global_step"][-1] > 0
        if begun or not step:
            feeds = next(built.batches)
        factors = FAULTS.get(step, (1.0 if begun else built.first,) * 2)
        if len(feeds) == 1:
            factors = [next((factor for factor in factors if factor != 1.0), 1.0)]
        yield [{**feed, built.weight: factor} for feed, factor in zip(feeds, factors)]


def variable(name, value, dtype):
    """A variable that starts as `value`, used as `dtype`."""
    value = np.asarray(value, np.float32)
    return tf1.get_variable(
        name, shape=value.shape, dtype=dtype, initializer=tf1.constant_initializer(value)
    )


def float32_storage(getter, name, dtype=None, trainable=True, **kwargs):
    """A custom getter of variables that are stored in float32 and used as `dtype`."""
    if not trainable or dtype == tf.float32:
        return getter(name, dtype=dtype, trainable=trainable, **kwargs)
    return tf.cast(getter(name, dtype=tf.float32, trainable=True, **kwargs), dtype)


def all_finite(grads):
    """Returns whether all these dense or sparse gradients are finite, a scalar tensor."""
    values = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
    return tf.reduce_all([tf.reduce_all(tf1.is_finite(value)) for value in values])


def _session():
    # One thread each: two graphs that compute the same then do so in the same order.
    return tf1.Session(
        config=tf1.ConfigProto(
            device_count={"GPU": 0}, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
        )
    )


def train(build, api):
    """Trains for `STEPS` steps as after `disable_v2_behavior()`.

    Until the scale has come down to where a step can be applied, all see the same batch, with a
    loss that is `first` times as large. That leaves the scale well below of what later batches
    bear: it may grow, and overflows only in `FAULTS`. Every gradient stayed away from the largest
    number of its dtype by a factor of 1.1 as this was recorded, so that no kernel's roundings
    decide whether a step overflows.

    Args:
      build: the program.
      api: the module that its import line names.

    Returns:
      {name: array [steps, ...]} of the loss, the gradients' norm, how many gradients are
      sparse, and all variables after each step.
    """
    with modes.control_flow(1), tf.Graph().as_default(), tf1.variable_scope("", use_resource=False):
        built = build(api)
        # Adam hardly sees how large gradients are, so it is recorded.
        norm = tf1.global_norm(built.grads)
        variables = tf1.global_variables()
        history = collections.defaultdict(list)
        with _session() as session:
            session.run(tf1.global_variables_initializer())
            run = None
            state = session.make_callable(variables)
            for feeds in _feeds(built, history):
                logged = []
                for feed in feeds:
                    keys, values = zip(*feed.items())
                    run = run or session.make_callable([built.loss, norm, built.train_op], keys)
                    logged.append(run(*values)[:2])
                for name, values in zip(("loss", "norm"), zip(*logged)):
                    history[name].append(np.stack(values))
                for each, value in zip(variables, state()):
                    history[each.op.name].append(value)
        sparse = sum(isinstance(grad, tf.IndexedSlices) for grad in built.grads)
        history["sparse_gradients"] = [np.int32(sparse)] * STEPS
        return {name: np.stack(values) for name, values in history.items()}
