# runs on tf>=2.1,<2.4
# left to a person: nothing
# then runs on tf>=2.16
import numpy as np
import tensorflow as tf
from tensorflow.keras.mixed_precision import experimental as mixed_precision

inputs = tf.keras.Input((4,))
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
optimizer = mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1), "dynamic")
model.compile(optimizer, "mse", metrics=["mae"])
history = model.fit(np.eye(4), np.ones([4, 1]), epochs=3, verbose=0).history
assert history["loss"][-1] < history["loss"][0]
