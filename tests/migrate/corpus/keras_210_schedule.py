# runs on tf>=2.4,<2.16
# to 2.15: nothing
# to 2.21: LSC104 LSC407
import tensorflow as tf

rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(rate))
print(optimizer.lr)
