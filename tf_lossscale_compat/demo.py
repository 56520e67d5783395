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
import json
import os
import sys
import tempfile
import time

import numpy as np

from tf_lossscale_compat import _install, _summaries, _tf, plot
from tf_lossscale_compat.contrib import mixed_precision as contrib_mixed_precision
from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale

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
START_SKIPS = 34  # contrib's manager halves at every second of them

Digits = collections.namedtuple(
    "Digits", "train_images train_labels test_images test_labels batches"
)
# What one training step came to. `loss` is without weight and scale; `scale` is the one that the
# step used; `zero_share` is the share of exact zeros among all entries of all gradients.
Step = collections.namedtuple("Step", "loss scale zero_share applied")
Run = collections.namedtuple(
    "Run",
    "name accuracy loss zero_gradient_share final_scale skipped_steps seconds history",
)


# -- data and network ---------------------------------------------------------------------------


def load_digits(steps, seed):
    """Reads, shuffles and splits the digits and draws all batches.

    Args:
      steps: int, the number of batches.
      seed: int, what the shuffling and the batches depend on, the same on every platform.

    Returns:
      A `Digits`: float32 images [n, 64] between -1 and 1 and int32 labels [n], of the four fifths
      to train on and of the fifth held back; int batches [steps, BATCH_SIZE] of training indices.
    """
    from sklearn import datasets

    digits = datasets.load_digits()
    rng = np.random.RandomState(seed)
    order = rng.permutation(len(digits.target))
    images = (digits.data[order] / 8 - 1).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    held_back = len(labels) // 5
    batches = rng.randint(0, len(labels) - held_back, (steps, BATCH_SIZE))
    return Digits(
        images[held_back:], labels[held_back:], images[:held_back], labels[:held_back], batches
    )


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

    Args:
      dtype: what to compute in.
      make_manager: a function without arguments that returns a contrib loss-scale manager, or
        None to train without loss scaling.
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
            self.policy = None
            optimizer = tf1.train.GradientDescentOptimizer(LEARNING_RATE)
            if self._make_manager is not None:
                self.policy = self._make_manager()
                self._scale = self.policy.get_loss_scale()
                optimizer = contrib_mixed_precision.LossScaleOptimizer(optimizer, self.policy)
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

    def close(self):
        """Gives the Session's memory back."""
        self._session.close()


class FunctionTraining:
    """As with TensorFlow 2: a gradient tape in a `tf.function`, and a bare loss scale.

    Args:
      dtype: what to compute in.
      make_loss_scale: a function without arguments that returns a `LossScale`.
    """

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

        self.policy = loss_scale
        self._step = step
        self._logits = tf.function(lambda images: _logits(images, weights, dtype))

    def scale(self):
        """Returns the current loss scale."""
        return float(self.policy())

    def step(self, images, labels):
        """Trains on one batch and returns a `Step`."""
        loss, scale, zero_share, applied = self._step(
            tf.convert_to_tensor(images), tf.convert_to_tensor(labels)
        )
        return Step(float(loss), float(scale), float(zero_share), bool(applied))

    def logits(self, images):
        """Returns the network's output for `images`."""
        return self._logits(tf.convert_to_tensor(images)).numpy()

    def close(self):
        """Does nothing; variables go with this object."""


def trainings():
    """Returns the six kinds of training, by name, in the order in which they run."""
    return collections.OrderedDict(
        [
            ("float32", GraphTraining(tf.float32)),
            ("float16 unscaled", GraphTraining(tf.float16)),
            (
                "float16 contrib FixedLossScaleManager",
                GraphTraining(
                    tf.float16,
                    lambda: contrib_mixed_precision.FixedLossScaleManager(FIXED_SCALE),
                ),
            ),
            (
                "float16 contrib ExponentialUpdateLossScaleManager",
                GraphTraining(
                    tf.float16,
                    lambda: contrib_mixed_precision.ExponentialUpdateLossScaleManager(
                        HIGH_SCALE, GROWTH_STEPS, decr_every_n_nan_or_inf=2, decr_ratio=0.5
                    ),
                ),
            ),
            (
                "float16 FixedLossScale",
                FunctionTraining(tf.float16, lambda: FixedLossScale(FIXED_SCALE)),
            ),
            (
                "float16 DynamicLossScale",
                FunctionTraining(
                    tf.float16, lambda: DynamicLossScale(HIGH_SCALE, GROWTH_STEPS, 2.0)
                ),
            ),
        ]
    )


def _cross_entropy(logits, labels):
    """Mean cross-entropy in float64, so that it says something of the weights alone."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sums - shifted[np.arange(len(labels)), labels]))


class _Log:
    """Writes the loss scale of one run to TensorBoard, for every step, counted from 1.

    Unlike what reads a record after a step, with the scale that the step used.

    Args:
      folder: str, where to; None to write nothing.
      policy: loss scale, manager or None, whose bounds are written with the first step.
    """

    def __init__(self, folder, policy):
        self._writer = None if folder is None else _summaries.file_writer(folder)
        self._policy = policy
        self._steps = self._skipped = self._consecutive = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._writer is not None:
            self._writer.close()

    def write(self, step):
        """Writes a `Step`."""
        if self._writer is None:
            return
        self._steps += 1
        self._skipped += not step.applied
        self._consecutive = 0 if step.applied else self._consecutive + 1
        now = _summaries.Reading(self._steps, self._skipped, self._consecutive, step.scale)
        policy = self._policy if self._steps == 1 else None
        self._writer.add_summary(_summaries.proto(now, policy), self._steps)


def train(steps=DEFAULT_STEPS, seed=0, on_step=None, logdir=None):
    """Does all the runs.

    Args:
      steps: int, training steps for each run.
      seed: int from 0 to 2**32 - 1. On one machine with one TensorFlow, the same seed gives the
        same numbers.
      on_step: function called with the run's name after each step, or None.
      logdir: folder in which each run writes its loss scale for TensorBoard, into a folder with the
        run's name; or None.

    Returns:
      A list of `Run`. `accuracy` is of the fifth of the images that is held back, `loss` of the
      other four fifths after training. `zero_gradient_share` is the mean over the applied steps,
      NaN if there were none. Without loss scaling the scale is 1. `history` holds one `Step` for
      each step.
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
        folder = None if logdir is None else os.path.join(logdir, name)
        with _Log(folder, training.policy) as log:
            for batch in digits.batches:
                step = training.step(digits.train_images[batch], digits.train_labels[batch])
                history.append(step)
                log.write(step)
                if on_step is not None:
                    on_step(name)
        guesses = np.argmax(training.logits(digits.test_images), axis=1)
        loss = _cross_entropy(training.logits(digits.train_images), digits.train_labels)
        final_scale = training.scale()
        training.close()
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


# -- what is shown and written ------------------------------------------------------------------


def table(runs):
    """Returns the runs as lines of text."""
    head = ("run", "accuracy", "loss", "zero gradients", "final scale", "skipped", "seconds")
    rows = [head]
    for run in runs:
        rows.append(
            (
                run.name,
                f"{run.accuracy:.4f}",
                f"{run.loss:.4f}",
                f"{run.zero_gradient_share:.1%}",
                f"{run.final_scale:g}",
                str(run.skipped_steps),
                f"{run.seconds:.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def write_json(path, runs, seed):
    """Writes the runs, without their histories; what is NaN or infinite becomes null."""
    document = {
        "tensorflow": tf.__version__,
        "steps": len(runs[0].history),
        "seed": seed,
        "runs": [],
    }
    for run in runs:
        values = run._asdict()
        del values["history"]
        for key, value in values.items():
            if isinstance(value, float) and not np.isfinite(value):
                values[key] = None
        document["runs"].append(dict(values))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, allow_nan=False)
        file.write("\n")


def _smooth(values, window):
    """Means over the last `window` values, over fewer at the start."""
    return [np.mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def draw(runs):
    """Draws loss and loss scale over the steps.

    Returns:
      A `matplotlib.figure.Figure`, to be saved with its `savefig`.
    """
    from matplotlib import figure
    from matplotlib.backends import backend_agg

    # Runs that go well lie on top of each other: wide light lines first, thin dashed ones last.
    styles = [
        {"color": "0.6", "linewidth": 6},
        {"color": "tab:red", "linewidth": 1.5},
        {"color": "gold", "linewidth": 3.5},
        {"color": "tab:blue", "linewidth": 2},
        {"color": "tab:green", "linewidth": 1.8, "linestyle": (0, (1, 2))},
        {"color": "black", "linewidth": 1.2, "linestyle": (0, (6, 4))},
    ]
    steps = np.arange(1, len(runs[0].history) + 1)
    window = max(1, len(steps) // 40)
    picture = figure.Figure(figsize=(10, 9))
    backend_agg.FigureCanvasAgg(picture)
    loss_axes, scale_axes = picture.subplots(2, 1, sharex=True)
    all_scale_axes = [scale_axes]
    first_steps = 2 * START_SKIPS
    if len(steps) > 4 * first_steps:
        # How the dynamic scales come down is over within a few percent of the width.
        inset = scale_axes.inset_axes([0.13, 0.60, 0.32, 0.33])
        inset.set_xlim(0, first_steps)
        inset.set_title(f"the first {first_steps} steps", fontsize="small")
        inset.tick_params(labelsize="small")
        all_scale_axes.append(inset)
    for run, style in zip(runs, styles):
        losses = np.array([step.loss for step in run.history])
        scales = np.array([step.scale for step in run.history])
        skipped = np.array([not step.applied for step in run.history])
        label = f"{run.name} (accuracy {run.accuracy:.3f})"
        loss_axes.plot(steps, _smooth(losses, window), label=label, **style)
        for axes in all_scale_axes:
            axes.plot(steps, scales, drawstyle="steps-mid", **style)
            if skipped.any():
                axes.plot(
                    steps[skipped],
                    scales[skipped],
                    linestyle="",
                    marker="x" if "contrib" in run.name else "o",
                    markersize=7,
                    markerfacecolor="none",
                    color=style["color"],
                    label=f"{run.name}: {int(skipped.sum())} skipped steps",
                )
    loss_axes.set_title("Training on handwritten digits: the same weights and batches in each run")
    loss_axes.set_ylabel("loss" if window == 1 else f"loss (mean of {window} steps)")
    loss_axes.set_yscale("log")
    loss_axes.legend(fontsize="small")
    scale_axes.set_ylabel("loss scale")
    scale_axes.set_xlabel("step")
    for axes in all_scale_axes:
        axes.set_yscale("log", base=2)
    for inset in all_scale_axes[1:]:
        inset.set_ylim(bottom=FIXED_SCALE / 4)
    for axes in [loss_axes, *all_scale_axes]:
        axes.grid(alpha=0.3)
    if scale_axes.get_legend_handles_labels()[1]:
        scale_axes.legend(fontsize="small", loc="upper right")
    picture.tight_layout()
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


def _writable_picture(text):
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"must end in .png, got {text!r}")
    return plot.writable(text)


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
        "--json", type=plot.writable, metavar="FILE", help="write the results to this file"
    )
    parser.add_argument(
        "--plot",
        type=_writable_picture,
        metavar="FILE.png",
        help="draw loss and loss scale over the steps into this file",
    )
    parser.add_argument(
        "--logdir",
        type=_writable_folder,
        metavar="DIR",
        help="write the loss scale of each step for TensorBoard and `tf-lossscale plot`",
    )
    # `run` finds out more about the arguments, and can then complain as argparse does.
    parser.set_defaults(error=parser.error)


def _missing_extras(with_plot):
    """Returns the names of what the extra `demo` installs and is not there."""
    missing = []
    wanted = [("sklearn", "scikit-learn"), ("tqdm", "tqdm")]
    if with_plot:
        wanted.append(("matplotlib", "matplotlib"))
    for module, distribution in wanted:
        try:
            __import__(module)
        except ImportError:
            missing.append(distribution)
    return missing


def run(args):
    """Runs the command; returns the exit code."""
    missing = _missing_extras(with_plot=args.plot is not None)
    if missing:
        args.error(
            f"this needs {', '.join(missing)}, which the extra `demo` installs: "
            + _install.command("demo")
        )
    if args.json and args.plot and os.path.realpath(args.json) == os.path.realpath(args.plot):
        args.error("--json and --plot name the same file")

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

    print(table(runs))
    try:
        if args.json:
            write_json(args.json, runs, args.seed)
        if args.plot:
            draw(runs).savefig(args.plot, dpi=100)
    except OSError as error:
        print(f"tf-lossscale demo: {error}", file=sys.stderr)
        return 1
    return 0
