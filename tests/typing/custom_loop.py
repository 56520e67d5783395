"""Loss scales of TensorFlow 2.0, one of the user's own, and a record of steps."""

from typing import Any, Dict, List, Tuple, Union

import tensorflow as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat.mixed_precision import experimental as of_21
from tf_lossscale_compat.train import experimental


class Growing(lsc.loss_scale.LossScale):
    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.scale = self._add_weight("scale", start, dtype=tf.float32)

    def __call__(self) -> tf.Tensor:
        return tf.constant(1.0)

    def update(self, grads: Any) -> "Tuple[Any, Union[bool, tf.Tensor]]":
        return self.scale.assign_add(1.0), True

    def get_config(self) -> Dict[str, Any]:
        return {}


scale = lsc.DynamicLossScale(2**10, increment_period=100, multiplier=4, max_loss_scale=None)
print(f"{scale:.1f}", float(scale), scale / 2.0, 1.0 / scale, scale > 1.0)
scales: List[lsc.LossScale] = [of_21.FixedLossScale(8, skip_nonfinite=True), Growing()]
growing: Growing = lsc.loss_scale.get(Growing.from_config({}))
sgd = tf.compat.v1.train.GradientDescentOptimizer(0.1)
wrapped = experimental.MixedPrecisionLossScaleOptimizer(sgd, scale)
record = lsc.StepRecord(wrapped, names=True, max_consecutive_skips=3)
steps: tf.Tensor = record.steps
totals: Dict[str, int] = record.nonfinite_gradients()
record.check()


class Wrong(lsc.LossScale):
    def __call__(self, step: int) -> tf.Tensor:  # error: override reportIncompatibleMethodOverride
        return tf.constant(1.0)


Wrong()  # error: abstract reportAbstractUsage
lsc.DynamicLossScale("eight")  # error: arg-type reportArgumentType
lsc.FixedLossScale(8, skip_nonfinite="yes")  # error: arg-type reportArgumentType
growing.no_such_method()  # error: attr-defined reportAttributeAccessIssue
scale.initial_loss_scale = 2.0  # error: misc,prop-decl reportAttributeAccessIssue
lsc.loss_scale.get("fixed")  # error: call-overload reportCallIssue,reportArgumentType
lsc.kerras  # error: attr-defined reportAttributeAccessIssue
wrong: lsc.LossScaleManager = scale  # error: assignment reportAssignmentType
experimental.MixedPrecisionLossScaleOptimizer(sgd, None)  # error: arg-type reportArgumentType
lsc.StepRecord(scale)  # error: arg-type reportArgumentType
record.last_skip().step  # error: union-attr reportOptionalMemberAccess
