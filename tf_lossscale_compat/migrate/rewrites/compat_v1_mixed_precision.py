"""`tf.compat.v1.mixed_precision` becomes `tf_lossscale_compat.train.experimental`.

TensorFlow 2.4 gave the loss scales, the v1 optimizer and the graph rewrite of
`tf.compat.v1.train.experimental` this name:
https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0. The new name is the older one, since
here `mixed_precision` holds no more than TensorFlow 2's did. (`compat.v1` is no part of canonical
names; without it TensorFlow never had these members here.)
"""

from tf_lossscale_compat.migrate.rewrites import train_experimental
from tf_lossscale_compat.migrate.rewrites._namespace import Namespace

NAMESPACES = [
    Namespace(
        "tensorflow.mixed_precision",
        "tf_lossscale_compat.train.experimental",
        train_experimental.MEMBERS,
    )
]
