"""The places that members of `tf.contrib` went to.

TensorFlow 2.0 removed all of `tf.contrib`; some of it went into other packages:
https://github.com/tensorflow/community/blob/master/rfcs/20180907-contrib-sunset.md
"""

_ADDONS = "that of the package tensorflow-addons, which ended with TensorFlow 2.15"
_SUCCESSORS = {
    "cudnn_rnn": "tf.compat.v1.keras.layers.CuDNNLSTM and its like",
    "data": "tf.data.experimental",
    "distribute": "tf.distribute",
    "eager": "tf",
    "estimator": "tf.estimator",
    "framework": "tf_slim",
    "image": _ADDONS,
    "keras": "tf.keras",
    "layers": "tf_slim",
    "losses": "tf_slim.losses",
    "lookup": "tf.lookup",
    "metrics": "tf_slim.metrics",
    "opt": _ADDONS,
    "rnn": "tf.compat.v1.nn.rnn_cell",
    "saved_model": "tf.saved_model",
    "seq2seq": _ADDONS,
    "slim": "tf_slim",
    "summary": "tf.compat.v2.summary",
    "tpu": "tf.compat.v1.tpu",
    "training": "tf_slim.training",
}
_NOTES = {  # Of what is asked for below a module of contrib, only the module may be known.
    "layers": ", `instance_norm` and `group_norm` from `tf_slim.layers.normalization`",
    "training": ", which has no `HParams`: take a class of your own for it",
}


def successor(name):
    """Returns what to write instead of a name such as `tf.contrib.layers.layer_norm`, or None."""
    member, *rest = name.split(".")[2:]
    home = _SUCCESSORS.get(member)
    if home is None or " " in home:
        return home
    last = rest[-1] if rest else ""
    if last == "HParams":
        return "a class of your own, such as types.SimpleNamespace"
    if last in ("instance_norm", "group_norm"):
        home = "tf_slim.layers.normalization"
    elif "_column" in last:
        return "what `tf.feature_column` has for it"
    new = f"`{'.'.join([home, *rest])}`"
    if not home.startswith("tf_slim"):
        return new
    imported = "import tf_slim as slim" if member == "slim" else "import tf_slim"
    return f"{new} of the package tf-slim (`{imported}`)" + ("" if rest else _NOTES.get(member, ""))
