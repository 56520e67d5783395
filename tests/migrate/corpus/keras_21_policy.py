# runs on tf>=2.1,<2.4
# left to a person: LSC301 LSC303 LSC302
# then runs on tf>=2.16
import tensorflow as tf
from tensorflow.keras.mixed_precision import experimental as mixed_precision

policy = mixed_precision.Policy("mixed_float16", loss_scale=1024)
mixed_precision.set_policy(policy)
print("Loss scale: %s" % policy.loss_scale)
