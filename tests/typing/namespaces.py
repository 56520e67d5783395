"""Public names of each namespace."""

import tf_lossscale_compat as lsc
import tf_lossscale_compat.contrib.mixed_precision
import tf_lossscale_compat.keras.mixed_precision.experimental
from tf_lossscale_compat import (
    DynamicLossScale,
    LossScaleError,
    StepRecord,
    install_contrib,
)

version: str = lsc.__version__
# Those of one class are one class, wherever it is taken from.
scale: lsc.train.experimental.DynamicLossScale = DynamicLossScale()
same: lsc.mixed_precision.experimental.LossScale = scale
manager: lsc.contrib.mixed_precision.LossScaleManager
manager = lsc.contrib.mixed_precision.FixedLossScaleManager(8)
opt = lsc.keras.mixed_precision.experimental.LossScaleOptimizer
stable = lsc.keras.mixed_precision.LossScaleOptimizer
callback = lsc.keras.callbacks.LossScaleCallback
hook = lsc.monitoring.LossScaleHook
done: bool = install_contrib()
print(LossScaleError, StepRecord)

lsc.DynamicLosScale()  # error: attr-defined reportAttributeAccessIssue
lsc.kerras  # error: attr-defined reportAttributeAccessIssue
lsc.optimizers  # error: attr-defined reportAttributeAccessIssue
lsc.contrib.layers  # error: attr-defined reportAttributeAccessIssue
lsc.contrib.mixed_precision.DynamicLossScale  # error: attr-defined reportAttributeAccessIssue
lsc.train.experimental.LossScaleOptimizer  # error: attr-defined reportAttributeAccessIssue
lsc.mixed_precision.LossScaleOptimizer  # error: attr-defined reportAttributeAccessIssue
lsc.keras.optimizers  # error: attr-defined reportAttributeAccessIssue
lsc.keras.mixed_precision.Policy  # error: attr-defined reportAttributeAccessIssue
lsc.keras.callbacks.Callback  # error: attr-defined reportAttributeAccessIssue
lsc.loss_scale.DynamicLosScale  # error: attr-defined reportAttributeAccessIssue
wrong: lsc.LossScaleManager = scale  # error: assignment reportAssignmentType
