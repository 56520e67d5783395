"""The namespaces of TensorFlow and Keras that become this package's, and what is in them.

Releases, https://github.com/tensorflow/tensorflow/releases, removed them:

- 2.0: `tf.contrib.mixed_precision`, with two private modules that much code imports.
- 2.4: the loss scales of `tf.train.experimental` (1.14) and of the private modules behind them, and
  what `tf.compat.v1.mixed_precision` was its own name for. `PythonState` stays in the former.
- 2.6: `tf.mixed_precision.experimental` (2.1), another name of the three loss scales, and Keras'
  `LossScaleOptimizer(optimizer, loss_scale)`. Policies and what else was there stay.
- 2.16: `tf.keras.mixed_precision.LossScaleOptimizer` (2.4), as Keras 3 has another class of that
  name, without `dynamic`, `get_scaled_loss` and `get_unscaled_gradients`. Code that is written for
  Keras 3's class works and is not changed. `tf_keras` has only the older class.
"""

from typing import Callable, NamedTuple, Optional, Tuple

# TensorFlow repeats its whole API under these, so `tf.compat.v1.train` is `tf.train`.
_REPEATED = (("compat", "v1"), ("compat", "v2"), ("_api", "v1"), ("_api", "v2"))
ROOTS = ("tensorflow", "tensorflow_core", "keras", "tf_keras")


def canonical(qualified_name):
    """Returns a dotted name without `compat.v1` and its like, as the namespaces are listed."""
    parts = qualified_name.split(".")
    if parts[0] == "tensorflow_core":  # What 1.15 and 2.0 had their API in.
        parts[0] = "tensorflow"
    if parts[1:2] == ["api"] and parts[0] in ("keras", "tf_keras"):
        # Below `_v1` and `_v2` it is what `tf.keras` was up to 2.15, as `tf_keras` is today.
        if parts[2:4] in (["_v1", "keras"], ["_v2", "keras"]):
            parts[:4] = ["tf_keras"]
        else:
            del parts[1]
    while parts[0] == "tensorflow" and tuple(parts[1:3]) in _REPEATED:
        del parts[1:3]
    return ".".join(parts)


class Namespace(NamedTuple):
    """One namespace that moves."""

    old: str  # Its canonical dotted name in TensorFlow.
    new: str  # Its dotted name here.
    members: Tuple[str, ...]  # Names that are there in both.
    whole: bool = False  # No other public members: it may be replaced wherever it is mentioned.
    module: str = "tf_lossscale_compat"  # What to import before `new` can be used.
    # Of the only member: whether a file with these `cst.Call`s, and this `_tree.Tree`, uses it as
    # in this namespace (True), as in another API of the same name (False), or both (None).
    is_meant: Optional[Callable] = None


OLDER_METHODS = {"get_scaled_loss", "get_unscaled_gradients", "dynamic_counter"}
_ARGUMENTS = ("inner_optimizer", "dynamic", "initial_scale", "dynamic_growth_steps")


def _signs(calls, tree):
    """Returns whether the file has signs of Keras 2's `LossScaleOptimizer`, and of Keras 3's."""
    older = bool(tree.attributes.keys() & OLDER_METHODS)
    newer = "scale_loss" in tree.methods
    for call in calls:
        values = [tree.text(each.value) for each in call.args if not (each.keyword or each.star)]
        keywords = [each.keyword.value for each in call.args if each.keyword]
        older = older or "dynamic" in keywords or values[1:2] in (["True"], ["False"])
        # Any other keyword is Keras 3's: `name`, and whatever its base class takes.
        newer = newer or any(keyword not in _ARGUMENTS for keyword in keywords)
        newer = newer or "".join(values[1:2])[:1].isdigit()
    return older, newer


def _is_tf_keras(calls, tree):
    older, newer = _signs(calls, tree)
    return None if older and newer else not newer


def _is_older(calls, tree):
    older, newer = _signs(calls, tree)
    # Today's `keras` has this class: it takes a sign to tell that another one is meant.
    return None if older and newer else older


_MANAGERS = ("LossScaleManager", "FixedLossScaleManager", "ExponentialUpdateLossScaleManager")
_OPTIMIZER = ("LossScaleOptimizer",)
_LOSS_SCALES = ("LossScale", "FixedLossScale", "DynamicLossScale")
_V1_OPTIMIZER = ("MixedPrecisionLossScaleOptimizer",)
_TRAIN_MEMBERS = (
    *_LOSS_SCALES,
    *_V1_OPTIMIZER,
    "enable_mixed_precision_graph_rewrite",
    "disable_mixed_precision_graph_rewrite",
)
_CONTRIB = "tensorflow.contrib.mixed_precision"
_OUR_CONTRIB = "tf_lossscale_compat.contrib.mixed_precision"
_OUR_SCALES = "tf_lossscale_compat.loss_scale"
_OUR_TRAIN = "tf_lossscale_compat.train.experimental"
_OUR_KERAS = "tf_lossscale_compat.keras.mixed_precision"
_PRIVATE = "tensorflow.python.training.experimental."
_PRIVATE_KERAS = "tensorflow.python.keras.mixed_precision.experimental"
_PRIVATE_OPTIMIZER = _PRIVATE_KERAS + ".loss_scale_optimizer"
_OLDER_KERAS = _OUR_KERAS + ".experimental"


def _of_keras(root, is_meant):
    old = root + ".mixed_precision"
    return (
        Namespace(old + ".experimental", _OLDER_KERAS, _OPTIMIZER, module=_OLDER_KERAS),
        Namespace(old, _OUR_KERAS, _OPTIMIZER, module=_OUR_KERAS, is_meant=is_meant),
    )


NAMESPACES = {
    namespace.old: namespace
    for namespace in (
        Namespace(_CONTRIB, _OUR_CONTRIB, _MANAGERS + _OPTIMIZER, whole=True),
        Namespace(_CONTRIB + ".python.loss_scale_manager", _OUR_CONTRIB, _MANAGERS, whole=True),
        Namespace(_CONTRIB + ".python.loss_scale_optimizer", _OUR_CONTRIB, _OPTIMIZER, whole=True),
        Namespace(_PRIVATE + "loss_scale", _OUR_SCALES, (*_LOSS_SCALES, "get"), whole=True),
        Namespace(_PRIVATE + "loss_scale_optimizer", _OUR_TRAIN, _V1_OPTIMIZER, whole=True),
        Namespace(_PRIVATE_KERAS, _OLDER_KERAS, _OPTIMIZER, module=_OLDER_KERAS),
        Namespace(_PRIVATE_OPTIMIZER, _OLDER_KERAS, _OPTIMIZER, whole=True, module=_OLDER_KERAS),
        Namespace("tensorflow.train.experimental", _OUR_TRAIN, _TRAIN_MEMBERS),
        Namespace("tensorflow.mixed_precision", _OUR_TRAIN, _TRAIN_MEMBERS),
        Namespace(
            "tensorflow.mixed_precision.experimental",
            "tf_lossscale_compat.mixed_precision.experimental",
            _LOSS_SCALES,
            whole=True,
        ),
        *_of_keras("tensorflow.keras", _is_tf_keras),
        *_of_keras("keras", _is_older),
        *_of_keras("tf_keras", None),
    )
}


def find(qualified_name):
    """Returns the `Namespace` that a dotted name is in, and the list of its parts beyond it.

    The parts are empty for the namespace itself; where the name is in none, the first is None and
    the parts are those of the whole name.
    """
    parts = canonical(qualified_name).split(".")
    for length in range(len(parts), 1, -1):
        namespace = NAMESPACES.get(".".join(parts[:length]))
        if namespace is not None:
            return namespace, parts[length:]
    return None, parts


def find_member(qualified_name):
    """Returns the namespace and the rest as `find` does; None as the first where nothing moves.

    That is so for other members of a namespace, and for one named as a whole that is not `whole`.
    """
    namespace, rest = find(qualified_name)
    if namespace is not None and (
        rest[0] not in namespace.members if rest else not namespace.whole
    ):
        return None, rest
    return namespace, rest
