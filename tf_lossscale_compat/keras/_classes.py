"""The public classes, and their siblings for the other families of optimizers."""

from __future__ import annotations

import copy
import functools
import inspect
import numbers
import types
from typing import TYPE_CHECKING, Any, Iterable, NoReturn

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat._core._tf import tf  # First, for its error without TensorFlow.

# isort: split

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _callers,
    _graphs,
    _keras_versions,
    _scale_or_manager,
)
from tf_lossscale_compat._scales import _loss_scales
from tf_lossscale_compat.keras import _base, _keras_step, _lookup, _scaled_rule

if TYPE_CHECKING:
    from typing_extensions import Self

    from tf_lossscale_compat._core import _types


# Constructors' arguments and configs.

_STABLE_ARGUMENTS = ("dynamic", "initial_scale", "dynamic_growth_steps")


def _from_stable_arguments(
    dynamic: object = True,
    initial_scale: Any = None,
    dynamic_growth_steps: _types.Integer | None = None,
) -> _loss_scales.LossScale:
    """Returns the loss scale for the arguments of TensorFlow 2.4."""
    if not isinstance(dynamic, bool):
        message = (
            'A loss scale is dynamic or fixed, so the "dynamic" argument to '
            f"LossScaleOptimizer.__init__ must be a bool, but got: {dynamic!r}."
            " A LossScale or LossScaleManager goes into loss_scale=."
        )
        if isinstance(dynamic, numbers.Real) and float(dynamic) >= 1 and initial_scale is None:
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
                '"dynamic" is False, got None. Or, on Keras 3 without this class, set '
                "`loss_scale_factor` of the optimizer."
            )
        if dynamic_growth_steps is not None:
            raise ValueError(
                'A fixed loss scale never grows, so "dynamic_growth_steps" must be None if '
                f'"dynamic" is False, but got: {dynamic_growth_steps!r}.'
            )
        return _loss_scales.FixedLossScale(_arguments.fixed_scale("initial_scale", initial_scale))
    scale, steps = 2.0**15, 2000
    if initial_scale is not None:
        scale = _arguments.positive("initial_scale", initial_scale)
    if dynamic_growth_steps is not None:
        steps = _arguments.step_count("dynamic_growth_steps", dynamic_growth_steps, "int64")
    loss_scale = _loss_scales.DynamicLossScale(scale, max(steps, 1))
    loss_scale._increment_period = steps  # One that acts as 1 was warned of under its name here.
    return loss_scale


def _from_config(
    keras: types.ModuleType, loss_scale: Any, custom_objects: dict[str, Any] | None
) -> _loss_scales.LossScale:
    if not isinstance(loss_scale, dict):
        return _loss_scales.get(_loss_scales.require(loss_scale))
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


def _options_of(data: _base.KerasData) -> dict[str, Any]:
    """Returns the entries of a config other than the inner optimizer and the loss scale in use."""
    holds_agree = "agree" in data.options
    return {**data.options, "agree": True} if holds_agree else data.options  # It is a function.


def _arguments_of(
    config: dict[str, Any], family: _base.Family, custom_objects: dict[str, Any] | None
) -> dict[str, Any]:
    """Returns the constructor's arguments for a config of any version, without the optimizer."""
    without_effect = family.optimizer_base._tflsc_without_effect
    arguments = {name: value for name, value in config.items() if name not in without_effect}
    if "loss_scale" in arguments or family.experimental:
        stable = {name: arguments.pop(name) for name in _STABLE_ARGUMENTS if name in arguments}
        if "loss_scale" in arguments:
            config = arguments["loss_scale"]
            arguments["loss_scale"] = _from_config(family.keras, config, custom_objects)
        else:
            arguments["loss_scale"] = _from_stable_arguments(**stable)
    return arguments


def _rebuild(cls: Any, optimizer: _types.KerasOptimizer, arguments: dict[str, Any]) -> Any:
    """Makes a copy of an optimizer from copies of the constructor's arguments."""
    was_wrapped = getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)
    optimizer._is_wrapped_by_loss_scale_optimizer = False  # The copy of the inner one is not.
    try:
        return _call_constructor(cls, optimizer, arguments)
    except BaseException:  # `copy.copy` gives the inner optimizer itself.
        optimizer._is_wrapped_by_loss_scale_optimizer = was_wrapped
        raise


def _deserialize_inner(
    family: _base.Family, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
) -> Any:
    """Returns the inner optimizer that a config describes."""
    if not {"class_name", "config"} <= config.keys():
        raise TypeError(f"{family.optimizer_argument} must be a Keras optimizer, got {config!r}.")
    # A copy, because tf.keras changes a config that it deserializes.
    found = _lookup.family_for_config(family, config)
    copied = copy.deepcopy(config)
    return found.optimizer_base._tflsc_deserialize(found.keras, copied, custom_objects)


def _call_constructor(cls: Any, inner: _types.KerasOptimizer, arguments: dict[str, Any]) -> Any:
    kinds = [each.kind for each in inspect.signature(cls.__init__).parameters.values()]
    if kinds[1:] == [inspect.Parameter.VAR_KEYWORD]:  # As of Horovod's classes.
        return cls(**{cls._tflsc_family.optimizer_argument: inner}, **arguments)
    return cls(inner, **arguments)


class StableLossScaleOptimizerBase(_base.KerasOptimizerBase):
    """Wraps a Keras optimizer with a dynamic or fixed loss scale.

    The result is an optimizer of the same Keras as `inner_optimizer`: Keras 3 on TensorFlow,
    `tf_keras` or tf.keras. `compile` and `fit` need nothing else. A custom training step divides
    each gradient by the loss scale once::

        with tf.GradientTape() as tape:
            scaled_loss = opt.get_scaled_loss(compute_loss())
        grads = opt.get_unscaled_gradients(tape.gradient(scaled_loss, variables))
        opt.apply_gradients(zip(grads, variables))

    A step as in Keras 3 calls `scale_loss`, and then `apply` or `apply_gradients`. If a gradient is
    not finite on any replica, all replicas skip the step, unless the loss scale skips none, as a
    `FixedLossScale`.

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
        agree: _types.Agree | None = None,
        **unknown: NoReturn,
    ) -> None:
        """Wraps `inner_optimizer`.

        Args:
          inner_optimizer: Keras optimizer.
          dynamic: bool, the scale doubles after a number of finite steps, and halves after a step
            that is not finite, down to 1. If False, such steps are applied, too.
          initial_scale: real number, the scale at the start; None for 2**15. If `dynamic` is False,
            it is the fixed scale, must be at least 1 and must not be None.
          dynamic_growth_steps: int, the number of finite steps in a row after which the scale
            doubles; None for 2000.
          loss_scale: instead of these three, an argument of the experimental class, such as
            `FixedLossScale(1024, skip_nonfinite=True)`, which skips such steps; or None.
          name: str, the optimizer's name, or None.
          count_skipped: bool, True if `iterations`, which schedules follow, counts skipped steps;
            None for True in TensorFlow 2.3 to 2.15 and `tf_keras`, else False, as Keras does.
          agree: function of a scalar bool tensor that returns its AND over all processes that train
            together without `tf.distribute`; a step calls it once. None for a single process, and
            around Horovod's optimizer, whose processes then agree. Configs cannot hold it: set the
            attribute `agree`.
          **unknown: refused: by a ValueError around optimizers of Keras 3, else by a TypeError.

        Raises:
          TypeError: `inner_optimizer` is not a Keras optimizer or is a loss-scale one; `dynamic`
            or `count_skipped` is not a bool; `name` is not a str; or `agree` is not a function.
          ValueError: a loss-scale optimizer of TensorFlow 2.3 to 2.15 or `tf_keras` wraps
            `inner_optimizer` already, or it overrides `apply_gradients` on Keras 3; a number cannot
            be used; `loss_scale` drives another optimizer, comes with one of the three arguments
            before it, or decides by gradients and `agree` is given; or the strategy in scope is not
            supported.
        """
        arguments: dict[str, Any] = {
            "dynamic": dynamic,
            "initial_scale": initial_scale,
            "dynamic_growth_steps": dynamic_growth_steps,
        }
        if loss_scale is not None:
            if dynamic is not True or (initial_scale, dynamic_growth_steps) != (None, None):
                raise ValueError(
                    "loss_scale must be None if dynamic, initial_scale or dynamic_growth_steps is "
                    f"given, got {loss_scale!r}. Leave it out, or these three."
                )
            arguments["loss_scale"] = loss_scale
        options = {"name": name, "count_skipped": count_skipped, "agree": agree}
        self._tflsc_construct(inner_optimizer, arguments, options, unknown)

    def _tflsc_construct(
        self,
        optimizer: Any,
        arguments: dict[str, Any],
        options: dict[str, Any],
        unknown: Iterable[str] = (),
    ) -> None:
        """Does the work of both constructors.

        `arguments` are the constructor's for the loss scale, `options` its others. `unknown` has
        the names of those that it does not take.
        """
        family = self._tflsc_family
        if isinstance(optimizer, dict):
            optimizer = _deserialize_inner(family, optimizer)
        if unknown:
            _base.base_to_wrap(optimizer, family.optimizer_argument)
            self._tflsc_refuse_arguments(unknown)
        self._tflsc_check_name(options["name"])
        _arguments.flag("count_skipped", options["count_skipped"], or_none=True)
        _agreement.check_agree(options["agree"])
        _base.check_count_skipped(options["count_skipped"], optimizer)
        self._tflsc_check_can_wrap(optimizer)
        self._raise_if_strategy_unsupported()
        identifier = arguments.get("loss_scale", "dynamic" if arguments.get("dynamic") else None)
        if _loss_scales.will_be_dynamic(identifier):
            _agreement.check_takes_dynamic(optimizer)  # Before it makes variables.
        loss_scale: _loss_scales.LossScale
        if "loss_scale" in arguments:
            loss_scale = _loss_scales.get(_loss_scales.require(arguments["loss_scale"]))
            used = _tf.at_least(2, 4) and _scale_or_manager.had_owner(loss_scale)
            if used and type(loss_scale) is _loss_scales.DynamicLossScale:
                # Its Keras optimizer was deleted, as in the next fold of a cross-validation. A new
                # one with the same arguments takes its place, and the caller's stays as it is. So
                # each fold begins alike, as in TensorFlow 2.4, whose class takes arguments alone.
                loss_scale = type(loss_scale).from_config(loss_scale.get_config())
        else:
            loss_scale = _from_stable_arguments(**arguments)
        self._tflsc_check_loss_scale(loss_scale)
        agreement = _agreement.resolve(options["agree"], optimizer, loss_scale)
        # The experimental class had no Keras 3: programs with it pass unscaled gradients.
        must_be_asked = self._tflsc_takes_scaled and not family.experimental
        data = _base.KerasData(_scaled_rule.ScaledRule(must_be_asked))
        # Without a `__setattr__`, so that checkpoints have only one name for each of these.
        self.__dict__.update(_optimizer=optimizer, _loss_scale=loss_scale, _tflsc=data)
        options["name"] = self._tflsc_init_base_class(options["name"])
        data.options.update({k: v for k, v in options.items() if v is not None})
        data.agreement, data.constructed = agreement, True
        _scale_or_manager.set_owner(loss_scale, self)

    def _tflsc_serialize_inner(self) -> dict[str, Any]:
        return self._tflsc_family.keras.optimizers.serialize(self._optimizer)

    @property
    def loss_scale(self) -> Any:
        """The current loss scale, a scalar float32 tensor."""
        if _callers.is_compiling():  # It compares it with the loss scale of a policy.
            return self._loss_scale
        return self._loss_scale()

    @loss_scale.setter
    def loss_scale(self, value: NoReturn) -> None:
        """The loss scale's value; to set it, assign to `dynamic_scale`."""
        _base.refuse_to_set(self, "loss_scale", value)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, a dict that JSON can hold."""
        config = {
            "inner_optimizer": self._tflsc_serialize_inner(),
            "dynamic": self.dynamic,
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }
        loss_scale = _loss_scales.serialize(self._loss_scale)
        described = {  # The three numbers describe loss scales with these entries alone.
            "FixedLossScale": {"loss_scale_value"},
            "DynamicLossScale": {"initial_loss_scale", "increment_period", "multiplier"},
        }
        if (
            set(loss_scale["config"]) != described.get(loss_scale["class_name"])
            or loss_scale["config"].get("multiplier", 2) != 2
        ):
            config["loss_scale"] = loss_scale
        config.update(_options_of(self._tflsc))
        if config["dynamic"] and not self._tflsc_config_says_dynamic:
            del config["dynamic"]
        return config

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Makes an optimizer from a config of this package or of another loss-scale optimizer.

        A subclass whose constructor takes other arguments overrides this and `get_config`, as Keras
        documents.

        Args:
          config: dict that `get_config` returned, of this package or of the loss-scale optimizer of
            TensorFlow 2.0 to 2.15, `tf_keras` or Keras 3.
          custom_objects: dict from names to further classes, or None.

        Returns:
          An optimizer of this class, or of its sibling for the inner optimizer's family.

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
            inner = _deserialize_inner(cls._tflsc_family, inner, custom_objects)
        base = _base.base_to_wrap(inner, cls._tflsc_family.optimizer_argument)
        family = _lookup.family_of(base, cls._tflsc_family.experimental)
        had_agree = arguments.pop("agree", False)
        new = _call_constructor(cls, inner, _arguments_of(arguments, family, custom_objects))
        if had_agree:
            new.agree = _agreement.lost_agreement
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        cls: Any = type(self)
        family, data = self._tflsc_family, self._tflsc
        if "_tflsc_family" in vars(cls):  # pickle finds a sibling only through the public class.
            cls = ExperimentalLossScaleOptimizer if family.experimental else LossScaleOptimizer
        loss_scale: _loss_scales.LossScale | dict[str, Any] = self._loss_scale
        if self._tflsc_copies_lose_state and type(loss_scale) is _loss_scales.DynamicLossScale:
            loss_scale = _loss_scales.serialize(loss_scale)
        return _rebuild, (cls, self._optimizer, {"loss_scale": loss_scale, **data.options})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:  # `OptimizerV2` has another.
        rebuild, arguments = self.__reduce_ex__(2)
        new = memo[id(self)] = rebuild(*copy.deepcopy(arguments, memo))
        return new


class ExperimentalLossScaleOptimizerBase(StableLossScaleOptimizerBase):
    """Wraps a Keras optimizer with any loss scale.

    Training steps use it like `keras.mixed_precision.LossScaleOptimizer`. Unlike the original, it
    can wrap optimizers that clip gradients, and take a loss-scale manager.

    Source: `tf.keras.mixed_precision.experimental.LossScaleOptimizer` of TensorFlow r2.0, on any
    Keras.
    """

    def __init__(
        self,
        optimizer: _types.HasApplyGradients | dict[str, Any],
        loss_scale: _loss_scales.Identifier,
        *,
        name: str | None = None,
        count_skipped: bool | None = None,
        agree: _types.Agree | None = None,
    ) -> None:
        """Wraps `optimizer`.

        Args:
          optimizer: Keras optimizer.
          loss_scale: a `LossScale`, or another argument of `loss_scale.get`: a number for a fixed
            scale, 'dynamic', a `LossScaleManager`, or a config dict; but not None.
          name: str, the optimizer's name, or None.
          count_skipped: see `keras.mixed_precision.LossScaleOptimizer`.
          agree: see there.

        Raises:
          TypeError: see there.
          ValueError: see there; or `loss_scale` is None or not a loss scale.
        """
        options = {"name": name, "count_skipped": count_skipped, "agree": agree}
        self._tflsc_construct(optimizer, {"loss_scale": loss_scale}, options)

    @property
    def loss_scale(self) -> _loss_scales.LossScale:
        """The `LossScale`. If a number or tensor is expected, it stands for its value.

        In TensorFlow 2.4 and 2.5 this was a tensor. On 2.4 and later, `==` and `!=` compare values,
        except in a Session's graph, where tensors compare by identity.
        """
        if _tf.at_least(2, 4):
            _scale_or_manager.data_of(self._loss_scale).compares_by_value = True
            if _graphs.in_session_graph():
                self._loss_scale._as_graph_element()  # The graph may be finalized afterwards.
        return self._loss_scale

    @loss_scale.setter
    def loss_scale(self, value: NoReturn) -> None:
        """The loss scale, which cannot be exchanged; see `dynamic_scale`."""
        _base.refuse_to_set(self, "loss_scale", value)

    def get_config(self) -> dict[str, Any]:
        """Returns the configs of the inner optimizer and the loss scale in a dict, as in r2.0."""
        return {
            "optimizer": self._tflsc_serialize_inner(),
            "loss_scale": _loss_scales.serialize(self._loss_scale),
            **_options_of(self._tflsc),
        }


class _SiblingMetaclass(type):
    """Base class of the metaclasses: a call of a public class makes an instance of a sibling.

    The public classes are of tf.keras' own family, and each has a sibling for every other family.
    """

    _tflsc_family: _base.Family

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        picked: type = cls
        argument = cls._tflsc_family.optimizer_argument
        if "_tflsc_family" in vars(cls):  # A subclass is of one family.
            inner = args[0] if args else kwargs.get(argument)
            if isinstance(inner, dict):
                inner = _deserialize_inner(cls._tflsc_family, inner)
                args, kwargs = (
                    ((inner, *args[1:]), kwargs) if args else (args, {**kwargs, argument: inner})
                )
            base = _keras_versions.base_of(type(inner))
            if base is not None:
                _lookup.check_public_keras(inner, base, argument)
                picked = _siblings(base)[cls._tflsc_family.experimental]
        # Keras' own metaclass would pick one of Keras' classes.
        return type.__call__(picked, *args, **kwargs)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's; without this, `help` and notebooks show that of `__call__`."""
        constructed: Any = cls
        return inspect.signature(types.MethodType(constructed.__init__, cls))

    def __subclasscheck__(cls, subclass: type) -> bool:
        if super().__subclasscheck__(subclass):
            return True
        family = vars(cls).get("_tflsc_family")
        if family is None or family.inner_base is not _lookup.default_base():
            return False
        stable, experimental = StableLossScaleOptimizerBase, ExperimentalLossScaleOptimizerBase
        return (experimental if family.experimental else stable) in subclass.__mro__

    def __instancecheck__(cls, instance: object) -> bool:
        if issubclass(type(instance), cls) or super().__instancecheck__(instance):
            return True
        # `compile` makes Keras' own class under a float16 policy. Custom training steps check the
        # class and would leave the loss unscaled.
        of_keras = filter(_keras_step.is_of_keras, type(instance).__mro__)
        return (
            "_tflsc_family" in vars(cls)
            and _keras_versions.is_optimizer(instance)
            and not isinstance(type(instance), _SiblingMetaclass)
            and any(map(_keras_versions.is_loss_scale_optimizer, of_keras))
        )


@functools.lru_cache(maxsize=None)
def _siblings(
    base: type,
) -> tuple[type[StableLossScaleOptimizerBase], type[ExperimentalLossScaleOptimizerBase]]:
    """Returns both classes, stable and experimental, for optimizers that derive from `base`."""
    both = [_lookup.family_of(base, experimental) for experimental in (False, True)]

    class Metaclass(_SiblingMetaclass, type(both[0].original)):  # type: ignore[misc]
        """The metaclass of one family's classes."""

    class LossScaleOptimizer(
        StableLossScaleOptimizerBase,
        both[0].optimizer_base,  # type: ignore[misc]
        both[0].original,  # type: ignore[misc]
        metaclass=Metaclass,
    ):
        __doc__ = StableLossScaleOptimizerBase.__doc__
        _tflsc_family = both[0]

    class ExperimentalLossScaleOptimizer(
        ExperimentalLossScaleOptimizerBase,
        LossScaleOptimizer,
        both[1].original,  # type: ignore[misc]
    ):
        __doc__ = ExperimentalLossScaleOptimizerBase.__doc__
        _tflsc_family = both[1]

    public = "tf_lossscale_compat.keras.mixed_precision"  # Users import them from here.
    modules = public, f"{public}.experimental"
    for cls, module in zip((LossScaleOptimizer, ExperimentalLossScaleOptimizer), modules):
        registered = cls.__name__ + cls._tflsc_registered_suffix
        cls.__module__, cls.__name__, cls.__qualname__ = module, *["LossScaleOptimizer"] * 2
        _register(both[0].keras, cls, registered)
    return LossScaleOptimizer, ExperimentalLossScaleOptimizer


def _register(keras: types.ModuleType, cls: type, name: str) -> None:
    """Registers `cls`, so that `keras` finds it when it loads a model."""
    package = "tf_lossscale_compat"
    if keras.__name__ == "keras" and not hasattr(keras.utils, "register_keras_serializable"):
        keras = tf.keras  # Before 2.11, it has more of the same Keras.
    if _tf.at_least(2, 2):
        keras.utils.register_keras_serializable(package=package, name=name)(cls)
    else:  # Files hold the class' own name, and Keras has a class of that name.
        cls.__name__ = f"{package}>{name}"
        keras.utils.get_custom_objects()[cls.__name__] = cls


if TYPE_CHECKING:
    # What the optimizers of every Keras have, for editors and type checkers.
    class LossScaleOptimizer(StableLossScaleOptimizerBase):
        """Wraps a Keras optimizer with a dynamic or fixed loss scale.

        `compile` and `fit` need nothing else. A training step of your own calls `get_scaled_loss`,
        `get_unscaled_gradients` and `apply_gradients`. The scale starts at `initial_scale`, 2**15,
        and doubles after `dynamic_growth_steps`, 2000; `dynamic=False` keeps it. On Keras 3
        `count_skipped=True` keeps the pace of schedules.
        """

        name: str
        inner_optimizer: Any
        """The wrapped optimizer, which sees unscaled gradients.

        Set its hyperparameters there, such as `clipnorm`. Its `apply_gradients` bypasses the
        loss scale.
        """

        @property
        def dynamic_scale(self) -> Any:
            """The variable of a dynamic loss scale; `loss_scale` is its value.

            `assign` sets it by hand. With a fixed scale or a manager it is None, or missing on
            Keras 3.
            """

        learning_rate: Any
        """The inner optimizer's learning rate: a variable or a number.

        Of a schedule it is the schedule, or on Keras 3 its present value. Schedules follow
        `iterations`; `count_skipped` of the constructor says if that counts skipped steps.
        """

        iterations: Any
        """The count of steps, an integer scalar variable.

        Skipped steps count in TensorFlow 2.3 to 2.15 and `tf_keras`, or as `count_skipped` of
        the constructor says.
        """

        @property
        def variables(self) -> Any:
            """The optimizer's variables, a list; a method before TensorFlow 2.11.

            On Keras 3 the list has the loss scale and its counter. Called, it gives step count and
            slots alone.
            """

        def minimize(self, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Any:
            """Scales the loss, computes gradients, unscales them and applies them if finite.

            `loss` is a function without arguments, or a tensor with the `tape=` that recorded it;
            `var_list` a list of variables.
            """

        def build(self, variables: Any) -> None:
            """Makes the slots for a list of variables; optimizers before 2.11 have no `build`.

            On Keras 3 call it under `strategy.scope()`, and before weights or state trees are
            loaded.
            """

    class ExperimentalLossScaleOptimizer(ExperimentalLossScaleOptimizerBase, LossScaleOptimizer):
        """The class of TensorFlow 2.0 to 2.5: `LossScaleOptimizer(optimizer, loss_scale)`."""
else:
    LossScaleOptimizer, ExperimentalLossScaleOptimizer = _siblings(_lookup.default_base())


def register_imported() -> None:
    """Makes the classes for each Keras that is imported, or for tf.keras if none is.

    They must exist before a model is loaded, because Keras finds them by name.
    """
    for base in _lookup.imported_bases():
        _siblings(base)


register_imported()
