"""A TensorFlow 1 script whose import line was changed."""

import numpy as np
import tensorflow.compat.v1 as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat.contrib.mixed_precision import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    LossScaleOptimizer,
)


def make_manager(dynamic: bool) -> LossScaleManager:
    if dynamic:
        return ExponentialUpdateLossScaleManager(
            init_loss_scale=2**15, incr_every_n_steps=1000, decr_every_n_nan_or_inf=1
        )
    return FixedLossScaleManager(np.float32(128))


opt = LossScaleOptimizer(tf.train.AdamOptimizer(1e-3), make_manager(True), keep_sparse=True)
step = tf.train.get_or_create_global_step()
x = tf.placeholder(tf.float32, [None, 3])
loss = tf.reduce_mean(x)

grads_and_vars = opt.compute_gradients(loss, colocate_gradients_with_ops=True)
grads, variables = zip(*grads_and_vars)
clipped, _ = tf.clip_by_global_norm(grads, 1.0)
train_op = opt.apply_gradients(zip(clipped, variables), global_step=step, name="train")
names: "list[str]" = opt.get_slot_names()
saver = tf.train.Saver(opt.variables() + make_manager(False).variables())
with tf.Session() as session:
    session.run([train_op, opt.minimize(loss, global_step=step)])
tf.train.SyncReplicasOptimizer(opt, replicas_to_aggregate=2)

LossScaleOptimizer(opt=opt, loss_scale_manager=make_manager(False), enabled=False)
LossScaleOptimizer(opt, make_manager(False), agree=lambda flag: flag)

ExponentialUpdateLossScaleManager("2**15", 1000)  # error: arg-type reportArgumentType
ExponentialUpdateLossScaleManager(2**15, 1000, incr_ratio="2")  # error: arg-type reportArgumentType
ExponentialUpdateLossScaleManager(2**15, "1000")  # error: arg-type reportArgumentType
FixedLossScaleManager(None)  # error: arg-type reportArgumentType
LossScaleManager()  # error: abstract reportAbstractUsage
LossScaleOptimizer(make_manager(True), opt)  # error: arg-type reportArgumentType
LossScaleOptimizer("adam", make_manager(True))  # error: arg-type reportArgumentType
LossScaleOptimizer(opt, "dynamic")  # error: arg-type reportArgumentType
LossScaleOptimizer(opt, lsc.DynamicLossScale())  # error: arg-type reportArgumentType
LossScaleOptimizer(opt, make_manager(True), keep_sparse="no")  # error: arg-type reportArgumentType
LossScaleOptimizer(opt, make_manager(True), agree=True)  # error: arg-type reportArgumentType
opt.minimise(loss)  # error: attr-defined reportAttributeAccessIssue
opt.apply_gradients(loss, step, 3)  # error: arg-type reportArgumentType
make_manager(True).no_such_method()  # error: attr-defined reportAttributeAccessIssue
installed: str = lsc.install_contrib()  # error: assignment reportAssignmentType
