"""What the loss-scale optimizers of all Kerases have in common: public methods, state, checks.

The module of each Keras derives a class from `KerasOptimizerBase` and one from `KerasStep`. Users
derive from the former, so what no original has begins with `_tflsc` there.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterable, NamedTuple, NoReturn

import numpy as np

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _callers,
    _keras_versions,
    _replicas,
    _scale_or_manager,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scales import _loss_scales, _managers
from tf_lossscale_compat.keras import _scaled_rule

if TYPE_CHECKING:
    import types

    from typing_extensions import Self

    from tf_lossscale_compat._core import _types

    # The base class of Keras' optimizers, for type checkers. At run time it depends on the family.
    from tf_lossscale_compat._core._types import KerasOptimizer as _KerasOptimizer
    from tf_lossscale_compat.keras import _keras_step
else:
    _KerasOptimizer = object


# For the error of an argument that the constructor does not take, as of another framework.
IT_TAKES = (
    "It takes dynamic, initial_scale, dynamic_growth_steps (the finite steps after which the scale "
    "doubles), loss_scale (as DynamicLossScale(multiplier=4.0)), name, count_skipped and agree."
)


class Family(NamedTuple):
    """The optimizers with one base class of one Keras, as one of the public classes wraps them."""

    optimizer_base: type[KerasOptimizerBase]  # Of the loss-scale optimizers that wrap them.
    keras: types.ModuleType
    inner_base: type  # The base class that they derive from.
    original: type[Any]  # That Keras' own loss-scale class, or without one `inner_base`.
    experimental: bool  # The public class takes a `LossScale`, as in r2.0.

    @property
    def optimizer_argument(self) -> str:
        """The name of the constructor's first argument."""
        return "optimizer" if self.experimental else "inner_optimizer"


class KerasData:
    """The data of a loss-scale optimizer, beside its loss scale and the inner optimizer."""

    def __init__(self, scaled_rule: _scaled_rule.ScaledRule) -> None:
        self.scaled_rule = scaled_rule
        self.agreement: _types.Agree | None = None
        # The constructor's other arguments, but for defaults; configs hold them.
        self.options: dict[str, Any] = {}
        # The loss scale's variables as Keras 3 has them, by name.
        self.keras_variables: dict[str, Any] = {}
        self.constructed = False  # The constructor of this package's class has set all attributes.


def inner_property(name: str) -> property:
    """Returns a property that gets and sets the inner optimizer's attribute."""

    def read(self: KerasOptimizerBase) -> Any:
        return getattr(self._optimizer, name)

    def write(self: KerasOptimizerBase, value: Any) -> None:
        getattr(self._optimizer, name)  # Raises if the optimizer has no such attribute.
        setattr(self._optimizer, name, value)

    return property(read, write, doc=f"The inner optimizer's `{name}`.")


class KerasOptimizerBase(_KerasOptimizer):
    """Base class of the loss-scale optimizers of each Keras."""

    _optimizer: _types.KerasOptimizer
    _loss_scale: _loss_scales.LossScale
    _tflsc: KerasData
    _tflsc_family: Family
    _tflsc_step_class: type[_keras_step.KerasStep]
    # Methods that steps of that Keras' own class call.
    _tflsc_uncalled: tuple[str, ...] = ("_apply_gradients", "_apply_gradients_cross_replica")
    # Hyperparameters that the wrapper has too, and in some versions its config, without an effect.
    _tflsc_without_effect: tuple[str, ...] = ()
    # Configs say `dynamic` even of a dynamic loss scale, which is the default.
    _tflsc_config_says_dynamic = True
    # True if copies of that Keras' optimizers, also of its own loss-scale class, have no state.
    _tflsc_copies_lose_state = False
    # True if `apply_gradients` of that Keras' own class takes scaled gradients; see `ScaledRule`.
    _tflsc_takes_scaled = False
    # The end of the name by which files of models know the class.
    _tflsc_registered_suffix = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # A subclass's constructor may have arguments that no Keras' `__new__` takes.
        return object.__new__(cls)

    # For a `Step`, which reads them without a call.
    _tflsc_loss_scale = property(operator.attrgetter("_loss_scale"))
    _tflsc_wrapped = property(operator.attrgetter("_optimizer"))
    _tflsc_agreement = property(operator.attrgetter("_tflsc.agreement"))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        family = getattr(cls, "_tflsc_family", None)
        if family is None:  # `Keras3OptimizerBase` and its kin.
            for name in ("apply_gradients", "scale_loss"):
                getattr(cls, name).__doc__ = getattr(KerasOptimizerBase, name).__doc__
            return
        # Keras' own class lacks some of these methods in some versions.
        names = tuple(name for name in cls._tflsc_uncalled if hasattr(family.original, name))
        _arguments.check_overrides(cls, family.original, names, "apply_gradients")
        # An override in a subclass or a mixin may not call the method that it overrides.
        for name in _scaled_rule.NOTED_OVERRIDES:
            definer = next(base for base in cls.__mro__ if name in vars(base))
            if definer is cls or not issubclass(definer, KerasOptimizerBase):
                setattr(cls, name, _note_calls(name, vars(definer)[name]))

    def _raise_if_strategy_unsupported(self) -> None:
        """Raises a ValueError if loss scaling does not support the strategy in scope.

        Keras 2.3 to 2.6 has this name. Graphcore's BERT overrides it, to use a fixed scale under a
        strategy that TensorFlow does not know.
        """
        _replicas.check_strategy()

    def __setattr__(self, name: str, value: Any) -> None:
        data = vars(self).get("_tflsc")
        if data is None:  # A subclass's constructor may set attributes first.
            object.__setattr__(self, name, value)
        elif name == "_loss_scale":  # Keras would track it a second time.
            self._tflsc_set_loss_scale(value)
        else:
            if data.constructed and not name.startswith("_"):
                _check_has_effect(self, name, value)
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        names = set(super().__dir__())
        if _callers.is_loading_files():
            # `load_own_variables` has read the inner optimizer's state. Keras would go on to the
            # inner optimizer, and warn of files that have the state in one place.
            names -= {"inner_optimizer", "_optimizer", "_trackable"}
            names = {name for name in names if not name.startswith("_tflsc")}
        return names

    @property
    def agree(self) -> _types.Agree | None:
        """The function through which all processes agree, or None; see the constructor."""
        return self._tflsc.options.get("agree")

    @agree.setter
    def agree(self, agree: _types.Agree | None) -> None:
        """Sets the function through which all processes agree, or None."""
        self._tflsc.agreement = _agreement.resolve(agree, self._optimizer, self._loss_scale)
        self._tflsc.options.pop("agree", None)
        if agree is not None:
            self._tflsc.options["agree"] = agree

    # Properties of the loss scale.

    @property
    def dynamic(self) -> bool:
        """True unless the loss scale is a fixed one of this package."""
        fixed = (_loss_scales.FixedLossScale, _managers.FixedLossScaleManager)
        return not isinstance(_scale_or_manager.innermost(self._loss_scale), fixed)

    @property
    def initial_scale(self) -> float | None:
        """The loss scale at the start, a float; None for a user's `LossScale` without one.

        On Keras 3 it can be set. Before the optimizer is built, this sets the loss scale too. After
        that, only configs have the new number.
        """
        if isinstance(self._loss_scale, _loss_scales.FixedLossScale):
            return self._loss_scale.get_config()["loss_scale_value"]
        return getattr(self._loss_scale, "initial_loss_scale", None)

    @property
    def dynamic_growth_steps(self) -> int | None:
        """The number of finite steps in a row after which the scale grows, an int; or None.

        On Keras 3 it can be set. Functions that are traced already keep the old number.
        """
        return getattr(self._loss_scale, "increment_period", None)

    @property
    def dynamic_counter(self) -> tf.Variable | None:
        """Counts finite steps since the scale last grew or a step was not finite.

        A scalar variable, int64, or int32 with a manager; None with a fixed scale.
        """
        return getattr(self._loss_scale, "good_steps", None)

    lr = inner_property("learning_rate")  # Keras 1 had this name.

    def set_weights(self, weights: Any) -> None:
        """Sets the inner optimizer's variables, or these and the loss scale's.

        Args:
          weights: list of arrays, one for each of these variables.

        Raises:
          ValueError: `weights` has another length, or an array has another shape than its variable.
        """
        inner = _variables.of(self._optimizer)
        variables = self._tflsc_all_variables()
        if len(weights) not in (len(inner), len(variables)):
            raise ValueError(
                f"weights must be {len(variables)} arrays, or {len(inner)} for the inner optimizer "
                f"alone, got {len(weights)}."
            )
        assign_all(inner if len(weights) == len(inner) else variables, weights)

    # Scaling, unscaling and steps.

    @_autograph.do_not_convert
    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Returns `loss` times the loss scale.

        After a call, `apply_gradients` takes scaled gradients unless its `scaled=` says otherwise.

        Args:
          loss: float tensor.

        Returns:
          A tensor of the shape and dtype of `loss`; of at least float32 on Keras 3.

        Raises:
          ValueError: `apply_gradients` was traced before, for unscaled gradients.
        """
        self._tflsc.scaled_rule.note_call(_scaled_rule.SCALE_LOSS)
        return self._tflsc_step_class.scale_loss(loss, self._loss_scale())

    @_autograph.do_not_convert
    def get_scaled_loss(self, loss: Any) -> Any:
        """Returns `loss` times the loss scale; call `get_unscaled_gradients` with its gradients.

        Args:
          loss: float tensor, or a function without arguments that returns one.

        Returns:
          A tensor of the shape and dtype of `loss`, or a function that returns one.

        Raises:
          ValueError: `apply_gradients` was traced before, for scaled gradients.
        """
        self._tflsc.scaled_rule.note_call(_scaled_rule.GET_SCALED_LOSS)
        scale = self._tflsc_step_class.scale_loss
        if callable(loss):
            return lambda: scale(loss(), self._loss_scale())
        return scale(loss, self._loss_scale())

    @_autograph.do_not_convert
    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Returns `grads` divided by the loss scale.

        After a call, `apply_gradients` takes unscaled gradients unless its `scaled=` says
        otherwise.

        Args:
          grads: iterable of tensors, `tf.IndexedSlices` and None.

        Returns:
          A list of the same length, shapes and dtypes. None stays None; from TensorFlow 2.3 on,
          sparse stays sparse.

        Raises:
          ValueError: `apply_gradients` was traced before, for scaled gradients.
          TypeError: `grads` holds a list or tuple, such as a pair with a variable.
        """
        grads = list(grads)
        for grad in grads:
            if isinstance(grad, (list, tuple)):
                raise TypeError(f"grads must be a flat list of gradients, got {grad!r} in it.")
        self._tflsc.scaled_rule.note_call(_scaled_rule.GET_UNSCALED_GRADIENTS)
        unscaled = self._tflsc_step_class.unscale(self._loss_scale(), grads)
        self._tflsc.scaled_rule.remember_unscaled(unscaled)
        return unscaled

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        *args: Any,
        scaled: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Applies gradients or skips them, and updates the loss scale.

        Before Keras 3, gradients are first aggregated over replicas, as by the inner optimizer.

        Args:
          grads_and_vars: iterable of pairs (gradient, variable). A gradient has its variable's
            shape, or is None.
          *args: the argument of that Keras' own loss-scale class at this position: `name` for an
            `OptimizerV2`; `skip_gradients_aggregation`, a bool, for an optimizer new in TensorFlow
            2.11.
          scaled: bool, the step divides the gradients by the loss scale. If it is None, the methods
            decide that were ever called: True after `scale_loss`, which `fit` of Keras 3 calls;
            False after `get_scaled_loss` or `get_unscaled_gradients`, and after other methods that
            unscale, such as `compute_gradients`. If none was called, it is False, but an error of
            the stable class on Keras 3.
          **kwargs: none on Keras 3; before it, passed to the inner optimizer, but for
            `experimental_aggregate_gradients`, the opposite of `skip_gradients_aggregation`.

        Returns:
          On Keras 3 the inner optimizer's `iterations`. Before it, in a graph: an operation of an
          `OptimizerV2`; the `iterations`, a tensor, if Horovod accumulates gradients. Else None.

        Raises:
          ValueError: called in a cross-replica context; no variable has a gradient; or `scaled` is
            None, and both `scale_loss` and a method that unscales were called, or on Keras 3 none.
        """
        raise NotImplementedError

    @_autograph.do_not_convert
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Applies scaled gradients or skips them, as in Keras 3; see `apply_gradients`.

        Args:
          grads: iterable of gradients of a scaled loss.
          trainable_variables: iterable of variables, of the same length; on Keras 3 None for those
            for which the optimizer was built.

        Returns:
          In a graph an operation, or what the inner optimizer returned; in eager mode None.

        Raises:
          ValueError: called in a cross-replica context; the lengths differ; or no variable has a
            gradient.
        """
        grads = list(grads)
        variables = self._tflsc_variables_for_apply(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"grads must hold {len(variables)} gradients, one per variable, got {len(grads)}."
            )
        pairs = list(zip(grads, variables))
        self._tflsc.scaled_rule.warn_if_divided_twice(pairs)
        return self._tflsc_step_class(self, "apply").take_pairs(pairs, scaled=True)

    # Where Kerases differ. Constructors call these before the optimizer has any state.

    @classmethod
    def _tflsc_refuse_arguments(cls, arguments: Iterable[str]) -> NoReturn:
        """Raises the error of that Keras' own class for unknown arguments of the constructor."""
        raise TypeError(f"{cls.__name__} takes no {' and no '.join(arguments)}. {IT_TAKES}")

    @classmethod
    def _tflsc_check_name(cls, name: object) -> None:
        """Raises a TypeError or ValueError if `name` cannot be the optimizer's name."""
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"name must be a str or None, got {name!r}.")

    @classmethod
    def _tflsc_check_can_wrap(cls, optimizer: Any) -> None:
        """Raises a TypeError or ValueError if this class cannot wrap `optimizer`."""
        argument, expected = cls._tflsc_family.optimizer_argument, cls._tflsc_family.inner_base
        if base_to_wrap(optimizer, argument) is not expected:
            raise TypeError(
                f"{argument} must derive from {expected!r}, as {cls.__name__} wraps only such "
                f"optimizers, got {optimizer!r}. Derive the subclass from "
                "type(LossScaleOptimizer(optimizer)), which wraps this kind of optimizer."
            )

    @classmethod
    def _tflsc_check_loss_scale(cls, loss_scale: _loss_scales.LossScale) -> None:
        """Raises a ValueError if an optimizer of this class cannot have this loss scale."""
        _scale_or_manager.check_has_no_owner(loss_scale)
        _scale_or_manager.check_reciprocal(loss_scale)

    def _tflsc_init_base_class(self, name: str | None) -> str | None:
        """Makes this an optimizer of that Keras; returns its name for configs, or None."""
        raise NotImplementedError

    @classmethod
    def _tflsc_deserialize(
        cls, keras: types.ModuleType, config: dict[str, Any], custom_objects: dict[str, Any] | None
    ) -> Any:
        """Returns the inner optimizer that a config describes."""
        raise NotImplementedError

    def _tflsc_track_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        """Makes checkpoints and files hold this loss scale, and no earlier one."""
        self._track_trackable(loss_scale, "loss_scale", overwrite=True)

    def _tflsc_set_loss_scale(self, loss_scale: _loss_scales.Identifier) -> None:
        """Replaces the loss scale, as code for TensorFlow 2.0 does."""
        old = self._loss_scale
        if loss_scale is old:
            return
        new = _loss_scales.get(_loss_scales.require(loss_scale))
        if _scale_or_manager.innermost(new) is _scale_or_manager.innermost(old):
            return  # The same manager.
        self._tflsc_check_loss_scale(new)
        agreement = _agreement.resolve(self._tflsc.agreement, self._optimizer, new)
        self._tflsc_track_loss_scale(new)
        self._tflsc.agreement = agreement
        self.__dict__["_loss_scale"] = new
        _scale_or_manager.set_owner(new, self)
        _scale_or_manager.set_owner(old, None)

    def _tflsc_all_variables(self) -> _types.Variables:
        """Returns the variables whose values `set_weights` takes."""
        return _variables.of(self._optimizer) + _scale_or_manager.variables_of(self._loss_scale)

    def _tflsc_variables_for_apply(self, variables: Iterable[Any] | None) -> _types.Variables:
        """Returns the variables of `apply`, a list."""
        if variables is None:
            raise ValueError("trainable_variables must be the list of variables, got None.")
        return list(variables)


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
    if _keras_versions.is_loss_scale_optimizer(type(optimizer)):
        raise TypeError(
            f"{argument} must have no loss scale itself, as a LossScaleOptimizer cannot wrap "
            f"another LossScaleOptimizer, got {optimizer!r}. Pass its inner_optimizer; or, as "
            "compile wraps optimizers under a float16 policy, wrap the optimizer before compile."
        )
    # Set where checkpoints can hold one loss scale: by `_tflsc_delegate_tracking`, not on Keras 3.
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


def check_count_skipped(count_skipped: bool | None, optimizer: Any) -> None:
    """Raises a ValueError if skipped steps cannot be counted as iterations of `optimizer`."""
    if count_skipped and getattr(optimizer, "gradient_accumulation_steps", None):
        raise ValueError(
            "count_skipped must not be True if the inner optimizer has "
            "gradient_accumulation_steps, got True: its iterations are derived from the "
            "gradients that it has accumulated. Leave one of the two out."
        )


def _note_calls(name: str, method: Any) -> Callable[..., Any]:
    """Returns `method`, a function or other descriptor, wrapped so that its calls are noted."""

    def call(self: KerasOptimizerBase, *args: Any, **kwargs: Any) -> Any:
        self._tflsc.scaled_rule.note_call(name)
        result = method.__get__(self, type(self))(*args, **kwargs)
        if name == _scaled_rule.GET_UNSCALED_GRADIENTS:
            self._tflsc.scaled_rule.remember_unscaled(result)
        return result

    return functools.update_wrapper(call, method) if callable(method) else call


def _check_has_effect(wrapper: KerasOptimizerBase, name: str, value: Any) -> None:
    """Raises an AttributeError if a hyperparameter of the wrapper has no effect."""
    inner = wrapper._optimizer
    is_hyperparameter = name in getattr(inner, "_hyper", ())
    # Keras' own class of TensorFlow 2.4 and later sets these of the inner optimizer.
    if is_hyperparameter and _tf.at_least(2, 4):
        return
    # Nothing is read from the inner optimizer: that may make its variables, before a variable or
    # function that is set takes the place of one.
    only_there = not _has(wrapper, name) and (is_hyperparameter or _has(inner, name))
    no_effect = only_there or name in wrapper._tflsc_without_effect
    # `getattr` comes last: it may add operations to a graph, as for a learning rate.
    if no_effect and value is not getattr(wrapper, name, None):
        raise AttributeError(
            f"{name} of a {type(wrapper).__name__} has no effect on training. Set it on the "
            f"wrapped optimizer: inner_optimizer.{name} = {value!r}."
        )


def _has(optimizer: object, name: str) -> bool:
    return name in vars(optimizer) or hasattr(type(optimizer), name)


def refuse_to_set(wrapper: KerasOptimizerBase, name: str, value: object) -> NoReturn:
    """Raises the AttributeError for setting the loss scale's value as an attribute."""
    if getattr(wrapper, "dynamic_scale", None) is not None:
        how = f"cannot be set. Write optimizer.dynamic_scale.assign({value!r})."
    elif wrapper.dynamic:
        loss_scale = _scale_or_manager.innermost(wrapper._loss_scale)
        how = (
            f"cannot be set. Set it on {loss_scale!r}. For a manager of this package, write "
            f"manager.get_loss_scale().assign({value!r})."
        )
    else:
        how = "is fixed. Make another optimizer with that scale."
    raise AttributeError(f"{name} of a {type(wrapper).__name__} {how}")


# Values of variables, for files and `set_weights`.


class CallableList(list):
    """A list that can be called: `optimizer.variables` is a method in some versions of Keras.

    A call returns the list `called`, if there is one.
    """

    def __init__(self, variables: Iterable[Any], called: list[Any] | None = None) -> None:
        super().__init__(variables)
        self._called = called

    def __call__(self) -> list[Any]:
        return self if self._called is None else self._called


def variables_by_name(loss_scale: _loss_scales.LossScale) -> dict[str, tf.Variable]:
    """Returns a dict from names to a loss scale's variables; names are without scopes.

    A name that is taken gets a number: in eager mode all variables without a name have the same.
    """
    named: dict[str, tf.Variable] = {}
    for variable in _scale_or_manager.variables_of(loss_scale):
        name = variable.name.split(":")[0].split("/")[-1]
        while name in named:
            name = f"{name}_{len(named)}"
        named[name] = variable
    return named


def _same_kind_of_number(value: np.ndarray, variable: _types.Variable) -> bool:
    """Returns whether both have an integer dtype, or neither has."""
    is_integer = tf.as_dtype(variable.dtype).is_integer
    return is_integer == np.issubdtype(value.dtype, np.integer)


def matches(values: Iterable[Any], variables: Iterable[_types.Variable]) -> bool:
    """Returns whether arrays have the variables' shapes and kinds of numbers."""
    return all(
        value.shape == tuple(variable.shape) and _same_kind_of_number(value, variable)
        for value, variable in zip(map(np.asarray, values), variables)
    )


def _assign_each(pairs: list[tuple[_types.Variable, np.ndarray]]) -> None:
    for variable, value in pairs:
        variable.assign(value)


def assign_all(
    variables: Iterable[_types.Variable],
    values: Iterable[Any],
    assign: Callable[[list[tuple[_types.Variable, np.ndarray]]], None] = _assign_each,
) -> None:
    """Assigns arrays to as many variables: all, or none after a ValueError.

    All may be integers, or floats, as in JSON. Two that stand in each other's place, such as a
    scale and a counter, are an error.
    """
    pairs = [(variable, np.asarray(value)) for variable, value in zip(variables, values)]
    for variable, value in pairs:
        if tuple(variable.shape) != value.shape:
            raise ValueError(
                f"The weights hold an array of shape {value.shape} for {variable.name}, which has "
                f"shape {variable.shape}."
            )
    wrong = [
        (each, value)
        for each, value in pairs
        if not (value.ndim or _same_kind_of_number(value, each))
    ]
    if len({np.issubdtype(value.dtype, np.integer) for _, value in wrong}) > 1:
        shown = ", ".join(f"{value!r} for {each.name}" for each, value in wrong)
        raise ValueError(
            f"The weights hold {shown}, which belong to another kind of loss scale or optimizer."
        )
    assign(pairs)
