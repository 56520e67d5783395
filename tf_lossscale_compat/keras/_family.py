"""Families: the optimizers of each base class of Keras, and what their loss-scale optimizers do."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Callable, Generic, Iterable, NamedTuple, NoReturn, TypeVar

from tf_lossscale_compat._core import (
    _agreement,
    _gradients,
    _graphs,
    _keras_versions,
    _scale,
    _step,
    _tf,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scales import _loss_scales
from tf_lossscale_compat.keras import _configs, _inner, _scaled_rule

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat.keras._owner import KerasOwner

Owner = TypeVar("Owner", bound="KerasOwner")


class _KerasStep(_step.Step):
    """One step of a Keras optimizer; `apply` applies unscaled gradients by the inner optimizer."""

    owner: KerasOwner

    def __init__(
        self, owner: KerasOwner, apply: _types.Apply, aggregate: _types.Aggregate | None
    ) -> None:
        family, loss_scale = owner._tflsc_family, owner._loss_scale
        super().__init__(owner, owner._optimizer, loss_scale, family.agreement(owner))
        self._apply, self.aggregate = apply, aggregate
        self.counts_skipped = owner._tflsc.options.get(
            "count_skipped", family.counts_skipped_by_default
        )
        self.updates_first = family.updates_first

    def check_strategy(self) -> None:
        self.owner._raise_if_strategy_unsupported()

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        if not tf.executing_eagerly():
            grads = _graphs.to_current_graph(grads)
        return self._apply(grads, variables)

    def add_skipped_steps(self, number: int | tf.Tensor) -> Any:
        return self.owner._tflsc_family.add_skipped_steps(self.owner, number)


class LossArguments(NamedTuple):
    """The arguments of `minimize` that gradients depend on; only an `OptimizerV2` has the last."""

    loss: _types.Loss
    var_list: Any
    tape: tf.GradientTape | None
    grad_loss: tf.Tensor | None = None


class KerasFamily(Generic[Owner]):
    """Base class of all families.

    A family has no state of an optimizer. Its methods take the optimizer, the owner.

    Args:
      methods_class: the class of the public methods of this family's loss-scale optimizers.
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
    # True if that Keras' `apply_gradients` takes scaled gradients; see `_scaled_rule`.
    scaled_by_default = False
    # True if that Keras' own loss-scale optimizer counts skipped steps as iterations.
    counts_skipped_by_default = True
    # True if that Keras' own class updates the loss scale before the conditional of a graph.
    updates_first = False
    # Name of the method that returns (gradient, variable) pairs for `minimize`, if there is one.
    compute_method: str | None = None
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

    def check_name(self, name: object) -> None:
        """Raises a TypeError or ValueError if `name` cannot be the optimizer's name."""
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"name must be a str or None, got {name!r}.")

    def check_can_wrap(self, owner: Owner, optimizer: Any) -> None:
        """Raises a TypeError or ValueError if `owner` cannot wrap `optimizer`."""
        base = base_to_wrap(optimizer, self.optimizer_argument)
        if base is not self.base:
            raise TypeError(
                f"{self.optimizer_argument} must derive from {self.base!r}, as "
                f"{type(owner).__name__} wraps only such optimizers, got {optimizer!r}. Derive the "
                "subclass from type(LossScaleOptimizer(optimizer)), which wraps this kind of "
                "optimizer."
            )

    def check_count_skipped(self, count_skipped: bool | None, optimizer: Any) -> None:
        """Raises a ValueError if skipped steps cannot be counted as iterations of `optimizer`."""
        if count_skipped and getattr(optimizer, "gradient_accumulation_steps", None):
            raise ValueError(
                "count_skipped must not be True if the inner optimizer has "
                "gradient_accumulation_steps, got True: its iterations are derived from the "
                "gradients that it has accumulated. Leave one of the two out."
            )

    def check_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        """Raises a ValueError if an optimizer of this family cannot have this loss scale."""
        _scale.check_has_no_owner(loss_scale)
        _scale.check_reciprocal(loss_scale)

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
        new = _configs.from_identifier(loss_scale)
        if _scale.unwrap(new) is _scale.unwrap(old):  # The same manager.
            return
        self.check_loss_scale(new)
        agreement = _agreement.resolve(owner._tflsc.agreement, owner._optimizer, new)
        self.track_loss_scale(owner, new)
        owner._tflsc.agreement = agreement
        owner.__dict__["_loss_scale"] = new
        _scale.set_owner(new, owner)
        _scale.set_owner(old, None)

    def all_variables(self, owner: Owner) -> _types.Variables:
        """Returns the variables whose values `set_weights` takes."""
        return _graphs.variables_of(owner._optimizer) + _scale.variables_of(owner._loss_scale)

    # Scaling and unscaling.

    def variables_for_apply(
        self, owner: Owner, trainable_variables: Iterable[Any] | None
    ) -> _types.Variables:
        """Returns the variables of `apply`, a list."""
        if trainable_variables is None:
            raise ValueError("trainable_variables must be the list of variables, got None.")
        return list(trainable_variables)

    def unscale(self, owner: Owner, grads: Iterable[_types.Gradient]) -> _types.Gradients:
        """Returns gradients divided by the loss scale, as in that Keras."""
        division = self.division(_scale.snapshot(owner._loss_scale()))
        return _gradients.unscale(self.densify(owner, list(grads)), division)

    def division(self, scale: tf.Tensor) -> _gradients.Division:
        """Returns the division of gradients by `scale`, as in that Keras."""
        return _gradients.Division(1.0 / scale)

    def densify(self, owner: Owner, grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients, made dense if that Keras does so before it divides them."""
        return grads

    def compute_scaled_gradients(self, owner: Owner, arguments: LossArguments) -> list[_types.Pair]:
        """Returns pairs of scaled gradients, computed by the inner optimizer, and variables."""
        raise NotImplementedError

    def compute_by_override(self, owner: Owner, arguments: LossArguments) -> list[_types.Pair]:
        """Returns what a subclass' `compute_method` returns."""
        raise NotImplementedError

    def scale_loss(self, owner: Owner, loss: tf.Tensor) -> tf.Tensor:
        """Returns `loss` times the loss scale, in the dtype of `loss`."""
        return _scale.scale_loss(loss, _scale.snapshot(owner._loss_scale()))

    def scale_loss_on_tape(
        self, owner: Owner, loss: _types.Loss, tape: tf.GradientTape | None
    ) -> _types.Loss:
        """Returns the scaled `loss`, a tensor on `tape` or a function."""
        scale: Callable[..., Any] = functools.partial(self.scale_loss, owner)
        if _scale.overrides(owner, self.methods_class, "get_scaled_loss"):
            # The override records its own call. The step does the other half, and unscales.
            owner._tflsc.scaled_rule.record_call(_scaled_rule.GET_UNSCALED_GRADIENTS)
            scale = owner.get_scaled_loss
        if callable(loss):
            return lambda: scale(loss())
        with contextlib.nullcontext() if tape is None else tape:
            return scale(loss)

    def unscale_pairs(
        self, owner: Owner, grads_and_vars: Iterable[_types.Pair]
    ) -> list[_types.Pair]:
        """Returns pairs with unscaled gradients."""
        unscale: Callable[..., _types.Gradients] = functools.partial(self.unscale, owner)
        if _scale.overrides(owner, self.methods_class, "get_unscaled_gradients"):
            # As above: the loss was scaled.
            owner._tflsc.scaled_rule.record_call(_scaled_rule.GET_SCALED_LOSS)
            unscale = owner.get_unscaled_gradients
        grads, variables = _gradients.unzip(grads_and_vars)
        grads = map_except_overwrites(unscale, grads, variables)
        owner._tflsc.scaled_rule.remember_unscaled(grads)
        return list(zip(grads, variables))

    # A step.

    def compute_for_minimize(
        self, owner: Owner, arguments: LossArguments
    ) -> tuple[list[_types.Pair], dict[str, Any]]:
        """Returns what `minimize` passes to `apply_gradients`: pairs and the argument `scaled`.

        The gradients are scaled unless methods of a subclass see them.
        """
        overrides = functools.partial(_scale.overrides, owner, self.methods_class)
        overridden = overrides("apply_gradients")
        if self.compute_method and overrides(self.compute_method):
            pairs, scaled = self.compute_by_override(owner, arguments), False
        else:
            pairs, scaled = self.compute_scaled_gradients(owner, arguments), True
            if overridden or overrides("get_unscaled_gradients"):
                owner._tflsc.scaled_rule.record_call("minimize")
                pairs, scaled = self.unscale_pairs(owner, pairs), False
        # A subclass's method may not take `scaled`, or take it and not pass it on. Before Keras 3
        # no optimizer takes `scaled`, and a subclass may pass all arguments to the inner optimizer.
        takes_scaled = not overridden or (
            self.scaled_by_default and _inner.takes_argument(owner.apply_gradients, "scaled")
        )
        return pairs, {"scaled": scaled} if takes_scaled else {}

    def apply_pairs(
        self,
        owner: Owner,
        grads_and_vars: Iterable[_types.Pair],
        scaled: bool,
        method_name: str = "apply_gradients",
    ) -> Any:
        """Checks pairs of gradients and variables, and takes a step with them.

        `method_name`, of the public method, is for errors.
        """
        raise NotImplementedError

    def take_step(
        self,
        owner: Owner,
        grads: _types.Gradients,
        variables: _types.Variables,
        scaled: bool,
        apply: _types.Apply,
        method_name: str,
        aggregate: _types.Aggregate | None = None,
    ) -> Any:
        """Takes a step; see `Step.take`. It divides the gradients if they are `scaled`.

        For `aggregate` see `Step`. `apply` applies unscaled gradients by the inner optimizer.
        """
        step, division = _KerasStep(owner, apply, aggregate), None
        if scaled:
            division = self.division(_scale.snapshot(step.read()))
            grads = self.densify(owner, grads)
            if any(overwrite_flags(variables)):
                grads = map_except_overwrites(_gradients.unscale, grads, variables, division)
                division = None
        return step.take(grads, variables, f"{type(owner).__name__}.{method_name}", division)

    def agreement(self, owner: Owner) -> _types.Agree | None:
        """Returns the function through which processes agree in a step, or None."""
        return owner._tflsc.agreement

    def add_skipped_steps(self, owner: Owner, number: int | tf.Tensor) -> Any:
        """Counts skipped steps; see `Step.add_skipped_steps`."""
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
    if _keras_versions.is_loss_scale_optimizer(type(optimizer)):
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


def overwrite_flags(variables: _types.Variables) -> list[bool]:
    """Returns for each variable whether its gradient is its new value, as in float8."""
    return [getattr(variable, "overwrite_with_gradient", False) for variable in variables]


def map_except_overwrites(
    function: Callable[..., _types.Gradients],
    grads: _types.Gradients,
    variables: _types.Variables,
    *args: _gradients.Division,
) -> _types.Gradients:
    """Returns `function(grads, *args)`, but gradients that are new values stay as they are.

    These are not scaled; see `overwrite_flags`.
    """
    overwrites = overwrite_flags(variables)
    mapped = [None if overwrite else grad for grad, overwrite in zip(grads, overwrites)]
    results = function(mapped, *args)
    return [grad if overwrite else new for grad, new, overwrite in zip(grads, results, overwrites)]


def unzip_and_check(
    grads_and_vars: Iterable[_types.Pair], may_be_empty: bool = False
) -> tuple[_types.Gradients, _types.Variables]:
    """Returns the list of gradients and that of variables.

    Raises:
      ValueError: no variable has a gradient, or there is no pair unless `may_be_empty`.
    """
    grads, variables = _gradients.unzip(grads_and_vars)
    if not [grad for grad in grads if grad is not None] and not (may_be_empty and not grads):
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


def check_step_context(owner: KerasOwner, method_name: str) -> None:
    """Raises a ValueError in a cross-replica context, before a step makes any variable."""
    name = f"{type(owner).__name__}.{method_name}"
    _step.check_context(name, owner._raise_if_strategy_unsupported)


def check_no_session_graph(owner: KerasOwner) -> None:
    """Raises a ValueError in a graph for a Session, where the optimizer returns no operation."""
    if _graphs.in_session_graph():
        raise ValueError(
            f"{type(owner._optimizer)!r} does not work in a tf.Graph for a Session: it makes no "
            "operation that the session could run. Use eager mode or tf.function; or an "
            "optimizer of keras.optimizers.legacy or tf.compat.v1.train, which works with sessions."
        )
