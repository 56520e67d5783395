"""`tf.train.experimental` becomes `tf_lossscale_compat.train.experimental`.

The loss scales were there from TensorFlow 1.14 on, and TensorFlow 2.4 removed them:
https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0. `PythonState`, of the same
namespace, has nothing to do with loss scaling and stays.
"""

from tf_lossscale_compat.migrate.rewrites._namespace import Namespace

LOSS_SCALES = ("LossScale", "FixedLossScale", "DynamicLossScale")
MEMBERS = LOSS_SCALES + (
    "MixedPrecisionLossScaleOptimizer",
    "enable_mixed_precision_graph_rewrite",
    "disable_mixed_precision_graph_rewrite",
)

NAMESPACES = [
    Namespace("tensorflow.train.experimental", "tf_lossscale_compat.train.experimental", MEMBERS)
]
