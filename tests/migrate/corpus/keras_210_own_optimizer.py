# runs on tf>=2.4,<2.11
# to 2.21: LSC106
import tensorflow as tf


class Clipping(tf.keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, name=None, **kwargs):
        clipped = [
            (tf.clip_by_norm(gradient, 1.0), variable) for gradient, variable in grads_and_vars
        ]
        return super().apply_gradients(clipped, name=name, **kwargs)


optimizer = tf.keras.mixed_precision.LossScaleOptimizer(Clipping(1.0))
weight = tf.Variable(1.0)
optimizer.minimize(lambda: 100.0 * weight, [weight])
assert weight.numpy() == 0.0
