"""Finds the family of Keras optimizers that a base class or a config belongs to."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Iterator

from tf_lossscale_compat._core import _keras_versions
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _base, _keras3, _optimizer_v2, _optimizer_v3

if TYPE_CHECKING:
    import types

# Configs of optimizers have these entries only before Keras 3.
_ONLY_BEFORE_KERAS_3 = {"is_legacy_optimizer", "jit_compile"}
# The base class of loss-scale optimizers, by the name of that of the optimizers they wrap.
_OPTIMIZER_BASES: dict[str, type[_base.KerasOptimizerBase]] = {
    _keras_versions.KERAS_3: _keras3.Keras3OptimizerBase,
    _keras_versions.OPTIMIZER_V3: _optimizer_v3.OptimizerV3Base,
    _keras_versions.OPTIMIZER_V2: _optimizer_v2.OptimizerV2Base,
}


def _original_class(keras: types.ModuleType, base: type, experimental: bool) -> type:
    """Returns Keras' own loss-scale class for optimizers derived from `base`; without one, `base`.

    `compile` wraps an optimizer under a float16 policy unless it is an instance of that class.
    """
    # In 2.10, `keras` has only the class for OptimizerV2, and tf.keras has one for both families.
    stable = [getattr(module, "mixed_precision", None) for module in (keras, tf.keras)]
    experimentals = [getattr(module, "experimental", None) for module in stable]
    for module in experimentals + stable if experimental else stable + experimentals:
        public = getattr(module, "LossScaleOptimizer", None)
        for candidate in [public] + (public.__subclasses__() if public else []):
            if candidate is not None and issubclass(candidate, base):
                return candidate
    return base


@functools.lru_cache(maxsize=None)
def family_of(base: type, experimental: bool) -> _base.Family:
    """Returns the `Family` of optimizers that derive from `base`."""
    root = base.__module__.split(".")[0]
    keras = importlib.import_module(root) if root in _keras_versions.PACKAGES else tf.keras
    original = _original_class(keras, base, experimental)
    return _base.Family(_OPTIMIZER_BASES[base.__name__], keras, base, original, experimental)


@functools.lru_cache(maxsize=None)
def default_base() -> type | None:
    """Returns the base class of tf.keras' optimizers; the public classes are of its family."""
    return _keras_versions.base_of(tf.keras.optimizers.SGD)


def check_public_keras(optimizer: object, base: type, argument: str) -> None:
    """Raises a TypeError for an optimizer of TensorFlow's own Keras, if `tf.keras` is another."""
    roots = [each.__module__.split(".")[0] for each in (base, default_base() or base)]
    if roots[0].startswith("tensorflow") and roots[0] != roots[1]:
        raise TypeError(
            f"{argument} must be an optimizer of a public Keras, got {optimizer!r} of "
            f"{base.__module__}, which TensorFlow keeps for itself. Write tf.keras.optimizers in "
            "place of tensorflow.python.keras.optimizers."
        )


def family_for_config(family: _base.Family, config: dict[str, Any]) -> _base.Family:
    """Returns the family that deserializes the `config` of an inner optimizer.

    It is `family`. If that is tf.keras' own, it is one of `tf_keras` for a config of `tf_keras` or
    of a Keras before 3.
    """
    module, arguments = str(config.get("module")), config.get("config", {})
    legacy = ".legacy" in module or "decay" in arguments
    before_keras_3 = legacy or not _ONLY_BEFORE_KERAS_3.isdisjoint(arguments)
    of_tf_keras = module.split(".")[0] == "tf_keras" or (
        before_keras_3
        and family.optimizer_base is _keras3.Keras3OptimizerBase
        and importlib.util.find_spec("tf_keras")
    )
    if family.inner_base is not default_base() or not of_tf_keras:
        return family
    optimizers = importlib.import_module("tf_keras").optimizers
    base: Any = _keras_versions.base_of((optimizers.legacy if legacy else optimizers).SGD)
    return family_of(base, family.experimental)


def imported_bases() -> Iterator[type]:
    """Yields the base classes of each Keras that is imported; of tf.keras if none is."""
    packages = [each for each in _keras_versions.PACKAGES if each in sys.modules]
    modules = map(importlib.import_module, packages)
    # A folder named keras in the current directory is a module, too.
    for keras in [each for each in modules if hasattr(each, "optimizers")] or [tf.keras]:
        for module in (keras.optimizers, getattr(keras.optimizers, "legacy", None)):
            base = _keras_versions.base_of(getattr(module, "SGD", object))
            if base is not None:
                yield base
