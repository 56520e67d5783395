# runs on tf>=2.4,<2.16
# left to a person: nothing
# then runs on tf>=2.16
import tensorflow as tf

optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
    tf.keras.optimizers.SGD(0.25), dynamic=True, initial_scale=8.0, dynamic_growth_steps=100
)
weight = tf.Variable([3.0, 4.0])
total = tf.Variable([0.0, 0.0], trainable=False)
for _ in range(2):
    with tf.GradientTape() as tape:
        scaled_loss = optimizer.get_scaled_loss(tf.reduce_sum(weight**2) / 2.0)
    (gradient,) = optimizer.get_unscaled_gradients(tape.gradient(scaled_loss, [weight]))
    total.assign_add(gradient)
optimizer.apply_gradients([(total, weight)])
assert weight.numpy().tolist() == [1.5, 2.0]
assert optimizer.loss_scale.numpy() == 8.0
