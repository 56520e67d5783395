"""Which Keras an optimizer is of, and the wrapper class for it.

There may be several in one process: Keras 3 and `tf_keras` beside each other, each with its own
base classes, and in tf.keras from 2.11 on both kinds of optimizers.
"""

import functools
import importlib
import sys

from tf_lossscale_compat import _tf
from tf_lossscale_compat.keras import _keras3, _optimizer_v2, _tf_keras

tf = _tf.tf

# What each family's optimizers are known by: the name of a base class of all of them.
_FAMILIES = {
    "BaseOptimizer": _keras3.Keras3,
    "_BaseOptimizer": _tf_keras.TFKeras,
    "OptimizerV2": _optimizer_v2.OptimizerV2,
}


def _family(optimizer_class):
    """Returns (mixin, base class of the family), or None."""
    for base in optimizer_class.__mro__:
        if base.__module__.split(".")[0] in _tf.KERAS_ROOTS and base.__name__ in _FAMILIES:
            return _FAMILIES[base.__name__], base
    return None


def keras_of(base):
    """The Keras module, with `optimizers` and the like, that a base class is from."""
    root = base.__module__.split(".")[0]
    return importlib.import_module(root) if root.endswith("keras") else tf.keras


def _native(keras, base, experimental):
    """That Keras' own loss-scale optimizer for optimizers derived from `base`, else `base`.

    Deriving from it keeps `compile` from wrapping a second time under a float16 policy.
    """
    # In 2.10 `keras` itself shows the one for OptimizerV2 only, tf.keras one for both.
    stable = [getattr(module, "mixed_precision", None) for module in (keras, tf.keras)]
    older = [getattr(module, "experimental", None) for module in stable]
    for module in older + stable if experimental else stable + older:
        public = getattr(module, "LossScaleOptimizer", None)
        for candidate in [public] + (public.__subclasses__() if public else []):
            if candidate is not None and issubclass(candidate, base):
                return candidate
    return base


@functools.lru_cache(maxsize=None)
def _class(public, mixin, base):
    """The class that is both `public` and of the family of `base`."""
    keras = keras_of(base)
    native = _native(keras, base, experimental=not public._takes_numbers)
    cls = type(
        public.__name__,
        (public, mixin, native),
        {
            "_keras": keras,
            "_native": native,
            "_base": base,
            "_public": public,
            "__module__": public.__module__,
            "__doc__": public.__doc__,
        },
    )
    name = vars(public).get("_registered_name")
    if name is not None:
        suffix = "V2" if mixin is _optimizer_v2.OptimizerV2 else ""
        _register(keras, cls, name + suffix)
    return cls


def _register(keras, cls, name):
    """Lets that Keras find `cls` when it loads a model."""
    package = "tf_lossscale_compat"
    if hasattr(keras.utils, "register_keras_serializable"):
        keras.utils.register_keras_serializable(package=package, name=name)(cls)
    else:  # Before TensorFlow 2.1 a class goes by its own name, and this one's is Keras' already.
        cls.__name__ = f"{package}>{name}"
        keras.utils.get_custom_objects()[cls.__name__] = cls


def family_of(optimizer, argument):
    """Returns the mixin for an optimizer's family and the family's base class.

    Args:
      optimizer: Keras optimizer.
      argument: str, the name of the argument that it was given as, for errors.

    Raises:
      TypeError: `optimizer` is no Keras optimizer.
      ValueError: it has a loss scale already.
    """
    found = None if isinstance(optimizer, type) else _family(type(optimizer))
    if found is None:
        hint = ""
        if isinstance(optimizer, _tf.Optimizer):
            hint = (
                " A tf.compat.v1.train.Optimizer is wrapped by "
                "tf_lossscale_compat.train.experimental.MixedPrecisionLossScaleOptimizer or "
                "tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer instead."
            )
        raise TypeError(f"{argument} must be a Keras optimizer, got {optimizer!r}.{hint}")
    # Those of all Kerases are called so, or nearly; and mark so what they wrap.
    names = [base.__name__ for base in type(optimizer).__mro__]
    if any(name.startswith("LossScaleOptimizer") for name in names) or getattr(
        optimizer, "_is_wrapped_by_loss_scale_optimizer", False
    ):
        raise ValueError(f"{argument} has a loss scale already, got {optimizer!r}.")
    return found


def wrapper_class(public, base):
    """Returns the class that wraps optimizers derived from `base` as `public` or a subclass."""
    return _class(public, *_family(base))


def class_for_config(public, config):
    """Returns the class to deserialize the inner optimizer's `config` with."""
    if hasattr(public, "_native"):
        return public
    of_tf_keras = str(config.get("module")).split(".")[0] == "tf_keras"
    keras = importlib.import_module("tf_keras") if of_tf_keras else tf.keras
    return _class(public, *_family(keras.optimizers.SGD))


def register(*publics):
    """Makes the classes for each Keras that is imported, or else for tf.keras.

    Models are loaded by the names of their optimizers' classes, which have to exist by then.
    """
    names = [name for name in ("keras", "tf_keras") if name in sys.modules]
    for keras in [importlib.import_module(name) for name in names] or [tf.keras]:
        for module in (keras.optimizers, getattr(keras.optimizers, "legacy", None)):
            sgd = getattr(module, "SGD", None)
            found = None if sgd is None else _family(sgd)
            if found is not None:
                for public in publics:
                    _class(public, *found)
