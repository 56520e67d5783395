"""Keras: `fit` with the callback, and steps of the user's own."""

from typing import Any, Optional

import tensorflow as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat.keras import callbacks
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer, experimental

inner: Any = tf.keras.optimizers.Adam(1e-3)
opt = LossScaleOptimizer(inner, dynamic=True, initial_scale=2**10, dynamic_growth_steps=100)
of_20 = experimental.LossScaleOptimizer(inner, "dynamic", name="scaled", count_skipped=False)
in_use: lsc.LossScale = of_20.loss_scale
steps: Optional[int] = LossScaleOptimizer.from_config(opt.get_config()).dynamic_growth_steps
opt.learning_rate = 0.1
opt.iterations.assign(0)
opt.dynamic_scale.assign(2.0**12)
print(opt.variables, of_20.name, of_20.inner_optimizer.get_weights())
model: Any = tf.keras.Sequential()
opt.build(model.trainable_variables)
model.compile(opt, "mse")
callback = callbacks.LossScaleCallback(max_consecutive_skips=50)


def step(loss: tf.Tensor, tape: tf.GradientTape, variable: tf.Variable) -> None:
    grads = tape.gradient(opt.get_scaled_loss(loss), [variable])
    opt.apply_gradients(zip(opt.get_unscaled_gradients(grads), [variable]))
    opt.apply([tape.gradient(opt.scale_loss(loss), variable)], [variable])
    opt.minimize(lambda: loss, [variable])


LossScaleOptimizer("adam")  # error: arg-type reportArgumentType
LossScaleOptimizer(inner, growth_steps=3)  # error: arg-type reportArgumentType
experimental.LossScaleOptimizer(inner)  # error: call-arg reportCallIssue
experimental.LossScaleOptimizer(inner, "dynamik")  # error: arg-type reportArgumentType
opt.get_unscaled_gradients(8.0)  # error: arg-type reportArgumentType
opt.get_scaled_gradients([])  # error: attr-defined reportAttributeAccessIssue
opt.dynamic_scale = 2.0  # error: misc,prop-decl reportAttributeAccessIssue
opt.get_weights()  # error: attr-defined reportAttributeAccessIssue
opt.apply_gradients([], scaled=8.0)  # error: arg-type reportArgumentType
opt.apply(3)  # error: arg-type reportArgumentType
of_20.agree = 3  # error: assignment reportAttributeAccessIssue
callback.no_such_method()  # error: attr-defined reportAttributeAccessIssue
