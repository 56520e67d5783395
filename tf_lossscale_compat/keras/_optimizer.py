"""The public classes, which become a class of the family of the optimizer that they wrap."""

from __future__ import annotations

import contextlib
import copy
import inspect
import numbers
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tf_lossscale_compat._core import _tf  # First, as it says what to do without TensorFlow.

# isort: split

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _callers,
    _graphs,
    _ownership,
    _scaler,
)
from tf_lossscale_compat._scalers import _like_a_tensor, _loss_scales
from tf_lossscale_compat.keras import _calls, _families, _shared

if TYPE_CHECKING:
    import types

    import tensorflow as tf
    from typing_extensions import Self

    from tf_lossscale_compat._core import _types

    _W = TypeVar("_W", bound="_Wrapper")
else:
    tf = _tf.tf


class _Wrapper(_shared.LossScaling):
    """The part that both public classes share: family, configs, copies and pickles."""

    # The name in files of models; None for subclasses, which users register themselves.
    _tflsc_registered_name: str | None = None
    _tflsc_argument = "inner_optimizer"
    _tflsc_takes_numbers: bool  # The constructor has the arguments of TensorFlow 2.4.
    _tflsc_public: type[_Wrapper]  # Of a class for another family: what users see it as.
    _tflsc_asked: dict[str, Any]  # Where it is not enabled: the arguments for a loss scale.

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Constructors of subclasses take what they like: past those of any Keras.
        return object.__new__(cls)

    def _tflsc_construct(
        self,
        optimizer: Any,
        asked: dict[str, Any],
        name: str | None = None,
        count_skipped: bool | None = None,
        scaled: bool | None = None,
        enabled: bool = True,
        agree: _types.Agree | None = None,
        unknown: tuple[str, ...] = (),
    ) -> None:
        """Does the work of the constructors: checks, picks the class, makes the loss scale, wraps.

        `asked` are the arguments that say which loss scale, a dict; configs keep them where it is
        not enabled. `unknown` are the names of arguments that the constructor does not take.
        """
        if isinstance(optimizer, dict):
            optimizer = _inner_of_config(type(self), optimizer, None)
        base = _families.base_of(optimizer, self._tflsc_argument)
        cls = type(self)
        if "_tflsc_public" not in vars(cls):
            self.__class__ = _families.wrapper_class(cls, base)
        if unknown:
            self._tflsc_refuse(unknown)
        _arguments.optional_flag("count_skipped", count_skipped)
        _arguments.optional_flag("scaled", scaled)
        _arguments.flag("enabled", enabled)
        if count_skipped and getattr(optimizer, "gradient_accumulation_steps", None):
            raise ValueError(
                "count_skipped must not be True where the inner optimizer has "
                "gradient_accumulation_steps, got True: its iterations are derived from the "
                "gradients that it has accumulated. Leave one of the two out."
            )
        self._tflsc_check_wrapped(optimizer, enabled)
        self._raise_if_strategy_unsupported()
        if not enabled:
            if "loss_scale" in asked:
                asked = {**asked, "loss_scale": _for_config(asked["loss_scale"])}
            loss_scale: _loss_scales.LossScale = _loss_scales.FixedLossScale(1)
        elif "loss_scale" in asked:
            loss_scale = _loss_scale(asked["loss_scale"])
            used = _tf.at_least(2, 4) and _ownership.drove_another(_ownership.KERAS, loss_scale)
            if used and type(loss_scale) is _loss_scales.DynamicLossScale:
                # As with 2.4's own class, which takes its numbers alone: folds begin alike.
                loss_scale = type(loss_scale).from_config(loss_scale.get_config())
        else:
            loss_scale = _of_numbers(**asked, hint=self._tflsc_fixed_scale_hint)
        _ownership.check(_ownership.KERAS, loss_scale)
        scaler = _scaler.Scaler(loss_scale)
        self._tflsc_check_scaler(scaler)
        agreement = _agreement.function_for(agree, optimizer, scaler)
        # Past every __setattr__ of a family: checkpoints are to find these under one name each.
        self.__dict__.update(
            _optimizer=optimizer,
            _loss_scale=loss_scale,
            _tflsc_calls=_calls.Calls(self._tflsc_scaled_by_default, scaled),
        )
        options = {
            "name": self._tflsc_wrap(optimizer, loss_scale, name),
            "count_skipped": count_skipped,
            "scaled": scaled,
            "enabled": None if enabled else False,
            "agree": agree,
        }
        self.__dict__.update(
            _tflsc_options={k: v for k, v in options.items() if v is not None},
            _tflsc_asked={} if enabled else asked,
            _tflsc_agree=agreement,
        )
        _ownership.claim(_ownership.KERAS, loss_scale, [self])

    def _tflsc_check_wrapped(self, optimizer: object, enabled: bool) -> None:
        """Raises a TypeError or ValueError where `optimizer` cannot be wrapped."""
        base = _families.base_of(optimizer, self._tflsc_argument)
        if base is not self._tflsc_family_base:
            raise TypeError(
                f"{self._tflsc_argument} must be an optimizer of the family of "
                f"{self._tflsc_family_base!r}, got {optimizer!r}."
            )
        factor = getattr(optimizer, "loss_scale_factor", None)
        if not enabled and factor not in (None, 1):
            raise ValueError(
                f"enabled must not be False around an optimizer with a loss_scale_factor, got one "
                f"of {factor!r}: this wrapper scales no loss for it. Leave one of the two out."
            )
        self._tflsc_check_inner(optimizer)
        self._tflsc_check_clipping(optimizer, enabled)

    def __dir__(self) -> list[str]:
        # Python's own looks into all bases, also those that another family does without; and what
        # checkpoints find there they call.
        of_class = set().union(*map(vars, type(self).__mro__))
        return sorted(of_class | (set(super().__dir__()) - set(dir(type(self)))))

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Makes an optimizer from a config of this package or of another loss-scale optimizer.

        The constructor is called with what the config holds. A subclass whose constructor takes
        other arguments overrides this and `get_config`, as Keras documents.

        Args:
          config: dict that `get_config` returned here, in TensorFlow 2.0 to 2.15, in `tf_keras` or
            in Keras 3.
          custom_objects: dict from names to further classes, or None.

        Raises:
          ValueError: `config` lacks the inner optimizer, or its loss scale cannot be made.
          TypeError: the constructor of a subclass takes other arguments.
        """
        arguments = dict(config)
        inner = arguments.pop("inner_optimizer", None) or arguments.pop("optimizer", None)
        if inner is None:
            raise ValueError(
                "config must hold the inner optimizer under 'inner_optimizer' or 'optimizer', got "
                f"{config!r}."
            )
        if isinstance(inner, dict):
            inner = _inner_of_config(cls, inner, custom_objects)
        base = _families.base_of(inner, cls._tflsc_argument)
        family = _families.wrapper_class(vars(cls).get("_tflsc_public", cls), base)
        if "loss_scale" in arguments or not cls._tflsc_takes_numbers:
            numbers: dict[str, Any] = {
                name: arguments.pop(name)
                for name in ("dynamic", "initial_scale", "dynamic_growth_steps")
                if name in arguments
            }
            arguments["loss_scale"] = (
                _loss_scale_of_config(family._tflsc_keras, arguments["loss_scale"], custom_objects)
                if "loss_scale" in arguments
                else _of_numbers(**numbers)
            )
        for name in family._tflsc_ignored_in_configs:
            arguments.pop(name, None)
        had_agree = arguments.pop("agree", False)
        new = _make(cls, inner, arguments)
        if had_agree:
            new.agree = _agreement.LostAgree()
        return new

    def _tflsc_options_in_config(self) -> dict[str, Any]:
        options = {**self._tflsc_options, **self._tflsc_asked}
        if "agree" in options:
            options["agree"] = True  # No config holds a function.
        if isinstance(options.get("loss_scale"), _loss_scales.LossScale):
            options["loss_scale"] = _loss_scales.serialize(options["loss_scale"])
        return options

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # A class for another family has no name to be found by, other than the public class.
        cls = vars(type(self)).get("_tflsc_public", type(self))
        loss_scale: _loss_scales.LossScale | dict[str, Any] = self._loss_scale
        if self._tflsc_copies_begin_anew and type(loss_scale) is _loss_scales.DynamicLossScale:
            loss_scale = _loss_scales.serialize(loss_scale)
        asked = self._tflsc_asked or {"loss_scale": loss_scale}
        return _rebuild, (cls, self._optimizer, {**asked, **self._tflsc_options})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:  # An `OptimizerV2` has one of its own.
        rebuild, arguments = self.__reduce_ex__(2)
        new = memo[id(self)] = rebuild(*copy.deepcopy(arguments, memo))
        return new


def _rebuild(
    cls: type[_Wrapper], optimizer: _types.KerasOptimizer, arguments: dict[str, Any]
) -> _Wrapper:
    """Makes a copy, of copies of an optimizer and of the constructor's other arguments."""
    optimizer._is_wrapped_by_loss_scale_optimizer = False  # Not this copy of it.
    return _make(cls, optimizer, arguments)


def _inner_of_config(
    cls: type[_Wrapper], config: dict[str, Any], custom_objects: dict[str, Any] | None
) -> Any:
    family = _families.class_for_config(cls, config)
    # A copy: tf.keras writes into what it deserializes.
    return family._tflsc_deserialize_inner(copy.deepcopy(config), custom_objects)


def _make(cls: type[_W], inner: _types.KerasOptimizer, arguments: dict[str, Any]) -> _W:
    """Calls the constructor of `cls`, the public class or a subclass.

    Raises:
      TypeError: the constructor of a subclass takes other arguments.
    """
    cls = vars(cls).get("_tflsc_public", cls)
    kinds = [each.kind for each in inspect.signature(cls.__init__).parameters.values()]
    try:
        if kinds[1:] == [inspect.Parameter.VAR_KEYWORD]:  # As in Horovod's classes.
            return cls(**{cls._tflsc_argument: inner}, **arguments)
        return cls(inner, **arguments)
    except TypeError as error:
        if cls.__init__.__module__ == __name__:
            raise
        raise TypeError(
            f"{cls.__name__} cannot be made from a config or copied by the arguments "
            f"{', '.join(arguments)}: {error}. Have its constructor take them. Or override "
            "get_config and from_config, and in place of a copy write "
            f"{cls.__name__}.from_config(optimizer.get_config())."
        ) from error


def _loss_scale_of_config(
    keras: types.ModuleType, loss_scale: Any, custom_objects: dict[str, Any] | None
) -> _loss_scales.LossScale:
    if not isinstance(loss_scale, dict):
        return _loss_scale(loss_scale)
    objects = dict(custom_objects or {})
    name = str(loss_scale.get("class_name"))
    # Keras 3 does not hand on what `load_model` is given; older ones without this function do.
    find = getattr(keras.utils, "get_registered_object", lambda name: None)
    objects.setdefault(name, find(name))
    known = {
        name: cls
        for name, cls in objects.items()
        if isinstance(cls, type) and issubclass(cls, _loss_scales.LossScale)
    }
    return _loss_scales.deserialize(loss_scale, custom_objects=known)


def _loss_scale(identifier: _loss_scales.Identifier | None) -> _loss_scales.LossScale:
    loss_scale = _loss_scales.get(identifier)
    if loss_scale is None:
        raise ValueError("loss_scale cannot be None")
    return loss_scale


def _for_config(loss_scale: _loss_scales.Identifier | None) -> _loss_scales.Identifier | None:
    """Returns the argument `loss_scale` for a config; makes no variables where it has none."""
    if not isinstance(loss_scale, (type(None), str, int, float, dict)):
        loss_scale = _loss_scale(loss_scale)
        with contextlib.suppress(NotImplementedError):  # Which asking for the config raises.
            loss_scale = _loss_scales.serialize(loss_scale)
    return loss_scale


def _of_numbers(
    dynamic: object = True,
    initial_scale: Any = None,
    dynamic_growth_steps: _types.Integer | None = None,
    hint: str = "",
) -> _loss_scales.LossScale:
    """The loss scale that the arguments of TensorFlow 2.4 stand for.

    `hint` says what else there is for a fixed one.
    """
    if not isinstance(dynamic, bool):
        message = (
            'A loss scale is dynamic or fixed, so the "dynamic" argument to '
            f"LossScaleOptimizer.__init__ must be a bool, but got: {dynamic!r}."
        )
        if isinstance(dynamic, numbers.Real):
            # The second argument of Keras 3's own class is where a dynamic one starts.
            message += (
                f" For a fixed loss scale give dynamic=False, initial_scale={dynamic!r}; for a "
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
    except ValueError as error:
        message = str(error)
        for theirs, ours in (
            ("loss_scale_value", "initial_scale"),
            ("initial_loss_scale", "initial_scale"),
            ("increment_period", "dynamic_growth_steps"),
        ):
            message = message.replace(theirs, ours)
        raise ValueError(message) from None


_Family: Any = _families.default_family(experimental=False)
_ExperimentalFamily: Any = _families.default_family(experimental=True)


class LossScaleOptimizer(_Wrapper, _Family):
    """Wraps a Keras optimizer with a dynamic or fixed loss scale.

    Becomes an optimizer of the family of `inner_optimizer`: of Keras 3 on TensorFlow, of `tf_keras`
    or of tf.keras. With `compile` and `fit` nothing else is needed. In a custom training step,
    every gradient is to be divided by the loss scale once::

        with tf.GradientTape() as tape:
            scaled_loss = opt.get_scaled_loss(compute_loss())
        grads = opt.get_unscaled_gradients(tape.gradient(scaled_loss, variables))
        opt.apply_gradients(zip(grads, variables))

    or, as in Keras 3, `scale_loss` before and `apply` or `apply_gradients` after. A step
    with a gradient that is not finite on any replica is skipped on all, unless the scale is fixed.

    Source: `tf.keras.mixed_precision.LossScaleOptimizer` of TensorFlow 2.4 to 2.15, on any Keras.
    """

    _tflsc_registered_name = "LossScaleOptimizer"
    _tflsc_takes_numbers = True

    def __init__(
        self,
        inner_optimizer: _types.HasApplyGradients | dict[str, Any],
        dynamic: bool = True,
        initial_scale: _types.Real | None = None,
        dynamic_growth_steps: _types.Integer | None = None,
        *,
        loss_scale: _loss_scales.Identifier | None = None,
        name: str | None = None,
        count_skipped: bool | None = None,
        scaled: bool | None = None,
        enabled: bool = True,
        agree: _types.Agree | None = None,
        **unknown: NoReturn,
    ) -> None:
        """Wraps `inner_optimizer`.

        Args:
          inner_optimizer: Keras optimizer.
          dynamic: bool, whether the scale doubles after a run of finite steps and halves at each
            step that is not finite, down to 1.
          initial_scale: real number, the scale at the start; None for 2**15. Where `dynamic` is
            False it is the scale for good, at least 1, and must be given.
          dynamic_growth_steps: int, finite steps in a row until the scale doubles; None for 2000.
          loss_scale: in place of these three, what the experimental class takes; or None.
          name: str, the optimizer's name, or None.
          count_skipped: bool, whether `iterations`, which schedules follow, counts skipped steps;
            None for what that Keras' own class does: yes in TensorFlow 2.3 to 2.15 and `tf_keras`.
          scaled: bool, what `apply_gradients` is given where the call does not say `scaled`; None
            for the rule there. True for an optimizer that `fit` of Keras 3 uses, and other steps
            that unscale: those call `apply_gradients(..., scaled=False)`.
          enabled: bool; if False, the loss scale is 1, whatever the other arguments say, and each
            step is the wrapped optimizer's.
          agree: function of a scalar bool tensor that returns its AND over all processes that train
            together without `tf.distribute`, called once per step; or None. Around Horovod's
            optimizer it is Horovod's by itself. Configs cannot hold it: set the attribute `agree`.
          **unknown: no other argument is taken: a ValueError around optimizers of Keras 3, as of
            its own class, else a TypeError.

        Raises:
          TypeError: `inner_optimizer` is no Keras optimizer or is a loss-scale one, `dynamic`,
            `count_skipped`, `scaled` or `enabled` is no bool, or `agree` no function.
          ValueError: a loss-scale optimizer wraps `inner_optimizer` already, on Keras 3 it has an
            `apply_gradients` of its own, a number cannot be used, `loss_scale` drives another
            optimizer, or the strategy in scope is unsupported.
        """
        asked: dict[str, Any] = {
            "dynamic": dynamic,
            "initial_scale": initial_scale,
            "dynamic_growth_steps": dynamic_growth_steps,
        }
        if loss_scale is not None:
            asked["loss_scale"] = loss_scale
        self._tflsc_construct(
            inner_optimizer, asked, name, count_skipped, scaled, enabled, agree, tuple(unknown)
        )

    @property
    def loss_scale(self) -> Any:
        """The current loss scale, a scalar float32 tensor."""
        if _callers.is_compile():  # Compares it with a policy's.
            return self._loss_scale
        return self._loss_scale()

    @loss_scale.setter
    def loss_scale(self, value: NoReturn) -> None:
        self._tflsc_refuse_to_set("loss_scale", value)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as a dict that JSON can hold."""
        config = {
            "inner_optimizer": self._tflsc_serialize_inner(),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }
        loss_scale = _loss_scales.serialize(self._loss_scale)
        described = {  # What the three say.
            "FixedLossScale": {"loss_scale_value"},
            "DynamicLossScale": {"initial_loss_scale", "increment_period", "multiplier"},
        }
        if (
            set(loss_scale["config"]) != described.get(loss_scale["class_name"])
            or loss_scale["config"].get("multiplier", 2) != 2
        ):
            config["loss_scale"] = loss_scale
        config.update(self._tflsc_options_in_config())
        if config["dynamic"] and not self._tflsc_says_dynamic:
            del config["dynamic"]
        return config


class ExperimentalLossScaleOptimizer(LossScaleOptimizer, _ExperimentalFamily):
    """Wraps a Keras optimizer with any loss scale.

    Public as `keras.mixed_precision.experimental.LossScaleOptimizer`; used in training as
    `keras.mixed_precision.LossScaleOptimizer` is.

    Source: `tf.keras.mixed_precision.experimental.LossScaleOptimizer` of TensorFlow r2.0, on any
    Keras. Beyond it, optimizers that clip gradients can be wrapped, and loss-scale managers used.
    """

    _tflsc_family = _ExperimentalFamily
    _tflsc_registered_name = "ExperimentalLossScaleOptimizer"
    _tflsc_argument = "optimizer"
    _tflsc_takes_numbers = False

    def __init__(
        self,
        optimizer: _types.HasApplyGradients | dict[str, Any],
        loss_scale: _loss_scales.Identifier,
        *,
        name: str | None = None,
        count_skipped: bool | None = None,
        scaled: bool | None = None,
        enabled: bool = True,
        agree: _types.Agree | None = None,
    ) -> None:
        """Wraps `optimizer`.

        Args:
          optimizer: Keras optimizer.
          loss_scale: a `LossScale`, or what `loss_scale.get` takes: a number for a fixed scale,
            'dynamic', a `LossScaleManager`, or a config dict; but not None.
          name: str, the optimizer's name, or None.
          count_skipped: as `keras.mixed_precision.LossScaleOptimizer` takes it.
          scaled: likewise.
          enabled: likewise.
          agree: likewise.

        Raises:
          TypeError: as there.
          ValueError: as there; or `loss_scale` is None or no loss scale.
        """
        self._tflsc_construct(
            optimizer, {"loss_scale": loss_scale}, name, count_skipped, scaled, enabled, agree
        )

    @property
    def loss_scale(self) -> _loss_scales.LossScale:
        """The `LossScale`, which stands for its value where a number or tensor is expected.

        In TensorFlow 2.4 and 2.5 this was a tensor. From 2.4 on `==` and `!=` compare its value.
        """
        if _tf.at_least(2, 4) and not _callers.is_compile():
            _like_a_tensor.compares_by_value(self._loss_scale)
            if _graphs.in_session_graph():
                self._loss_scale._as_graph_element()  # A graph may be finalized afterwards.
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, value: NoReturn) -> None:
        self._tflsc_refuse_to_set("loss_scale", value)

    def get_config(self) -> dict[str, Any]:
        """Returns the optimizer's and the loss scale's configs, as TensorFlow r2.0 did."""
        return {
            "optimizer": self._tflsc_serialize_inner(),
            "loss_scale": _loss_scales.serialize(self._loss_scale),
            **self._tflsc_options_in_config(),
        }


# Where users find them.
LossScaleOptimizer.__module__ = "tf_lossscale_compat.keras.mixed_precision"
ExperimentalLossScaleOptimizer.__module__ = "tf_lossscale_compat.keras.mixed_precision.experimental"
ExperimentalLossScaleOptimizer.__name__ = "LossScaleOptimizer"
ExperimentalLossScaleOptimizer.__qualname__ = "LossScaleOptimizer"

_families.register(LossScaleOptimizer, ExperimentalLossScaleOptimizer)
