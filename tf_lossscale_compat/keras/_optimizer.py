"""The public methods that loss-scale optimizers of all Keras families share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _replicas,
    _scaler,
    _state,
    _tf,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scalers import _loss_scales, _managers
from tf_lossscale_compat.keras import _calls, _family, _values

if TYPE_CHECKING:
    from typing_extensions import Self

    from tf_lossscale_compat._core import _types

    # Stands for the class of Keras that each family puts beside this one.
    from tf_lossscale_compat._core._types import KerasOptimizer as _MixedIntoKeras
else:
    _MixedIntoKeras = object


def of_inner(name: str) -> property:
    """A property that is read and set of the inner optimizer, where that has it."""

    def read(self: LossScaling) -> Any:
        return getattr(self._optimizer, name)

    def write(self: LossScaling, value: Any) -> None:
        getattr(self._optimizer, name)  # Raises if the optimizer has no such attribute.
        setattr(self._optimizer, name, value)

    return property(read, write, doc=f"The inner optimizer's `{name}`.")


class LossScaling(_MixedIntoKeras):
    """Scales losses, unscales gradients once, and has the inner optimizer apply them or not.

    Each family derives a class from this, with the methods that its optimizers have beyond these.
    What a step does is in the family, `_family.Family`.
    """

    _optimizer: Any
    _loss_scale: _loss_scales.LossScale
    _tflsc: _family.Kept
    _tflsc_family: _family.Family  # Of the classes for a family.

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Constructors of subclasses take what they like: past those of any Keras.
        return object.__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kind = getattr(cls, "_tflsc_family", None)
        if kind is None:
            return
        # Some versions' lacks some of the methods.
        names = tuple(name for name in kind.forbidden_overrides if hasattr(kind.own, name))
        _arguments.check_overrides(cls, kind.own, names, "apply_gradients")
        # A subclass's own, or a mixin's, need not call the method that they override.
        for name in _calls.RECORDED:
            owner = next(base for base in cls.__mro__ if name in vars(base))
            if owner is cls or not issubclass(owner, LossScaling):
                setattr(cls, name, _recorded(name, vars(owner)[name]))

    def _raise_if_strategy_unsupported(self) -> None:
        """Raises a ValueError where loss scaling cannot be right under the strategy in scope.

        By the name of Keras 2.3 to 2.6: Graphcore's BERT overrides it, so that a fixed scale can be
        used under a strategy that TensorFlow does not know.
        """
        _replicas.check_strategy()

    def __setattr__(self, name: str, value: Any) -> None:
        kept = vars(self).get("_tflsc")
        if kept is None:  # By a subclass's constructor, before Keras' own.
            object.__setattr__(self, name, value)
        elif name == "_loss_scale":  # Families would track it twice.
            if value is not self._loss_scale:
                self._tflsc_family.replace_loss_scale(self, value)
        else:
            if kept.made and not name.startswith("_"):
                _check_reaches(self, name, value)
            super().__setattr__(name, value)

    @property
    def agree(self) -> _types.Agree | None:
        """The function that all processes agree through, or None; see the constructor."""
        return self._tflsc.options.get("agree")

    @agree.setter
    def agree(self, agree: _types.Agree | None) -> None:
        scaler = _scaler.Scaler(self._loss_scale)
        self._tflsc.agree = _agreement.function_for(agree, self._optimizer, scaler)
        self._tflsc.options.pop("agree", None)
        if agree is not None:
            self._tflsc.options["agree"] = agree

    # Properties of the loss scale.

    @property
    def dynamic(self) -> bool:
        """True if the loss scale changes by itself."""
        fixed = (_loss_scales.FixedLossScale, _managers.FixedLossScaleManager)
        return not isinstance(_scaler.unwrap(self._loss_scale), fixed)

    @property
    def initial_scale(self) -> float | None:
        """The loss scale at the start, a float; None if a custom `LossScale` does not tell.

        On Keras 3 it can be set: before the optimizer is built it is the loss scale, after that it
        is in configs alone.
        """
        if isinstance(self._loss_scale, _loss_scales.FixedLossScale):
            return self._loss_scale.get_config()["loss_scale_value"]
        return getattr(self._loss_scale, "initial_loss_scale", None)

    @property
    def dynamic_growth_steps(self) -> int | None:
        """After how many finite steps in a row the scale grows, an int; None if it does not.

        On Keras 3 it can be set; a function that was traced before keeps the number.
        """
        return getattr(self._loss_scale, "increment_period", None)

    @property
    def dynamic_counter(self) -> tf.Variable | None:
        """Finite steps since the loss scale last changed, a variable; None if not counted."""
        return getattr(self._loss_scale, "good_steps", None)

    lr = of_inner("learning_rate")  # By the name that Keras 1 had for it.

    def set_weights(self, weights: Any) -> None:
        """Sets the inner optimizer's variables, and the loss scale's if they are given, too.

        Args:
          weights: list of arrays, for the inner optimizer alone or as many as all variables.
        """
        inner, variables = (
            _state.variables_of(self._optimizer),
            self._tflsc_family.all_variables(self),
        )
        if len(weights) not in (len(inner), len(variables)):
            raise ValueError(
                f"weights must be {len(variables)} arrays, or {len(inner)} for the inner optimizer "
                f"alone, got {len(weights)}."
            )
        _values.assign_all(inner if len(weights) == len(inner) else variables, weights)

    # Scaling, unscaling and steps.

    @_autograph.do_not_convert
    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Returns `loss` times the loss scale, as in Keras 3: there in float32 at the least.

        Once this was called, `apply_gradients` of this optimizer takes scaled gradients, unless its
        `scaled=` says otherwise.

        Args:
          loss: float tensor.

        Raises:
          ValueError: `apply_gradients` was traced before, for unscaled gradients.
        """
        self._tflsc.calls.called(_calls.SCALED)
        return _family.scaled_loss(self, loss)

    @_autograph.do_not_convert
    def get_scaled_loss(self, loss: Any) -> Any:
        """Returns `loss` times the loss scale; call `get_unscaled_gradients` with its gradients.

        Args:
          loss: float tensor, or a function without arguments that returns one.

        Returns:
          A tensor of the dtype of `loss`, or a function that returns one.

        Raises:
          ValueError: `apply_gradients` was traced before, for scaled gradients.
        """
        self._tflsc.calls.called(_calls.LOSS_SCALED)
        if callable(loss):
            return lambda: _family.scaled_loss(self, loss())
        return _family.scaled_loss(self, loss)

    @_autograph.do_not_convert
    def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]:
        """Returns `grads` divided by the loss scale; `apply_gradients` then takes them as they are.

        Args:
          grads: iterable of tensors, `tf.IndexedSlices` and None.

        Returns:
          A list as long; a gradient keeps its dtype, sparse stays sparse, None stays None.

        Raises:
          ValueError: `apply_gradients` was traced before, for scaled gradients.
        """
        self._tflsc.calls.called(_calls.UNSCALED)
        unscaled = self._tflsc_family.unscale(self, grads)
        self._tflsc.calls.returned(unscaled)
        return unscaled

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Applies gradients, unless the step is to be skipped, and updates the loss scale.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs.
          *args: what that Keras' optimizers take there: before Keras 3 a `name`, or whether to
            `skip_gradients_aggregation`; unless that is True, gradients are summed over replicas,
            or aggregated as the inner optimizer does, before they are tested.
          scaled: bool, whether to divide the gradients by the loss scale; None for the
            constructor's `scaled`. If that is None too, the methods ever called on this optimizer
            decide: yes after `scale_loss`, which `fit` of Keras 3 calls; no after
            `get_scaled_loss` or `get_unscaled_gradients`; after none of them, yes on Keras 3 and
            no on others.
          **kwargs: handed to the inner optimizer, see there; but for
            `experimental_aggregate_gradients`, the opposite of `skip_gradients_aggregation`.

        Returns:
          The inner optimizer's count of applied steps on Keras 3; an operation of an `OptimizerV2`
          in a graph; else None.

        Raises:
          ValueError: called in a cross-replica context, there is no gradient, or nothing says
            `scaled` and both `scale_loss` and a method that unscales were called on it.
        """
        raise NotImplementedError

    @_autograph.do_not_convert
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Applies scaled gradients, as in Keras 3, unless the step is to be skipped.

        Args:
          grads: list of gradients of a loss that was scaled.
          trainable_variables: list of variables, as long; on Keras 3 None stands for those that
            the optimizer was built with.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        grads, variables = list(grads), self._tflsc_family.trained(self, trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"grads must hold {len(variables)} gradients, one per variable, got {len(grads)}."
            )
        self._tflsc.calls.applying_scaled()
        self._tflsc_family.apply_pairs(self, zip(grads, variables), scaled=True)


def _recorded(name: str, method: Any) -> Callable[..., Any]:
    """Wraps a method, or another descriptor, so that its calls are recorded under this name."""

    def call(self: LossScaling, *args: Any, **kwargs: Any) -> Any:
        self._tflsc.calls.called(name)
        result = method.__get__(self, type(self))(*args, **kwargs)
        if name == _calls.UNSCALED:
            self._tflsc.calls.returned(result)
        return result

    return functools.update_wrapper(call, method) if callable(method) else call


def _check_reaches(owner: LossScaling, name: str, value: Any) -> None:
    """Raises an AttributeError for a hyperparameter that has no effect on the wrapper."""
    inner = owner._optimizer
    only_there = not (name in vars(owner) or hasattr(type(owner), name)) and hasattr(inner, name)
    # The stable class of OptimizerV2 hands these on.
    handed_on = name in getattr(inner, "_hyper", ()) and _tf.at_least(2, 4)
    no_effect = name in owner._tflsc_family.inner_only or (only_there and not handed_on)
    # Asked last, as to read a learning rate may add operations to a graph.
    if no_effect and value is not getattr(owner, name, None):
        raise AttributeError(
            f"{name} of a {type(owner).__name__} has no effect on training. Set it on the "
            f"wrapped optimizer: inner_optimizer.{name} = {value!r}."
        )


def refuse_to_set(owner: LossScaling, name: str, value: object) -> NoReturn:
    """Raises the AttributeError for a loss scale that is set as an attribute."""
    if getattr(owner, "dynamic_scale", None) is not None:
        how = f"cannot be set. Write optimizer.dynamic_scale.assign({value!r})."
    elif owner.dynamic:
        how = (
            f"cannot be set. Set it on {_scaler.unwrap(owner._loss_scale)!r}. For a manager of "
            f"this package, write manager.get_loss_scale().assign({value!r})."
        )
    else:
        how = "is fixed. Make another optimizer with that scale."
    raise AttributeError(f"{name} of a {type(owner).__name__} {how}")


class WeightDecay(LossScaling):
    """The part of families whose optimizers can leave variables out of their weight decay."""

    def exclude_from_weight_decay(
        self, var_list: list[Any] | None = None, var_names: list[str] | None = None
    ) -> None:
        """Has the inner optimizer leave variables out of its weight decay.

        Args:
          var_list: list of variables, or None.
          var_names: list of str, of which any is in the names of those variables, or None.
        """
        self._optimizer.exclude_from_weight_decay(var_list, var_names)
