# runs on tf>=2.4,<2.16
# left to a person: LSC104
# then runs on tf>=2.16
import tensorflow as tf

rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(rate))
print(optimizer.lr)
