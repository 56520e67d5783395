# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import tensorflow as tf
from tensorflow.keras import mixed_precision


class Gan(object):
    def __init__(self):
        self.generator = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(2)])
        self.critic = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        self.optimizers = {
            name: mixed_precision.LossScaleOptimizer(tf.keras.optimizers.RMSprop(1e-2))
            for name in ("generator", "critic")
        }

    def train(self, name, loss_fn):
        network, optimizer = getattr(self, name), self.optimizers[name]
        with tf.GradientTape() as tape:
            scaled_loss = optimizer.get_scaled_loss(loss_fn())
        gradients = tape.gradient(scaled_loss, network.trainable_variables)
        gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))
        assert optimizer.loss_scale.numpy() == 2.0**15


gan, noise = Gan(), tf.ones([4, 2])
gan.train("critic", lambda: tf.reduce_mean(gan.critic(gan.generator(noise))))
gan.train("generator", lambda: -tf.reduce_mean(gan.critic(gan.generator(noise))))
