"""One rank of several under Horovod: trains with each combination and writes what came out.

    horovodrun -np 2 --gloo python horovod_ranks.py FOLDER

Writes FOLDER/<rank>.json: for each case, whose name says its parts, the weights, the loss scale and
its counter, or the error. In every case the gradient of a weight is the number that a rank is given
for a step; the rows of an embedding get the same, one row in all ranks and one that is a rank's
own. `model` says what they should be in the end.
"""

import itertools
import json
import pathlib
import sys

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

STEPS = 8
FAULTS = {"healthy": None, "NaN": np.nan, "overflow": 3e38}
COMPRESSIONS = {"float32": "none", "float16": "fp16"}


def gradients(fault, size):
    """Returns what each rank's gradients are, an array by step and rank; a fault is the last's."""
    values = np.tile(np.arange(1, size + 1, dtype=np.float32), (STEPS, 1))
    if FAULTS[fault] is not None:
        values[2, -1] = FAULTS[fault]
    return values


def model(fault, size, passes):
    """Returns the end of a right training: weight, embedding, loss scale, counter, global step."""
    values = gradients(fault, size)
    weight, embedding = np.float32(0), np.zeros([size + 1], np.float32)
    scale, good, counted = 8.0, 0, STEPS  # Horovod counts passes that are no step.
    for step in range(0, STEPS, passes):
        group = values[step : step + passes]
        # What is multiplied with the scale overflows where the number alone does not.
        if np.all(np.isfinite(group * np.float32(scale))):
            weight -= group.mean(axis=1).sum()
            embedding[0] -= group.mean(axis=1).sum()
            embedding[1:] -= group.sum(axis=0) / size
            good += 1
            if good == 2:
                scale, good = scale * 2, 0
        else:
            scale, good, counted = scale / 2, 0, counted - 1
    return {
        "weight": float(weight),
        "embedding": embedding.tolist(),
        "scale": scale,
        "good": good,
        "counted": counted,
    }


def options_of(compression, passes):
    """Arguments for Horovod's optimizers, which add up dense gradients only."""
    options = {"compression": getattr(hvd.Compression, COMPRESSIONS[compression])}
    if passes > 1:
        options.update(backward_passes_per_step=passes, sparse_as_dense=True)
    return options


def loss_of(weight, embedding, x):
    rows = tf.gather(embedding, [0, hvd.rank() + 1])
    return weight * x + tf.reduce_sum(rows) * x


def ended(weight, embedding, scale, good, counted):
    return {
        "weight": float(weight),
        "embedding": np.asarray(embedding).tolist(),
        "scale": float(scale),
        "good": int(good),
        "counted": int(counted),
    }


def make_v1(which, opt):
    """Returns an optimizer of this package, and a function for its scale and its counter."""
    if which == "contrib":
        manager = contrib.ExponentialUpdateLossScaleManager(
            8.0, 2, decr_every_n_nan_or_inf=1, decr_ratio=0.5
        )
        new = contrib.LossScaleOptimizer(opt, manager)
        return new, lambda: (manager.get_loss_scale(), new.variables()[-2])
    loss_scale = experimental.DynamicLossScale(8.0, 2, 2.0)
    new = experimental.MixedPrecisionLossScaleOptimizer(opt, loss_scale)
    return new, lambda: (loss_scale(), loss_scale.good_steps)


def with_v1(values, mode, which, order, compression, passes):
    options = options_of(compression, passes)

    def make():
        sgd = tf1.train.GradientDescentOptimizer(1.0)
        if order == "Horovod inside":
            return make_v1(which, hvd.DistributedOptimizer(sgd, **options))
        opt, state = make_v1(which, sgd)
        return hvd.DistributedOptimizer(opt, **options), state

    if mode == "function":
        opt, state = make()
        weight, embedding = tf.Variable(0.0), tf.Variable(tf.zeros([hvd.size() + 1]))
        counted = tf.Variable(0, dtype=tf.int64)

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def step(x):
            opt.minimize(
                lambda: loss_of(weight, embedding, x),
                var_list=[weight, embedding],
                global_step=counted,
            )

        for value in values:
            step(value)
        return ended(weight, embedding, *state(), counted)

    with tf.Graph().as_default(), tf1.Session() as session:
        opt, state = make()
        weight = tf1.get_variable("w", initializer=0.0)
        embedding = tf1.get_variable("e", initializer=tf.zeros([hvd.size() + 1]))
        x = tf1.placeholder(tf.float32, [])
        if hvd.rank() == 0:
            tf.cast(tf.cast(x, tf.int32), tf.float32)  # As for a summary.
        counted = tf1.train.get_or_create_global_step()
        train_op = opt.minimize(loss_of(weight, embedding, x), global_step=counted)
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        for value in values:
            session.run(train_op, {x: value})
        return ended(*session.run([weight, embedding, *state(), counted]))


def with_keras(values, loop, family, order, compression, passes):
    options = options_of(compression, passes)
    make = {"older": tf.keras.optimizers.SGD, "newer": tf.keras.optimizers.experimental.SGD}

    def wrap(opt, **more):
        loss_scale = experimental.DynamicLossScale(8.0, 2, 2.0)
        return mixed_precision.LossScaleOptimizer(opt, loss_scale=loss_scale, **more)

    opt = make[family](1.0)
    if order == "Horovod inside":
        opt = wrap(hvd_keras.DistributedOptimizer(opt, **options))
    elif order == "Horovod outside":
        opt = hvd_keras.DistributedOptimizer(wrap(opt), **options)
    else:
        opt = wrap(opt)

    size, rank = hvd.size(), hvd.rank()

    if loop == "fit":

        class Model(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.w = self.add_weight(name="w", shape=[], initializer="zeros")
                self.e = self.add_weight(name="e", shape=[size + 1], initializer="zeros")

            def call(self, inputs):
                return self.w + tf.reduce_sum(tf.gather(self.e, [0, rank + 1])) + 0 * inputs

        fitted = Model()
        fitted.compile(opt, loss=lambda y, p: tf.reduce_sum(y * p))
        zeros = np.zeros([len(values), 1], np.float32)
        fitted.fit(zeros, values[:, None], batch_size=1, shuffle=False, verbose=0)
        weight, embedding = fitted.w, fitted.e
    else:
        weight, embedding = tf.Variable(0.0), tf.Variable(tf.zeros([size + 1]))
        pair = [weight, embedding]

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
        def step(x):
            if loop == "minimize":
                opt.minimize(lambda: loss_of(weight, embedding, x), pair)
                return
            tape = tf.GradientTape()
            if order == "Horovod's tape":
                tape = hvd.DistributedGradientTape(tape, **options)
            with tape:
                scaled = opt.get_scaled_loss(loss_of(weight, embedding, x))
            unscaled = opt.get_unscaled_gradients(tape.gradient(scaled, pair))
            opt.apply_gradients(zip(unscaled, pair))

        for value in values:
            step(value)
    return ended(
        weight, embedding, opt.loss_scale, opt.dynamic_counter, opt.inner_optimizer.iterations
    )


def cases():
    """Yields (its name, what runs it on a rank's gradients) of each combination.

    Before TensorFlow 2 those in a graph for a Session, which is where Horovod was used.
    """
    graphs_only = tf.__version__.startswith("1.")
    orders = ("Horovod inside", "Horovod outside")
    ways = itertools.product(COMPRESSIONS, (1, 2))
    for (compression, passes), order in itertools.product(list(ways), orders):
        for mode, which in itertools.product(("graph", "function"), ("contrib", "mixed")):
            # Horovod refuses several passes for these in functions.
            if mode == "graph" or (passes == 1 and not graphs_only):
                parts = (mode, which, order, compression, passes)
                yield parts, with_v1
        if graphs_only:
            continue
        for loop, family in itertools.product(("fit", "minimize"), ("older", "newer")):
            yield (loop, family, order, compression, passes), with_keras
    families = () if graphs_only else ("older", "newer")
    for family, compression in itertools.product(families, COMPRESSIONS):
        yield ("custom loop", family, "Horovod's tape", compression, 1), with_keras


def main(folder):
    hvd.init()
    results = {}
    for (parts, run), fault in itertools.product(list(cases()), FAULTS):
        name = "; ".join([*map(str, parts), fault])
        print(f"rank {hvd.rank()}: {name}", flush=True)
        try:
            with np.errstate(over="ignore"):
                results[name] = run(gradients(fault, hvd.size())[:, hvd.rank()], *parts)
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        with np.errstate(over="ignore"):
            results[name]["expected"] = model(fault, hvd.size(), parts[-1])
    path = pathlib.Path(folder) / f"{hvd.rank()}.json"
    path.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
