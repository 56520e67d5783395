"""Train a small float16 network on real data, without and with each kind of loss scaling.

Six runs on scikit-learn's handwritten digits (1,797 images of 8x8; nothing is downloaded). They
start from the same weights and see the same batches, and differ in number format and loss scaling
alone. Weights are kept in float32; the network, its loss and its gradients are computed in float16
except in the first run. The loss has a small weight, which the learning rate makes up for, so most
float16 gradients underflow to zero unless the loss is scaled. Both dynamic loss scales start far
too high and have to come down by skipping steps.
"""

import argparse
import collections
import os
import sys
import tempfile
import time

import numpy as np

from tf_lossscale_compat._core import _install, _tf
from tf_lossscale_compat._scalers._loss_scales import DynamicLossScale, FixedLossScale
from tf_lossscale_compat._tools import plot
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.monitoring import _summaries

tf = _tf.tf
tf1 = _tf.tf1

DEFAULT_STEPS = 1200
HIDDEN_UNITS = 64
BATCH_SIZE = 32
CLASSES = 10
# As for one small term among the losses of a larger model. At the logits it leaves gradients of at
# most LOSS_WEIGHT / BATCH_SIZE, and that is float16's smallest number, 6e-8: all but the largest
# round to zero, and those that do not are much too coarse.
LOSS_WEIGHT = 2e-6
LEARNING_RATE = 0.2 / LOSS_WEIGHT
FIXED_SCALE = 2.0**12
# 2**16 is infinite in float16: 17 halvings bring this down to where training proceeds.
HIGH_SCALE = 2.0**32
GROWTH_STEPS = 200

# Float32 images [n, 64] between -1 and 1 and int32 labels [n], of the four fifths to train on and
# of the fifth to test on; int batches [steps, BATCH_SIZE] of training indices.
Digits = collections.namedtuple(
    "Digits", "train_images train_labels test_images test_labels batches"
)
# What one training step came to. `loss` is without weight and scale; `scale` is the one that the
# step used; `zero_share` is the share of exact zeros among all entries of all gradients.
Step = collections.namedtuple("Step", "loss scale zero_share applied")
# `accuracy` is of the images to test on, `loss` of the others after training. The share of zeros is
# the mean over the applied steps, NaN if there were none. Without loss scaling the scale is 1.
Run = collections.namedtuple(
    "Run",
    "name accuracy loss zero_gradient_share final_scale skipped_steps seconds history",
)


# -- data and network ---------------------------------------------------------------------------


def load_digits(steps, seed):
    """Reads, shuffles and splits the digits and draws all batches, the same on every platform."""
    from sklearn import datasets

    digits = datasets.load_digits()
    rng = np.random.RandomState(seed)
    order = rng.permutation(len(digits.target))
    images = (digits.data[order] / 8 - 1).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    tested = len(labels) // 5
    batches = rng.randint(0, len(labels) - tested, (steps, BATCH_SIZE))
    return Digits(images[tested:], labels[tested:], images[:tested], labels[:tested], batches)


def _initial_weights(seed):
    rng = np.random.RandomState([seed, 1])  # Not the numbers that shuffle the data.
    weights = []
    for inputs, outputs in ((64, HIDDEN_UNITS), (HIDDEN_UNITS, CLASSES)):
        weights.append((rng.randn(inputs, outputs) / np.sqrt(inputs)).astype(np.float32))
        weights.append(np.zeros(outputs, np.float32))
    return weights


def _logits(images, weights, dtype):
    """The network: one hidden layer, computed in `dtype` from float32 `weights`."""
    kernel_1, bias_1, kernel_2, bias_2 = [tf.cast(weight, dtype) for weight in weights]
    hidden = tf.tanh(tf.matmul(tf.cast(images, dtype), kernel_1) + bias_1)
    return tf.matmul(hidden, kernel_2) + bias_2


def _mean_loss(logits, labels):
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def _zero_share(gradients):
    zeros = [tf.reduce_sum(tf.cast(tf.equal(gradient, 0), tf.float32)) for gradient in gradients]
    entries = sum(int(np.prod(gradient.shape.as_list())) for gradient in gradients)
    return tf.add_n(zeros) / entries


# -- the two kinds of training loop -------------------------------------------------------------


class GraphTraining:
    """As people trained with TensorFlow 1: a graph, a Session and a v1 optimizer.

    It computes in `dtype`, and without loss scaling where `make_manager` is None.
    """

    def __init__(self, dtype, make_manager=None):
        self._dtype = dtype
        self._make_manager = make_manager

    def start(self, initial_weights):
        """Builds the graph and sets the weights, a list of float32 arrays."""
        graph = tf.Graph()
        with graph.as_default():
            self._images = tf1.placeholder(tf.float32, [None, 64])
            self._labels = tf1.placeholder(tf.int32, [None])
            weights = [tf1.Variable(initial) for initial in initial_weights]
            self._logits = _logits(self._images, weights, self._dtype)
            self._loss = _mean_loss(self._logits, self._labels)

            self._scale = tf.constant(1.0)
            optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
            if self._make_manager is not None:
                manager = self._make_manager()
                self._scale = manager.get_loss_scale()
                optimizer = contrib.LossScaleOptimizer(optimizer, manager)
            self._global_step = tf1.train.get_or_create_global_step()
            gradients = optimizer.compute_gradients(self._loss * LOSS_WEIGHT, var_list=weights)
            self._train = optimizer.apply_gradients(gradients, self._global_step)
            self._zero_share = _zero_share([gradient for gradient, _ in gradients])
            initialize = tf1.global_variables_initializer()
        self._session = tf1.Session(graph=graph)
        self._session.run(initialize)

    def scale(self):
        """Returns the current loss scale."""
        return float(self._session.run(self._scale))

    def step(self, images, labels):
        """Trains on one batch and returns a `Step`."""
        scale, before = self._session.run([self._scale, self._global_step])
        _, loss, zero_share = self._session.run(
            [self._train, self._loss, self._zero_share],
            {self._images: images, self._labels: labels},
        )
        # A skipped step leaves the global step where it was.
        applied = self._session.run(self._global_step) > before
        return Step(float(loss), float(scale), float(zero_share), bool(applied))

    def logits(self, images):
        """Returns the network's output for `images`."""
        return self._session.run(self._logits, {self._images: images})


class FunctionTraining:
    """As with TensorFlow 2: a gradient tape in a `tf.function`, and a bare loss scale."""

    def __init__(self, dtype, make_loss_scale):
        self._dtype = dtype
        self._make_loss_scale = make_loss_scale

    def start(self, initial_weights):
        """Makes variables, loss scale and step function."""
        dtype = self._dtype
        weights = [tf.Variable(initial) for initial in initial_weights]
        loss_scale = self._make_loss_scale()

        def apply(gradients):
            for weight, gradient in zip(weights, gradients):
                weight.assign_sub(LEARNING_RATE * gradient)
            return True

        @tf.function
        def step(images, labels):
            scale = loss_scale()
            with tf.GradientTape() as tape:
                loss = _mean_loss(_logits(images, weights, dtype), labels)
                scaled_loss = loss * LOSS_WEIGHT * tf.cast(scale, dtype)
            # The tape leads back to float32 variables, so these are float32.
            gradients = [gradient / scale for gradient in tape.gradient(scaled_loss, weights)]
            _, should_apply = loss_scale.update(gradients)
            # A fixed scale returns a Python bool here.
            applied = tf.cond(
                tf.convert_to_tensor(should_apply), lambda: apply(gradients), lambda: False
            )
            return loss, scale, _zero_share(gradients), applied

        self._loss_scale = loss_scale
        self._step = step
        self._logits = tf.function(lambda images: _logits(images, weights, dtype))

    def scale(self):
        """Returns the current loss scale."""
        return float(self._loss_scale())

    def step(self, images, labels):
        """Trains on one batch and returns a `Step`."""
        loss, scale, zero_share, applied = self._step(
            tf.convert_to_tensor(images), tf.convert_to_tensor(labels)
        )
        return Step(float(loss), float(scale), float(zero_share), bool(applied))

    def logits(self, images):
        """Returns the network's output for `images`."""
        return self._logits(tf.convert_to_tensor(images)).numpy()


def trainings():
    """Returns the six kinds of training, by name, in the order in which they run."""

    def exponential():
        return contrib.ExponentialUpdateLossScaleManager(
            HIGH_SCALE, GROWTH_STEPS, decr_every_n_nan_or_inf=2, decr_ratio=0.5
        )

    return {
        "float32": GraphTraining(tf.float32),
        "float16 unscaled": GraphTraining(tf.float16),
        "float16 contrib FixedLossScaleManager": GraphTraining(
            tf.float16, lambda: contrib.FixedLossScaleManager(FIXED_SCALE)
        ),
        "float16 contrib ExponentialUpdateLossScaleManager": GraphTraining(tf.float16, exponential),
        "float16 FixedLossScale": FunctionTraining(tf.float16, lambda: FixedLossScale(FIXED_SCALE)),
        "float16 DynamicLossScale": FunctionTraining(
            tf.float16, lambda: DynamicLossScale(HIGH_SCALE, GROWTH_STEPS, 2.0)
        ),
    }


def _cross_entropy(logits, labels):
    """Mean cross-entropy in float64, so that it says something of the weights alone."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sums - shifted[np.arange(len(labels)), labels]))


def _points(history):
    """Returns what `tf-lossscale plot` reads of a log, of a list of `Step`, counted from 1."""
    points: dict = {tag: [] for tag in _summaries.TAGS}
    skipped = consecutive = 0
    for number, step in enumerate(history, 1):
        skipped += not step.applied
        consecutive = 0 if step.applied else consecutive + 1
        points[_summaries.SCALE].append((number, step.scale))
        points[_summaries.SKIPPED_STEPS].append((number, skipped))
        points[_summaries.CONSECUTIVE_SKIPS].append((number, consecutive))
    return points


def _write_log(folder, history):
    """Writes the loss scale that each step used, for TensorBoard."""
    writer = _summaries.file_writer(folder)
    for tag, points in _points(history).items():
        for step, value in points:
            summary = tf1.Summary(value=[tf1.Summary.Value(tag=tag, simple_value=value)])
            writer.add_summary(summary, step)
    writer.close()


def train(steps=DEFAULT_STEPS, seed=0, on_step=None, logdir=None):
    """Does all the runs; returns a list of `Run`.

    After each step `on_step` is called with the run's name. In `logdir` each run writes its loss
    scale for TensorBoard, into a folder with the run's name.
    """
    if not tf.executing_eagerly():
        # TensorFlow 1.15 has tf.function, but waits for this.
        tf1.enable_eager_execution()
    digits = load_digits(steps, seed)
    runs = []
    for name, training in trainings().items():
        start = time.perf_counter()
        training.start(_initial_weights(seed))
        history = []
        for batch in digits.batches:
            step = training.step(digits.train_images[batch], digits.train_labels[batch])
            history.append(step)
            if on_step is not None:
                on_step(name)
        if logdir is not None:
            _write_log(os.path.join(logdir, name), history)
        guesses = np.argmax(training.logits(digits.test_images), axis=1)
        loss = _cross_entropy(training.logits(digits.train_images), digits.train_labels)
        final_scale = training.scale()
        shares = [step.zero_share for step in history if step.applied]
        runs.append(
            Run(
                name=name,
                accuracy=float(np.mean(guesses == digits.test_labels)),
                loss=loss,
                zero_gradient_share=float(np.mean(shares)) if shares else float("nan"),
                final_scale=final_scale,
                skipped_steps=len(history) - len(shares),
                seconds=time.perf_counter() - start,
                history=history,
            )
        )
    return runs


# -- what is shown -------------------------------------------------------------------------------


def table(runs):
    """Returns the runs as lines of text."""
    head = "run|accuracy, %|loss, nats|zero gradients, %|final scale|skipped, steps|time, s"
    rows = [head.split("|")]
    for run in runs:
        percent, zeros = 100 * run.accuracy, 100 * run.zero_gradient_share
        numbers = f"{percent:.2f}|{run.loss:.4f}|{zeros:.1f}|{run.final_scale:g}"
        rows.append(f"{run.name}|{numbers}|{run.skipped_steps}|{run.seconds:.1f}".split("|"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def conclusion(runs):
    """Returns what the runs have shown, two lines of their own numbers."""
    reference, unscaled, *scaled = runs
    shares = [run.zero_gradient_share for run in scaled if run.skipped_steps < len(run.history)]
    accuracies = sorted(run.accuracy for run in scaled)
    zeros = f"at most {max(shares):.1%} are zero" if shares else "all steps were skipped"
    return (
        f"Unscaled, {unscaled.zero_gradient_share:.1%} of the entries of float16 gradients are "
        f"zero: accuracy {unscaled.accuracy:.1%}, where float32 has {reference.accuracy:.1%}.\n"
        f"With a loss scale {zeros}: accuracy {accuracies[0]:.1%} to {accuracies[-1]:.1%}."
    )


def draw(runs):
    """Draws loss and loss scale over the steps, as a `matplotlib.figure.Figure`."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(10, 9))
    losses, scales = picture.subplots(2, 1, sharex=True)
    names = [f"{run.name}, accuracy {run.accuracy:.1%}" for run in runs]
    plot.draw(scales, {name: _points(run.history) for name, run in zip(names, runs)})
    scales.set_xscale("log")  # Both dynamic scales come down within the first few steps.
    window = max(1, len(runs[0].history) // 40)
    for run, line in zip(runs, scales.get_legend_handles_labels()[0]):
        loss = [step.loss for step in run.history]
        means = [np.mean(loss[max(0, end - window) : end]) for end in range(1, len(loss) + 1)]
        look = {"color": line.get_color(), "linestyle": line.get_linestyle()}
        losses.plot(range(1, len(loss) + 1), means, linewidth=line.get_linewidth(), **look)
    losses.set_yscale("log")
    losses.set_ylabel(f"loss, nats (mean of {window} steps)")
    return picture


# -- the command --------------------------------------------------------------------------------


def _whole_number(least, most):
    def parse(text):
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, got {number}")
        return number

    return parse


def _writable_folder(text):
    """A folder in which files can be made; it is made where it is missing."""
    try:
        os.makedirs(text, exist_ok=True)
        with tempfile.TemporaryFile(dir=text):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write into {text!r}: {error.strerror}") from None
    return text


def add_arguments(parser):
    """Adds this command's options to an `argparse` parser."""
    parser.add_argument(
        "--steps",
        type=_whole_number(1, 1000000),
        default=DEFAULT_STEPS,
        help="training steps for each run (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=_whole_number(0, 2**32 - 1),
        default=0,
        help="the same seed gives the same numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=plot.output,
        metavar="FILE",
        help="draw loss and loss scale into this file (default: a temporary one)",
    )
    parser.add_argument(
        "--logdir",
        type=_writable_folder,
        metavar="DIR",
        help="write the loss scale of each step for TensorBoard and `tf-lossscale plot`",
    )
    # `run` finds out more about the arguments, and can then complain as argparse does.
    parser.set_defaults(error=parser.error)


def run(args):
    """Runs the command; returns the exit code."""
    missing = []
    for module in ("sklearn", "tqdm", "matplotlib"):
        try:
            __import__(module)
        except ImportError:
            missing.append(module)
    with_plot = "matplotlib" not in missing
    if missing and (args.plot or missing != ["matplotlib"]):
        args.error(
            f"this needs {', '.join(missing)}, which the extra `demo` installs: "
            + _install.command("demo")
        )
    import tqdm

    with tqdm.tqdm(
        total=args.steps * len(trainings()),
        unit="step",
        file=sys.stderr,
        # A log file would keep every line of it.
        mininterval=0.1 if sys.stderr.isatty() else 5,
    ) as progress:

        def on_step(name):
            if progress.desc != name + ": ":
                progress.set_description(name, refresh=False)
            progress.update()

        runs = train(args.steps, args.seed, on_step, args.logdir)

    print(f"{table(runs)}\n\n{conclusion(runs)}")
    try:
        if with_plot:
            path = args.plot or os.path.join(tempfile.mkdtemp(), "demo.png")
            plot.save(draw(runs), path)
            print(f"Picture: {path}")
    except OSError as error:
        print(f"tf-lossscale demo: {error}", file=sys.stderr)
        return 1
    logs = "" if args.logdir else "tf-lossscale demo --logdir logs && "
    print(f"Next: {logs}tf-lossscale plot {args.logdir or 'logs'} -o loss_scale.png")
    return 0
