"""The public classes, and their siblings for optimizers of other families than tf.keras' own."""

from __future__ import annotations

import copy
import inspect
import types
from typing import TYPE_CHECKING, Any, NoReturn

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat._core._tf import tf  # First, as it says what to do without TensorFlow.

# isort: split

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _callers,
    _graphs,
    _ownership,
    _scaler,
    _wrapping,
)
from tf_lossscale_compat._scalers import _like_a_tensor, _loss_scales
from tf_lossscale_compat.keras import _calls, _configs, _families, _family, _inner, _optimizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from tf_lossscale_compat._core import _types


def _rebuild(cls: Any, optimizer: _types.KerasOptimizer, arguments: dict[str, Any]) -> Any:
    """Makes a copy, of copies of an optimizer and of the constructor's other arguments."""
    optimizer._is_wrapped_by_loss_scale_optimizer = False  # Not this copy of it.
    return _make(cls, optimizer, arguments)


def _deserialized(
    kind: _family.Family, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
) -> Any:
    """Returns the inner optimizer that a config describes."""
    # A copy: tf.keras writes into what it deserializes.
    return _families.for_config(kind, config).deserialize(copy.deepcopy(config), custom_objects)


def _make(cls: Any, inner: _types.KerasOptimizer, arguments: dict[str, Any]) -> Any:
    """Calls the constructor of `cls`, the public class or a subclass.

    Raises:
      TypeError: the constructor of a subclass takes other arguments.
    """
    kinds = [each.kind for each in inspect.signature(cls.__init__).parameters.values()]
    try:
        if kinds[1:] == [inspect.Parameter.VAR_KEYWORD]:  # As in Horovod's classes.
            return cls(**{cls._tflsc_family.argument: inner}, **arguments)
        return cls(inner, **arguments)
    except TypeError as error:
        if cls.__init__.__module__ == __name__:
            raise
        raise TypeError(
            f"{cls.__name__} cannot be made from a config or copied with the arguments "
            f"{', '.join(arguments)}: {error}. Let its constructor take them. Or override "
            "get_config and from_config, and instead of copying write "
            f"{cls.__name__}.from_config(optimizer.get_config())."
        ) from error


def _construct(
    owner: Stable,
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
    kind, cls = owner._tflsc_family, type(owner)
    if isinstance(optimizer, dict):
        optimizer = _deserialized(kind, optimizer)
    if unknown:
        _inner.base_of(optimizer, kind.argument)
        kind.refuse(cls.__name__, unknown)
    _arguments.optional_flag("count_skipped", count_skipped)
    _arguments.optional_flag("scaled", scaled)
    _arguments.flag("enabled", enabled)
    if count_skipped and getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "count_skipped must not be True if the inner optimizer has "
            "gradient_accumulation_steps, got True: its iterations are derived from the "
            "gradients that it has accumulated. Leave one of the two out."
        )
    kind.check_wrapped(owner, optimizer, enabled)
    owner._raise_if_strategy_unsupported()
    if not enabled:
        if "loss_scale" in asked:
            asked = {**asked, "loss_scale": _configs.for_config(asked["loss_scale"])}
        loss_scale: _loss_scales.LossScale = _loss_scales.FixedLossScale(1)
    elif "loss_scale" in asked:
        loss_scale = _configs.of_identifier(asked["loss_scale"])
        used = _tf.at_least(2, 4) and _ownership.drove_another(_ownership.KERAS, loss_scale)
        if used and type(loss_scale) is _loss_scales.DynamicLossScale:
            # As with 2.4's own class, which takes its numbers alone: folds begin alike.
            loss_scale = type(loss_scale).from_config(loss_scale.get_config())
    else:
        loss_scale = _configs.of_numbers(**asked, hint=kind.fixed_scale_hint)
    _ownership.check(_ownership.KERAS, loss_scale)
    scaler = _scaler.Scaler(loss_scale)
    kind.check_scaler(scaler)
    agreement = _agreement.function_for(agree, optimizer, scaler)
    kept = _family.Kept(_calls.Calls(kind.scaled_by_default, scaled), enabled)
    # Past every __setattr__ of a family: checkpoints are to find these under one name each.
    owner.__dict__.update(_optimizer=optimizer, _loss_scale=loss_scale, _tflsc=kept)
    options = {
        "name": kind.wrap(owner, loss_scale, name),
        "count_skipped": count_skipped,
        "scaled": scaled,
        "enabled": None if enabled else False,
        "agree": agree,
    }
    kept.options.update((k, v) for k, v in options.items() if v is not None)
    kept.asked, kept.agree, kept.made = ({} if enabled else asked), agreement, True
    _ownership.claim(_ownership.KERAS, loss_scale, [owner])


def _serialized(owner: Stable) -> dict[str, Any]:
    return owner._tflsc_family.keras.optimizers.serialize(owner._optimizer)


class Stable(_optimizer.LossScaling):
    """Wraps a Keras optimizer with a dynamic or fixed loss scale.

    Makes an optimizer of the family of `inner_optimizer`: of Keras 3 on TensorFlow, of `tf_keras`
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
        options = count_skipped, scaled, enabled, agree
        _construct(self, inner_optimizer, asked, name, *options, tuple(unknown))

    @property
    def loss_scale(self) -> Any:
        """The current loss scale, a scalar float32 tensor."""
        if _callers.is_compile():  # Compares it with a policy's.
            return self._loss_scale
        return self._loss_scale()

    @loss_scale.setter
    def loss_scale(self, value: NoReturn) -> None:
        _optimizer.refuse_to_set(self, "loss_scale", value)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as a dict that JSON can hold."""
        config = {
            "inner_optimizer": _serialized(self),
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
        config.update(_configs.options_of(self._tflsc))
        if config["dynamic"] and not self._tflsc_family.says_dynamic:
            del config["dynamic"]
        return config

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
            inner = _deserialized(cls._tflsc_family, inner, custom_objects)
        base = _inner.base_of(inner, cls._tflsc_family.argument)
        kind = _families.of_base(base, cls._tflsc_family.experimental)
        had_agree = arguments.pop("agree", False)
        new = _make(cls, inner, _configs.arguments_of(arguments, kind, custom_objects))
        if had_agree:
            new.agree = _agreement.LostAgree()
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        cls: Any = type(self)
        kind, kept = self._tflsc_family, self._tflsc
        if "_tflsc_family" in vars(cls):  # A sibling has no name to be found by but the public one.
            cls = ExperimentalLossScaleOptimizer if kind.experimental else LossScaleOptimizer
        loss_scale: _loss_scales.LossScale | dict[str, Any] = self._loss_scale
        if kind.copies_begin_anew and type(loss_scale) is _loss_scales.DynamicLossScale:
            loss_scale = _loss_scales.serialize(loss_scale)
        asked = kept.asked or {"loss_scale": loss_scale}
        return _rebuild, (cls, self._optimizer, {**asked, **kept.options})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:  # An `OptimizerV2` has one of its own.
        rebuild, arguments = self.__reduce_ex__(2)
        new = memo[id(self)] = rebuild(*copy.deepcopy(arguments, memo))
        return new


class Experimental(Stable):
    """Wraps a Keras optimizer with any loss scale.

    Public as `keras.mixed_precision.experimental.LossScaleOptimizer`; used in training as
    `keras.mixed_precision.LossScaleOptimizer` is.

    Source: `tf.keras.mixed_precision.experimental.LossScaleOptimizer` of TensorFlow r2.0, on any
    Keras. Beyond it, optimizers that clip gradients can be wrapped, and loss-scale managers used.
    """

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
        _construct(
            self, optimizer, {"loss_scale": loss_scale}, name, count_skipped, scaled, enabled, agree
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
        _optimizer.refuse_to_set(self, "loss_scale", value)

    def get_config(self) -> dict[str, Any]:
        """Returns the optimizer's and the loss scale's configs, as TensorFlow r2.0 did."""
        return {
            "optimizer": _serialized(self),
            "loss_scale": _loss_scales.serialize(self._loss_scale),
            **_configs.options_of(self._tflsc),
        }


class _PicksSibling(type):
    """Part of the metaclasses: a class is called with an optimizer, whose family says which.

    The public classes are of tf.keras' family. Each has a sibling for each other family.
    """

    _tflsc_family: _family.Family

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        picked, argument = cls, cls._tflsc_family.argument
        if "_tflsc_family" in vars(cls):  # A subclass is of one family.
            inner = args[0] if args else kwargs.get(argument)
            if isinstance(inner, dict):
                inner = _deserialized(cls._tflsc_family, inner)
                args, kwargs = (
                    ((inner, *args[1:]), kwargs) if args else (args, {**kwargs, argument: inner})
                )
            for base in _inner.bases_of(type(inner))[:1]:
                picked = _siblings(base)[cls._tflsc_family.experimental]
        return type.__call__(picked, *args, **kwargs)  # Past that of Keras, which picks one, too.

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, for `help` and notebooks, which would show that of `__call__`."""
        constructed: Any = cls
        return inspect.signature(types.MethodType(constructed.__init__, cls))

    def __subclasscheck__(cls, subclass: type) -> bool:
        if super().__subclasscheck__(subclass):
            return True
        kind = vars(cls).get("_tflsc_family")
        if kind is None or kind.base is not _families.own_base():
            return False
        return (Experimental if kind.experimental else Stable) in subclass.__mro__

    def __instancecheck__(cls, instance: object) -> bool:
        if issubclass(type(instance), cls) or super().__instancecheck__(instance):
            return True
        # Custom training steps ask it of what `compile` made under a float16 policy. A False would
        # have them leave the loss unscaled.
        return (
            "_tflsc_family" in vars(cls)
            and not isinstance(type(instance), _PicksSibling)
            and any(map(_wrapping.is_loss_scale_optimizer, _inner.of_keras(type(instance))))
        )


@_families.cached
def _siblings(base: type) -> tuple[Any, Any]:
    """Returns the two classes around optimizers that derive from `base`, the experimental last."""
    kinds = [_families.of_base(base, experimental) for experimental in (False, True)]

    class Metaclass(_PicksSibling, type(kinds[0].own)):  # type: ignore[misc]
        """Of the classes of one family."""

    class LossScaleOptimizer(Stable, kinds[0].methods, kinds[0].own, metaclass=Metaclass):  # type: ignore[misc]
        __doc__ = Stable.__doc__
        _tflsc_family = kinds[0]

    class ExperimentalLossScaleOptimizer(Experimental, LossScaleOptimizer, kinds[1].own):  # type: ignore[misc]
        __doc__ = Experimental.__doc__
        _tflsc_family = kinds[1]

    public = "tf_lossscale_compat.keras.mixed_precision"  # Where users find them.
    modules = public, f"{public}.experimental"
    for cls, module in zip((LossScaleOptimizer, ExperimentalLossScaleOptimizer), modules):
        registered = cls.__name__ + kinds[0].suffix
        cls.__module__, cls.__name__, cls.__qualname__ = module, *["LossScaleOptimizer"] * 2
        _register(kinds[0].keras, cls, registered)
    return LossScaleOptimizer, ExperimentalLossScaleOptimizer


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


if TYPE_CHECKING:
    from typing import Any as _Keras

    class LossScaleOptimizer(Stable, _Keras): ...

    class ExperimentalLossScaleOptimizer(Experimental, LossScaleOptimizer): ...
else:
    LossScaleOptimizer, ExperimentalLossScaleOptimizer = _siblings(_families.own_base())


def register() -> None:
    """Makes the classes for each Keras that is imported, or else for tf.keras.

    Models are loaded by the names of their optimizers' classes, which have to exist by then.
    """
    for base in _families.imported():
        _siblings(base)


register()
