# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, mixed_precision

mixed_precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential([layers.InputLayer((4,)), layers.Dense(1, dtype="float32")])
optimizer = mixed_precision.LossScaleOptimizer(
    tf.keras.optimizers.SGD(0.1), dynamic=False, initial_scale=128
)
model.compile(optimizer, loss="mse")
history = model.fit(np.eye(4), np.ones([4, 1]), epochs=3, verbose=0).history
assert history["loss"][-1] < history["loss"][0]
