# runs on tf>=2.4,<2.11
# to 2.21: LSC105
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = tf.Variable([3.0, 4.0])
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.25))


def replica_step():
    with tf.GradientTape() as tape:
        scaled_loss = optimizer.get_scaled_loss(tf.reduce_sum(weight**2) / 2.0)
    gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled_loss, [weight]))
    optimizer.apply_gradients(zip(gradients, [weight]))


tf.function(lambda: strategy.run(replica_step))()
assert weight.numpy().tolist() == [1.5, 2.0]
