"""The part that wrappers of all Keras families share: the step, and a loss scale's properties."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

import numpy as np

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _graphs,
    _horovod,
    _ownership,
    _replicas,
    _scaler,
    _state,
    _step,
    _tf,
    _unscaling,
)
from tf_lossscale_compat._scalers import _loss_scales, _managers
from tf_lossscale_compat.keras import _aggregation, _calls

if TYPE_CHECKING:
    import types

    import tensorflow as tf

    from tf_lossscale_compat._core import _types

    # Stands for the class of Keras that each family puts beside this one.
    from tf_lossscale_compat._core._types import KerasOptimizer as _MixedIntoKeras
else:
    tf = _tf.tf
    _MixedIntoKeras = object


class _KerasAdapter(_step.OptimizerAdapter):
    """One step of a Keras optimizer."""

    def __init__(self, owner: LossScaling, apply: _types.Apply, agree: _types.Agree | None) -> None:
        self.observed, self.wrapped, self.agree = owner, owner._optimizer, agree
        self.counts_skipped = owner._tflsc_options.get("count_skipped", owner._tflsc_counts_skipped)
        self._apply, self._count_skipped = apply, owner._tflsc_count_skipped
        self.check_strategy = owner._raise_if_strategy_unsupported

    def apply(self, grads: list[_types.Gradient], variables: list[_types.Variable]) -> Any:
        return self._apply(_step.of_this_graph(grads), variables)

    def count_skipped(self, number: int | tf.Tensor) -> Any:
        return self._count_skipped(number)


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

    Mixed into a class of each Keras family, which adds what that family's optimizers have beyond
    this and says how gradients are applied.
    """

    # Of the class for a family, which `_families` makes.
    _tflsc_family: type  # That class itself.
    _tflsc_family_base: type  # What all optimizers of the family derive from.
    _tflsc_keras: types.ModuleType
    _tflsc_keras_own: type[Any]  # That Keras' own loss-scale class; without one, the base.

    _optimizer: _types.KerasOptimizer
    _loss_scale: _loss_scales.LossScale
    _tflsc_calls: _calls.Calls
    _tflsc_options: dict[str, Any]  # The constructor's arguments that are not None, for configs.
    _tflsc_agree: _types.Agree | None

    # Of the public classes.
    _tflsc_argument: str  # The name of the constructor's first argument.
    _tflsc_check_wrapped: Callable[[Any, bool], None]

    # Each family's own.
    _tflsc_scaled_gradients: Callable[..., Iterable[_types.Pair]]
    _tflsc_apply_pairs: Callable[..., Any]
    _tflsc_deserialize_inner: Callable[[dict[str, Any], dict[str, Any] | None], Any]

    def _tflsc_wrap(
        self,
        inner_optimizer: _types.KerasOptimizer,
        loss_scale: _loss_scales.LossScale,
        name: str | None,
    ) -> str | None:
        """Makes this an optimizer of its family; returns the name for configs, or None."""
        raise NotImplementedError

    # Methods of that Keras' own class, whose steps go through them.
    _tflsc_forbidden_overrides: tuple[str, ...] = (
        "_apply_gradients",
        "_apply_gradients_cross_replica",
    )

    # True if that Keras' `apply_gradients` takes scaled gradients; the rule of `_calls` needs it.
    _tflsc_scaled_by_default = False

    # True if that Keras' own loss-scale optimizer counts skipped steps as iterations.
    _tflsc_counts_skipped = True

    _tflsc_graph_form = _step.GraphForm()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = getattr(cls, "_tflsc_keras_own", None)
        if own is not None:  # Some versions' lacks some of the methods.
            names = tuple(name for name in cls._tflsc_forbidden_overrides if hasattr(own, name))
            _arguments.check_overrides(cls, own, names, "apply_gradients")
        # A subclass's own, or a mixin's, need not call the method that they override.
        for name in _calls.RECORDED:
            owner = next(base for base in cls.__mro__ if name in vars(base))
            if owner is cls or not issubclass(owner, LossScaling):
                setattr(cls, name, _recorded(name, vars(owner)[name]))

    # Hyperparameters that a family's base class keeps on the wrapper, too, without any effect.
    _tflsc_inner_only: tuple[str, ...] = ()

    def _tflsc_check_inner(self, optimizer: object) -> None:
        """Raises a ValueError for an optimizer that no step of this family goes through."""

    def _tflsc_check_clipping(self, optimizer: object, enabled: bool) -> None:
        """Raises a ValueError for an optimizer that would clip scaled gradients."""

    def _raise_if_strategy_unsupported(self) -> None:
        """Raises a ValueError where loss scaling cannot be right under the strategy in scope.

        By the name of Keras 2.3 to 2.6: Graphcore's BERT overrides it, so that a fixed scale can be
        used under a strategy that TensorFlow does not know.
        """
        _replicas.check_strategy()

    def _tflsc_check_scaler(self, scaler: _scaler.Scaler) -> None:
        """Raises a ValueError where gradients cannot be unscaled as this family does."""
        scaler.check_reciprocal()

    # For an error: how that Keras has a fixed loss scale without this class.
    _tflsc_fixed_scale_hint = ""
    # Configs say of a dynamic loss scale, which is the default, that it is one.
    _tflsc_says_dynamic = True
    # True if copies of that Keras' optimizers, its own class' among them, keep no state.
    _tflsc_copies_begin_anew = False
    # Entries of configs that never had an effect.
    _tflsc_ignored_in_configs: tuple[str, ...] = ()

    def _tflsc_refuse(self, arguments: tuple[str, ...]) -> NoReturn:
        """Raises what that Keras raises for arguments that its constructor does not take."""
        raise TypeError(f"{type(self).__name__} takes no {' and no '.join(arguments)}.")

    def __setattr__(self, name: str, value: Any) -> None:
        # Code for TensorFlow 2.0 assigns another loss scale. Families would track it twice.
        if "_tflsc_calls" not in vars(self):  # By a subclass's constructor, before Keras' own.
            object.__setattr__(self, name, value)
        elif name != "_loss_scale" or name not in vars(self):
            self._tflsc_check_reaches(name, value)
            super().__setattr__(name, value)
        elif value is not self._loss_scale:
            old, new = self._loss_scale, _loss_scales.get(value)
            if new is None:
                raise ValueError("loss_scale cannot be None")
            _ownership.check(_ownership.KERAS, new)
            scaler = _scaler.Scaler(new)
            self._tflsc_check_scaler(scaler)
            agree = _agreement.function_for(self._tflsc_agree, self._optimizer, scaler)
            self._tflsc_track_loss_scale(new)
            self.__dict__["_tflsc_agree"] = agree
            self.__dict__["_loss_scale"] = new
            _ownership.claim(_ownership.KERAS, new, [self])
            _ownership.release(old)

    def _tflsc_check_reaches(self, name: str, value: Any) -> None:
        """Raises an AttributeError for a hyperparameter that has no effect on the wrapper."""
        if name.startswith("_") or "_tflsc_options" not in vars(self):  # Until then it is made.
            return
        inner = self._optimizer
        only_there = not (name in vars(self) or hasattr(type(self), name)) and hasattr(inner, name)
        # The stable class of OptimizerV2 hands these on.
        handed_on = name in getattr(inner, "_hyper", ()) and _tf.at_least(2, 4)
        no_effect = name in self._tflsc_inner_only or (only_there and not handed_on)
        # Asked last, as to read a learning rate may add operations to a graph.
        if no_effect and value is not getattr(self, name, None):
            raise AttributeError(
                f"{name} of a {type(self).__name__} has no effect on training. Set it at the "
                f"optimizer that is wrapped: inner_optimizer.{name} = {value!r}."
            )

    def _tflsc_track_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        """Makes checkpoints and files see this one, in the place of any before."""
        self._track_trackable(loss_scale, "loss_scale", overwrite=True)

    def _tflsc_serialize_inner(self) -> dict[str, Any]:
        return self._tflsc_keras.optimizers.serialize(self._optimizer)

    @property
    def agree(self) -> _types.Agree | None:
        """The function that all processes agree through, or None; see the constructor."""
        return self._tflsc_options.get("agree")

    @agree.setter
    def agree(self, agree: _types.Agree | None) -> None:
        scaler = _scaler.Scaler(self._loss_scale)
        self.__dict__["_tflsc_agree"] = _agreement.function_for(agree, self._optimizer, scaler)
        self._tflsc_options.pop("agree", None)
        if agree is not None:
            self._tflsc_options["agree"] = agree

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

    def _tflsc_refuse_to_set(self, name: str, value: object) -> NoReturn:
        """Raises the AttributeError for a loss scale that is set as an attribute."""
        if getattr(self, "dynamic_scale", None) is not None:
            how = f"cannot be set. Write optimizer.dynamic_scale.assign({value!r})."
        elif self.dynamic:
            how = (
                f"cannot be set. Set it at {_scaler.unwrap(self._loss_scale)!r}: of a manager of "
                f"this package by manager.get_loss_scale().assign({value!r})."
            )
        else:
            how = "is fixed. Make another optimizer."
        raise AttributeError(f"{name} of a {type(self).__name__} {how}")

    lr = of_inner("learning_rate")  # By the name that Keras 1 had for it.

    # Scaling and unscaling.

    def _tflsc_scale(self, loss: tf.Tensor) -> tf.Tensor:
        return _unscaling.scale_loss(loss, _scaler.scale(self._loss_scale))

    def _tflsc_unscale(self, grads: Iterable[_types.Gradient]) -> list[_types.Gradient]:
        return _unscaling.unscale(grads, 1.0 / _scaler.scale(self._loss_scale))

    @_autograph.do_not_convert
    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Returns `loss` times the loss scale, as in Keras 3: there in float32 at the least.

        An optimizer that was ever asked for it takes scaled gradients in `apply_gradients`, unless
        `scaled=` there says otherwise.

        Args:
          loss: float tensor.

        Raises:
          ValueError: `apply_gradients` was traced before, for unscaled gradients.
        """
        self._tflsc_calls.called(_calls.SCALED)
        return self._tflsc_scale(loss)

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
        self._tflsc_calls.called(_calls.LOSS_SCALED)
        if callable(loss):
            return lambda: self._tflsc_scale(loss())
        return self._tflsc_scale(loss)

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
        self._tflsc_calls.called(_calls.UNSCALED)
        unscaled = self._tflsc_unscale(grads)
        self._tflsc_calls.returned(unscaled)
        return unscaled

    def _tflsc_scaled(self, loss: _types.Loss, tape: tf.GradientTape | None) -> _types.Loss:
        """Returns `loss`, a tensor on `tape` or a function, scaled."""
        scale = self._tflsc_scale
        if _step.overrides(self, LossScaling, "get_scaled_loss"):
            self._tflsc_calls.called(_calls.UNSCALED)  # The gradients will be unscaled.
            scale = self.get_scaled_loss
        if callable(loss):
            return lambda: scale(loss())
        with contextlib.nullcontext() if tape is None else tape:
            return scale(loss)

    def _tflsc_unscaled_pairs(self, grads_and_vars: Iterable[_types.Pair]) -> list[_types.Pair]:
        unscale = self._tflsc_unscale
        if _step.overrides(self, LossScaling, "get_unscaled_gradients"):
            self._tflsc_calls.called(_calls.LOSS_SCALED)
            unscale = self.get_unscaled_gradients
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        grads = of_scaled(unscale, grads, variables)
        self._tflsc_calls.returned(grads)
        return list(zip(grads, variables))

    # Name of the method that returns (gradient, variable) pairs for `minimize`, if there is one.
    _tflsc_computes: str | None = None

    def _tflsc_minimize(self, *args: Any, **options: Any) -> Any:
        """Applies gradients of a scaled loss, still scaled unless methods of a subclass see them.

        An `apply_gradients` of a subclass sees them as the constructor's `scaled` says.

        `args` are those of `_tflsc_scaled_gradients`, `options` those of `apply_gradients`.
        """
        family, computes = self._tflsc_family, self._tflsc_computes
        if computes and _step.overrides(self, family, computes):
            return self.apply_gradients(getattr(self, computes)(*args), **options)
        pairs, scaled = self._tflsc_scaled_gradients(*args), True
        own = _step.overrides(self, family, "apply_gradients")
        sees = own and not self._tflsc_calls.said
        if sees or _step.overrides(self, family, "get_unscaled_gradients"):
            self._tflsc_calls.called("minimize")
            pairs, scaled = self._tflsc_unscaled_pairs(pairs), False
        # One of a subclass may take no `scaled`, or not hand it on; before Keras 3 there is none
        # of that name, and a subclass may hand all that it is given to the inner optimizer.
        if not own or (
            self._tflsc_scaled_by_default and _aggregation.takes(self.apply_gradients, "scaled")
        ):
            options["scaled"] = scaled
        return self.apply_gradients(pairs, **options)

    # The step.

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Applies gradients, unless the step is to be skipped, and updates the loss scale.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs.
          *args: what that Keras' optimizers take there: before Keras 3 a `name`, or whether to
            `skip_gradients_aggregation`; unless that is True, gradients are summed over replicas,
            or aggregated as the inner optimizer does, before they are tested.
          scaled: bool, whether the gradients are still to be divided by the loss scale; None for
            the constructor's `scaled`. Where that is None too, what the methods that this optimizer
            was ever asked for say: yes after `scale_loss`, which `fit` of Keras 3 calls, no after
            `get_scaled_loss` or `get_unscaled_gradients`; after none of them, yes on Keras 3 and no
            on others.
          **kwargs: handed to the inner optimizer, see there; but for
            `experimental_aggregate_gradients`, the opposite of `skip_gradients_aggregation`.

        Returns:
          The inner optimizer's count of applied steps on Keras 3; an operation of an `OptimizerV2`
          in a graph; else None.

        Raises:
          ValueError: called in a cross-replica context, there is no gradient, or nothing says
            `scaled` and this optimizer was asked both for `scale_loss` and for unscaled gradients.
        """

    def _tflsc_step(
        self,
        grads: list[_types.Gradient],
        variables: list[_types.Variable],
        scaled: bool,
        apply: _types.Apply,
        unaggregated: tuple[list[_types.Gradient], list[_types.Variable]] | None = None,
    ) -> Any:
        """Unscales if `scaled`, decides, applies or skips, and updates the loss scale.

        `apply` is that of an `OptimizerAdapter`; for the rest see `_step.take`.
        """
        scaler, unscaling = _scaler.Scaler(self._loss_scale), None
        if scaled:
            grads, unscaling = self._tflsc_to_unscale(grads, variables, scaler.scale())
        step = _KerasAdapter(self, apply, _horovod.or_default(self._tflsc_agree, self, scaler))
        return _step.take(
            scaler,
            list(grads),
            list(variables),
            step,
            called=f"{type(self).__name__}.apply_gradients",
            unscaling=unscaling,
            form=self._tflsc_graph_form,
            unaggregated=unaggregated,
        )

    @property
    def _tflsc_loss_scale_in_use(self) -> _loss_scales.LossScale:
        return self._loss_scale

    def _tflsc_count_skipped(self, number: int | tf.Tensor) -> Any:
        """Counts so many skipped steps, 1 or a scalar tensor; called once for all replicas."""
        iterations = self._optimizer.iterations
        return iterations.assign_add(tf.cast(number, iterations.dtype), read_value=False)

    def _tflsc_built_for(self) -> list[_types.Variable]:
        """The variables that `apply` takes gradients for where it is given none."""
        raise ValueError("trainable_variables must be the list of variables, got None.")

    def _tflsc_all_variables(self) -> list[_types.Variable]:
        """The variables that `set_weights` takes arrays for, a list."""
        return _state.variables_of(self._optimizer) + _scaler.variables(self._loss_scale)

    def set_weights(self, weights: Any) -> None:
        """Sets the inner optimizer's variables, and the loss scale's if they are given, too.

        Args:
          weights: list of arrays, for the inner optimizer alone or as many as all variables.
        """
        inner, variables = _state.variables_of(self._optimizer), self._tflsc_all_variables()
        if len(weights) not in (len(inner), len(variables)):
            raise ValueError(
                f"weights must be {len(variables)} arrays, or {len(inner)} for the inner optimizer "
                f"alone, got {len(weights)}."
            )
        assign_all(inner if len(weights) == len(inner) else variables, weights)

    def _tflsc_to_unscale(
        self, grads: list[_types.Gradient], variables: list[_types.Variable], scale: tf.Tensor
    ) -> tuple[list[_types.Gradient], _unscaling.Unscaling | None]:
        """Returns gradients, and the `Unscaling` that a step is yet to do, or None."""
        return grads, _unscaling.Unscaling(1.0 / scale)

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
        if trainable_variables is None:
            trainable_variables = self._tflsc_built_for()
        grads, variables = list(grads), list(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"grads must be one for each of {len(variables)} variables, got {len(grads)}."
            )
        self._tflsc_calls.applying_scaled()
        self._tflsc_apply_pairs(zip(grads, variables), scaled=True)


def _recorded(name: str, method: Any) -> Callable[..., Any]:
    """Wraps a method, or another descriptor, so that its calls are recorded under this name."""

    def call(self: LossScaling, *args: Any, **kwargs: Any) -> Any:
        self._tflsc_calls.called(name)
        result = method.__get__(self, type(self))(*args, **kwargs)
        if name == _calls.UNSCALED:
            self._tflsc_calls.returned(result)
        return result

    return functools.update_wrapper(call, method) if callable(method) else call


class WeightDecay(LossScaling):
    """The part of families whose optimizers can leave variables out of their weight decay."""

    _optimizer: _types.NewerKerasOptimizer

    def exclude_from_weight_decay(
        self, var_list: list[Any] | None = None, var_names: list[str] | None = None
    ) -> None:
        """Has the inner optimizer leave variables out of its weight decay.

        Args:
          var_list: list of variables, or None.
          var_names: list of str, of which any is in the names of those variables, or None.
        """
        self._optimizer.exclude_from_weight_decay(var_list, var_names)


class CallableList(list):
    """`optimizer.variables`, which code for other Kerases calls."""

    def __call__(self) -> CallableList:
        return self


def _counts_as(value: np.ndarray, variable: _types.Variable) -> bool:
    """Returns whether both are whole numbers, or neither is."""
    counts = tf.as_dtype(variable.dtype).is_integer
    return counts == np.issubdtype(value.dtype, np.integer)


def values_fit(values: Iterable[Any], variables: Iterable[_types.Variable]) -> bool:
    """Returns whether arrays of a file may be variables' values, by shape and kind of number."""
    return all(
        value.shape == tuple(variable.shape) and _counts_as(value, variable)
        for value, variable in zip(map(np.asarray, values), variables)
    )


def assign_each(pairs: list[tuple[_types.Variable, np.ndarray]]) -> None:
    """Assigns to each variable of (variable, value) pairs its value."""
    for variable, value in pairs:
        variable.assign(value)


def assign_all(
    variables: Iterable[_types.Variable],
    values: Iterable[Any],
    assign: Callable[[list[tuple[_types.Variable, np.ndarray]]], None] = assign_each,
) -> None:
    """Assigns arrays to variables, as many, all of them or none.

    Raises a ValueError where one has another shape than its variable, or a counter stands in a
    number's place and a number in a counter's. All may be of one kind, as they come out of JSON.
    """
    pairs = [(variable, np.asarray(value)) for variable, value in zip(variables, values)]
    for variable, value in pairs:
        if tuple(variable.shape) != value.shape:
            raise ValueError(
                f"weights holds an array of shape {value.shape} for {variable.name}, which has "
                f"shape {variable.shape}."
            )
    wrong = [(each, value) for each, value in pairs if not (value.ndim or _counts_as(value, each))]
    if len({np.issubdtype(value.dtype, np.integer) for _, value in wrong}) > 1:
        shown = ", ".join(f"{value!r} for {each.name}" for each, value in wrong)
        raise ValueError(
            f"weights holds {shown}: they are those of another kind of loss scale or optimizer."
        )
    assign(pairs)


def of_scaled(
    function: Callable[..., list[_types.Gradient]],
    grads: list[_types.Gradient],
    variables: list[_types.Variable],
    *args: tf.Tensor,
) -> list[_types.Gradient]:
    """Returns `function(grads, *args)`, without gradients that are new values, as in float8.

    Those are not scaled; they are returned as they are.
    """
    keeps = [getattr(variable, "overwrite_with_gradient", False) for variable in variables]
    results = function([None if keep else grad for grad, keep in zip(grads, keeps)], *args)
    return [grad if keep else new for grad, new, keep in zip(grads, results, keeps)]


def unzip_pairs(
    grads_and_vars: Iterable[_types.Pair], may_be_empty: bool = False
) -> tuple[list[_types.Gradient], list[_types.Variable]]:
    """Returns the list of gradients and that of variables.

    Raises:
      ValueError: there is no gradient, or no pair unless `may_be_empty`.
    """
    grads_and_vars = list(grads_and_vars)
    grads = [grad for grad, _ in grads_and_vars]
    variables = [variable for _, variable in grads_and_vars]
    if all(grad is None for grad in grads) and not (may_be_empty and not grads):
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


def named_variables_of(loss_scale: _loss_scales.LossScale) -> dict[str, tf.Variable]:
    """The variables of a `LossScale`, a dict from the names they were made with, without scopes."""
    return {
        variable.name.split(":")[0].split("/")[-1]: variable
        for variable in _scaler.variables(loss_scale)
    }


def check_context(wrapper: LossScaling, grads: list[_types.Gradient]) -> None:
    """Raises a ValueError where no step can be taken, before any variable is made for it.

    Such as in a graph for a Session, where these optimizers return no operation.
    """
    _step.check_context(
        f"{type(wrapper).__name__}.apply_gradients", wrapper._raise_if_strategy_unsupported
    )
    _horovod.check_reduced(wrapper, grads)
    if _graphs.in_session_graph():
        raise ValueError(
            f"{type(wrapper._optimizer)!r} updates nothing in a tf.Graph that a Session is "
            "to run: it makes no operation that could be run. Use eager mode or tf.function; or "
            "an optimizer that works with sessions, of keras.optimizers.legacy or "
            "tf.compat.v1.train."
        )


class WrapsTFKeras(LossScaling):
    """The part that both families of tf.keras and `tf_keras` share beyond that."""

    _tflsc_is_legacy: bool  # `deserialize` of those optimizers takes it.
    _tflsc_aggregates_by: tuple[tuple[str, ...], str, bool]  # Arguments of `Aggregation`.
    # Checks and takes apart what `apply_gradients` is given.
    _tflsc_check_pairs: Callable[
        [list[_types.Pair]], tuple[list[_types.Gradient], list[_types.Variable]]
    ]

    clipnorm = of_inner("clipnorm")
    clipvalue = of_inner("clipvalue")
    global_clipnorm = of_inner("global_clipnorm")

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that is wrapped."""
        return self._optimizer

    @property
    def dynamic_scale(self) -> tf.Variable | None:
        """The loss scale, a variable, as on Keras 3; None if it is fixed or of another kind."""
        return getattr(self._loss_scale, "current_loss_scale", None)

    @dynamic_scale.setter
    def dynamic_scale(self, value: NoReturn) -> None:
        self._tflsc_refuse_to_set("dynamic_scale", value)

    def _tflsc_delegate_tracking(self) -> None:
        """Makes checkpoints see the inner optimizer in this one's place, with the loss scale in it.

        TensorFlow 2.3 to 2.15 and `tf_keras` write them so.
        """
        delegating: Any = next(c for c in type(self).__mro__ if "DelegatingTrackable" in c.__name__)
        self._optimizer._is_wrapped_by_loss_scale_optimizer = True  # It can hold one.
        self.__dict__["_trackable"] = self._optimizer  # Some versions read it while they set it.
        delegating.__init__(self, self._optimizer)
        self._tflsc_track_loss_scale(self._loss_scale)

    def _tflsc_apply_pairs(
        self,
        grads_and_vars: Iterable[_types.Pair],
        scaled: bool | None,
        args: tuple[Any, ...] = (),
        aggregates: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Aggregates gradients if `aggregates`, and takes a step with them.

        `args` and `kwargs` are for the inner optimizer's `apply_gradients`.
        """
        pairs = list(grads_and_vars)
        if scaled is None and _tf.at_least(2, 4) and "enabled" not in self._tflsc_options:
            self._tflsc_calls.warn_if_never_asked()
        scaled = self._tflsc_calls.are_scaled(scaled, [grad for grad, _ in pairs])
        grads, variables = self._tflsc_check_pairs(pairs)
        aggregation = _aggregation.Aggregation(
            self._optimizer, aggregates, *self._tflsc_aggregates_by
        )
        kwargs = {**kwargs, **aggregation.kwargs}
        unaggregated = None
        if aggregation.here:
            _step.check_context(
                f"{type(self).__name__}.apply_gradients", self._raise_if_strategy_unsupported
            )
            if scaled:
                grads, scaled = self._tflsc_unscale(grads), False
            unaggregated = _aggregation.filter_empty_gradients(grads, variables)
            grads, variables = aggregation.aggregate(*unaggregated)

        def apply(grads: list[_types.Gradient], variables: list[_types.Variable]) -> Any:
            with aggregation.applied_once():
                return self._optimizer.apply_gradients(list(zip(grads, variables)), *args, **kwargs)

        return self._tflsc_step(grads, variables, scaled, apply, unaggregated)

    @classmethod
    def _tflsc_deserialize_inner(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None
    ) -> Any:
        deserialize = cls._tflsc_keras.optimizers.deserialize
        options = {}
        if "use_legacy_optimizer" in inspect.signature(deserialize).parameters:
            options["use_legacy_optimizer"] = cls._tflsc_is_legacy
        return deserialize(config, custom_objects=custom_objects, **options)
