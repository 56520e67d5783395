"""The public classes, which become a class of the family of the optimizer that they wrap."""

import copy
from typing import Optional

from tf_lossscale_compat import _replicas, _tf
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.keras import _families, _shared

tf = _tf.tf


class _Wrapper(_shared.LossScaling):
    """What both public classes share: finding the family, and being made from a config."""

    # The name in files of models; None for subclasses, which users register themselves.
    _registered_name: Optional[str] = None
    _argument = "optimizer"  # The name of the constructor's first argument.

    def __new__(cls, *args, **kwargs):
        if hasattr(cls, "_native") or not (args or cls._argument in kwargs):
            return object.__new__(cls)
        optimizer = args[0] if args else kwargs[cls._argument]
        return object.__new__(_families.wrapper_class(cls, optimizer, cls._argument))

    def _start(self, optimizer, make_loss_scale):
        """Makes the loss scale, once everything else that can be wrong has been checked."""
        if _families.family_of(optimizer, self._argument)[1] is not self._base:
            raise TypeError(
                f"{self._argument} must be an optimizer of the family of {self._base!r}, got "
                f"{optimizer!r}."
            )
        _replicas.check_strategy()
        self._wrap(optimizer, make_loss_scale())

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes an optimizer from a config of this package or of another loss-scale optimizer.

        Args:
          config: dict that `get_config` returned here, in TensorFlow 2.0 to 2.15, in `tf_keras` or
            in Keras 3.
          custom_objects: dict from names to further classes, or None.

        Raises:
          ValueError: `config` lacks the inner optimizer, or its loss scale cannot be made.
        """
        config = dict(config)
        inner = config.pop("inner_optimizer", None) or config.pop("optimizer", None)
        if inner is None:
            raise ValueError(
                "config must hold the inner optimizer under 'inner_optimizer' or 'optimizer', got "
                f"{config!r}."
            )
        if isinstance(inner, dict):
            family = _families.class_for_config(cls, inner)
            # A copy: tf.keras writes into what it deserializes.
            inner = family._deserialize_inner(copy.deepcopy(inner), custom_objects)
        new = cls.__new__(cls, inner)
        new._start(inner, lambda: _loss_scale_of_config(config, custom_objects))
        if "name" in config and hasattr(new, "name"):
            new.name = config["name"]
        return new


def _loss_scale_of_config(config, custom_objects):
    if "loss_scale" in config:
        loss_scale = config["loss_scale"]
        if isinstance(loss_scale, dict):
            known = {
                name: cls
                for name, cls in (custom_objects or {}).items()
                if isinstance(cls, type) and issubclass(cls, loss_scale_lib.LossScale)
            }
            return loss_scale_lib.deserialize(loss_scale, custom_objects=known)
        return _loss_scale("loss_scale", loss_scale)
    return _of_numbers(
        config.get("dynamic", True),
        config.get("initial_scale"),
        config.get("dynamic_growth_steps"),
    )


def _loss_scale(name, identifier):
    loss_scale = loss_scale_lib.get(identifier)
    if loss_scale is None:
        raise ValueError(f"{name} cannot be None")
    return loss_scale


def _of_numbers(dynamic, initial_scale, dynamic_growth_steps):
    """The loss scale that the arguments of TensorFlow 2.4 stand for."""
    if not isinstance(dynamic, bool):
        raise TypeError(f"dynamic must be a bool, got {dynamic!r}.")
    if not dynamic:
        if initial_scale is None:
            raise ValueError("initial_scale must be given where dynamic is False, got None.")
        if dynamic_growth_steps is not None:
            raise ValueError(
                "dynamic_growth_steps must be None where dynamic is False, got "
                f"{dynamic_growth_steps!r}."
            )
    try:
        if not dynamic:
            return loss_scale_lib.FixedLossScale(initial_scale)
        return loss_scale_lib.DynamicLossScale(
            2.0**15 if initial_scale is None else initial_scale,
            2000 if dynamic_growth_steps is None else dynamic_growth_steps,
        )
    except ValueError as error:
        message = str(error)
        for theirs, ours in (
            ("loss_scale_value", "initial_scale"),
            ("initial_loss_scale", "initial_scale"),
            ("increment_period", "dynamic_growth_steps"),
        ):
            message = message.replace(theirs, ours)
        raise ValueError(message) from None


class LossScaleOptimizer(_Wrapper):
    """Wraps a Keras optimizer with a dynamic or fixed loss scale.

    Becomes an optimizer of the family of `inner_optimizer`: of Keras 3 on TensorFlow, of `tf_keras`
    or of tf.keras. With `compile` and `fit` nothing else is needed. In a custom training step,
    every gradient is to be divided by the loss scale once:

        with tf.GradientTape() as tape:
            scaled_loss = opt.get_scaled_loss(compute_loss())
        grads = opt.get_unscaled_gradients(tape.gradient(scaled_loss, variables))
        opt.apply_gradients(zip(grads, variables))

    or, in the manner of Keras 3, `scale_loss` before and `apply` or `apply_gradients` after. A step
    with a gradient that is not finite on any replica is skipped on all, unless the scale is fixed.

    Source: `tf.keras.mixed_precision.LossScaleOptimizer` of TensorFlow 2.4 to 2.15, on any Keras.
    """

    _registered_name = "LossScaleOptimizer"
    _argument = "inner_optimizer"

    def __init__(
        self, inner_optimizer, dynamic=True, initial_scale=None, dynamic_growth_steps=None
    ):
        """Wraps `inner_optimizer`.

        Args:
          inner_optimizer: Keras optimizer.
          dynamic: bool, whether the scale doubles after a run of finite steps and halves at each
            step that is not finite, down to 1.
          initial_scale: real number, the scale at the start; None for 2**15. Where `dynamic` is
            False it is the scale for good, at least 1, and must be given.
          dynamic_growth_steps: int, finite steps in a row until the scale doubles; None for 2000.

        Raises:
          TypeError: `inner_optimizer` is no Keras optimizer, or `dynamic` no bool.
          ValueError: `inner_optimizer` has a loss scale, a number cannot be used, or the strategy
            in scope is unsupported.
        """
        self._start(
            inner_optimizer, lambda: _of_numbers(dynamic, initial_scale, dynamic_growth_steps)
        )

    @property
    def loss_scale(self):
        """The current loss scale, a scalar float32 tensor."""
        if _tf.called_by_keras_compile():  # To compare it with a policy's, as no tensor can be.
            return self._loss_scale
        return self._loss_scale()

    def get_config(self):
        """Returns the constructor's arguments as a dict that JSON can hold."""
        config = {
            "inner_optimizer": self._serialize_inner(),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }
        if not self._numbers_say_all():
            config["loss_scale"] = loss_scale_lib.serialize(self._loss_scale)
        return config

    def _numbers_say_all(self):
        """False for a loss scale that only a config of TensorFlow 2.0 can have brought."""
        of_config = loss_scale_lib.serialize(self._loss_scale)
        if of_config["class_name"] == "FixedLossScale":
            return set(of_config["config"]) == {"loss_scale_value"}
        simple = {"initial_loss_scale", "increment_period", "multiplier"}
        return (
            of_config["class_name"] == "DynamicLossScale"
            and set(of_config["config"]) == simple
            and of_config["config"]["multiplier"] == 2
        )


class ExperimentalLossScaleOptimizer(_Wrapper):
    """Wraps a Keras optimizer with any loss scale.

    Public as `keras.mixed_precision.experimental.LossScaleOptimizer`; used in training as
    `keras.mixed_precision.LossScaleOptimizer` is.

    Source: `tf.keras.mixed_precision.experimental.LossScaleOptimizer` of TensorFlow r2.0, on any
    Keras. Beyond it, optimizers that clip gradients can be wrapped, and loss-scale managers used.
    """

    _registered_name = "ExperimentalLossScaleOptimizer"

    def __init__(self, optimizer, loss_scale):
        """Wraps `optimizer`.

        Args:
          optimizer: Keras optimizer.
          loss_scale: a `LossScale`, or what `loss_scale.get` takes: a number for a fixed scale,
            'dynamic', a `LossScaleManager`, or a config dict; but not None.

        Raises:
          TypeError: `optimizer` is no Keras optimizer.
          ValueError: `optimizer` has a loss scale, `loss_scale` is None or no loss scale, or the
            strategy in scope is unsupported.
        """
        self._start(optimizer, lambda: _loss_scale("loss_scale", loss_scale))

    @property
    def loss_scale(self):
        """The `LossScale`."""
        return self._loss_scale

    def get_config(self):
        """Returns the optimizer's and the loss scale's configs, as TensorFlow r2.0 did."""
        return {
            "optimizer": self._serialize_inner(),
            "loss_scale": loss_scale_lib.serialize(self._loss_scale),
        }


# Where users find them.
LossScaleOptimizer.__module__ = "tf_lossscale_compat.keras.mixed_precision"
ExperimentalLossScaleOptimizer.__module__ = "tf_lossscale_compat.keras.mixed_precision.experimental"
ExperimentalLossScaleOptimizer.__name__ = "LossScaleOptimizer"
ExperimentalLossScaleOptimizer.__qualname__ = "LossScaleOptimizer"

_families.register(LossScaleOptimizer, ExperimentalLossScaleOptimizer)
