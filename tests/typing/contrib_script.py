"""A TensorFlow 1 script whose import line was changed, and a manager of the user's own."""

from typing import Any, Union

import numpy as np
import tensorflow.compat.v1 as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat.contrib import mixed_precision as mp


class Halving(mp.LossScaleManager):
    def get_loss_scale(self) -> tf.Tensor:
        return tf.constant(8.0)

    def update_loss_scale(self, finite_grads: "Union[bool, tf.Tensor]") -> Any:
        return None


fixed: lsc.LossScaleManager = mp.FixedLossScaleManager(np.float32(128))
manager = mp.ExponentialUpdateLossScaleManager(init_loss_scale=2**15, incr_every_n_steps=9)
opt = mp.LossScaleOptimizer(tf.train.AdamOptimizer(1e-3), manager, keep_sparse=True)
step = tf.train.get_or_create_global_step()
loss = tf.reduce_mean(tf.placeholder(tf.float32, [None, 3]))
grads, variables = zip(*opt.compute_gradients(loss, colocate_gradients_with_ops=True))
train_op = opt.apply_gradients(zip(grads, variables), global_step=step, name="train")
mp.LossScaleOptimizer(opt, Halving(), agree=lambda flag: flag).minimize(loss, global_step=step)


class Wrong(mp.LossScaleManager):
    def get_loss_scale(self, step: int) -> Any:  # error: override reportIncompatibleMethodOverride
        return 8.0


mp.ExponentialUpdateLossScaleManager("8", 9)  # error: arg-type reportArgumentType
mp.LossScaleManager()  # error: abstract reportAbstractUsage
mp.LossScaleOptimizer("adam", manager)  # error: arg-type reportArgumentType
mp.LossScaleOptimizer(opt, "dynamic")  # error: arg-type reportArgumentType
mp.LossScaleOptimizer(opt, lsc.DynamicLossScale())  # error: arg-type reportArgumentType
mp.LossScaleOptimizer(opt, manager, agree=True)  # error: arg-type reportArgumentType
mp.DynamicLossScale  # error: attr-defined reportAttributeAccessIssue
opt.minimise(loss)  # error: attr-defined reportAttributeAccessIssue
opt.apply_gradients([], step, 3)  # error: arg-type reportArgumentType
