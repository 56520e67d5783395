# runs on tf>=1.15,<2.4
# left to a person: nothing
# then runs on tf>=2.16
import tensorflow as tf

with tf.Graph().as_default():
    weights = tf.compat.v1.get_variable("w", initializer=[3.0, 4.0])
    loss_scale = tf.compat.v1.train.experimental.DynamicLossScale(2.0**10, increment_period=2)
    optimizer = tf.compat.v1.train.experimental.MixedPrecisionLossScaleOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(0.25), loss_scale
    )
    train_op = optimizer.minimize(tf.reduce_sum(tf.square(weights)))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op)
        assert session.run(weights).tolist() == [1.5, 2.0]
