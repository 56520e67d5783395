"""Tags of a loss scale's summaries in TensorBoard, known without TensorFlow."""

SCALE = "loss_scale/scale"
SKIPPED_STEPS = "loss_scale/skipped_steps"  # The running total, a whole number.
CONSECUTIVE_SKIPS = "loss_scale/consecutive_skips"
# Not written where there is no such bound.
FLOOR = "loss_scale/floor"
CEILING = "loss_scale/ceiling"

ALL = (SCALE, SKIPPED_STEPS, CONSECUTIVE_SKIPS, FLOOR, CEILING)
