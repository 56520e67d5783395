# runs on tf>=2.0,<2.4
# left to a person: nothing
# then runs on tf>=2.16
import tensorflow as tf
from tensorflow.compat.v1.train.experimental import DynamicLossScale
from tensorflow.python.training.experimental import (
    loss_scale_optimizer as loss_scale_optimizer_v1,
)
from tensorflow.python.training.experimental.loss_scale import FixedLossScale


class Scale(DynamicLossScale):
    pass


def wrap(optimizer, loss_scale):
    assert isinstance(loss_scale, (DynamicLossScale, FixedLossScale))
    return loss_scale_optimizer_v1.MixedPrecisionLossScaleOptimizer(optimizer, loss_scale)


with tf.Graph().as_default():
    weights = tf.compat.v1.get_variable("w", initializer=[3.0, 4.0])
    optimizer = wrap(tf.compat.v1.train.GradientDescentOptimizer(0.25), Scale(8.0))
    train_op = optimizer.minimize(tf.reduce_sum(tf.square(weights)))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op)
        assert session.run(weights).tolist() == [1.5, 2.0]
