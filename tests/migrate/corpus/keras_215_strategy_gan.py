# runs on tf>=2.11,<2.16
# to 2.15: nothing
# to 2.21: LSC104 LSC104 LSC105
import tensorflow as tf
from tensorflow.keras.mixed_precision import LossScaleOptimizer

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    generator = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(2)])
    critic = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    generator_optimizer = LossScaleOptimizer(tf.keras.optimizers.Adam(0.01))
    generator_optimizer.build(generator.trainable_variables)
    critic_optimizer = LossScaleOptimizer(tf.keras.optimizers.Adam(0.01))


def train(optimizer, variables, loss_fn):
    with tf.GradientTape() as tape:
        scaled_loss = optimizer.get_scaled_loss(loss_fn())
    gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled_loss, variables))
    optimizer.apply_gradients(zip(gradients, variables))


def replica_step(noise):
    train(critic_optimizer, critic.trainable_variables, lambda: tf.reduce_mean(critic(noise)))
    train(
        generator_optimizer,
        generator.trainable_variables,
        lambda: -tf.reduce_mean(critic(generator(noise))),
    )


tf.function(lambda: strategy.run(replica_step, (tf.ones([4, 2]),)))()
assert generator_optimizer.iterations.numpy() == critic_optimizer.iterations.numpy() == 1
