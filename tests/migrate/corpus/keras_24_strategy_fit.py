# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    inputs = tf.keras.Input((4,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.RMSprop(0.1))
    model.compile(optimizer, "mse")
history = model.fit(np.eye(4), np.ones([4, 1]), batch_size=4, epochs=3, verbose=0).history
assert history["loss"][-1] < history["loss"][0]
