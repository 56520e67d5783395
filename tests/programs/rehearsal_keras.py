"""A rehearsal in the shape of a Keras `Model` with its own `train_step` and a schedule.

The step scales the loss, unscales the gradients, clips and applies them, as in TensorFlow 2.4's
guide to mixed precision. The learning rate goes up and then down with the optimizer's `iterations`,
so whether those count skipped steps is seen in every weight.
"""

import collections

import numpy as np
import tensorflow as tf

STEPS = 300
WARM_UP = 20
FEATURES, CLASSES, BATCH = 8, 4, 16
HUGE = 2.0**40
# What the features and the weights of a step's examples are multiplied with.
FAULTS = {
    40: (1.0, HUGE),
    41: (1.0, HUGE),
    90: (HUGE, 1.0),  # Infinite in float16, and NaN after the first product.
    150: (1.0, -HUGE),
    151: (np.nan, 1.0),
    152: (1.0, HUGE),
    210: (1.0, np.inf),
    299: (1.0, HUGE),
}
INITIAL_SCALE, GROWTH_STEPS = 2.0**28, 25
# As in rehearsal_graph.py: until a step is applied, all see one batch with a loss as many times as
# large.
FIRST = 83.0


def _schedule(keras):
    class UpThenDown(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def __call__(self, step):
            step = tf.cast(step, tf.float32)
            down = 0.5 * (1.0 + tf.cos(np.float32(np.pi) * step / STEPS))
            return self.rate * tf.minimum(step / WARM_UP, down)

        def get_config(self):
            return {"rate": self.rate}

    return UpThenDown(0.01)


def _classifier(home):
    keras = home.keras

    class Classifier(keras.Model):
        def __init__(self):
            super().__init__()
            random = np.random.RandomState(0)

            def dense(inputs, units, **kwargs):
                kernel = random.normal(0.0, 0.4, [inputs, units])
                kernel = keras.initializers.Constant(kernel.astype(np.float32))
                return keras.layers.Dense(units, kernel_initializer=kernel, **kwargs)

            self.hidden = dense(FEATURES, 16, activation="tanh")
            self.classes = dense(16, CLASSES)

        def call(self, features):
            return tf.cast(self.classes(self.hidden(features)), tf.float32)

        def train_step(self, data):
            features, labels, weights = data
            with tf.GradientTape() as tape:
                logits = self(features, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_sum(losses * weights)
                scaled = self.optimizer.get_scaled_loss(loss)
            grads = tape.gradient(scaled, [watched(v) for v in self.trainable_variables])
            grads = self.optimizer.get_unscaled_gradients(grads)
            grads, norm = tf.clip_by_global_norm(grads, 1.0)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
            return {"loss": loss, "norm": norm}

    def watched(variable):
        return variable.value if home.kind == "keras3" else variable

    return Classifier()


def _batches():
    random = np.random.RandomState(1)
    directions = random.normal(size=[FEATURES, CLASSES])
    while True:
        features = random.normal(size=[BATCH, FEATURES]).astype(np.float32)
        yield features, np.argmax(features.dot(directions), axis=1).astype(np.int32)


def train(home, make_optimizer):
    """Trains for `STEPS` steps in float16, with variables in float32.

    Args:
      home: a `keras_homes.Home`.
      make_optimizer: function of an optimizer, the initial scale and the growth steps that wraps it
        with a dynamic loss scale; like the constructor that the import line names.

    Returns:
      {name: array [steps, ...]} of the loss, the gradients' norm, the loss scale, its counter,
      `iterations`, the weights and the inner optimizer's variables after each step.
    """
    history = collections.defaultdict(list)
    with home.policy("mixed_float16"):
        model = _classifier(home)
        inner = home.Adam(_schedule(home.keras), epsilon=1e-4)
        optimizer = make_optimizer(inner, INITIAL_SCALE, GROWTH_STEPS)
        model.compile(optimizer=optimizer)
        batches, initial, begun = _batches(), None, False
        for step in range(STEPS):
            if begun or not step:
                features, labels = next(batches)
            times, weight = FAULTS.get(step, (1.0, 1.0 if begun else FIRST))
            weights = np.full([BATCH], weight, np.float32)
            data = (features * np.float32(times), labels, weights)
            logs = model.train_on_batch(*data, return_dict=True)
            for name in ("loss", "norm"):
                history[name].append(np.float32(logs[name]))
            history["loss_scale"].append(home.numpy(_scale(optimizer)))
            history["good_steps"].append(home.numpy(optimizer.dynamic_counter))
            history["iterations"].append(home.numpy(optimizer.iterations))
            for kind, variables in (("weight", model.weights), ("slot", home.variables(inner))):
                for i, variable in enumerate(variables):
                    history[f"{kind}_{i}"].append(home.numpy(variable))
            if not begun:
                kernel = history["weight_0"][-1]
                initial = kernel if initial is None else initial
                begun = not np.array_equal(kernel, initial)
    return {name: np.stack(values) for name, values in history.items()}


def _scale(optimizer):
    scale = optimizer.loss_scale
    return scale() if callable(scale) else scale
