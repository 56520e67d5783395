# runs on tf>=1.15,<2
# to 1.15: nothing
# to 2.21: LSC211 LSC211
import tensorflow as tf
from tensorflow.contrib import slim

manager = tf.contrib.mixed_precision.FixedLossScaleManager(128.0)
assert slim.flatten(tf.ones([2, 2, 2])) is not None
assert tf.contrib.layers.xavier_initializer() and tf.contrib.layers.xavier_initializer()
