"""The steps of both loss-scale optimizers around a `tf.compat.v1.train.Optimizer`.

A `V1Family` does the work of an optimizer's public methods. It has no state: its methods take the
optimizer, the owner. Users derive from the optimizers' classes, and names of methods here cannot
clash with theirs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_lossscale_compat._core import (
    _adapter,
    _agreement,
    _gradients,
    _graphs,
    _scaler,
    _step,
    _step_record,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from typing import Callable, Protocol

    from tf_lossscale_compat._core import _types

    class V1Owner(Protocol):
        """A loss-scale optimizer, as its family uses it."""

        _tflsc: V1Data
        _opt: Any  # The wrapped optimizer of contrib's optimizer,
        _optimizer: Any  # and that of r2.0's.

        @property
        def _tflsc_family(self) -> V1Family: ...
        def get_name(self) -> str: ...
        @property
        def _track_trackable(self) -> Callable[..., Any]: ...


class V1Data(NamedTuple):
    """The data of a loss-scale optimizer; replaced as a whole, because shallow copies share it.

    Attributes:
      loss_scale: the loss scale or manager in use.
      agreement: function through which processes agree, or None; see `_types.Agree`.
      keep_sparse: bool, contrib's optimizer keeps sparse gradients sparse.
    """

    loss_scale: Any = None
    agreement: _types.Agree | None = None
    keep_sparse: bool = False


class _V1Adapter(_adapter.OptimizerAdapter):
    """One step of the loss-scale optimizer `owner`; for `names` see `V1Family.operation_names`."""

    wrapped: _types.HasApplyGradients

    def __init__(
        self,
        owner: V1Owner,
        wrapped: _types.HasApplyGradients,
        global_step: Any,
        names: tuple[str | None, str | None],
    ) -> None:
        self.watched, self.wrapped, self.agreement = owner, wrapped, owner._tflsc.agreement
        self.skips_zero_reciprocal = not tf.executing_eagerly()
        self.updates_first = owner._tflsc_family.updates_first
        self._global_step = global_step
        self.name, self._wrapped_name = names

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        pairs = list(zip(grads, variables))
        return self.wrapped.apply_gradients(pairs, self._global_step, self._wrapped_name)


class _ContribAdapter(_V1Adapter):
    """One step of contrib's optimizer."""

    cond = staticmethod(_graphs.cond_with_v1_names)

    if not _tf.at_least(2, 0):

        def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
            if not tf.executing_eagerly():
                return super().apply(grads, variables)
            with tf1.name_scope("cond"):  # Eager steps have a conditional's names, too.
                return super().apply(grads, variables)


class V1Family:
    """Base class of the families of both optimizers."""

    adapter_class: type[_V1Adapter] = _V1Adapter
    # True if the original updates the loss scale before the conditional of a graph.
    updates_first = False

    def wrapped_optimizer(self, owner: V1Owner) -> Any:
        """Returns the optimizer that computes and applies gradients."""
        raise NotImplementedError

    def compute_with_wrapped(
        self, owner: V1Owner, loss: _types.Loss, options: dict[str, Any]
    ) -> list[_types.Pair]:
        """Calls the wrapped optimizer's `compute_gradients` as the original does."""
        return list(self.wrapped_optimizer(owner).compute_gradients(loss, **options))

    def loss_to_scale(self, loss: _types.Loss) -> _types.Loss:
        """Returns the loss to be scaled; contrib's optimizer calls a function in a graph."""
        return loss

    def reads_twice(self, value: Any) -> bool:
        """Returns whether the original's graph reads the scale, `value`, by two operations."""
        raise NotImplementedError

    def reciprocal(self, scale: tf.Tensor) -> tf.Tensor:
        """Returns the reciprocal of `scale`, computed as in the original."""
        raise NotImplementedError

    def division(self, scale: tf.Tensor) -> _gradients.Division:
        """Returns the division of gradients by `scale`, in graphs by the original's operations."""
        eager = tf.executing_eagerly()
        function = _gradients.multiply if eager else _gradients.multiply_as_v1
        return _gradients.Division(self.reciprocal(scale), function)

    def densify(self, owner: V1Owner, grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients, made dense if the original does so before it divides them."""
        return grads

    def operation_names(
        self, owner: V1Owner, scaler: _scaler.Scaler, name: str | None
    ) -> tuple[str | None, str | None]:
        """Returns the names of the step's operation and the wrapped optimizer's, as the original.

        `name` is that of the user's call, or None.
        """
        return None, name

    # The loss scale in use.

    def loss_scale(self, owner: V1Owner) -> Any:
        """Returns the loss scale or manager in use."""
        loss_scale = owner._tflsc.loss_scale
        if loss_scale is None:
            raise RuntimeError(
                f"{type(owner).__name__} has no loss scale yet: call super().__init__(...) in its "
                "constructor."
            )
        return loss_scale

    def set_loss_scale(self, owner: V1Owner, loss_scale: _types.LossScaleOrManager) -> None:
        """Sets the loss scale or manager; public programs replace it at run time."""
        data = owner._tflsc
        if data.loss_scale is not None:  # Else a subclass sets it before it calls the constructor.
            scaler = _scaler.Scaler(loss_scale)
            scaler.check_reciprocal()
            wrapped = self.wrapped_optimizer(owner)
            data = data._replace(agreement=_agreement.resolve(data.agreement, wrapped, scaler))
            _scaler.check_has_no_owner(scaler)
        owner._tflsc = data._replace(loss_scale=loss_scale)
        # Checkpoints must hold the loss scale in use. Subclasses may set it before Optimizer's
        # constructor has prepared tracking, or without calling that constructor.
        if isinstance(loss_scale, _tf.Trackable) and hasattr(owner, "_non_slot_dict"):
            owner._track_trackable(loss_scale, "loss_scale", overwrite=True)

    # A step.

    def compute_gradients(
        self, owner: V1Owner, loss: _types.Loss, options: dict[str, Any]
    ) -> list[_types.Pair]:
        """Returns pairs of unscaled gradients and variables; see the optimizer's method."""
        # Makes as many operations as the original: the seeds of later operations depend on it.
        scaler = _scaler.Scaler(self.loss_scale(owner))
        value = scaler.read()
        loss = self.loss_to_scale(loss)
        scale = _scaler.as_tensor(value)  # Not a snapshot, which adds an operation.
        pairs = self.compute_with_wrapped(owner, _scaler.scale_loss(loss, scale), options)
        if not tf.executing_eagerly() and self.reads_twice(value):
            if scaler.is_read_by_user() or not scaler.may_change():
                scale = _scaler.as_tensor(scaler.read())
            else:  # No update comes in between. The name is that of reading a variable.
                scale = tf.identity(scale, name="ReadVariableOp")
        grads, variables = _gradients.unzip(pairs)
        grads = self.densify(owner, grads)
        return list(zip(_gradients.unscale(grads, self.division(scale)), variables))

    def minimize(
        self,
        owner: V1Owner,
        loss: _types.Loss,
        global_step: Any,
        name: str | None,
        options: dict[str, Any],
    ) -> Any:
        """Computes and applies gradients in one step, without user code between."""
        scaler = _scaler.Scaler(self.loss_scale(owner))
        value = scaler.read()
        loss = self.loss_to_scale(loss)
        scale = _scaler.snapshot(value)  # Another step may assign in between.
        pairs = self.compute_with_wrapped(owner, _scaler.scale_loss(loss, scale), options)
        return self.take_step(owner, scaler, pairs, global_step, name, "minimize", scale)

    def take_step(
        self,
        owner: V1Owner,
        scaler: _scaler.Scaler,
        grads_and_vars: list[_types.Pair],
        global_step: Any,
        name: str | None,
        method_name: str = "apply_gradients",
        scale: tf.Tensor | None = None,
    ) -> Any:
        """Takes a step; see `_step.take`. It divides the gradients by `scale`, if there is one."""
        grads, variables = _gradients.unzip(grads_and_vars)
        if not [grad for grad in grads if grad is not None]:
            names = [getattr(variable, "name", variable) for variable in variables]
            argument = "loss" if method_name == "minimize" else "grads_and_vars"
            raise ValueError(f"{argument} has no gradient for any variable, got {names!r}.")
        division = None
        if scale is not None:
            grads, division = self.densify(owner, grads), self.division(scale)
        operation_names = self.operation_names(owner, scaler, name)
        adapter = self.adapter_class(
            owner, self.wrapped_optimizer(owner), global_step, operation_names
        )
        return _step.take(
            scaler, grads, variables, adapter, method_name=method_name, division=division
        )


class MixedPrecisionFamily(V1Family):
    """The steps of r2.0's optimizer, with a `LossScale`."""

    updates_first = True

    def wrapped_optimizer(self, owner: V1Owner) -> Any:
        return owner._optimizer

    def compute_with_wrapped(
        self, owner: V1Owner, loss: _types.Loss, options: dict[str, Any]
    ) -> list[_types.Pair]:
        return list(owner._optimizer.compute_gradients(loss=loss, **options))

    def reads_twice(self, value: Any) -> bool:
        return True

    def reciprocal(self, scale: tf.Tensor) -> tf.Tensor:
        return 1.0 / scale

    def operation_names(
        self, owner: V1Owner, scaler: _scaler.Scaler, name: str | None
    ) -> tuple[str | None, str | None]:
        if scaler.never_skips and _step_record.record_of(owner) is None:
            return None, name
        name = name or owner.get_name()
        # The same string object in each replica, because others would become per-replica values.
        return name, sys.intern(f"{name}-wrapped")


class ContribFamily(V1Family):
    """The steps of contrib's optimizer, with a manager."""

    adapter_class = _ContribAdapter

    def wrapped_optimizer(self, owner: V1Owner) -> Any:
        return owner._opt

    def loss_to_scale(self, loss: _types.Loss) -> _types.Loss:
        # r1.15's optimizer calls it before it makes an operation of the scale. Seeds of random
        # operations in the loss depend on it, and the wrapped optimizer may not accept callables.
        # It did so in functions of 1.15, too; those of TensorFlow 2 had no such optimizer.
        if tf.executing_eagerly() or not callable(loss):
            return loss
        in_function = not _graphs.in_session_graph()
        return loss if in_function and _tf.at_least(2, 0) else loss()

    def reads_twice(self, value: Any) -> bool:
        # Each use of a variable makes an operation that reads it; that of a reference does not.
        return hasattr(value, "assign") and not _variables.is_reference(value)

    def reciprocal(self, scale: tf.Tensor) -> tf.Tensor:
        return tf.math.reciprocal(scale)

    def densify(self, owner: V1Owner, grads: _types.Gradients) -> _types.Gradients:
        return grads if owner._tflsc.keep_sparse else _gradients.densify(grads)


MIXED_PRECISION, CONTRIB = MixedPrecisionFamily(), ContribFamily()
