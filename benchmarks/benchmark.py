"""Measures apply steps with loss scaling beside TensorFlow's and Keras' own, in one process.

    python benchmarks/benchmark.py                                   what a few minutes allow
    python benchmarks/benchmark.py --workloads small --modes graph   a part of it
    python benchmarks/benchmark.py --against PATH                    beside another checkout

Each round runs one step of every contender, in an order that is drawn anew, so that a slow moment
of the machine meets all of them. All figures are medians over the rounds. `overhead` is what a step
took longer than one of the same optimizer without a loss scale in the same round. The last columns
stand at a peer: the time of our step as a multiple of the peer's, and our overhead as a multiple of
its overhead. In brackets is the interval that holds 95 % of what the same rounds, drawn anew with
repetition, give.

Every contender is given the same gradients of a scaled loss, and unscales, tests and applies them.
It is called as users call it: v1's optimizers by `minimize`, those of tf_keras by `minimize` with a
tape, as their `fit` does, and those of Keras 3 by `apply`, as its `fit` does.
"""

import argparse
import contextlib
import importlib
import importlib.util
import os
import pathlib
import random
import sys
import time
from functools import partial

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

PACKAGE = "tf_lossscale_compat"
ROOT = pathlib.Path(__file__).resolve().parents[1]
IS_TF1 = tf.__version__.startswith("1.")
MODES = ("graph", "eager", "jit", "session")
# Never reached while measuring: growth takes the same operations as none.
SCALE, PERIOD, RATE = 2.0**10, 10**6, 1e-6


class Copy:
    """A checkout's copy of the package, which stands beside others in one process."""

    def __init__(self, folder):
        self._modules = {}
        folder = str(pathlib.Path(folder).resolve())
        sys.path.insert(0, folder)
        registered = tf.keras.utils.get_custom_objects()
        for name in [name for name in registered if name.startswith(PACKAGE)]:
            del registered[name]  # Keras refuses a second class of the name.
        with self.entered():
            self.package = importlib.import_module(PACKAGE)
            self.contrib = importlib.import_module(f"{PACKAGE}.contrib.mixed_precision")
            self.v1 = importlib.import_module(f"{PACKAGE}.train.experimental")
            self.keras = importlib.import_module(f"{PACKAGE}.keras.mixed_precision")
        sys.path.remove(folder)
        if not self.package.__file__.startswith(folder):
            raise SystemExit(f"--against must be a folder with {PACKAGE} in it, got {folder!r}.")

    @contextlib.contextmanager
    def entered(self):
        """What imports the package finds this copy, at the top of a module or in a function."""

        def take():
            names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
            return {name: sys.modules.pop(name) for name in names}

        others = take()
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = take()
            sys.modules.update(others)


def _resnet50():
    """Returns the shapes of ResNet-50's weights: 25.6 M parameters in 161 variables."""
    shapes, channels = [(7, 7, 3, 64), (64,), (64,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(1, 1, channels, width), (width,), (width,)]
            shapes += [(3, 3, width, width), (width,), (width,)]
            shapes += [(1, 1, width, 4 * width), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(1, 1, channels, 4 * width), (4 * width,), (4 * width,)]
            channels = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


WORKLOADS = {
    "large": _resnet50(),
    "small": [(8, 8)] * 161,
    "ten": [(8, 8)] * 10,
    "sparse": [(30522, 256)],  # Of which a step has 512 rows.
}


def gradients_of(workload, skipped):
    """Returns the gradients of a workload; one is not finite if they are to be skipped."""
    numbers = np.random.RandomState(0)
    shapes = [(512, 256)] if workload == "sparse" else WORKLOADS[workload]
    arrays = [numbers.normal(size=shape).astype(np.float32) for shape in shapes]
    if skipped:
        arrays[-1].flat[-1] = np.inf
    if workload != "sparse":
        return [tf.constant(array) for array in arrays]
    (shape,) = WORKLOADS[workload]
    rows = tf.constant(numbers.randint(0, shape[0], 512))
    return [tf.IndexedSlices(tf.constant(arrays[0]), rows, tf.constant(shape))]


class _Given:
    """Takes gradients that are there already for computed ones; mixed into v1's optimizers."""

    given = ()

    def compute_gradients(self, loss, *args, **kwargs):
        if callable(loss):  # As an optimizer does, so that scaling it counts.
            loss()
        return list(self.given)


class _GivenTape(contextlib.nullcontext):
    """Stands for a `tf.GradientTape` that has recorded a loss."""

    def gradient(self, *_):
        return list(self.enter_result)


def _dynamic(home, opt):
    return home.MixedPrecisionLossScaleOptimizer(opt, home.DynamicLossScale(SCALE, PERIOD))


def _exponential(home, opt):
    # TensorFlow 2's class, which is the peer there, keeps sparse gradients.
    options = {} if IS_TF1 else {"keep_sparse": True}
    manager = home.ExponentialUpdateLossScaleManager(SCALE, PERIOD)
    return home.LossScaleOptimizer(opt, manager, **options)


def _v1_step(optimizer, wrap, variables):
    name = {"SGD": "GradientDescentOptimizer", "Adam": "AdamOptimizer"}[optimizer]
    inner = type("Given", (_Given, getattr(tf1.train, name)), {})(RATE)
    outer = wrap(inner)

    def step(gradients):
        inner.given = list(zip(gradients, variables))
        loss = (lambda: tf.constant(1.0)) if tf.executing_eagerly() else tf.constant(1.0)
        return outer.minimize(loss, var_list=variables)

    return step


def _keras_step(inner, wrap, variables):
    optimizer = wrap(inner(RATE))
    if hasattr(optimizer, "build"):  # As `fit` does.
        optimizer.build(variables)
    if hasattr(optimizer, "apply"):
        return lambda gradients: optimizer.apply(gradients, variables)
    loss = tf.constant(1.0)
    return lambda gradients: optimizer.minimize(loss, variables, tape=_GivenTape(gradients))


def contenders(copies, optimizer):
    """Yields (generation, who, function of variables that makes a step) of all that there are."""
    homes = (tf1.train.experimental, getattr(tf1, "mixed_precision", None))
    home = next(each for each in homes if hasattr(each, "MixedPrecisionLossScaleOptimizer"))
    own = partial(_exponential, tf.contrib.mixed_precision) if IS_TF1 else partial(_dynamic, home)
    wraps = {("v1", "none"): lambda opt: opt, ("v1", "theirs"): partial(_dynamic, home)}
    wraps.update({("contrib", "none"): lambda opt: opt, ("contrib", "theirs"): own})
    for who, copy in copies.items():
        wraps["v1", who] = partial(_dynamic, copy.v1)
        wraps["contrib", who] = partial(_exponential, copy.contrib)
    for (generation, who), wrap in wraps.items():
        yield generation, who, partial(_v1_step, optimizer, wrap)
    beside = importlib.import_module("tf_keras") if importlib.util.find_spec("tf_keras") else None
    for name, keras in (("tf_keras", beside), ("tf.keras", tf.keras)):
        home = getattr(keras, "optimizers" if hasattr(keras, "ops") else "mixed_precision", None)
        if not hasattr(home, "LossScaleOptimizer"):  # Before TensorFlow 2.4 it is another class.
            continue
        wraps = {"none": lambda opt, **_: opt, "theirs": home.LossScaleOptimizer}
        wraps.update((who, copy.keras.LossScaleOptimizer) for who, copy in copies.items())
        for who, wrap in wraps.items():
            wrap = partial(wrap, initial_scale=SCALE, dynamic_growth_steps=PERIOD)
            yield name, who, partial(_keras_step, getattr(keras.optimizers, optimizer), wrap)


def _runner(mode, step, gradients):
    """Returns a function that runs a step in a mode."""
    if mode == "eager":
        return lambda: step(gradients)

    def computed(given, one):
        # Results of the step, which it may overwrite, as it may those of backpropagation.
        def product(each):
            return each * one if each.dtype == tf.float32 else each

        return step(tf.nest.map_structure(product, given, expand_composites=True))

    if mode == "session":
        update = computed(gradients, tf1.placeholder_with_default(1.0, []))
        session = tf1.Session()
        session.run(tf1.global_variables_initializer())
        return lambda: session.run(update)
    options = {"jit_compile": True} if mode == "jit" else {}
    function = tf.function(lambda *args: [computed(*args), None][1], autograph=False, **options)
    one = tf.constant(1.0)
    return lambda: function(gradients, one)


def measure(workload, mode, args, copies):
    """Returns {(generation, who): NumPy array of the milliseconds of its step in each round}."""
    runners, entered = {}, {}
    with tf.Graph().as_default() if mode == "session" else contextlib.nullcontext():
        gradients = gradients_of(workload, args.skipped)
        shapes = WORKLOADS[workload]
        variables = [tf1.Variable(tf.zeros(shape), use_resource=True) for shape in shapes]
        for generation, who, make in contenders(copies, args.optimizer):
            name = generation, who
            if mode == "session" and "keras" in generation:
                continue
            entered[name] = copies[who].entered if who in copies else contextlib.nullcontext
            try:
                with entered[name]():
                    runners[name] = _runner(mode, make(variables), gradients)
                    runners[name]()
            except Exception as error:  # A peer that cannot do this is a result too.
                runners.pop(name, None)
                print(f"{generation}, {who} ({workload}, {mode}): {error!r:.200}", file=sys.stderr)
    times, order = {name: [] for name in runners}, list(runners)
    for _ in range(args.rounds):
        random.shuffle(order)
        for name in order:
            with entered[name]():
                start = time.perf_counter()
                runners[name]()
                times[name].append((time.perf_counter() - start) * 1000)
    return {name: np.array(taken) for name, taken in times.items()}


def compared(ours, peer, none):
    """Returns texts of our time and our overhead as multiples of a peer's, with intervals."""
    drawn = np.random.RandomState(0).randint(0, len(ours), (2000, len(ours)))

    def text(value, samples):
        low, high = np.percentile(samples, [2.5, 97.5])
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"

    def medians(column):
        return np.median(column[drawn], axis=1)

    steps = text(np.median(ours / peer), medians(ours / peer))
    ours, peer = ours - none, peer - none
    if np.percentile(medians(peer), 2.5) <= 0:  # It cannot be told from nothing.
        return steps, ""
    return steps, text(np.median(ours) / np.median(peer), medians(ours) / medians(peer))


def table(title, times):
    """Returns a Markdown table of what `measure` returns."""
    lines = [f"| {title} | ms | overhead | our step | our overhead |", "| --- |" + " ---: |" * 4]
    for (generation, who), taken in times.items():
        none, ours = (times.get((generation, each), taken) for each in ("none", "ours"))
        overhead = "" if who == "none" else f"{np.median(taken - none):.2f}"
        ratios = compared(ours, taken, none) if who not in ("none", "ours") else ("", "")
        cells = [f"{generation}, {who}", f"{np.median(taken):.2f}", overhead, *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv=None):
    """Measures what the command line, or a list of its arguments, asks for."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--rounds", type=int, default=60, help="how often each step is run")
    parser.add_argument("--optimizer", choices=("SGD", "Adam"), default="SGD")
    parser.add_argument("--skipped", action="store_true", help="a gradient is not finite")
    parser.add_argument("--against", metavar="PATH", help="the folder of another checkout")
    args = parser.parse_args(argv)
    if IS_TF1:
        tf1.enable_eager_execution()
    copies = {"ours": Copy(ROOT)}
    if args.against:
        copies["against"] = Copy(args.against)
    print(f"TensorFlow {tf.__version__}, {os.cpu_count()} processors, {args.rounds} rounds")
    for workload in args.workloads:
        for mode in args.modes:
            times = measure(workload, mode, args, copies)
            print(f"\n{table(f'{workload}, {mode}', times)}", flush=True)


if __name__ == "__main__":
    main()
