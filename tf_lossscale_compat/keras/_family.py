"""The step of a Keras loss-scale optimizer, and the data that one keeps.

A `Family` has the optimizers of one base class of Keras. It has no state, and its methods take the
loss-scale optimizer, the owner, as those of `_v1._family` do.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterable, NoReturn, TypeVar

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _graphs,
    _keras_versions,
    _ownership,
    _scaler,
    _state,
    _step,
    _structure,
    _tf,
    _unscaling,
    _wrapping,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scalers import _loss_scales
from tf_lossscale_compat.keras import _aggregation, _calls, _configs

if TYPE_CHECKING:
    import types
    from typing import Protocol

    from tf_lossscale_compat._core import _types

    class KerasOwner(Protocol):
        """A loss-scale optimizer, as its family uses it."""

        _tflsc: KerasData
        _optimizer: Any  # The inner optimizer.
        _loss_scale: _loss_scales.LossScale

        def get_scaled_loss(self, loss: Any) -> Any: ...
        def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]: ...
        def _raise_if_strategy_unsupported(self) -> None: ...
        @property
        def _tflsc_family(self) -> Family[Any]: ...
        @property
        def apply_gradients(self) -> Callable[..., Any]: ...
        @property
        def _track_trackable(self) -> Callable[..., Any]: ...


Owner = TypeVar("Owner", bound="KerasOwner")


class KerasData:
    """The data of a loss-scale optimizer, beside its loss scale and the inner optimizer.

    Attributes:
      calls: `_calls.Calls`.
      enabled: bool, the loss is scaled and steps may be skipped.
      agree: function of a scalar bool tensor, or None.
      options: dict of the constructor's arguments that are not None, for configs.
      loss_scale_arguments: dict of the constructor's arguments for the loss scale if the optimizer
        is not enabled, for configs; else empty.
      variables: dict from names to the loss scale's variables as Keras 3 has them.
      made: bool, the constructor has returned.
    """

    def __init__(self, calls: _calls.Calls, enabled: bool) -> None:
        self.calls, self.enabled = calls, enabled
        self.agree: _types.Agree | None = None
        self.options: dict[str, Any] = {}
        self.loss_scale_arguments: dict[str, Any] = {}
        self.variables: dict[str, Any] = {}
        self.made = False


class _KerasAdapter(_step.OptimizerAdapter):
    """One step of a Keras optimizer."""

    def __init__(self, owner: KerasOwner, apply: _types.Apply, agree: _types.Agree | None) -> None:
        self._family, self._owner, self._apply = owner._tflsc_family, owner, apply
        self.observed, self.wrapped, self.agree = owner, owner._optimizer, agree
        self.counts_skipped = owner._tflsc.options.get("count_skipped", self._family.counts_skipped)
        self.check_strategy = owner._raise_if_strategy_unsupported

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        if not tf.executing_eagerly():
            grads = _graphs.of_this_graph(grads)
        return self._apply(grads, variables)

    def count_skipped(self, number: int | tf.Tensor) -> Any:
        return self._family.count_skipped(self._owner, number)


class Family(Generic[Owner]):
    """Base class of all families.

    Args:
      keras: the public Keras module.
      base: the class that all optimizers of the family derive from.
      original: that Keras' own loss-scale class; `base` if there is none.
      experimental: bool, for the class of TensorFlow 2.0, whose constructor takes a `LossScale`.
    """

    # The class of the public methods that only this family's loss-scale optimizers have.
    methods: type
    # Methods that steps of that Keras' own class call.
    forbidden_overrides: tuple[str, ...] = ("_apply_gradients", "_apply_gradients_cross_replica")
    # True if that Keras' `apply_gradients` takes scaled gradients; see `_calls`.
    scaled_by_default = False
    # True if that Keras' own loss-scale optimizer counts skipped steps as iterations.
    counts_skipped = True
    graph_form = _step.GraphForm()
    # Name of the method that returns (gradient, variable) pairs for `minimize`, if there is one.
    compute_method: str | None = None
    # Hyperparameters that the wrapper has too, and in some versions its config, without an effect.
    inner_only: tuple[str, ...] = ()
    # For an error: how to have a fixed loss scale in that Keras without this class.
    fixed_scale_hint = ""
    # Configs say `dynamic` even of a dynamic loss scale, which is the default.
    says_dynamic = True
    # True if copies of that Keras' optimizers, also of its own loss-scale class, have no state.
    copies_begin_anew = False
    # The end of the name by which files of models know the class.
    registered_suffix = ""

    def __init__(
        self, keras: types.ModuleType, base: type, original: type[Any], experimental: bool
    ) -> None:
        self.keras, self.base = keras, base
        self.original, self.experimental = original, experimental
        self.argument = "optimizer" if experimental else "inner_optimizer"

    # Making an optimizer.

    def refuse(self, name: str, arguments: tuple[str, ...]) -> NoReturn:
        """Raises the error of that Keras' own class for unknown arguments of the constructor."""
        raise TypeError(f"{name} takes no {' and no '.join(arguments)}.")

    def check_wrapped(self, owner: Owner, optimizer: Any, enabled: bool) -> None:
        """Raises a TypeError or ValueError if `owner` cannot wrap `optimizer`."""
        base = base_to_wrap(optimizer, self.argument)
        if base is not self.base:
            raise TypeError(
                f"{self.argument} must derive from {self.base!r}, as {type(owner).__name__} wraps "
                f"only such optimizers, got {optimizer!r}. Derive the subclass from "
                "type(LossScaleOptimizer(optimizer)), which wraps this kind of optimizer."
            )
        factor = getattr(optimizer, "loss_scale_factor", None)
        if not enabled and factor not in (None, 1):
            raise ValueError(
                f"enabled must not be False if the optimizer has a loss_scale_factor, got one of "
                f"{factor!r}: the wrapper would not scale the loss. Leave one of the two out."
            )

    def check_scaler(self, scaler: _scaler.Scaler) -> None:
        """Raises a ValueError if this family cannot unscale gradients by the scale."""
        scaler.check_reciprocal()

    def wrap(self, owner: Owner, name: str | None) -> str | None:
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

    def replace_loss_scale(self, owner: Owner, loss_scale: _loss_scales.Identifier) -> None:
        """Replaces the loss scale, as code for TensorFlow 2.0 does."""
        old, new = owner._loss_scale, _configs.from_identifier(loss_scale)
        scaler = _scaler.Scaler(new)
        if scaler.subject is _scaler.Scaler(old).subject:
            return
        _arguments.check_replaces_loss_scale(owner._tflsc.enabled)
        _ownership.check(_ownership.KERAS, scaler)
        self.check_scaler(scaler)
        agree = _agreement.function_for(owner._tflsc.agree, owner._optimizer, scaler)
        self.track_loss_scale(owner, new)
        owner._tflsc.agree = agree
        owner.__dict__["_loss_scale"] = new
        _ownership.claim(_ownership.KERAS, scaler, [owner])
        _ownership.release(old, owner)

    def all_variables(self, owner: Owner) -> _types.Variables:
        """Returns the variables whose values `set_weights` takes."""
        return _state.variables_of(owner._optimizer) + _scaler.Scaler(owner._loss_scale).variables()

    def apply_variables(self, owner: Owner, given: Iterable[Any] | None) -> _types.Variables:
        """Returns the variables of `apply`, a list; `given` is its argument."""
        if given is None:
            raise ValueError("trainable_variables must be the list of variables, got None.")
        return list(given)

    # Gradients.

    def unscale(self, owner: Owner, grads: Iterable[_types.Gradient]) -> _types.Gradients:
        """Returns gradients divided by the loss scale, as in that Keras."""
        scale = _scaler.snapshot(owner._loss_scale())
        return _unscaling.unscale(grads, _unscaling.Division(1.0 / scale))

    def division_for(
        self, owner: Owner, grads: _types.Gradients, variables: _types.Variables, scale: tf.Tensor
    ) -> tuple[_types.Gradients, _unscaling.Division | None]:
        """Returns gradients and the `Division` that the step does; None if it does none."""
        return grads, _unscaling.Division(1.0 / scale)

    def scaled_gradients(self, owner: Owner, *args: Any) -> list[_types.Pair]:
        """Returns pairs of scaled gradients, computed by the inner optimizer, and variables.

        `args` are the arguments of the public method.
        """
        raise NotImplementedError

    def scale(self, owner: Owner, loss: _types.Loss, tape: tf.GradientTape | None) -> _types.Loss:
        """Returns the scaled `loss`, a tensor on `tape` or a function."""
        scale: Callable[..., Any] = functools.partial(scaled_loss, owner)
        if _arguments.overrides(owner, self.methods, "get_scaled_loss"):
            owner._tflsc.calls.called(_calls.UNSCALED)  # The gradients will be unscaled.
            scale = owner.get_scaled_loss
        if callable(loss):
            return lambda: scale(loss())
        with contextlib.nullcontext() if tape is None else tape:
            return scale(loss)

    def unscaled_pairs(
        self, owner: Owner, grads_and_vars: Iterable[_types.Pair]
    ) -> list[_types.Pair]:
        """Returns pairs with unscaled gradients."""
        unscale: Callable[..., _types.Gradients] = functools.partial(self.unscale, owner)
        if _arguments.overrides(owner, self.methods, "get_unscaled_gradients"):
            owner._tflsc.calls.called(_calls.LOSS_SCALED)
            unscale = owner.get_unscaled_gradients
        grads, variables = _structure.unzip(grads_and_vars)
        grads = map_scaled(unscale, grads, variables)
        owner._tflsc.calls.returned(grads)
        return list(zip(grads, variables))

    # A step.

    def to_minimize(self, owner: Owner, *args: Any) -> tuple[list[_types.Pair], dict[str, Any]]:
        """Returns what `minimize` passes to `apply_gradients`: pairs and the argument `scaled`.

        The gradients are those of `scaled_gradients(owner, *args)`, and scaled unless methods of a
        subclass see them. The constructor's `scaled` says how an `apply_gradients` of a subclass
        sees them.
        """
        if self.compute_method and _arguments.overrides(owner, self.methods, self.compute_method):
            return getattr(owner, self.compute_method)(*args), {}
        pairs, scaled = self.scaled_gradients(owner, *args), True
        overridden = _arguments.overrides(owner, self.methods, "apply_gradients")
        sees = overridden and not owner._tflsc.calls.constructor_scaled
        if sees or _arguments.overrides(owner, self.methods, "get_unscaled_gradients"):
            owner._tflsc.calls.called("minimize")
            pairs, scaled = self.unscaled_pairs(owner, pairs), False
        # A subclass's method may not take `scaled`, or take it and not pass it on. Before Keras 3
        # no optimizer takes `scaled`, and a subclass may pass all arguments to the inner optimizer.
        takes = not overridden or (
            self.scaled_by_default and _aggregation.takes(owner.apply_gradients, "scaled")
        )
        return pairs, {"scaled": scaled} if takes else {}

    def apply_pairs(self, owner: Owner, grads_and_vars: Iterable[_types.Pair], scaled: bool) -> Any:
        """Checks pairs of gradients and variables, and takes a step with them."""
        raise NotImplementedError

    def take_step(
        self,
        owner: Owner,
        grads: _types.Gradients,
        variables: _types.Variables,
        scaled: bool,
        apply: _types.Apply,
        unaggregated: tuple[_types.Gradients, _types.Variables] | None = None,
    ) -> Any:
        """Takes a step; see `_step.take`. It divides the gradients if they are `scaled`.

        `apply` applies unscaled gradients by the inner optimizer.
        """
        scaler, division = _scaler.Scaler(owner._loss_scale), None
        if scaled:
            grads, division = self.division_for(
                owner, grads, variables, _scaler.snapshot(scaler.read())
            )
        return _step.take(
            scaler,
            grads,
            variables,
            _KerasAdapter(owner, apply, self.agree(owner, scaler)),
            called=f"{type(owner).__name__}.apply_gradients",
            division=division,
            form=self.graph_form,
            unaggregated=unaggregated,
        )

    def agree(self, owner: Owner, scaler: _scaler.Scaler) -> _types.Agree | None:
        """Returns the function through which processes agree in a step, or None."""
        return owner._tflsc.agree

    def count_skipped(self, owner: Owner, number: int | tf.Tensor) -> Any:
        """Counts skipped steps; see `_step.OptimizerAdapter.count_skipped`."""
        iterations = owner._optimizer.iterations
        return iterations.assign_add(tf.cast(number, iterations.dtype), read_value=False)


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
    if of_dtensor and base.__name__ == _keras_versions.TF_KERAS:
        raise TypeError(
            f"{argument} must not be an optimizer of tf.keras.dtensor, got {optimizer!r}: its "
            "gradients are on a mesh, but a loss scale is not. Use an optimizer of "
            "tf.keras.optimizers without a mesh, under a strategy of tf.distribute."
        )
    return base


def scaled_loss(owner: KerasOwner, loss: tf.Tensor) -> tf.Tensor:
    """Returns `loss` times the loss scale, in the dtype of `loss`."""
    return _unscaling.scale_loss(loss, _scaler.snapshot(owner._loss_scale()))


def map_scaled(
    function: Callable[..., _types.Gradients],
    grads: _types.Gradients,
    variables: _types.Variables,
    *args: _unscaling.Division,
) -> _types.Gradients:
    """Returns `function(grads, *args)`, except for gradients that are new values, as in float8.

    These are not scaled, and stay as they are.
    """
    keeps = [getattr(variable, "overwrite_with_gradient", False) for variable in variables]
    results = function([None if keep else grad for grad, keep in zip(grads, keeps)], *args)
    return [grad if keep else new for grad, new, keep in zip(grads, results, keeps)]


def unzip_pairs(
    grads_and_vars: Iterable[_types.Pair], may_be_empty: bool = False
) -> tuple[_types.Gradients, _types.Variables]:
    """Returns the list of gradients and that of variables.

    Raises:
      ValueError: no variable has a gradient, or there is no pair unless `may_be_empty`.
    """
    grads, variables = _structure.unzip(grads_and_vars)
    if not [grad for grad in grads if grad is not None] and not (may_be_empty and not grads):
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


def check_context(owner: KerasOwner) -> None:
    """Raises a ValueError in a cross-replica context, before a step makes any variable."""
    called = f"{type(owner).__name__}.apply_gradients"
    _step.check_context(called, owner._raise_if_strategy_unsupported)


def check_graph(owner: KerasOwner) -> None:
    """Raises a ValueError in a graph for a Session, where the optimizer returns no operation."""
    if _graphs.in_session_graph():
        raise ValueError(
            f"{type(owner._optimizer)!r} does not work in a tf.Graph for a Session: it makes no "
            "operation that the session could run. Use eager mode or tf.function; or an "
            "optimizer of keras.optimizers.legacy or tf.compat.v1.train, which works with sessions."
        )
