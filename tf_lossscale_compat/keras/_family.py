"""Families: the optimizers of each base class of Keras, and what their loss-scale optimizers do.

A `Family` has no state. This module has what it does when an optimizer is made or given another
loss scale; `_family_steps` has what it does in a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _keras_versions,
    _ownership,
    _scaler,
    _state,
    _tf,
    _wrapping,
)
from tf_lossscale_compat._scales import _loss_scales
from tf_lossscale_compat.keras import _configs, _family_steps
from tf_lossscale_compat.keras._family_steps import Owner

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types


class Family(_family_steps.FamilySteps[Owner]):
    """Base class of all families.

    Args:
      methods_class: the class of the public methods that only this family's loss-scale optimizers
        have.
      keras: the public Keras module.
      base: the class that all optimizers of the family derive from.
      original: that Keras' own loss-scale class; `base` if there is none.
      experimental: bool, for the class of TensorFlow 2.0, whose constructor takes a `LossScale`.
    """

    # Methods that steps of that Keras' own class call.
    forbidden_overrides: tuple[str, ...] = ("_apply_gradients", "_apply_gradients_cross_replica")
    # Hyperparameters that the wrapper has too, and in some versions its config, without an effect.
    without_effect: tuple[str, ...] = ()
    # For an error: how to have a fixed loss scale in that Keras without this class.
    fixed_scale_hint = ""
    # Configs say `dynamic` even of a dynamic loss scale, which is the default.
    config_says_dynamic = True
    # True if copies of that Keras' optimizers, also of its own loss-scale class, have no state.
    copies_lose_state = False
    # The end of the name by which files of models know the class.
    registered_suffix = ""

    def __init__(
        self,
        methods_class: type,
        keras: types.ModuleType,
        base: type,
        original: type[Any],
        experimental: bool,
    ) -> None:
        self.methods_class, self.keras, self.base = methods_class, keras, base
        self.original, self.experimental = original, experimental
        self.optimizer_argument = "optimizer" if experimental else "inner_optimizer"

    # Making an optimizer.

    def refuse_arguments(self, name: str, arguments: tuple[str, ...]) -> NoReturn:
        """Raises the error of that Keras' own class for unknown arguments of the constructor."""
        raise TypeError(f"{name} takes no {' and no '.join(arguments)}.")

    def check_wrapped(self, owner: Owner, optimizer: Any, enabled: bool) -> None:
        """Raises a TypeError or ValueError if `owner` cannot wrap `optimizer`."""
        base = base_to_wrap(optimizer, self.optimizer_argument)
        if base is not self.base:
            raise TypeError(
                f"{self.optimizer_argument} must derive from {self.base!r}, as "
                f"{type(owner).__name__} wraps only such optimizers, got {optimizer!r}. Derive the "
                "subclass from type(LossScaleOptimizer(optimizer)), which wraps this kind of "
                "optimizer."
            )
        factor = getattr(optimizer, "loss_scale_factor", None)
        if not enabled and factor not in (None, 1):
            raise ValueError(
                f"enabled must not be False if the optimizer has a loss_scale_factor, got one of "
                f"{factor!r}: the wrapper would not scale the loss. Leave one of the two out."
            )

    def check_count_skipped(self, count_skipped: bool | None, optimizer: Any) -> None:
        """Raises a ValueError if skipped steps cannot be counted as iterations of `optimizer`."""
        if count_skipped and getattr(optimizer, "gradient_accumulation_steps", None):
            raise ValueError(
                "count_skipped must not be True if the inner optimizer has "
                "gradient_accumulation_steps, got True: its iterations are derived from the "
                "gradients that it has accumulated. Leave one of the two out."
            )

    def check_scaler(self, scaler: _scaler.Scaler) -> None:
        """Raises a ValueError if this family cannot unscale gradients by the scale."""
        scaler.check_reciprocal()

    def initialize_owner(self, owner: Owner, name: str | None) -> str | None:
        """Makes `owner` an optimizer of that Keras; returns its name for configs, or None."""
        raise NotImplementedError

    def deserialize(self, config: dict[str, Any], custom_objects: dict[str, Any] | None) -> Any:
        """Returns the optimizer that a config describes."""
        raise NotImplementedError

    # The loss scale in use.

    def loss_scale(self, owner: Owner) -> _loss_scales.LossScale:
        """Returns the loss scale in use."""
        return owner._loss_scale

    def track_loss_scale(self, owner: Owner, loss_scale: _loss_scales.LossScale) -> None:
        """Makes checkpoints and files hold this loss scale, and no earlier one."""
        owner._track_trackable(loss_scale, "loss_scale", overwrite=True)

    def set_loss_scale(self, owner: Owner, loss_scale: _loss_scales.Identifier) -> None:
        """Replaces the loss scale, as code for TensorFlow 2.0 does."""
        old = owner._loss_scale
        if loss_scale is old:
            return
        _arguments.check_can_replace_loss_scale(owner._tflsc.enabled)
        new = _configs.from_identifier(loss_scale)
        scaler = _scaler.Scaler(new)
        if scaler.loss_scale is _scaler.Scaler(old).loss_scale:  # The same manager.
            return
        _ownership.check(_ownership.KERAS, scaler)
        self.check_scaler(scaler)
        agree = _agreement.resolve(owner._tflsc.agree_in_use, owner._optimizer, scaler)
        self.track_loss_scale(owner, new)
        owner._tflsc.agree_in_use = agree
        owner.__dict__["_loss_scale"] = new
        _ownership.claim(_ownership.KERAS, scaler, [owner])
        _ownership.release(old, owner)

    def all_variables(self, owner: Owner) -> _types.Variables:
        """Returns the variables whose values `set_weights` takes."""
        return _state.variables_of(owner._optimizer) + _scaler.Scaler(owner._loss_scale).variables()


def base_to_wrap(optimizer: object, argument: str) -> type:
    """Returns the base class of the optimizer's family; `argument` is its name in errors.

    Raises a TypeError or ValueError if no loss-scale optimizer can wrap it.
    """
    base = None if isinstance(optimizer, type) else _keras_versions.base_of(type(optimizer))
    if base is None:
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
    # Set where checkpoints can hold one loss scale: by `delegate_tracking`, not on Keras 3.
    if getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False):
        raise ValueError(
            f'"{argument}" is already wrapped by a LossScaleOptimizer, got {optimizer!r}: use that '
            "one, or make another optimizer."
        )
    # TensorFlow 2.10 has classes of their own for them; later versions, a mesh as an attribute.
    of_dtensor = getattr(optimizer, "_mesh", None) is not None or any(
        ".dtensor." in each.__module__ for each in type(optimizer).__mro__
    )
    if of_dtensor and base.__name__ == _keras_versions.OPTIMIZER_V3:
        raise TypeError(
            f"{argument} must not be an optimizer of tf.keras.dtensor, got {optimizer!r}: its "
            "gradients are on a mesh, but a loss scale is not. Use an optimizer of "
            "tf.keras.optimizers without a mesh, under a strategy of tf.distribute."
        )
    return base
