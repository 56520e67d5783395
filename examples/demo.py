"""Six runs of one small network: in float32, and in float16 without and with loss scaling.

The network is trained on scikit-learn's handwritten digits (nothing is downloaded). All runs start
from the same weights and see the same batches. Variables are float32; the float16 runs compute the
rest in float16. The loss has a small weight, like one of several losses of a larger model, and the
learning rate compensates for it: without a loss scale most gradients become zero in float16. Both
dynamic scales start far too high, so that the first steps are skipped until they have shrunk.
"""

import argparse
import importlib.util
import math
import os

import numpy as np

# Kernels that are the same on each processor, and print nothing where they lack float16.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import tensorflow.compat.v1 as tf
from sklearn import datasets

from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf.logging.set_verbosity(tf.logging.ERROR)  # Its warnings would lie within the table.
tf.disable_v2_behavior()

# Gradients at the logits are at most about 6e-8 (weight / batch size), float16's smallest number.
BATCH_SIZE, LOSS_WEIGHT = 32, 2e-6
LEARNING_RATE = 0.2 / LOSS_WEIGHT
# Scales of 2**16 and more are infinite in float16, so that 17 halvings are needed.
FIXED, HIGH, GROWTH_STEPS = 2.0**12, 2.0**32, 200

# The name of each run, its dtype, and the function that makes its loss scale or manager.
RUNS = (
    ("float32", tf.float32, None),
    ("float16", tf.float16, None),
    (
        "float16 FixedLossScaleManager",
        tf.float16,
        lambda: contrib.FixedLossScaleManager(FIXED),
    ),
    (
        "float16 ExponentialUpdateLossScaleManager",
        tf.float16,
        lambda: contrib.ExponentialUpdateLossScaleManager(HIGH, GROWTH_STEPS, decr_ratio=0.5),
    ),
    ("float16 FixedLossScale", tf.float16, lambda: experimental.FixedLossScale(FIXED)),
    (
        "float16 DynamicLossScale",
        tf.float16,
        lambda: experimental.DynamicLossScale(HIGH, GROWTH_STEPS),
    ),
)


def with_loss_scale(optimizer, make):
    """Returns the optimizer, wrapped if `make` is given, and the tensor of the loss scale."""
    if make is None:
        return optimizer, tf.constant(1.0)
    made = make()
    if isinstance(made, contrib.LossScaleManager):
        return contrib.LossScaleOptimizer(optimizer, made), made.get_loss_scale()
    return experimental.MixedPrecisionLossScaleOptimizer(optimizer, made), made()


def train(dtype, make, train_set, test_set, batches):
    """Trains once.

    Returns:
      The accuracy on the test set and, for each step, the loss, the loss scale that it used, the
      share of zeros among the entries of the gradients, and 1 if the step was skipped, else 0.
    """
    random = np.random.RandomState(1)
    images, labels = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int32, [None])
    variables, layer = [], tf.cast(images, dtype)
    for inputs, outputs in ((64, 64), (64, 10)):
        kernel = random.randn(inputs, outputs).astype(np.float32) / np.sqrt(inputs)
        pair = tf.Variable(kernel.astype(np.float32)), tf.Variable(tf.zeros([outputs]))
        layer = tf.tanh(layer) if variables else layer
        layer = tf.matmul(layer, tf.cast(pair[0], dtype)) + tf.cast(pair[1], dtype)
        variables += pair
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=layer)
    loss = tf.reduce_mean(losses)

    inner = tf.train.GradientDescentOptimizer(LEARNING_RATE)
    optimizer, scale = with_loss_scale(inner, make)
    global_step = tf.train.get_or_create_global_step()
    gradients = optimizer.compute_gradients(loss * LOSS_WEIGHT, variables)
    train_op = optimizer.apply_gradients(gradients, global_step)
    entries = tf.concat([tf.reshape(gradient, [-1]) for gradient, _ in gradients], 0)
    zeros = tf.reduce_mean(tf.cast(tf.equal(entries, 0), tf.float32))
    right = tf.equal(tf.argmax(layer, axis=1, output_type=tf.int32), labels)
    accuracy = tf.reduce_mean(tf.cast(right, tf.float32))

    history = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for batch in batches:
            used, before = session.run([scale, global_step])
            feed = {images: train_set[0][batch], labels: train_set[1][batch]}
            _, *seen = session.run([train_op, loss, zeros], feed)
            # A skipped step does not increment the global step.
            history.append((seen[0], used, seen[1], session.run(global_step) == before))
        reached = session.run(accuracy, {images: test_set[0], labels: test_set[1]})
    return reached, np.array(history, float)


def draw(path, histories):
    """Draws loss and loss scale over the steps, which have a logarithmic axis."""
    from matplotlib import pyplot

    # A background of its own, for pages in light and dark; the same file from the same numbers.
    options = {"figure.facecolor": "#f4f4f4", "font.size": 12.5, "svg.hashsalt": "demo"}
    options.update({"axes.grid": True, "grid.color": "#dddddd", "legend.frameon": False})
    # Most runs fall together: wide lines lie below narrow ones.
    colors = "#aaaaaa", "#d00000", "#1f77b4", "#2a9d4e", "#7cc4f5", "#f0a020"
    with pyplot.rc_context({**options, "figure.constrained_layout.use": True}):
        figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(7, 6.5))
        for (name, history), color, width in zip(histories.items(), colors, (8, 2, 5, 5, 2, 2)):
            style = {"color": color, "linewidth": width, "label": name.split()[-1]}
            # Each point of the loss is the mean of the steps until the next one.
            steps = np.unique(np.geomspace(1, len(history) + 1, 80).astype(int))
            losses = np.add.reduceat(history[:, 0], steps[:-1] - 1) / np.diff(steps)
            above.plot(steps[:-1], losses, **style)
            if " " in name:  # With a loss scale.
                scales = history[:, 1]
                changed = [0, *np.flatnonzero(np.diff(scales)) + 1, len(scales) - 1]
                below.step(np.add(changed, 1), scales[changed], where="post", **style)
        above.set(ylabel="loss", ylim=0)
        below.set(ylabel="loss scale", xlabel="step", xscale="log", xlim=(1, len(history)))
        below.set_yscale("log", base=2)
        below.xaxis.set_major_formatter("{x:.0f}")
        below.minorticks_off()
        figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=2)
        figure.savefig(path, metadata={"Date": None} if path.endswith("svg") else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1200, help="of each run (default: 1200)")
    parser.add_argument("--plot", metavar="FILE", help="draws loss and loss scale, as SVG or PNG")
    args = parser.parse_args()
    if args.plot and not importlib.util.find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install matplotlib")

    digits = datasets.load_digits()
    random = np.random.RandomState(0)
    order = random.permutation(len(digits.target))
    pixels, labels = digits.data[order] / 8 - 1, digits.target[order]
    train_set, test_set = (pixels[360:], labels[360:]), (pixels[:360], labels[:360])
    batches = random.randint(0, len(labels) - 360, (args.steps, BATCH_SIZE))

    results, zero_share = {}, {}
    row = "{:41} {:>8} {:>14} {:>6} {:>7}"  # 80 columns.
    for name, dtype, make in RUNS:
        with tf.Graph().as_default():
            results[name] = accuracy, history = train(dtype, make, train_set, test_set, batches)
        if name == RUNS[0][0]:  # By now TensorFlow has printed its own lines.
            print(row.format("run", "accuracy", "zero gradients", "scale", "skipped"), flush=True)
        applied = history[history[:, 3] == 0]
        zero_share[name] = applied[:, 2].mean() if len(applied) else 0.0
        zeros = f"{zero_share[name]:.1%}" if len(applied) else "-"
        scale = f"2**{math.log2(history[-1, 1]):.0f}" if make else "-"
        skipped = len(history) - len(applied)
        print(row.format(name, f"{accuracy:.1%}", zeros, scale, skipped), flush=True)

    float32, float16, *scaled = (accuracy for accuracy, _ in results.values())
    _, zeros, *others = zero_share.values()
    print(
        f"\nWithout a loss scale {zeros:.1%} of the float16 gradients are zero:"
        f"\naccuracy {float16:.1%}, where float32 has {float32:.1%}."
        f"\nWith one it is at most {max(others):.1%}: "
        f"accuracy {min(scaled):.1%} or more."
    )
    if args.plot:
        draw(args.plot, {name: history for name, (_, history) in results.items()})


if __name__ == "__main__":
    main()
