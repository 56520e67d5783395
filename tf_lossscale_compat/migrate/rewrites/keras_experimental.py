"""`tf.keras.mixed_precision.experimental.LossScaleOptimizer(optimizer, loss_scale)` moves.

TensorFlow 2.4 deprecated it and a later version took it away:
https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0. Policies and what else the
namespace holds are not about loss scaling and stay. Keras itself had it under the same name.
"""

from tf_lossscale_compat.migrate.rewrites._namespace import Namespace

_NEW = "tf_lossscale_compat.keras.mixed_precision.experimental"

NAMESPACES = [
    Namespace(root + ".mixed_precision.experimental", _NEW, ("LossScaleOptimizer",), module=_NEW)
    for root in ("tensorflow.keras", "keras", "tf_keras")
]
