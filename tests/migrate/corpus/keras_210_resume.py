# runs on tf>=2.4,<2.16
# to 2.15: nothing
# to 2.21: LSC418 LSC428 LSC419 LSC104 LSC414 LSC107 LSC414
import os
import tempfile

import numpy as np
import tensorflow as tf


class Largest(tf.keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.largest = self.add_weight("largest", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y_pred)))

    def result(self):
        return self.largest


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def build(self, shape):
        self.dense.build(shape)
        self.averages = [tf.Variable(v, trainable=False) for v in self.dense.variables]
        super().build(shape)

    def call(self, x):
        return self.dense(x)


def make():
    net = Net()
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.1))
    net.compile(optimizer, "mse", metrics=[Largest()])
    net(tf.zeros([1, 4]))
    return net


path = os.path.join(tempfile.mkdtemp(), "last")
x, y = np.eye(4, dtype="float32"), np.ones([4, 1], "float32")
net = make()
net.fit(x, y, verbose=0)
net.save_weights(path)
net = make()
net.load_weights(path)
net.fit(x, y, initial_epoch=1, epochs=2, verbose=0)
