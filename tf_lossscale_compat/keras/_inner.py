"""The methods of an inner optimizer: Keras' own or a user's, and the arguments that they take."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Iterable

from tf_lossscale_compat._core import _keras_versions


def is_of_keras(function: object) -> bool:
    """Returns whether a function is defined in a module of Keras."""
    return getattr(function, "__module__", "").split(".")[0] in _keras_versions.ROOTS


def are_keras_methods(optimizer: object, names: Iterable[str]) -> bool:
    """Returns whether those of these methods that an optimizer has are all Keras' own."""
    return all(
        name not in vars(optimizer) and is_of_keras(getattr(type(optimizer), name))
        for name in names
        if hasattr(type(optimizer), name)
    )


def takes_argument(method: Callable[..., Any], name: str) -> bool:
    """Returns whether a method takes an argument with this name."""
    return _takes_argument(getattr(method, "__func__", method), name)


@functools.lru_cache(maxsize=256)
def _takes_argument(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds
