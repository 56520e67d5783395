# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import os
import tempfile

import numpy as np
import tensorflow as tf

folder = tempfile.mkdtemp()
inputs = tf.keras.Input((4,))
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
model.compile(optimizer, "mse")
best = tf.keras.callbacks.ModelCheckpoint(
    os.path.join(folder, "best.weights.h5"), monitor="loss", save_weights_only=True
)
model.fit(np.eye(4), np.ones([4, 1]), epochs=2, verbose=0, callbacks=[best])
model.load_weights(os.path.join(folder, "best.weights.h5"))
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
manager.save()
checkpoint.restore(manager.latest_checkpoint).assert_existing_objects_matched()
model.save(os.path.join(folder, "whole.h5"))
