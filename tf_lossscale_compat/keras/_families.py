"""The family of an optimizer, and the wrapper class for it.

There may be several in one process: Keras 3 and `tf_keras` beside each other, each with its own
base classes, and in tf.keras from 2.11 on both kinds of optimizers.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import types
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _keras_versions, _tf, _wrapping
from tf_lossscale_compat.keras import _keras3, _optimizer_v2, _tf_keras

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat.keras import _optimizer, _shared

    def cached(function: _types.Function) -> _types.Function: ...
else:
    cached = functools.lru_cache(maxsize=None)

tf = _tf.tf

# Entries that only Keras before 3 has in its optimizers' configs.
_OLDER_ALONE = {"is_legacy_optimizer", "jit_compile"}
# The families, by the name of the base class that all optimizers of one derive from.
_FAMILIES: dict[str, type[_shared.LossScaling]] = {
    "BaseOptimizer": _keras3.Keras3,
    "_BaseOptimizer": _tf_keras.TFKeras,
    "OptimizerV2": _optimizer_v2.OptimizerV2,
}


def of_keras(cls: type) -> list[type]:
    """Returns the bases of a class, itself included, that are of any Keras, in order."""
    return [c for c in cls.__mro__ if c.__module__.split(".")[0] in _keras_versions.ROOTS]


def _family_bases(optimizer_class: type) -> list[type]:
    """Returns the base classes of families that a class derives from, the nearest first."""
    return [base for base in of_keras(optimizer_class) if base.__name__ in _FAMILIES]


def keras_of(base: type) -> types.ModuleType:
    """Returns the Keras module, with `optimizers` and the like, that a base class is from."""
    root = base.__module__.split(".")[0]
    return importlib.import_module(root) if root.endswith("keras") else tf.keras


def _native(keras: types.ModuleType, base: type, experimental: bool) -> type:
    """Returns Keras' own loss-scale class for optimizers derived from `base`; without one, `base`.

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


class _OfOneFamily(type):
    """The metaclass of all wrappers, each of which is of one family.

    The public classes are of tf.keras' own family. A class for another family derives from a public
    class and from that family's; its `mro` leaves out the bases of the first family.
    """

    def mro(cls) -> list[type]:
        order = super().mro()
        family = vars(cls).get("_tflsc_family")
        if family is None:
            return order
        replaced: Any = cls.__bases__[0]
        left_out = {*replaced._tflsc_family.__mro__, *family.__mro__}
        return [each for each in order if each not in left_out] + list(family.__mro__)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type.__call__(cls, *args, **kwargs)  # Past that of Keras, which picks a class.

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, for `help` and notebooks, which would show that of `__call__`."""
        constructed: Any = cls
        return inspect.signature(types.MethodType(constructed.__init__, cls))

    def __instancecheck__(cls, instance: object) -> bool:
        # Custom training steps ask it of what `compile` made under a float16 policy. A False would
        # have them leave the loss unscaled.
        if super().__instancecheck__(instance):
            return True
        return (
            "_tflsc_registered_name" in vars(cls)
            and not isinstance(type(instance), _OfOneFamily)
            and any(map(_wrapping.is_loss_scale_optimizer, of_keras(type(instance))))
        )


@cached
def _joined(metaclass: type, other: type) -> type:
    if issubclass(other, metaclass):
        return other
    return metaclass if issubclass(metaclass, other) else type("_Joined", (metaclass, other), {})


def _new_class(name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
    metaclass: type = _OfOneFamily
    for base in bases:
        metaclass = _joined(metaclass, type(base))
    return metaclass(name, bases, members)


@cached
def _family_class(base: type, experimental: bool) -> type[_shared.LossScaling]:
    """The class that each wrapper of the family of `base` derives from."""
    mixin = _FAMILIES[base.__name__]
    keras = keras_of(base)
    native = _native(keras, base, experimental)
    members = {
        "_tflsc_keras": keras,
        "_tflsc_keras_own": native,
        "_tflsc_family_base": base,
        "__module__": __name__,
    }
    cls = _new_class(mixin.__name__, (mixin, native), members)
    cls._tflsc_family = cls
    return cls


def default_family(experimental: bool) -> type[_shared.LossScaling]:
    """The class for tf.keras' own optimizers, which the public classes derive from."""
    return _family_class(_family_bases(tf.keras.optimizers.SGD)[0], experimental)


def shown_as(public: type) -> dict[str, Any]:
    """The members of a class that users see as `public`, which it is derived from."""
    shown = {name: getattr(public, name) for name in ("__module__", "__qualname__", "__doc__")}
    return {"_tflsc_public": public, **shown}


@cached
def wrapper_class(public: type[_optimizer._Wrapper], base: type) -> type[_optimizer._Wrapper]:
    """Returns the class that wraps optimizers derived from `base` as `public` or a subclass.

    That is `public` itself, unless `base` is of another family than tf.keras' own.
    """
    cls = public
    if public._tflsc_family_base is not base:
        family = _family_class(base, experimental=not public._tflsc_takes_numbers)
        cls = _new_class(
            public.__name__, (public, family), {"_tflsc_family": family, **shown_as(public)}
        )
    name = vars(public).get("_tflsc_registered_name")
    if name is not None:
        suffix = "V2" if issubclass(cls, _optimizer_v2.OptimizerV2) else ""
        _register(cls._tflsc_keras, cls, name + suffix)
    return cls


def _register(keras: types.ModuleType, cls: type, name: str) -> None:
    """Lets that Keras find `cls` when it loads a model."""
    package = "tf_lossscale_compat"
    if keras.__name__ == "keras" and not hasattr(keras.utils, "register_keras_serializable"):
        keras = tf.keras  # Of 2.10 and before, which shows more of the same Keras.
    if _tf.at_least(2, 2):
        keras.utils.register_keras_serializable(package=package, name=name)(cls)
    else:  # In files a class goes by its own name, and this one's is Keras' already.
        cls.__name__ = f"{package}>{name}"
        keras.utils.get_custom_objects()[cls.__name__] = cls


def base_of(optimizer: object, argument: str) -> type:
    """Returns the base class of the family of an optimizer, which was given as `argument`.

    Raises a TypeError or ValueError where it is no Keras optimizer that can be wrapped.
    """
    found = [] if isinstance(optimizer, type) else _family_bases(type(optimizer))
    if not found:
        hint = ""
        if isinstance(optimizer, _tf.Optimizer):
            hint = (
                " A tf.compat.v1.train.Optimizer is wrapped by "
                "tf_lossscale_compat.train.experimental.MixedPrecisionLossScaleOptimizer or "
                "tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer instead."
            )
        raise TypeError(f"{argument} must be a Keras optimizer, got {optimizer!r}.{hint}")
    if _wrapping.is_loss_scale_optimizer(type(optimizer)):
        raise TypeError(
            f"{argument} must have no loss scale itself, as a LossScaleOptimizer cannot wrap "
            f"another LossScaleOptimizer, got {optimizer!r}."
        )
    if getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False):  # As all mark it.
        raise ValueError(
            f'"{argument}" is already wrapped by a LossScaleOptimizer, got {optimizer!r}: use that '
            "one, or make another optimizer."
        )
    # In 2.10 they are classes of their own, and later the others with a mesh.
    of_dtensor = getattr(optimizer, "_mesh", None) is not None or any(
        ".dtensor." in base.__module__ for base in type(optimizer).__mro__
    )
    if of_dtensor and _FAMILIES[found[0].__name__] is _tf_keras.TFKeras:
        raise TypeError(
            f"{argument} must be no optimizer of tf.keras.dtensor, got {optimizer!r}: its "
            "gradients are on a mesh, and a loss scale is not. Use an optimizer of "
            "tf.keras.optimizers without a mesh, under a strategy of tf.distribute."
        )
    return found[0]


def class_for_config(
    public: type[_optimizer._Wrapper], config: dict[str, Any]
) -> type[_optimizer._Wrapper]:
    """Returns the class to deserialize the inner optimizer's `config` with.

    That is of tf.keras' own family, unless the config shows that it is of Keras before 3 and that
    is `tf_keras` now.
    """
    module, arguments = str(config.get("module")), config.get("config", {})
    legacy = ".legacy" in module or "decay" in arguments
    older = legacy or not _OLDER_ALONE.isdisjoint(arguments)
    of_tf_keras = module.split(".")[0] == "tf_keras" or (
        older and issubclass(public, _keras3.Keras3) and importlib.util.find_spec("tf_keras")
    )
    if "_tflsc_public" in vars(public) or not of_tf_keras:
        return public
    optimizers = importlib.import_module("tf_keras").optimizers
    sgd = (optimizers.legacy if legacy else optimizers).SGD
    return wrapper_class(public, _family_bases(sgd)[0])


def register(*publics: type[_optimizer._Wrapper]) -> None:
    """Makes the classes for each Keras that is imported, or else for tf.keras.

    Models are loaded by the names of their optimizers' classes, which have to exist by then.
    """
    names = [name for name in ("keras", "tf_keras") if name in sys.modules]
    modules = [importlib.import_module(name) for name in names]
    # A folder of that name where a program starts is a module, too.
    for keras in [each for each in modules if hasattr(each, "optimizers")] or [tf.keras]:
        for module in (keras.optimizers, getattr(keras.optimizers, "legacy", None)):
            sgd = getattr(module, "SGD", None)
            for base in [] if sgd is None else _family_bases(sgd)[:1]:
                for public in publics:
                    wrapper_class(public, base)
