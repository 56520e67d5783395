# runs on tf>=2.16
# left to a person: nothing
# then runs on tf>=2.16
import numpy as np
import tf_keras

inputs = tf_keras.Input((4,))
model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(inputs))
optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.legacy.SGD(lr=0.1))
model.compile(optimizer, "mse")
model.fit(np.eye(4), np.ones([4, 1]), verbose=0)
assert optimizer.iterations.numpy() == 1
