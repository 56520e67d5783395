# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import numpy as np
import tensorflow as tf


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)
        self.loss_tracker = tf.keras.metrics.Mean("loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            scaled = self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


model = Model()
model.compile(tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1)))
history = model.fit(np.eye(4), np.ones([4, 1]), epochs=3, verbose=0).history
assert history["loss"][-1] < history["loss"][0]
