"""How the loss-scale optimizers of a Keras family take a step, and what one of them keeps.

A family knows its Keras and has no other state. Its methods are given the optimizer, the owner, as
those of `_v1._family` are.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

from tf_lossscale_compat._core import (
    _agreement,
    _graphs,
    _horovod,
    _ownership,
    _scaler,
    _state,
    _step,
    _unscaling,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scalers import _loss_scales
from tf_lossscale_compat.keras import _aggregation, _calls, _inner

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types


class Kept:
    """What a loss-scale optimizer keeps beside its loss scale and the inner optimizer.

    Attributes:
      calls: `_calls.Calls`.
      enabled: bool, losses are scaled and steps may be skipped.
      agree: function of a scalar bool tensor, or None.
      options: dict, the constructor's arguments that are not None, for configs.
      asked: dict; where the optimizer is not enabled, the arguments for a loss scale.
      variables: dict from names to the loss scale's variables as Keras 3 has them.
      made: bool, the constructor is done.
    """

    def __init__(self, calls: _calls.Calls, enabled: bool) -> None:
        self.calls, self.enabled = calls, enabled
        self.agree: _types.Agree | None = None
        self.options: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.variables: dict[str, Any] = {}
        self.made = False


class _Adapter(_step.OptimizerAdapter):
    """One step of a Keras optimizer."""

    def __init__(self, owner: Any, apply: _types.Apply, agree: _types.Agree | None) -> None:
        self._kind, self._owner, self._apply = owner._tflsc_family, owner, apply
        self.observed, self.wrapped, self.agree = owner, owner._optimizer, agree
        self.counts_skipped = owner._tflsc.options.get("count_skipped", self._kind.counts_skipped)
        self.check_strategy = owner._raise_if_strategy_unsupported

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        return self._apply(_step.of_this_graph(grads), variables)

    def count_skipped(self, number: int | tf.Tensor) -> Any:
        return self._kind.count_skipped(self._owner, number)


class Family:
    """What all families share.

    Args:
      keras: the Keras module, with `optimizers` and the like.
      base: the class that all optimizers of the family derive from.
      own: that Keras' own loss-scale class; without one, `base`.
      experimental: bool, of the class of TensorFlow 2.0, which takes no numbers.
    """

    methods: type  # The class with the public methods of the family's loss-scale optimizers.

    # Methods of that Keras' own class, whose steps go through them.
    forbidden_overrides: tuple[str, ...] = ("_apply_gradients", "_apply_gradients_cross_replica")
    # True if that Keras' `apply_gradients` takes scaled gradients; the rule of `_calls` needs it.
    scaled_by_default = False
    # True if that Keras' own loss-scale optimizer counts skipped steps as iterations.
    counts_skipped = True
    graph_form = _step.GraphForm()
    # Name of the method that returns (gradient, variable) pairs for `minimize`, if there is one.
    computes: str | None = None
    # Hyperparameters that the base class keeps on the wrapper, and some versions in its config,
    # without any effect.
    inner_only: tuple[str, ...] = ()
    # For an error: how that Keras has a fixed loss scale without this class.
    fixed_scale_hint = ""
    # Configs say of a dynamic loss scale, which is the default, that it is one.
    says_dynamic = True
    # True if copies of that Keras' optimizers, its own class' among them, keep no state.
    copies_begin_anew = False
    # The end of the name in files of models.
    suffix = ""

    def __init__(
        self, keras: types.ModuleType, base: type, own: type[Any], experimental: bool
    ) -> None:
        self.keras, self.base, self.own, self.experimental = keras, base, own, experimental
        self.argument = "optimizer" if experimental else "inner_optimizer"

    # Making an optimizer.

    def refuse(self, name: str, arguments: tuple[str, ...]) -> NoReturn:
        """Raises what that Keras raises for arguments that a constructor does not take."""
        raise TypeError(f"{name} takes no {' and no '.join(arguments)}.")

    def check_wrapped(self, owner: Any, optimizer: Any, enabled: bool) -> None:
        """Raises a TypeError or ValueError where `owner` cannot wrap `optimizer`."""
        base = _inner.base_of(optimizer, self.argument)
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
        self.check_inner(owner, optimizer)
        self.check_clipping(optimizer, enabled)

    def check_inner(self, owner: Any, optimizer: object) -> None:
        """Raises a ValueError for an optimizer that no step of this family goes through."""

    def check_clipping(self, optimizer: object, enabled: bool) -> None:
        """Raises a ValueError for an optimizer that would clip scaled gradients."""

    def check_scaler(self, scaler: _scaler.Scaler) -> None:
        """Raises a ValueError where gradients cannot be unscaled as this family does."""
        scaler.check_reciprocal()

    def wrap(self, owner: Any, loss_scale: _loss_scales.LossScale, name: str | None) -> str | None:
        """Makes `owner` an optimizer of its family; returns the name for configs, or None."""
        raise NotImplementedError

    def deserialize(self, config: dict[str, Any], custom_objects: dict[str, Any] | None) -> Any:
        """Returns the optimizer that a config describes."""
        raise NotImplementedError

    # The loss scale in force.

    def loss_scale(self, owner: Any) -> _loss_scales.LossScale:
        """Returns the loss scale in force."""
        return owner._loss_scale

    def track_loss_scale(self, owner: Any, loss_scale: _loss_scales.LossScale) -> None:
        """Makes checkpoints and files see this one, in the place of any before."""
        owner._track_trackable(loss_scale, "loss_scale", overwrite=True)

    def replace_loss_scale(self, owner: Any, loss_scale: Any) -> None:
        """Puts another loss scale in force, as code for TensorFlow 2.0 does."""
        old, new = owner._loss_scale, _loss_scales.get(loss_scale)
        if new is None:
            raise ValueError("loss_scale cannot be None")
        _ownership.check(_ownership.KERAS, new)
        scaler = _scaler.Scaler(new)
        self.check_scaler(scaler)
        agree = _agreement.function_for(owner._tflsc.agree, owner._optimizer, scaler)
        self.track_loss_scale(owner, new)
        owner._tflsc.agree = agree
        owner.__dict__["_loss_scale"] = new
        _ownership.claim(_ownership.KERAS, new, [owner])
        _ownership.release(old)

    def all_variables(self, owner: Any) -> _types.Variables:
        """Returns the variables that `set_weights` takes arrays for."""
        return _state.variables_of(owner._optimizer) + _scaler.variables(owner._loss_scale)

    def trained(self, owner: Any, given: Iterable[Any] | None) -> _types.Variables:
        """Returns the variables that `apply` takes gradients for, a list; None where not given."""
        if given is None:
            raise ValueError("trainable_variables must be the list of variables, got None.")
        return list(given)

    # Gradients.

    def unscale(self, owner: Any, grads: Iterable[_types.Gradient]) -> _types.Gradients:
        """Returns gradients divided by the loss scale, as that Keras divides them."""
        return _unscaling.unscale(grads, 1.0 / _scaler.read_scale(owner._loss_scale))

    def to_unscale(
        self, owner: Any, grads: _types.Gradients, variables: _types.Variables, scale: tf.Tensor
    ) -> tuple[_types.Gradients, _unscaling.Unscaling | None]:
        """Returns gradients, and the `Unscaling` that a step is yet to do, or None."""
        return grads, _unscaling.Unscaling(1.0 / scale)

    def scaled_gradients(self, owner: Any, *args: Any) -> list[_types.Pair]:
        """Has the inner optimizer compute gradients of the scaled loss; returns pairs.

        `args` are those of its method.
        """
        raise NotImplementedError

    def scale(self, owner: Any, loss: _types.Loss, tape: tf.GradientTape | None) -> _types.Loss:
        """Returns `loss`, a tensor on `tape` or a function, scaled."""
        scale: Callable[..., Any] = functools.partial(scaled_loss, owner)
        if _step.overrides(owner, self.methods, "get_scaled_loss"):
            owner._tflsc.calls.called(_calls.UNSCALED)  # The gradients will be unscaled.
            scale = owner.get_scaled_loss
        if callable(loss):
            return lambda: scale(loss())
        with contextlib.nullcontext() if tape is None else tape:
            return scale(loss)

    def unscaled_pairs(
        self, owner: Any, grads_and_vars: Iterable[_types.Pair]
    ) -> list[_types.Pair]:
        """Returns pairs with unscaled gradients."""
        unscale: Callable[..., _types.Gradients] = functools.partial(self.unscale, owner)
        if _step.overrides(owner, self.methods, "get_unscaled_gradients"):
            owner._tflsc.calls.called(_calls.LOSS_SCALED)
            unscale = owner.get_unscaled_gradients
        pairs = list(grads_and_vars)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        grads = of_scaled(unscale, grads, variables)
        owner._tflsc.calls.returned(grads)
        return list(zip(grads, variables))

    # A step.

    def minimize(self, owner: Any, *args: Any, **options: Any) -> Any:
        """Applies gradients of a scaled loss, still scaled unless methods of a subclass see them.

        An `apply_gradients` of a subclass sees them as the constructor's `scaled` says.

        `args` are those of `scaled_gradients`, `options` those of `apply_gradients`.
        """
        if self.computes and _step.overrides(owner, self.methods, self.computes):
            return owner.apply_gradients(getattr(owner, self.computes)(*args), **options)
        pairs, scaled = self.scaled_gradients(owner, *args), True
        own = _step.overrides(owner, self.methods, "apply_gradients")
        sees = own and not owner._tflsc.calls.said
        if sees or _step.overrides(owner, self.methods, "get_unscaled_gradients"):
            owner._tflsc.calls.called("minimize")
            pairs, scaled = self.unscaled_pairs(owner, pairs), False
        # One of a subclass may take no `scaled`, or not hand it on; before Keras 3 there is none
        # of that name, and a subclass may hand all that it is given to the inner optimizer.
        if not own or (
            self.scaled_by_default and _aggregation.takes(owner.apply_gradients, "scaled")
        ):
            options["scaled"] = scaled
        return owner.apply_gradients(pairs, **options)

    def apply_pairs(self, owner: Any, grads_and_vars: Iterable[_types.Pair], scaled: bool) -> Any:
        """Checks pairs and takes a step with them."""
        raise NotImplementedError

    def take_step(
        self,
        owner: Any,
        grads: _types.Gradients,
        variables: _types.Variables,
        scaled: bool,
        apply: _types.Apply,
        unaggregated: tuple[_types.Gradients, _types.Variables] | None = None,
    ) -> Any:
        """Unscales if `scaled`, decides, applies or skips, and updates the loss scale.

        `apply` is that of an `OptimizerAdapter`; for the rest see `_step.take`.
        """
        scaler, unscaling = _scaler.Scaler(owner._loss_scale), None
        if scaled:
            grads, unscaling = self.to_unscale(owner, grads, variables, scaler.scale())
        agree = _horovod.or_default(owner._tflsc.agree, owner, scaler)
        return _step.take(
            scaler,
            grads,
            variables,
            _Adapter(owner, apply, agree),
            called=f"{type(owner).__name__}.apply_gradients",
            unscaling=unscaling,
            form=self.graph_form,
            unaggregated=unaggregated,
        )

    def count_skipped(self, owner: Any, number: int | tf.Tensor) -> Any:
        """Counts so many skipped steps, 1 or a scalar tensor; called once for all replicas."""
        iterations = owner._optimizer.iterations
        return iterations.assign_add(tf.cast(number, iterations.dtype), read_value=False)


def scaled_loss(owner: Any, loss: tf.Tensor) -> tf.Tensor:
    """Returns `loss` times the loss scale, in its own dtype."""
    return _unscaling.scale_loss(loss, _scaler.read_scale(owner._loss_scale))


def of_scaled(
    function: Callable[..., _types.Gradients],
    grads: _types.Gradients,
    variables: _types.Variables,
    *args: tf.Tensor,
) -> _types.Gradients:
    """Returns `function(grads, *args)`, without gradients that are new values, as in float8.

    Those are not scaled; they are returned as they are.
    """
    keeps = [getattr(variable, "overwrite_with_gradient", False) for variable in variables]
    results = function([None if keep else grad for grad, keep in zip(grads, keeps)], *args)
    return [grad if keep else new for grad, new, keep in zip(grads, results, keeps)]


def unzip_pairs(
    grads_and_vars: Iterable[_types.Pair], may_be_empty: bool = False
) -> tuple[_types.Gradients, _types.Variables]:
    """Returns the list of gradients and that of variables.

    Raises:
      ValueError: there is no gradient, or no pair unless `may_be_empty`.
    """
    grads_and_vars = list(grads_and_vars)
    grads = [grad for grad, _ in grads_and_vars]
    variables = [variable for _, variable in grads_and_vars]
    if not [grad for grad in grads if grad is not None] and not (may_be_empty and not grads):
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


def check_context(owner: Any) -> None:
    """Raises a ValueError in a cross-replica context, before any variable is made for a step."""
    called = f"{type(owner).__name__}.apply_gradients"
    _step.check_context(called, owner._raise_if_strategy_unsupported)


def check_graph(owner: Any) -> None:
    """Raises a ValueError in a graph for a Session, where the optimizer returns no operation."""
    if _graphs.in_session_graph():
        raise ValueError(
            f"{type(owner._optimizer)!r} does not work in a tf.Graph for a Session: it makes no "
            "operation that the session could run. Use eager mode or tf.function; or an "
            "optimizer of keras.optimizers.legacy or tf.compat.v1.train, which works with sessions."
        )
