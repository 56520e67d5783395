# runs on tf>=2.4,<2.16
# to 2.15: nothing
# to 2.21: LSC401 LSC402
import numpy as np
import tensorflow as tf


class Model(tf.keras.Model):
    def train_step(self, data):
        x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, sample_weight, regularization_losses=self.losses)
            scaled = self.optimizer.get_scaled_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.compiled_metrics.update_state(y, y_pred, sample_weight)
        return {m.name: m.result() for m in self.metrics}


inputs = tf.keras.Input((4,))
model = Model(inputs, tf.keras.layers.Dense(1)(inputs))
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
model.compile(optimizer, "mse")
model.fit(np.eye(4), np.ones([4, 1]), sample_weight=np.arange(4.0), verbose=0)
