"""Keras: compile and fit, a train_step of the user's own, and the callback."""

from typing import Any, Dict, Optional

import tensorflow as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat.keras import callbacks
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer, experimental


class Model(tf.keras.Model):  # type: ignore[misc, type-arg, unused-ignore]
    """Scales and unscales in its own step."""

    def train_step(self, data: Any) -> Dict[str, Any]:
        x, y = data
        optimizer: Any = self.optimizer
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(y, self(x, training=True))
            scaled = optimizer.get_scaled_loss(loss)
        grads = tape.gradient(scaled, self.trainable_variables)
        grads = optimizer.get_unscaled_gradients(grads)
        optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}


inner: Any = tf.keras.optimizers.Adam(1e-3)
opt = LossScaleOptimizer(inner, dynamic=True, initial_scale=2**10, dynamic_growth_steps=100)
of_20 = experimental.LossScaleOptimizer(inner, "dynamic", name="scaled", count_skipped=False)
experimental.LossScaleOptimizer(optimizer=inner, loss_scale=lsc.FixedLossScaleManager(8))
LossScaleOptimizer(inner, loss_scale=lsc.DynamicLossScale(max_loss_scale=2.0**20), enabled=True)
in_use: lsc.LossScale = of_20.loss_scale
grows: bool = opt.dynamic
start: Optional[float] = opt.initial_scale
again = LossScaleOptimizer.from_config(opt.get_config())
steps: Optional[int] = again.dynamic_growth_steps
# What that Keras' optimizers have is there, whatever it is.
opt.learning_rate = 0.1
opt.iterations.assign(0)
opt.build([tf.Variable(tf.constant(1.0))])

callback = callbacks.LossScaleCallback(log_dir="logs", every_n_steps=10, max_consecutive_skips=50)
model: Any = Model()
model.compile(opt, "mse")
model.fit(tf.zeros([4, 1]), tf.zeros([4, 1]), callbacks=[callback], epochs=2)
record = callback.record
if record is not None:
    print(record.report())


def step(loss: tf.Tensor, tape: tf.GradientTape, variable: tf.Variable) -> tf.Tensor:
    scaled = opt.scale_loss(loss)
    opt.apply([tape.gradient(scaled, variable)], [variable])
    opt.apply_gradients([(tape.gradient(scaled, variable), variable)], scaled=True)
    return scaled


LossScaleOptimizer()  # error: call-arg reportCallIssue
LossScaleOptimizer("adam")  # error: arg-type reportArgumentType
LossScaleOptimizer(inner, "dynamic")  # error: arg-type reportArgumentType
LossScaleOptimizer(inner, True, "high")  # error: arg-type reportArgumentType
LossScaleOptimizer(inner, growth_steps=3)  # error: arg-type reportArgumentType
LossScaleOptimizer(inner, count_skipped=1)  # error: arg-type reportArgumentType
LossScaleOptimizer(inner, scaled="yes")  # error: arg-type reportArgumentType
experimental.LossScaleOptimizer(inner)  # error: call-arg reportCallIssue
experimental.LossScaleOptimizer(inner, "dynamik")  # error: arg-type reportArgumentType
experimental.LossScaleOptimizer(inner, 8, dynamic=True)  # error: call-arg reportCallIssue
opt.get_unscaled_gradients(8.0)  # error: arg-type reportArgumentType
opt.apply_gradients([], scaled="yes")  # error: arg-type reportArgumentType
opt.apply(3)  # error: arg-type reportArgumentType
of_20.loss_scale.no_such_method()  # error: attr-defined reportAttributeAccessIssue
of_20.agree = 3  # error: assignment reportAttributeAccessIssue
callbacks.LossScaleCallback(log_dir=3)  # error: arg-type reportArgumentType
callbacks.LossScaleCallback(in_use)  # error: arg-type reportArgumentType
callbacks.LossScaleCallback(None, "logs", 10, 50)  # error: call-arg,misc reportCallIssue
callback.no_such_method()  # error: attr-defined reportAttributeAccessIssue
callback.record.report()  # error: union-attr reportOptionalMemberAccess
