"""Where the members of `tf.contrib` went.

TensorFlow 2.0 removed all of `tf.contrib`; some of it went into other packages:
https://github.com/tensorflow/community/blob/master/rfcs/20180907-contrib-sunset.md
"""

_SUCCESSORS = {
    "cudnn_rnn": "tf.compat.v1.keras.layers.CuDNNLSTM and its like",
    "data": "tf.data.experimental",
    "distribute": "tf.distribute",
    "eager": "tf itself",
    "estimator": "tf.estimator",
    "framework": "the package tf-slim (`import tf_slim`, then `tf_slim.arg_scope`) or tf.compat.v1",
    "image": "the package tensorflow-addons",
    "keras": "tf.keras",
    "layers": "the package tf-slim (`import tf_slim`, then `tf_slim.layer_norm` and so on;"
    " `instance_norm` and `group_norm` are in `tf_slim.layers.normalization`), for feature columns"
    " at tf.feature_column",
    "losses": "the package tf-slim (`tf_slim.losses`)",
    "lookup": "tf.lookup",
    "metrics": "the package tf-slim (`tf_slim.metrics`)",
    "opt": "the package tensorflow-addons",
    "rnn": "tf.compat.v1.nn.rnn_cell",
    "saved_model": "tf.saved_model",
    "seq2seq": "the package tensorflow-addons",
    "slim": "the package tf-slim (`import tf_slim as slim`)",
    "summary": "tf.compat.v2.summary",
    "tpu": "tf.compat.v1.tpu",
    "training": "the package tf-slim (`tf_slim.training`, `tf_slim.evaluation`), which has no"
    " `HParams`: keep those values in a class of your own, such as types.SimpleNamespace",
}


def successor(name):
    """Returns where to look instead of a member of contrib, or None.

    Args:
      name: str, dotted, such as `tensorflow.contrib.layers.layer_norm` or with `tf` before it.
    """
    return _SUCCESSORS.get(name.split(".")[2])
