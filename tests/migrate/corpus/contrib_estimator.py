# runs on tf>=1.15,<2
# left to a person: nothing
# then runs on tf>=2.4,<2.16
import tempfile

import tensorflow as tf


def input_fn():
    return tf.data.Dataset.from_tensors(([[1.0, 2.0]], [[1.0]])).repeat(4)


def model_fn(features, labels, mode):
    weights = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - labels))
    manager = tf.contrib.mixed_precision.FixedLossScaleManager(128.0)
    optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
    optimizer = tf.contrib.mixed_precision.LossScaleOptimizer(optimizer, manager)
    step = tf.compat.v1.train.get_or_create_global_step()
    train_op = optimizer.minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


estimator = tf.estimator.Estimator(model_fn, tempfile.mkdtemp())
estimator.train(input_fn, max_steps=2)
assert estimator.get_variable_value("w")[0, 0] > 0
