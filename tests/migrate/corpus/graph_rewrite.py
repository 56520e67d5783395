# runs on tf>=2.0,<2.4
# left to a person: nothing
# then runs on tf>=2.16
import tensorflow as tf

with tf.Graph().as_default():
    weights = tf.compat.v1.get_variable("w", initializer=[3.0, 4.0])
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.25)
    optimizer = tf.compat.v1.train.experimental.enable_mixed_precision_graph_rewrite(optimizer, 8.0)
    train_op = optimizer.minimize(tf.reduce_sum(tf.square(weights)))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train_op)
        assert session.run(weights).tolist() == [1.5, 2.0]
