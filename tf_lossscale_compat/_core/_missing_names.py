"""Errors for names that a module of this package does not have."""

from __future__ import annotations

import sys
from typing import NoReturn

_HOMES = (
    "Optimizers of Keras are wrapped by tf_lossscale_compat.keras.mixed_precision."
    "LossScaleOptimizer; those of tf.compat.v1.train by tf_lossscale_compat.contrib."
    "mixed_precision.LossScaleOptimizer, with a manager, or by tf_lossscale_compat.train."
    "experimental.MixedPrecisionLossScaleOptimizer, with a loss scale."
)


def error_of(module: str, name: str) -> Exception:
    """Returns the error for a name that the calling `__getattr__` of a module does not find.

    It says where the classes are that users look for, and what stays in Keras.
    """
    message = f"module {module!r} has no attribute {name!r}"
    package, _, public = module.partition(".")
    if "LossScaleOptimizer" in name:
        message += f". {_HOMES}"
    elif name == "LossScaleCallback" or name in sys.modules[package].__all__:
        home = f"{package}.keras.callbacks" if name == "LossScaleCallback" else package
        message += f". Write: from {home} import {name}."
    elif "keras" in public or "policy" in name.lower():
        home = f"tf.keras.{public.replace('keras', '').strip('.')}".replace(".experimental", "")
        new = ", from 2.4 on as set_global_policy" * (name == "set_policy")
        message += f". All but loss scaling stays in Keras, in {home.rstrip('.')}{new}."
    else:  # It may be a submodule, which is imported after an AttributeError.
        return AttributeError(message)
    # `from module import name` drops the message of an AttributeError.
    imports = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    return ImportError(message) if imports else AttributeError(message)


def explain(module: str) -> None:
    """Makes a module raise that error. Type checkers do not see it, and know the names there."""

    def get(name: str) -> NoReturn:
        raise error_of(module, name)

    vars(sys.modules[module])["__getattr__"] = get
