"""Trains models whose steps are those of docs/hints.md; prints what `fit` shows, as JSON.

    python hint_steps.py before|after docs/hints.md

The page's steps of LSC401 and LSC402 are the models' `train_step` and `test_step`: those before the
change on TensorFlow 2.4 to 2.15, those after it on Keras 3. What the former prints on 2.10.1 is
tests/data/hint_steps.json; 2.15.1 prints the same numbers. "own" is Keras' own step.
"""

import json
import re
import sys
import textwrap

import numpy as np
import tensorflow as tf

from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer

WAYS = (
    "sample_weight",
    "class_weight",
    "outputs",
    "regularized",
    "regularized_unseen",
    "regularized_half",
    "accumulated",
    "replicas",
    "replicas_at_rest",
)


class Half(tf.keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.constant(0.5, x.dtype))
        return x


class Base(tf.keras.Model):
    def accumulate(self, pairs):
        """Applies the mean of the gradients of two steps."""
        pairs = list(pairs)
        for total, (gradient, _) in zip(self.sums, pairs):
            total.assign_add(gradient)

        def apply():
            means = [0.5 * total for total in self.sums]
            self.optimizer.apply_gradients(zip(means, [variable for _, variable in pairs]))
            for total in self.sums:
                total.assign(tf.zeros_like(total))

        tf.cond(self.count.assign_add(1) % 2 == 0, apply, lambda: None)


def step(code, side, page):
    """Returns the source of a method on the page."""
    diff = re.search(rf"(?ms)^## {code}$.*?^```diff\n(.*?)^```$", page).group(1)
    other = "+" if side == "before" else "-"
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != other)


def model_class(side, page, way):
    if side == "own":
        return type("Model", (Base,), {})
    source = step("LSC401", side, page) + step("LSC402", side, page)
    if way == "regularized_unseen":  # As the page says of steps that leave these losses out.
        source = source.replace(", regularization_losses=self.losses", "")
        source = source.replace(" / share\n", " / share - sum(self.losses)\n")
    if way == "accumulated":
        source = source.replace("self.optimizer.apply_gradients(", "self.accumulate(")
    names = {"tf": tf, "Base": Base}
    exec("class Model(Base):\n" + textwrap.indent(source, "    "), names)
    return names["Model"]


def make_model(cls, way):
    half = tf.keras.initializers.Constant(0.5)
    regularized = way.startswith("regularized") or way == "replicas"
    l2 = tf.keras.regularizers.L2(0.1) if regularized else None
    dense = tf.keras.layers.Dense
    inputs = given = tf.keras.Input((4,))
    if way == "regularized_half":  # A layer's own loss is float16.
        given = Half(dtype="mixed_float16")(inputs)
    outputs = dense(1, kernel_initializer=half, kernel_regularizer=l2, name="a")(given)
    compiled = {"loss": "mse", "metrics": ["mae"], "weighted_metrics": ["mse"]}
    if way == "outputs":
        outputs = [outputs, dense(1, kernel_initializer=half, name="b")(inputs)]
        compiled = {"loss": ["mse", "mae"], "loss_weights": [1.0, 0.25]}
        compiled["metrics"] = [["mae"], ["mse"]]
    model = cls(inputs, outputs)
    model.norm = tf.keras.metrics.Mean("norm")
    if way == "accumulated":
        variables = model.trainable_variables
        model.sums = [tf.Variable(tf.zeros_like(each), trainable=False) for each in variables]
        model.count = tf.Variable(0, trainable=False)
    rate = 0.0 if way == "replicas_at_rest" else 0.05
    optimizer = LossScaleOptimizer(tf.keras.optimizers.SGD(rate), initial_scale=1024.0)
    model.compile(optimizer, **compiled)
    return model


def train(cls, way):
    random = np.random.RandomState(7)
    x = random.normal(size=[24, 4]).astype("float32")
    y = (random.uniform(size=[24, 1]) > 0.4).astype("float32")
    weights = random.uniform(0.2, 3.0, size=[24]).astype("float32")
    labels = [y, 2.0 * y] if way == "outputs" else y
    given, weighted = {}, (x, labels)
    if way == "sample_weight" or way.startswith("replicas"):
        given, weighted = {"sample_weight": weights}, (x, labels, weights)
    if way == "class_weight":
        given = {"class_weight": {0: 0.3, 1: 2.0}}
    strategy = tf.distribute.get_strategy()
    if way.startswith("replicas"):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = make_model(cls, way)
    fixed = {"batch_size": 8, "verbose": 0}
    fitted = model.fit(
        x, labels, epochs=3, shuffle=False, validation_data=weighted, **fixed, **given
    )
    shown = {name: [float(each) for each in values] for name, values in fitted.history.items()}
    evaluated = model.evaluate(*weighted[:2], return_dict=True, **fixed)
    shown.update((f"evaluated {name}", [float(value)]) for name, value in evaluated.items())
    shown["weights"] = [float(each) for v in model.trainable_variables for each in np.ravel(v)]
    return shown


def main(side, path):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    found = {way: train(model_class(side, page, way), way) for way in WAYS}
    if side == "after":
        found["own"] = train(model_class("own", page, "replicas_at_rest"), "replicas_at_rest")
    print(json.dumps(found, sort_keys=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
