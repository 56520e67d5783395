"""Loss scales and managers of the user's own."""

from typing import Any, Dict, List, Tuple, Union

import tensorflow as tf

from tf_lossscale_compat import contrib, loss_scale
from tf_lossscale_compat.contrib import mixed_precision as loss_scale_manager
from tf_lossscale_compat.train import experimental


class Halving(contrib.mixed_precision.LossScaleManager):
    """Halves at each step that is not finite."""

    def __init__(self, start: float) -> None:
        self.scale = tf.Variable(tf.constant(start), trainable=False)

    def get_loss_scale(self) -> tf.Tensor:
        scale: tf.Tensor = tf.identity(self.scale)
        return scale

    def update_loss_scale(self, finite_grads: "Union[bool, tf.Tensor]") -> Any:
        factor = tf.where(finite_grads, 1.0, 0.5)
        return self.scale.assign(self.scale * factor)

    def variables(self) -> List[tf.Variable]:
        return [self.scale]


class Growing(loss_scale.LossScale):
    """Grows with every step."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.start = start
        self.scale = self._add_weight("scale", start, dtype=tf.float32)

    def __call__(self) -> tf.Tensor:
        scale: tf.Tensor = tf.identity(self.scale)
        return scale

    def update(self, grads: Any) -> "Tuple[Any, Union[bool, tf.Tensor]]":
        return self.scale.assign_add(1.0), True

    def get_config(self) -> Dict[str, Any]:
        return {"start": self.start}


class Bounded(loss_scale.DynamicLossScale):
    """Never leaves its bounds."""

    max_loss_scale = 2.0**20

    def update(self, grads: Any) -> "Tuple[Any, Union[bool, tf.Tensor]]":
        update, should_apply = super().update(grads)
        return update, should_apply


class Untyped(loss_scale_manager.FixedLossScaleManager):
    """As code without annotations has it."""

    def update_loss_scale(self, finite_grads):  # type: ignore[no-untyped-def]
        return super().update_loss_scale(finite_grads)


growing = Growing.from_config({"start": 2.0})
start: float = growing.start
known: Growing = loss_scale.get(growing)
config: Dict[str, Any] = loss_scale.serialize(growing)
again: loss_scale.LossScale = loss_scale.deserialize(config, {"Growing": Growing})
checkpoint = tf.train.Checkpoint(growing=growing, halving=Halving(8.0))
experimental.MixedPrecisionLossScaleOptimizer(tf.compat.v1.train.AdamOptimizer(), Bounded(2**10))
contrib.mixed_precision.LossScaleOptimizer(tf.compat.v1.train.AdamOptimizer(), Halving(8.0))


class Incomplete(loss_scale.LossScale):
    """Lacks two of three methods."""

    def __call__(self) -> tf.Tensor:
        return tf.constant(1.0)


class Wrong(loss_scale.LossScale):
    """Overrides with other arguments."""

    def __call__(self, step: int) -> tf.Tensor:  # error: override reportIncompatibleMethodOverride
        return tf.constant(1.0)

    def update(self) -> Any:  # error: override reportIncompatibleMethodOverride
        return None, True

    def get_config(self) -> int:  # error: override reportIncompatibleMethodOverride
        return 3


class WrongManager(loss_scale_manager.LossScaleManager):
    """Overrides with other arguments."""

    def get_loss_scale(self, step: int) -> Any:  # error: override reportIncompatibleMethodOverride
        return 8.0

    def update_loss_scale(self) -> Any:  # error: override reportIncompatibleMethodOverride
        return None


Incomplete()  # error: abstract reportAbstractUsage
growing.no_such_method()  # error: attr-defined reportAttributeAccessIssue
growing.ended = True  # error: attr-defined reportAttributeAccessIssue
growing._add_weight(3, 1.0)  # error: arg-type reportArgumentType
Growing.from_config(2.0)  # error: arg-type reportArgumentType
loss_scale.deserialize("dynamic")  # error: arg-type reportArgumentType
loss_scale.serialize("dynamic")  # error: arg-type reportArgumentType
Halving(8.0).no_such_method()  # error: attr-defined reportAttributeAccessIssue
