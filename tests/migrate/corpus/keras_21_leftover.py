# runs on tf>=2.4,<2.6
# left to a person: LSC303
# then runs on tf>=2.16
import tensorflow as tf
import tf_lossscale_compat.keras.mixed_precision.experimental
from tensorflow.keras.mixed_precision import experimental as mixed_precision

optimizer = tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(
    tf.keras.optimizers.SGD(0.1), "dynamic"
)
