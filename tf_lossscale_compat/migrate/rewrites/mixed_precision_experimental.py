"""`tf.mixed_precision.experimental` becomes `tf_lossscale_compat.mixed_precision.experimental`.

TensorFlow 2.1 added it as another name of the three loss scales; TensorFlow 2.4 deprecated them in
favour of Keras' optimizer: https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0.
"""

from tf_lossscale_compat.migrate.rewrites import train_experimental
from tf_lossscale_compat.migrate.rewrites._namespace import Namespace

NAMESPACES = [
    Namespace(
        "tensorflow.mixed_precision.experimental",
        "tf_lossscale_compat.mixed_precision.experimental",
        train_experimental.LOSS_SCALES,
        whole=True,
    )
]
