"""The names under which loss scales are written to TensorBoard, for who writes and who reads.

Nothing is imported here, so that logs can be looked at without TensorFlow.
"""

SCALE = "loss_scale/scale"
SKIPPED_STEPS = "loss_scale/skipped_steps"  # The running total, a whole number.
CONSECUTIVE_SKIPS = "loss_scale/consecutive_skips"
# Written at the start and after a restart only, and not at all where there is no such bound.
FLOOR = "loss_scale/floor"
CEILING = "loss_scale/ceiling"

ALL = (SCALE, SKIPPED_STEPS, CONSECUTIVE_SKIPS, FLOOR, CEILING)
