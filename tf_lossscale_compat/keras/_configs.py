"""Converts constructors' arguments and configs to loss scales, and loss scales to configs."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _arguments
from tf_lossscale_compat._scales import _loss_scales

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat.keras import _family, _owner

_STABLE_ARGUMENTS = ("dynamic", "initial_scale", "dynamic_growth_steps")


def from_stable_arguments(
    dynamic: object = True,
    initial_scale: Any = None,
    dynamic_growth_steps: _types.Integer | None = None,
    hint: str = "",
) -> _loss_scales.LossScale:
    """Returns the loss scale for the arguments of TensorFlow 2.4.

    `hint` ends the error of a fixed scale without a number.
    """
    if not isinstance(dynamic, bool):
        message = (
            'A loss scale is dynamic or fixed, so the "dynamic" argument to '
            f"LossScaleOptimizer.__init__ must be a bool, but got: {dynamic!r}."
        )
        if isinstance(dynamic, numbers.Real):
            # In Keras 3's own class, the second argument is the initial scale.
            message += (
                f" For a fixed loss scale write dynamic=False, initial_scale={dynamic!r}; for a "
                f"dynamic one that starts there, initial_scale={dynamic!r} alone."
            )
        raise TypeError(message)
    if not dynamic:
        if initial_scale is None:
            raise ValueError(
                'A fixed loss scale has no default, so "initial_scale" must be specified if '
                f'"dynamic" is False, got None.{hint}'
            )
        if dynamic_growth_steps is not None:
            raise ValueError(
                'A fixed loss scale never grows, so "dynamic_growth_steps" must be None if '
                f'"dynamic" is False, but got: {dynamic_growth_steps!r}.'
            )
    try:
        if not dynamic:
            return _loss_scales.FixedLossScale(initial_scale)
        return _loss_scales.DynamicLossScale(
            2.0**15 if initial_scale is None else initial_scale,
            2000 if dynamic_growth_steps is None else dynamic_growth_steps,
        )
    except ValueError:  # It names the arguments of these classes; name those of this function.
        if not dynamic:
            _arguments.fixed_scale("initial_scale", initial_scale)
        if initial_scale is not None:
            _arguments.positive("initial_scale", initial_scale)
        if dynamic_growth_steps is not None:
            _arguments.step_count("dynamic_growth_steps", dynamic_growth_steps, "int64")
        raise


def from_identifier(identifier: _loss_scales.Identifier | None) -> _loss_scales.LossScale:
    """Returns the loss scale for the argument `loss_scale`."""
    return _loss_scales.get(_loss_scales.require(identifier))


def _from_config(
    keras: types.ModuleType, loss_scale: Any, custom_objects: dict[str, Any] | None
) -> _loss_scales.LossScale:
    if not isinstance(loss_scale, dict):
        return from_identifier(loss_scale)
    objects = dict(custom_objects or {})
    name = str(loss_scale.get("class_name"))
    # Keras 3 does not pass on the `custom_objects` of `load_model`. Versions without this do.
    find = getattr(keras.utils, "get_registered_object", lambda name: None)
    objects.setdefault(name, find(name))
    loss_scales = {
        name: cls
        for name, cls in objects.items()
        if isinstance(cls, type) and issubclass(cls, _loss_scales.LossScale)
    }
    return _loss_scales.deserialize(loss_scale, custom_objects=loss_scales)


def options_of(data: _owner.KerasData) -> dict[str, Any]:
    """Returns the entries of a config other than the inner optimizer and the loss scale in use."""
    holds_agree = "agree" in data.options
    return {**data.options, "agree": True} if holds_agree else data.options  # It is a function.


def arguments_of(
    config: dict[str, Any], family: _family.KerasFamily[Any], custom_objects: dict[str, Any] | None
) -> dict[str, Any]:
    """Returns the constructor's arguments for a config of any version, without the optimizer."""
    arguments = {name: value for name, value in config.items() if name not in family.without_effect}
    if "loss_scale" in arguments or family.experimental:
        stable_arguments = {
            name: arguments.pop(name) for name in _STABLE_ARGUMENTS if name in arguments
        }
        if "loss_scale" not in arguments:
            arguments["loss_scale"] = from_stable_arguments(**stable_arguments)
        else:
            arguments["loss_scale"] = _from_config(
                family.keras, arguments["loss_scale"], custom_objects
            )
    return arguments
