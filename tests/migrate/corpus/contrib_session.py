# runs on tf>=1.15,<2
# left to a person: nothing
# then runs on tf>=2.16
import numpy as np
import tensorflow as tf
from tensorflow.contrib.mixed_precision import ExponentialUpdateLossScaleManager

with tf.Graph().as_default():
    x = tf.compat.v1.placeholder(tf.float32, [None, 2])
    weights = tf.compat.v1.get_variable("w", [2, 1], initializer=tf.compat.v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
    manager = ExponentialUpdateLossScaleManager(2.0**15, 2)
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.5)
    optimizer = tf.contrib.mixed_precision.LossScaleOptimizer(optimizer, manager)
    pairs = optimizer.compute_gradients(loss)
    gradients, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
    train_op = optimizer.apply_gradients(list(zip(gradients, [v for _, v in pairs])))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op, {x: np.ones([4, 2])})
        assert session.run(weights)[0, 0] > 0
