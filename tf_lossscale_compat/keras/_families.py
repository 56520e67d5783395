"""The families of Keras optimizers, one for each base class that there is in this process."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Iterator

from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _inner, _keras3, _optimizer_v2, _tf_keras

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat.keras import _family

    def cached(function: _types.Function) -> _types.Function: ...
else:
    cached = functools.lru_cache(maxsize=None)

# Entries that only Keras before 3 has in its optimizers' configs.
_OLDER_ALONE = {"is_legacy_optimizer", "jit_compile"}
_FAMILIES: dict[str, type[_family.Family]] = {
    _inner.KERAS_3: _keras3.Family,
    _inner.TF_KERAS: _tf_keras.Family,
    _inner.OPTIMIZER_V2: _optimizer_v2.Family,
}


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


@cached
def of_base(base: type, experimental: bool) -> Any:
    """Returns the `Family` of optimizers that derive from `base`."""
    keras = _inner.keras_of(base)
    own = _native(keras, base, experimental)
    return _FAMILIES[base.__name__](keras, base, own, experimental)


@cached
def own_base() -> type:
    """Returns the base class of tf.keras' own optimizers."""
    return _inner.bases_of(tf.keras.optimizers.SGD)[0]


def for_config(kind: _family.Family, config: dict[str, Any]) -> _family.Family:
    """Returns the family to deserialize the inner optimizer's `config` with.

    That is `kind`, unless the config shows that it is of Keras before 3 and that is `tf_keras` now.
    """
    module, arguments = str(config.get("module")), config.get("config", {})
    legacy = ".legacy" in module or "decay" in arguments
    older = legacy or not _OLDER_ALONE.isdisjoint(arguments)
    of_tf_keras = module.split(".")[0] == "tf_keras" or (
        older and isinstance(kind, _keras3.Family) and importlib.util.find_spec("tf_keras")
    )
    if kind.base is not own_base() or not of_tf_keras:
        return kind
    optimizers = importlib.import_module("tf_keras").optimizers
    sgd = (optimizers.legacy if legacy else optimizers).SGD
    return of_base(_inner.bases_of(sgd)[0], kind.experimental)


def imported() -> Iterator[type]:
    """Yields the base classes of each Keras that is imported, or else of tf.keras."""
    names = [name for name in ("keras", "tf_keras") if name in sys.modules]
    modules = [importlib.import_module(name) for name in names]
    # A folder of that name where a program starts is a module, too.
    for keras in [each for each in modules if hasattr(each, "optimizers")] or [tf.keras]:
        for module in (keras.optimizers, getattr(keras.optimizers, "legacy", None)):
            sgd = getattr(module, "SGD", None)
            yield from [] if sgd is None else _inner.bases_of(sgd)[:1]
