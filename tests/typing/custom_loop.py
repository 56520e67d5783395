"""A training loop with replicas and a loss scale of TensorFlow r2.0."""

from typing import Any, List, Optional

import numpy as np
import tensorflow as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat.mixed_precision import experimental as of_21
from tf_lossscale_compat.train import experimental

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    variable = tf.Variable(tf.constant([1.0, 2.0]))
    opt: Any = tf.keras.optimizers.SGD(0.1)
    scale = lsc.DynamicLossScale(
        initial_loss_scale=np.float32(2**10),
        increment_period=np.int64(100),
        multiplier=4,
        min_loss_scale=0.5,
        max_loss_scale=None,
    )


def replica_step(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * x)
        scaled = loss * scale
    grads: Any = tape.gradient(scaled, [variable])
    return [grad / scale() for grad in grads]


def step(x: Any) -> None:
    with strategy.scope():
        grads = strategy.run(replica_step, args=(x,))
        _, should_apply = scale.update(grads)
        if should_apply:
            opt.apply_gradients(zip(grads, [variable]))


step(tf.constant([1.0, 2.0]))
tf.function(step)(tf.constant([1.0, 2.0]))
print(f"{scale:.1f}", float(scale), int(scale), scale / 2.0, 1.0 / scale, scale > 1.0)
now: tf.Tensor = scale()
half: tf.Tensor = tf.cast(scale(), tf.float16)
start: float = scale.initial_loss_scale
period: int = scale.increment_period
counter: tf.Variable = scale.good_steps
ceiling: Optional[float] = scale.max_loss_scale
scales: List[lsc.LossScale] = [
    lsc.FixedLossScale(8, skip_nonfinite=True),
    of_21.FixedLossScale(8.0),
]
assert lsc.FixedLossScale(np.float64(8)).get_config()["loss_scale_value"] == 8.0
given: lsc.LossScale = lsc.loss_scale.get("dynamic")
none: None = lsc.loss_scale.get(None)

lsc.DynamicLossScale("eight")  # error: arg-type reportArgumentType
lsc.DynamicLossScale(8, "100")  # error: arg-type reportArgumentType
lsc.DynamicLossScale(max_loss_scale="high")  # error: arg-type reportArgumentType
lsc.FixedLossScale("8")  # error: arg-type reportArgumentType
lsc.FixedLossScale(8, skip_nonfinite="yes")  # error: arg-type reportArgumentType
lsc.LossScale()  # error: abstract reportAbstractUsage
scale.no_such_method()  # error: attr-defined reportAttributeAccessIssue
scale.initial_loss_scale = 2.0  # error: misc,prop-decl reportAttributeAccessIssue
scale.good_stepz.assign(0)  # error: attr-defined reportAttributeAccessIssue
of_21.FixedLossScale(8).get_loss_scale()  # error: attr-defined reportAttributeAccessIssue
lsc.loss_scale.get("fixed")  # error: call-overload reportCallIssue,reportArgumentType
lsc.loss_scale.get(3 + 1j)  # error: call-overload reportCallIssue,reportArgumentType
experimental.MixedPrecisionLossScaleOptimizer(8.0, opt)  # error: arg-type reportArgumentType
experimental.MixedPrecisionLossScaleOptimizer(opt, None)  # error: arg-type reportArgumentType
experimental.enable_mixed_precision_graph_rewrite("sgd")  # error: arg-type reportArgumentType
