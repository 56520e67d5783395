# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import tensorflow as tf

optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.25))
weight = tf.Variable([3.0, 4.0])


@tf.function
def step():
    with tf.GradientTape() as tape:
        scaled_loss = optimizer.get_scaled_loss(tf.reduce_sum(weight**2))
    gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled_loss, [weight]))
    gradients, _ = tf.clip_by_global_norm(gradients, 100.0)
    optimizer.apply_gradients(zip(gradients, [weight]))


step()
assert weight.numpy().tolist() == [1.5, 2.0]
