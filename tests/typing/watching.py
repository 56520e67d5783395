"""StepRecord, the hook, summaries; one loss scale for several optimizers."""

from typing import Any, Dict, Optional, Tuple

import tensorflow as tf

import tf_lossscale_compat as lsc
from tf_lossscale_compat import monitoring
from tf_lossscale_compat.monitoring import LossScaleHook, write_summaries
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

scale = lsc.DynamicLossScale()
sgd = tf.compat.v1.train.GradientDescentOptimizer(0.1)
optimizer = MixedPrecisionLossScaleOptimizer(sgd, scale)
record = lsc.StepRecord(optimizer, names=True, max_consecutive_skips=50)
writer: Any = tf.summary.create_file_writer("logs")


write_summaries(record, step=3, writer=writer, log_every_n_secs=60)
steps: tf.Tensor = record.steps
skipped: int = int(record.skipped_steps)
scaler: Any = record.loss_scale
finite: tf.Tensor = record.last_step_finite
in_a_row: tf.Tensor = record.consecutive_skips
skip = record.last_skip()
if skip is not None:
    before: float = skip.scale_before
    after: Optional[float] = skip.scale_after
    names: Tuple[str, ...] = skip.names
totals: Dict[str, int] = record.nonfinite_gradients()
checkpoint = tf.train.Checkpoint(scale=scale, record=record)
try:
    record.check(max_consecutive_skips=3)
except lsc.LossScaleError as error:
    print(error, record.report(session=None))

hook = LossScaleHook(record, every_n_steps=10, output_dir="logs", step=steps, is_chief=True)
with tf.compat.v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
    session.run([])

lsc.StepRecord("scale")  # error: arg-type reportArgumentType
lsc.StepRecord(scale)  # error: arg-type reportArgumentType
lsc.StepRecord(optimizer, names="yes")  # error: arg-type reportArgumentType
record.no_such_method()  # error: attr-defined reportAttributeAccessIssue
record.check("many")  # error: arg-type reportArgumentType
record.last_skip().step  # error: union-attr reportOptionalMemberAccess
record.nonfinite_gradients()["w"].upper()  # error: attr-defined reportAttributeAccessIssue
text: int = record.report()  # error: assignment reportAssignmentType
LossScaleHook(scale)  # error: arg-type reportArgumentType
LossScaleHook(record, every_n_steps="ten")  # error: arg-type reportArgumentType
hook.no_such_method()  # error: attr-defined reportAttributeAccessIssue
write_summaries(scale)  # error: arg-type reportArgumentType
monitoring.LossScaleHok  # error: attr-defined reportAttributeAccessIssue
