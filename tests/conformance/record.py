"""Records what the original loss-scale classes do, as JSON that every TensorFlow can replay.

    python tests/conformance/record.py OUTDIR

Under TensorFlow 1.15.5 it runs `tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager`
in a graph and writes `OUTDIR/exponential_update_manager.json`. Under TensorFlow 2.0.4 it runs
`tf.train.experimental.DynamicLossScale` eagerly and writes `OUTDIR/dynamic_loss_scale.json`.
Anywhere else it refuses, because it could only record something that is not the original.
`tests/v1/conformance_test.py` runs this package's classes by the same functions.

A vector is one set of constructor arguments with one sequence of steps: `finite` holds a `1`
for a step with finite gradients and a `0` for any other; `scale` holds, for each step, the bits
of the float32 loss scale after it in hexadecimal; `good` (and `bad`) hold the counters.
The same seed gives the same file, byte for byte.
"""

import argparse
import json
import os
import random

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

SEED = 20191014
STEPS = 64
RANDOM_SETS = 200
FLOAT32_MAX = 3.4028234663852886e38

# Each file with the TensorFlow whose behaviour it holds.
EXPONENTIAL_FILE = "exponential_update_manager.json"
DYNAMIC_FILE = "dynamic_loss_scale.json"
RECORDED_BY = {"1.15.5": EXPONENTIAL_FILE, "2.0.4": DYNAMIC_FILE}

# Initial scales that sit on the rule's edges: the floor and just around it, the usual starting
# points, and the last values before float32 overflows.
_INITIAL = (1.0, 1.0000001, 1.5, 2.0, 3.0, 0.5, 1e-3, 128.0, 1000.1, 2**15, 2**24, 2**32, 2**32)
_INITIAL += (1e20, 1.7e38, 2.0**127, 3.4e38, FLOAT32_MAX)
_PERIODS = (1, 1, 2, 2, 3, 5, 10, 63, 2000)
_GROWTH = (2, 2, 2.0, 3, 4.0, 10.0, 1.1, 1.5, 1.0000001, 7.3, 1000, 1e20, 1e38)
_DECAY = (0.8, 0.8, 0.5, 0.5, 0.25, 1.0 / 3, 0.1, 0.99, 2.0 / 3, 1e-3, 1e-20, 1)
_MULTIPLIERS = (2, 2.0, 2.0, 4.0, 16.0, 3.0, 10.0, 1.5, 1.1, 7.3, 1.0000001, 1000, 1e20, 1e38)
# How likely a step is finite. Mostly-finite runs climb, mostly-non-finite ones sink to the floor.
_FINITE_SHARES = (0.0, 0.1, 0.5, 0.5, 0.8, 0.9, 0.97, 1.0)


def _number(rng, edges, low, high):
    """An edge value, or one that is log-uniform between `low` and `high`."""
    if rng.random() < 0.6:
        return edges[int(rng.random() * len(edges))]
    return low * (high / low) ** rng.random()


def _finite_flags(rng):
    share = _FINITE_SHARES[int(rng.random() * len(_FINITE_SHARES))]
    return "".join("1" if rng.random() < share else "0" for _ in range(STEPS))


def _alternating(ones, zeros):
    return (("1" * ones + "0" * zeros) * STEPS)[:STEPS]


def _sets(names, chosen, seed, draw):
    """Returns [(arguments, flags)]: chosen edges first, then random ones by `draw`."""
    sets = [(dict(zip(names, values)), flags) for values, flags in chosen]
    rng = random.Random(seed)
    for _ in range(RANDOM_SETS):
        arguments = dict(zip(names, draw(rng)))
        sets.append((arguments, _finite_flags(rng)))
    return sets


def exponential_sets():
    names = (
        "init_loss_scale",
        "incr_every_n_steps",
        "decr_every_n_nan_or_inf",
        "incr_ratio",
        "decr_ratio",
    )
    chosen = [
        ((2**32, 1000, 2, 2, 0.5), "0" * STEPS),
        ((2**32, 3), _alternating(3, 1)),
        ((2**32, 1000), _alternating(3, 1)),
        ((2**15, 2, 1, 2, 0.5), _alternating(3, 2)),
        ((1, 1, 1, 1.0 / 3, 1.0 / 3), _alternating(1, 1)),
        ((1.0, 1, 2, 1e20, 0.8), _alternating(5, 4)),
        ((1.0, 1, 1, 1e20, 1e-20), _alternating(4, 1)),
        ((3.4e38, 1, 1, 2, 0.8), _alternating(3, 1)),
        ((FLOAT32_MAX, 1, 1, 1.0000001, 0.99), _alternating(2, 1)),
        ((2.0**127, 1, 1, 2, 0.5), _alternating(2, 1)),
        # A bad step does not have to follow another: good ones between them do not forgive it.
        ((1000.0, 100, 3, 2, 0.8), _alternating(4, 1)),
        # Growth below one and decay above one are odd, yet were taken as they came.
        ((1000.0, 2, 2, 0.7, 1.3), _alternating(5, 2)),
        ((0.25, 4, 2, 2, 0.8), _alternating(7, 2)),
        ((16.0, 0, 0, 2, 0.5), _alternating(2, 2)),
    ]

    def draw(rng):
        return (
            _number(rng, _INITIAL, 1.0, FLOAT32_MAX),
            _PERIODS[int(rng.random() * len(_PERIODS))],
            _PERIODS[int(rng.random() * 6)],
            _number(rng, _GROWTH, 1.0, 100.0),
            _number(rng, _DECAY, 0.01, 1.0),
        )

    return _sets(names, chosen, SEED, draw)


def dynamic_sets():
    names = ("initial_loss_scale", "increment_period", "multiplier")
    chosen = [
        ((), _alternating(30, 2)),
        ((2**32, 1000, 2.0), "0" * STEPS),
        ((2**15, 2, 2.0), _alternating(3, 2)),
        ((1.0, 1, 3.0), _alternating(2, 1)),
        ((1, 1, 1.0 / 3), _alternating(1, 1)),
        ((1.0, 1, 1e20), _alternating(4, 1)),
        ((3.4e38, 1, 2.0), _alternating(3, 1)),
        ((FLOAT32_MAX, 1, 1.0000001), _alternating(2, 1)),
        ((2.0**127, 1, 2.0), _alternating(2, 1)),
        ((1000.0, 2, 0.8), _alternating(5, 2)),
        ((0.25, 4, 2.0), _alternating(7, 2)),
        ((16.0, 0, 2.0), _alternating(2, 2)),
    ]

    def draw(rng):
        return (
            _number(rng, _INITIAL, 1.0, FLOAT32_MAX),
            _PERIODS[int(rng.random() * len(_PERIODS))],
            _number(rng, _MULTIPLIERS, 1.0, 100.0),
        )

    return _sets(names, chosen, SEED + 1, draw)


def _update(made, finite, grads):
    """Updates a manager by the flag, or a loss scale by the gradients."""
    if hasattr(made, "update_loss_scale"):
        return made.update_loss_scale(finite)
    return made.update(grads)[0]


def _state(made):
    # pylint: disable=protected-access
    if hasattr(made, "get_loss_scale"):
        return [made.get_loss_scale(), made._num_good_steps, made._num_bad_steps]
    return [made(), made._num_good_steps]


def _gradient(flag, step):
    # Which non-finite value it is must not matter, so the three take turns.
    return 0.5 if flag == "1" else (np.nan, np.inf, -np.inf)[step % 3]


def run_in_graph(cls, sets, optimize=False):
    """Steps one object of `cls` for each of the sets, side by side in one graph.

    Args:
      cls: the class.
      sets: list of (arguments, flags).
      optimize: whether TensorFlow may rewrite the graph, as it does unless told otherwise.

    Returns:
      A list with, for each of the sets, the list of its state after each step.
    """
    config = tf1.ConfigProto()
    if not optimize:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        made = [cls(**arguments) for arguments, _ in sets]
        finite = tf1.placeholder(tf.bool, [len(sets)])
        grads = tf1.placeholder(tf.float32, [len(sets)])
        inputs = zip(made, tf.unstack(finite), tf.unstack(grads))
        update = tf.group(*[_update(each, flag, [grad]) for each, flag, grad in inputs])
        state = [tf.stack(column) for column in zip(*map(_state, made))]
        session.run(tf1.global_variables_initializer())
        history = []
        for step in range(STEPS):
            flags = [flags[step] for _, flags in sets]
            fed = {
                finite: [flag == "1" for flag in flags],
                grads: [_gradient(flag, step) for flag in flags],
            }
            session.run(update, fed)
            history.append(list(zip(*session.run(state))))
    return [list(states) for states in zip(*history)]


def run_eagerly(cls, sets):
    """Steps one object after the other in eager mode; returns as `run_in_graph` does."""
    histories = []
    for arguments, flags in sets:
        made = cls(**arguments)
        histories.append([])
        for step, flag in enumerate(flags):
            _update(made, flag == "1", [tf.constant(_gradient(flag, step))])
            histories[-1].append([value.numpy() for value in _state(made)])
    return histories


def vectors(sets, histories):
    """Yields what the file holds of each of the sets: arguments and flags, bits and counters."""
    for (arguments, flags), history in zip(sets, histories):
        vector = {"arguments": arguments, "finite": flags}
        scales, *counters = zip(*history)
        bits = np.asarray(scales, np.float32).view(np.uint32)
        vector["scale"] = " ".join("{:08x}".format(int(word)) for word in bits)
        for name, counts in zip(("good", "bad"), counters):
            vector[name] = " ".join(str(count) for count in counts)
        yield vector


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("outdir", metavar="OUTDIR", help="where the JSON file is written")
    outdir = parser.parse_args(argv).outdir
    if tf.__version__ not in RECORDED_BY:
        raise SystemExit(
            "record.py: TensorFlow {} has nothing to record; run it under {}.".format(
                tf.__version__, " or ".join(sorted(RECORDED_BY))
            )
        )
    if tf.__version__ == "1.15.5":
        sets = exponential_sets()
        cls = tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager
        histories = run_in_graph(cls, sets)
    else:
        sets = dynamic_sets()
        histories = run_eagerly(tf.train.experimental.DynamicLossScale, sets)
    # One vector to a line, so that a change shows as the lines it touches.
    lines = [json.dumps(vector, sort_keys=True) for vector in vectors(sets, histories)]
    header = {"tensorflow": tf.__version__, "seed": SEED, "steps": STEPS}
    path = os.path.join(outdir, RECORDED_BY[tf.__version__])
    with open(path, "w") as stream:
        stream.write(json.dumps(header, sort_keys=True)[:-1])
        stream.write(', "vectors": [\n' + ",\n".join(lines) + "\n]}\n")
    print("{}: {} vectors of {} steps".format(path, len(lines), STEPS))


if __name__ == "__main__":
    main()
