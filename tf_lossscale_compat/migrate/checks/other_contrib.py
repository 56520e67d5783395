"""Members of `tf.contrib` besides `mixed_precision`.

TensorFlow 2.0 removed all of `tf.contrib`; some of it went into other packages:
https://github.com/tensorflow/community/blob/master/rfcs/20180907-contrib-sunset.md
"""

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate.checks._finding import Finding

_CONTRIB = "tensorflow.contrib"
_SUCCESSORS = {
    "cudnn_rnn": "tf.compat.v1.keras.layers.CuDNNLSTM and its like",
    "data": "tf.data.experimental",
    "distribute": "tf.distribute",
    "eager": "tf itself",
    "estimator": "tf.estimator",
    "framework": "tf_slim or tf.compat.v1",
    "image": "the package tensorflow-addons",
    "keras": "tf.keras",
    "layers": "the package tf-slim (`tf_slim.layers`)",
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
    "training": "the package tf-slim (`tf_slim.training`)",
}


def _message(canonical):
    parts = canonical.split(".")
    if parts[2] == "mixed_precision":
        name = ".".join(["tf", *parts[1:]])
        return (
            f"`{name}` is nothing that TensorFlow 1.15 made public, and this package has no such"
            " name: use one of the classes of `tf_lossscale_compat.contrib.mixed_precision`"
        )
    name = ".".join(["tf", *parts[1:3]])
    successor = _SUCCESSORS.get(parts[2])
    advice = f"look at {successor}" if successor else "replace it by hand"
    return f"`{name}` is gone since TensorFlow 2.0 and not part of this package: {advice}"


def _is_below(canonical, above):
    return canonical.startswith(above + ".")


def find(plan):
    """Yields what imports or mentions another member of contrib."""
    for binding in plan.tree.bindings:
        canonical = rewrites.canonical(binding.path)
        if plan.is_moved(binding) or plan.is_dropped(binding):
            continue
        if _is_unknown(binding.path):
            yield Finding(plan.tree.span(binding.alias)[0], _message(canonical))
        elif canonical == _CONTRIB and all(plan.is_edited(chain) for chain in binding.chains):
            yield Finding(
                plan.tree.span(binding.alias)[0],
                "`tf.contrib` is gone since TensorFlow 2.0: remove this import if nothing needs it",
            )
    for chain in plan.tree.chains:
        if plan.is_edited(chain):
            continue
        for binding, name in chain.references:
            if binding is None or plan.is_moved(binding) or not _is_unknown(name):
                continue
            canonical = rewrites.canonical(name)
            imported = rewrites.canonical(binding.path)
            # What the import already brings was reported there.
            if _is_unknown(imported) and (canonical + ".").startswith(imported + "."):
                continue
            yield Finding(plan.tree.span(chain.nodes[0])[0], _message(canonical))
            break


def _is_unknown(name):
    """Whether a name is in contrib and no rewrite knows it."""
    if not _is_below(rewrites.canonical(name), _CONTRIB):
        return False
    namespace, rest = rewrites.find(name)
    return namespace is None or bool(rest and rest[0] not in namespace.members)
