"""One loss scale for several optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from tf_lossscale_compat._core import (
    _adapter,
    _agreement,
    _arguments,
    _autograph,
    _claims,
    _graphs,
    _horovod,
    _keras_versions,
    _scaler,
    _step,
    _structure,
    _wrapping,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scales import _loss_scales

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def _has_loss_scale(optimizer: Any) -> bool:
    # Keras 3's optimizers can divide gradients by a factor themselves.
    factor = getattr(optimizer, "loss_scale_factor", None)
    return bool(factor) or _wrapping.is_loss_scale_optimizer(type(optimizer))


class _ApplyIfFiniteAdapter(_adapter.OptimizerAdapter):
    """One step of several optimizers; `parts` are the slices of each optimizer's gradients."""

    def __init__(
        self, optimizers: list[Any], parts: list[slice], agreement: _types.Agree | None
    ) -> None:
        self._optimizers, self._parts, self.agreement = optimizers, parts, agreement
        self._for_session = _graphs.in_session_graph()  # A conditional's branch is none.

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        applied = []
        for optimizer, part in zip(self._optimizers, self._parts):
            grads_of_part = grads[part]
            if _keras_versions.is_optimizer(optimizer) and not tf.executing_eagerly():
                grads_of_part = _graphs.to_current_graph(grads_of_part)
            result = optimizer.apply_gradients(list(zip(grads_of_part, variables[part])))
            if not isinstance(result, tf.Operation):
                if self._for_session:
                    raise _no_operation(optimizer)
                result = None  # A tf.function runs all operations that are made in it.
            applied.append(_graphs.as_operation(result))
        return None if tf.executing_eagerly() else tf.group(*applied)


def _no_operation(optimizer: object) -> ValueError:
    return ValueError(
        f"optimizers_and_gradients holds {optimizer!r}, which makes no operation for a Session. "
        "Call apply_if_finite in a tf.function."
    )


def _flatten(
    optimizers_and_gradients: Any,
) -> tuple[list[Any], list[slice], _types.Gradients, _types.Variables]:
    """Returns four lists: optimizers, the slice of each, and all gradients and variables."""
    optimizers: list[Any] = []
    parts: list[slice] = []
    all_grads: _types.Gradients = []
    all_variables: _types.Variables = []
    for pair in optimizers_and_gradients:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                "optimizers_and_gradients must hold pairs (optimizer, grads_and_vars), got "
                f"{pair!r} in a pair's place."
            )
        optimizer, grads_and_vars = pair
        if not _scaler.has_methods(optimizer, "apply_gradients"):
            raise TypeError(
                "optimizers_and_gradients must hold pairs (optimizer, grads_and_vars), got "
                f"{optimizer!r} in an optimizer's place."
            )
        if any(_has_loss_scale(each) for each in _wrapping.optimizer_chain(optimizer)):
            raise ValueError(
                f"optimizers_and_gradients holds {optimizer!r}, which has a loss scale of its own. "
                "Pass the optimizer that it wraps."
            )
        grads, variables = _structure.unzip(grads_and_vars)
        if all(grad is None for grad in grads):
            raise ValueError(f"optimizers_and_gradients has no gradient for {optimizer!r}.")
        base = _keras_versions.base_of(type(optimizer))
        if base and base.__name__ != _keras_versions.OPTIMIZER_V2 and _graphs.in_session_graph():
            raise _no_operation(optimizer)  # Before it is built.
        _horovod.check_reduced(optimizer, grads)
        optimizers.append(optimizer)
        parts.append(slice(len(all_grads), len(all_grads) + len(grads)))
        all_grads += grads
        all_variables += variables
    if not optimizers:
        raise ValueError("optimizers_and_gradients must hold pairs, but holds no optimizer.")
    return optimizers, parts, all_grads, all_variables


def _join_same(
    optimizers: list[Any],
    parts: list[slice],
    grads: _types.Gradients,
    variables: _types.Variables,
) -> Iterable[tuple[Any, _types.Gradients, _types.Variables]]:
    """Returns each optimizer once, with its gradients and variables of all parts."""
    joined: dict[int, tuple[Any, _types.Gradients, _types.Variables]] = {}
    for optimizer, part in zip(optimizers, parts):
        _, its_grads, its_variables = joined.setdefault(id(optimizer), (optimizer, [], []))
        known = set(map(id, its_variables))
        for grad, variable in zip(grads[part], variables[part]):
            if id(variable) not in known:  # In another part.
                its_grads.append(grad)
                its_variables.append(variable)
    return joined.values()


def _check_built(optimizer: Any, grads: _types.Gradients, variables: _types.Variables) -> None:
    """Raises a ValueError if a Keras optimizer was built for other variables."""
    unknown = _keras_versions.unbuilt_variables(optimizer, grads, variables)
    if unknown:
        names = ", ".join(variable.name for variable in unknown)
        raise ValueError(
            f"optimizers_and_gradients holds {optimizer!r}, which was built for other variables "
            f"than {names}. Build it for all variables that it trains."
        )


def _build(optimizer: Any, grads: _types.Gradients, variables: _types.Variables) -> None:
    """Builds a Keras optimizer, once."""
    if hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
        with tf.init_scope():  # Slot variables must not be made in a branch of a conditional.
            optimizer.build(_keras_versions.variables_to_build(grads, variables))


@_autograph.do_not_convert
def apply_if_finite(
    loss_scale: _loss_scales.LossScale | _types.HasManagerMethods,
    optimizers_and_gradients: Iterable[tuple[_types.HasApplyGradients, Iterable[tuple[Any, Any]]]],
    *,
    agree: _types.Agree | None = None,
    enabled: bool = True,
) -> Any:
    """Applies gradients with several optimizers, all or none, and updates their loss scale once.

    Multiply each loss by the scale (`loss_scale()`, or a manager's `get_loss_scale()`), divide its
    gradients by the same value, and call this once per step. If a gradient is not finite on any
    replica, no optimizer applies its gradients.

    Args:
      loss_scale: `LossScale` or `LossScaleManager`.
      optimizers_and_gradients: iterable of (optimizer, grads_and_vars) pairs: a
        `tf.compat.v1.train.Optimizer` or a Keras optimizer, without its own loss scale, and an
        iterable of (unscaled gradient, variable) pairs; a gradient may be None.
      agree: function of a scalar bool tensor that returns its AND over all processes that train
        together without `tf.distribute`; or None. Each step that may be skipped calls it once.
        Horovod's optimizers use Horovod's function by default.
      enabled: bool; if False, every optimizer applies its gradients, finite or not, and the loss
        scale is not updated.

    Returns:
      In graph mode an operation; in eager mode None.

    Raises:
      TypeError: `loss_scale` is not a loss scale or manager, `optimizers_and_gradients` does not
        hold such pairs, `agree` is not a function, or `enabled` is not a bool.
      ValueError: `agree` is given and the loss scale decides by gradients; an optimizer has a loss
        scale or no gradient, was built for other variables, makes no operation for a Session, or is
        a SyncReplicasOptimizer; a Horovod optimizer has not reduced any gradients, or adds up
        gradients of a changing scale; or this is called in a cross-replica context.
    """
    # A dict has `update`, too.
    is_loss_scale = _scaler.has_methods(loss_scale, "update", "__call__")
    if not is_loss_scale and not _scaler.is_manager(loss_scale):
        raise TypeError(
            f"loss_scale must be a LossScale or a LossScaleManager, got {loss_scale!r}. "
            "tf_lossscale_compat.loss_scale.get(...) makes one of a number, a config or 'dynamic'."
        )
    if not hasattr(optimizers_and_gradients, "__iter__"):
        raise TypeError(
            "optimizers_and_gradients must hold pairs (optimizer, grads_and_vars), got "
            f"{optimizers_and_gradients!r}."
        )
    in_use = loss_scale if _arguments.flag("enabled", enabled) else _loss_scales.FixedLossScale(1)
    scaler = _scaler.Scaler(_loss_scales.stand_in(in_use), skip_nonfinite=enabled)
    _claims.check_can_claim(_claims.APPLY_IF_FINITE, scaler)
    optimizers, parts, grads, variables = _flatten(optimizers_and_gradients)
    agreement = _agreement.common(
        [_agreement.resolve(agree, optimizer, scaler) for optimizer in optimizers]
    )
    _step.check_context("apply_if_finite")
    together = _join_same(optimizers, parts, grads, variables)
    for check_or_build in (_check_built, _build):  # No optimizer is built if one is refused.
        for optimizer, its_grads, its_variables in together:
            check_or_build(optimizer, its_grads, its_variables)
    _claims.claim(_claims.APPLY_IF_FINITE, scaler, optimizers)
    adapter = _ApplyIfFiniteAdapter(optimizers, parts, agreement)
    return _step.take(scaler, grads, variables, adapter, method_name="apply_if_finite")


# Where users find it.
apply_if_finite.__module__ = "tf_lossscale_compat"
