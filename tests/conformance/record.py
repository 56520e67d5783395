"""Records what the original loss-scale classes do, as JSON that every TensorFlow can replay.

    python tests/conformance/record.py OUTDIR

Under TensorFlow 1.15.5 it runs `tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager`
in a graph and writes `OUTDIR/exponential_update_manager.json`. Under TensorFlow 2.0.4 it runs
`tf.train.experimental.DynamicLossScale` eagerly and writes `OUTDIR/dynamic_loss_scale.json`.
Anywhere else it refuses, because it could only record something that is not the original.

A vector is one set of constructor arguments with one sequence of steps: `finite` holds a `1`
for a step with finite gradients and a `0` for any other; `scale` holds, for each step, the bits
of the float32 loss scale after it in hexadecimal; `good` (and `bad`) hold the counters.
The same seed gives the same file, byte for byte.
"""

import argparse
import json
import os
import random
import struct
import sys

import numpy as np
import tensorflow as tf

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


def exponential_sets():
    """Yields (arguments, flags) for the manager: chosen edges first, then random ones."""
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
    for arguments, flags in chosen:
        yield dict(zip(names, arguments)), flags
    rng = random.Random(SEED)
    for _ in range(RANDOM_SETS):
        arguments = {
            "init_loss_scale": _number(rng, _INITIAL, 1.0, FLOAT32_MAX),
            "incr_every_n_steps": _PERIODS[int(rng.random() * len(_PERIODS))],
            "decr_every_n_nan_or_inf": _PERIODS[int(rng.random() * 6)],
            "incr_ratio": _number(rng, _GROWTH, 1.0, 100.0),
            "decr_ratio": _number(rng, _DECAY, 0.01, 1.0),
        }
        yield arguments, _finite_flags(rng)


def dynamic_sets():
    """Yields (arguments, flags) for `DynamicLossScale`: chosen edges first, then random ones."""
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
    for arguments, flags in chosen:
        yield dict(zip(names, arguments)), flags
    rng = random.Random(SEED + 1)
    for _ in range(RANDOM_SETS):
        arguments = {
            "initial_loss_scale": _number(rng, _INITIAL, 1.0, FLOAT32_MAX),
            "increment_period": _PERIODS[int(rng.random() * len(_PERIODS))],
            "multiplier": _number(rng, _MULTIPLIERS, 1.0, 100.0),
        }
        yield arguments, _finite_flags(rng)


def require_original(cls):
    """Exits unless `cls` is TensorFlow's own.

    Args:
      cls: the class about to be recorded.

    Raises:
      SystemExit: if the class comes from anywhere else, this package above all: vectors that
        the package recorded of itself would prove nothing.
    """
    if cls.__module__.split(".")[0] not in ("tensorflow", "tensorflow_core"):
        raise SystemExit(
            "record.py: refusing to record {}.{}: it is not TensorFlow's own class.".format(
                cls.__module__, cls.__name__
            )
        )


def _bits(scales):
    """Float32 values as hexadecimal, for a file that says exactly what the scale was."""
    return ["{:08x}".format(int(bits)) for bits in np.asarray(scales, np.float32).view(np.uint32)]


def _exponential_histories(cls, names, sets):
    """Yields [(scale, good, bad) after each step] for sets that give the arguments `names`.

    The arguments are fed: building one graph is much faster than building hundreds, and a fed
    number becomes the same float32 or int32 as a constant does.
    """
    with tf.Graph().as_default():
        arguments = {
            name: tf.compat.v1.placeholder(tf.int32 if "every" in name else tf.float32, [])
            for name in names
        }
        finite = tf.compat.v1.placeholder(tf.bool, [])
        manager = cls(**arguments)
        update = manager.update_loss_scale(finite)
        # pylint: disable=protected-access
        state = [manager.get_loss_scale(), manager._num_good_steps, manager._num_bad_steps]
        fed = [arguments[name] for name in names]
        with tf.compat.v1.Session() as session:
            start = session.make_callable(tf.compat.v1.global_variables_initializer(), fed)
            move = session.make_callable(update, [finite] + fed)
            look = session.make_callable(state)
            for given, flags in sets:
                values = [given[name] for name in names]
                start(*values)
                history = []
                for flag in flags:
                    move(flag == "1", *values)
                    history.append(look())
                yield history


def record_exponential():
    """Runs contrib's manager in a graph and a session, one parameter set after the other."""
    cls = tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager
    require_original(cls)
    sets = list(exponential_sets())
    histories = {}
    for names in sorted({tuple(sorted(arguments)) for arguments, _ in sets}):
        indices = [i for i, (arguments, _) in enumerate(sets) if tuple(sorted(arguments)) == names]
        chosen = [sets[index] for index in indices]
        histories.update(zip(indices, _exponential_histories(cls, names, chosen)))
    for index, (arguments, flags) in enumerate(sets):
        scales, good, bad = zip(*histories[index])
        yield {
            "arguments": arguments,
            "finite": flags,
            "scale": _bits(scales),
            "good": [int(count) for count in good],
            "bad": [int(count) for count in bad],
        }


def record_dynamic():
    """Runs r2.0's `DynamicLossScale` eagerly, one parameter set after the other."""
    cls = tf.train.experimental.DynamicLossScale
    require_original(cls)
    if not tf.executing_eagerly():
        raise SystemExit("record.py: DynamicLossScale has to be recorded in eager mode.")
    finite = [tf.constant([1.0, -2.0])]
    # Which non-finite value it is must not matter, so the three take turns.
    nonfinite = [[tf.constant([1.0, bad])] for bad in (np.nan, np.inf, -np.inf)]
    for arguments, flags in dynamic_sets():
        loss_scale = cls(**arguments)
        scales, good = [], []
        for step, flag in enumerate(flags):
            _, should_apply = loss_scale.update(finite if flag == "1" else nonfinite[step % 3])
            if bool(should_apply) != (flag == "1"):
                raise SystemExit("record.py: a step was taken for the opposite of what it is.")
            scales.append(loss_scale().numpy())
            # pylint: disable=protected-access
            good.append(int(loss_scale._num_good_steps.numpy()))
        yield {"arguments": arguments, "finite": flags, "scale": _bits(scales), "good": good}


def dump(path, header, vectors):
    """Writes the file with one vector to a line, so that a change shows as the lines it touches."""
    lines = []
    for vector in vectors:
        vector = dict(vector)
        for name in ("scale", "good", "bad"):
            if name in vector:
                vector[name] = " ".join(str(item) for item in vector[name])
        lines.append(json.dumps(vector, sort_keys=True))
    head = json.dumps(header, sort_keys=True)[:-1]
    with open(path, "w") as stream:
        stream.write(head + ', "vectors": [\n' + ",\n".join(lines) + "\n]}\n")


def load(path):
    """Reads a file of `dump`; scales come back as float32, counters as integers.

    Args:
      path: the JSON file.

    Returns:
      (header, vectors): dicts, with `finite` a list of bool and `scale`, `good`, `bad` NumPy
      vectors with one element for each step.
    """
    with open(path) as stream:
        header = json.load(stream)
    vectors = header.pop("vectors")
    for vector in vectors:
        vector["finite"] = [flag == "1" for flag in vector["finite"]]
        words = [struct.unpack(">f", bytes.fromhex(word))[0] for word in vector["scale"].split()]
        vector["scale"] = np.array(words, np.float32)
        for name in ("good", "bad"):
            if name in vector:
                vector[name] = np.array([int(word) for word in vector[name].split()])
    return header, vectors


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
    recorder = record_exponential if tf.__version__ == "1.15.5" else record_dynamic
    vectors = list(recorder())
    path = os.path.join(outdir, RECORDED_BY[tf.__version__])
    dump(path, {"tensorflow": tf.__version__, "seed": SEED, "steps": STEPS}, vectors)
    print("{}: {} vectors of {} steps".format(path, len(vectors), STEPS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
