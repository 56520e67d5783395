# runs on tf>=2.4,<2.16
# to 2.15: nothing
# to 2.21: LSC414 LSC414 LSC414 LSC414
import os
import tempfile

import tensorflow as tf

folder = tempfile.mkdtemp()
whole = os.path.join(folder, "whole")
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile(tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
tf.keras.callbacks.ModelCheckpoint("w-{epoch:02d}.h5", save_weights_only=True)
tf.keras.callbacks.ModelCheckpoint(filepath="full")
model.save_weights(os.path.join(folder, "averaged.h5"))
model.save(whole)
