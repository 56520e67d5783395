"""`tf.contrib.mixed_precision` becomes `tf_lossscale_compat.contrib.mixed_precision`.

TensorFlow 2.0 removed `tf.contrib`, this module without a successor:
https://github.com/tensorflow/tensorflow/releases/tag/v2.0.0. The two private modules behind it are
imported directly by much code, for their classes; those are the same ones.
"""

from tf_lossscale_compat.migrate.rewrites._namespace import Namespace

_MANAGERS = ("LossScaleManager", "FixedLossScaleManager", "ExponentialUpdateLossScaleManager")
_OPTIMIZER = ("LossScaleOptimizer",)
_OLD = "tensorflow.contrib.mixed_precision"
_NEW = "tf_lossscale_compat.contrib.mixed_precision"

NAMESPACES = [
    Namespace(_OLD, _NEW, _MANAGERS + _OPTIMIZER, whole=True),
    Namespace(_OLD + ".python.loss_scale_manager", _NEW, _MANAGERS, whole=True),
    Namespace(_OLD + ".python.loss_scale_optimizer", _NEW, _OPTIMIZER, whole=True),
]
