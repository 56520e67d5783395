"""Loss-scale optimizers around `tf.compat.v1.train.Optimizer`s: contrib's of r1.15 and r2.0's."""

from __future__ import annotations

import functools
import numbers
import sys
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

from tf_lossscale_compat import (
    _agreement,
    _arguments,
    _claims,
    _gradients,
    _policy,
    _replicas,
    _step,
    _sync_replicas,
    _tf,
    _watch,
)
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat import loss_scale_manager as lsm

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_lossscale_compat import _types
else:
    tf = _tf.tf

tf1 = _tf.tf1

_KERAS_HINT = (
    "A Keras optimizer is wrapped by "
    "tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer instead."
)


def _name_of(opt: Any, otherwise: str) -> str:
    """What an optimizer is called, which may have no `get_name`, or not be able to say."""
    try:
        return opt.get_name()
    except AttributeError:  # Such as one that has not called its base class' constructor.
        return otherwise


class _BaseLossScaleOptimizer(_tf.Optimizer):
    """Scales the loss, unscales the gradients, and applies them if the step is not to be skipped.

    What the two public classes share; they differ in where the scale comes from and what decides.
    """

    # Also of subclasses that leave out the constructors.
    _agree = None
    _enabled = True

    def __init__(self, opt: Any) -> None:
        super().__init__(
            use_locking=getattr(opt, "_use_locking", False),
            name=_name_of(opt, type(opt).__name__),
        )
        if isinstance(opt, _tf.Trackable):
            self._track_trackable(opt, "base_optimizer")

    # Whether a callable loss is called at once in a graph for a Session. r1.15's optimizer did, so
    # the one it wrapped needed not take callables.
    _calls_loss_in_graphs = False

    @property
    def _wrapped(self) -> Any:
        """The optimizer that computes and applies gradients."""
        raise NotImplementedError

    @property
    def _policy(self) -> Any:
        """The loss scale or manager that is in force."""
        return self.__dict__["_policy_in_force"]

    @_policy.setter
    def _policy(self, policy: Any) -> None:
        # Code in the wild replaces it at run time; checkpoints are to hold what is in force.
        if "_policy_in_force" in self.__dict__:
            skips = self._step_options(None).get("skips_nonfinite", False)
            wrapped = getattr(self, "_wrapped", None)
            agree = _agreement.function_for(self._agree, wrapped, policy, skips)
            _claims.claim(_claims.V1, policy)
            self._agree = agree
        self.__dict__["_policy_in_force"] = policy
        # Subclasses may set it before Optimizer's constructor has made what tracking needs, or not
        # call that at all.
        if isinstance(policy, _tf.Trackable) and hasattr(self, "_non_slot_dict"):
            self._track_trackable(policy, "loss_scale", overwrite=True)

    def _reciprocal(self, scale: tf.Tensor) -> tf.Tensor:
        """Returns what gradients are multiplied with, as the original computes it."""
        return 1.0 / scale

    def _step_options(self, name: str | None) -> dict[str, Any]:
        """What `_step.take` is told of the original's ways, as keyword arguments."""
        raise NotImplementedError

    def _inner_name(self, name: str | None) -> str | None:
        """The name that the original gave the wrapped optimizer's operation."""
        return name

    def compute_gradients(
        self,
        loss: tf.Tensor | Callable[[], tf.Tensor],
        var_list: Any = None,
        gate_gradients: int = _tf.Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """Returns gradients of `loss`, computed with the loss scaled up and then scaled down.

        Args:
          loss: float tensor or callable that returns one; in eager mode a callable.
          var_list: variables to differentiate with respect to; None for all trainable ones.
          gate_gradients: this and the following are handed to the wrapped optimizer, see
            `tf.compat.v1.train.Optimizer.compute_gradients`.
          aggregation_method: see there.
          colocate_gradients_with_ops: see there.
          grad_loss: see there.

        Returns:
          A list of (gradient, variable) pairs. A gradient has the dtype that the wrapped optimizer
          gave it, is `tf.IndexedSlices` where that was, and None where the loss does not depend on
          the variable.
        """
        options = {
            "var_list": var_list,
            "gate_gradients": gate_gradients,
            "aggregation_method": aggregation_method,
            "colocate_gradients_with_ops": colocate_gradients_with_ops,
            "grad_loss": grad_loss,
        }
        if not self._enabled:
            return list(self._wrapped.compute_gradients(loss, **options))
        grads, variables, scale = self._scaled_gradients(loss, options)
        return list(zip(_gradients.unscale(grads, self._reciprocal(scale)), variables))

    def _scaled_gradients(
        self, loss: Any, options: dict[str, Any]
    ) -> tuple[list[Any], list[Any], tf.Tensor]:
        """Returns gradients of the scaled loss, their variables, and the scale."""
        scale = _policy.scale(self._policy)
        if callable(loss) and self._calls_loss_in_graphs and _tf.in_plain_graph():
            loss = loss()
        if callable(loss):
            unscaled_loss = loss

            def scaled_loss() -> tf.Tensor:
                return _gradients.scale_loss(unscaled_loss(), scale)

        else:
            scaled_loss = _gradients.scale_loss(loss, scale)
        grads_and_vars = list(self._wrapped.compute_gradients(scaled_loss, **options))
        grads = [grad for grad, _ in grads_and_vars]
        return grads, [var for _, var in grads_and_vars], scale

    def minimize(
        self,
        loss: tf.Tensor | Callable[[], tf.Tensor],
        global_step: Any = None,
        var_list: Any = None,
        gate_gradients: int = _tf.Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Any:
        """Computes gradients and applies them: `compute_gradients` and `apply_gradients` in one.

        Args:
          loss: see `compute_gradients`, as all that are not named here.
          global_step: see `apply_gradients`.
          var_list: see there.
          gate_gradients: see there.
          aggregation_method: see there.
          colocate_gradients_with_ops: see there.
          name: see `apply_gradients`.
          grad_loss: see there.

        Returns:
          In graph mode an operation; in eager mode None.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        options = {
            "var_list": var_list,
            "gate_gradients": gate_gradients,
            "aggregation_method": aggregation_method,
            "colocate_gradients_with_ops": colocate_gradients_with_ops,
            "grad_loss": grad_loss,
        }
        # Nobody sees the gradients between, so that they can be divided where they are applied.
        if self._enabled and not _step.overrides(
            self, _BaseLossScaleOptimizer, "compute_gradients", "apply_gradients"
        ):
            grads, variables, scale = self._scaled_gradients(loss, options)
            reciprocal = self._reciprocal(scale)
            return self._take_step("loss", grads, variables, global_step, name, reciprocal)
        return super().minimize(loss, global_step, name=name, **options)

    @_tf.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies unscaled gradients, unless the step is to be skipped, and updates the loss scale.

        A skipped step changes no variable, no slot and not `global_step`. The loss scale is updated
        once for each step, and on all replicas alike.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs; a gradient may be None.
          global_step: variable to increment by one if the gradients are applied, or None.
          name: str, name of the returned operation, or None.

        Returns:
          In graph mode an operation; in eager mode None.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        grads_and_vars = list(grads_and_vars)
        grads = [grad for grad, _ in grads_and_vars]
        variables = [var for _, var in grads_and_vars]
        return self._take_step("grads_and_vars", grads, variables, global_step, name)

    @_tf.do_not_convert
    def _take_step(
        self,
        given: str,
        grads: list[Any],
        variables: list[Any],
        global_step: Any,
        name: str | None,
        reciprocal: tf.Tensor | None = None,
    ) -> Any:
        """Applies gradients that are yet to be multiplied with `reciprocal`, if there is one.

        `given` is the argument that they come from.
        """
        if all(grad is None for grad in grads):
            names = [getattr(var, "name", var) for var in variables]
            raise ValueError(f"{given} has no gradient for any variable, got {names!r}.")

        def apply(grads: list[Any], variables: list[Any], global_step: Any) -> Any:
            pairs = list(zip(grads, variables))
            return self._wrapped.apply_gradients(pairs, global_step, self._inner_name(name))

        step = _step.take(
            self._policy,
            grads,
            variables,
            apply,
            (global_step,),
            what="apply_gradients",
            agree=self._agree,
            watched=self,
            reciprocal=reciprocal,
            wrapped=self._wrapped,
            **self._step_options(name),
        )
        return _sync_replicas.reopen_accumulators(step, grads, variables, global_step)

    def _policy_in_use(self) -> Any:
        return self._policy

    def variables(self) -> list[tf.Variable]:
        """Returns the variables of the wrapped optimizer and of the loss scale, a list."""
        return _tf.variables_of(self._wrapped) + _policy.variables(self._policy)

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns the wrapped optimizer's slot variable `name` for `var`, or None."""
        return self._wrapped.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the wrapped optimizer's slots, a list of str."""
        # A checkpoint finds the slots through the child base_optimizer. Naming them here too would
        # save them twice, which TensorFlow refuses.
        if _tf.called_by_checkpointing():
            return []
        return self._wrapped.get_slot_names()

    def get_name(self) -> str:
        """Returns the wrapped optimizer's name."""
        return _name_of(self._wrapped, self._name)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        # A checkpoint of the wrapped optimizer alone, restored into this one.
        return self._wrapped._create_or_restore_slot_variable(*args, **kwargs)

    def _never_called(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("The wrapped optimizer applies gradients, not this one.")

    _apply_dense = _apply_sparse = _never_called
    _resource_apply_dense = _resource_apply_sparse = _never_called


class LossScaleOptimizer(_BaseLossScaleOptimizer):
    """Wraps an optimizer with the loss scale of a manager; non-finite steps are skipped.

    Public as `contrib.mixed_precision.LossScaleOptimizer`.

    Example::

        opt = tf.compat.v1.train.AdamOptimizer(1e-3)
        manager = ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=1000)
        train_op = LossScaleOptimizer(opt, manager).minimize(loss, global_step=step)

    Source: TensorFlow r1.15 `tf.contrib.mixed_precision.LossScaleOptimizer`. Beyond it, None
    gradients are carried through, sparse gradients can be kept, `variables()` and the slots can be
    asked for.
    """

    _calls_loss_in_graphs = True
    _keep_sparse = False  # Also of subclasses that leave out this constructor.

    def __init__(
        self,
        opt: _types.HasOptimizerMethods,
        loss_scale_manager: _types.HasManagerMethods | _types.Identifier,
        *,
        keep_sparse: bool = False,
        agree: _types.Agree | None = None,
        enabled: bool = True,
    ) -> None:
        """Wraps `opt`.

        Args:
          opt: a `tf.compat.v1.train.Optimizer`, or anything with its `compute_gradients` and
            `apply_gradients`.
          loss_scale_manager: a `LossScaleManager`, or anything with its two methods. Beyond r1.15
            also a `LossScale` or what `loss_scale.get` takes.
          keep_sparse: bool. `compute_gradients` makes `tf.IndexedSlices` dense, as r1.15 did; with
            True they stay sparse, which takes less memory and makes Momentum, RMSProp and clipping
            by the global norm compute other numbers. Beyond r1.15.
          agree: function of a scalar bool tensor that returns its AND over all processes that train
            together without `tf.distribute`, called once per step; or None. Around Horovod's
            optimizer it is Horovod's by itself. Beyond r1.15.
          enabled: bool; if False, losses, gradients and steps are those of `opt`, the manager is
            left alone, and the loss scale is 1. Beyond r1.15.

        Raises:
          TypeError: `opt` or `loss_scale_manager` lacks these methods, `agree` is no function, or
            `enabled` no bool.
          ValueError: `loss_scale_manager` is no loss scale, the strategy in scope is unsupported,
            Horovod's optimizer adds up gradients that were scaled differently, or `opt` is a
            SyncReplicasOptimizer, which belongs around this one.
        """
        # Some Keras optimizers have methods of these names, which mean something else.
        if not _policy.has_methods(opt, "compute_gradients", "apply_gradients") or (
            _tf.is_keras_optimizer(opt)
        ):
            raise TypeError(
                "opt must have compute_gradients and apply_gradients, as a "
                f"tf.compat.v1.train.Optimizer does, got {opt!r}. {_KERAS_HINT}"
            )
        _replicas.check_strategy()
        manager = _as_manager(loss_scale_manager if _arguments.flag("enabled", enabled) else 1)
        agree = _agreement.function_for(agree, opt, _inside(manager), enabled)
        super().__init__(opt)
        self._opt = opt
        self._agree, self._enabled = agree, enabled
        self._loss_scale_manager = manager
        self._keep_sparse = bool(keep_sparse)
        _claims.claim(_claims.V1, self._policy)

    @property
    def _wrapped(self) -> Any:
        return self._opt

    @property
    def _loss_scale_manager(self) -> Any:
        return self.__dict__["_manager_given"]

    @_loss_scale_manager.setter
    def _loss_scale_manager(self, manager: Any) -> None:
        self._policy = _inside(manager)
        self.__dict__["_manager_given"] = manager

    def _scaled_gradients(
        self, loss: Any, options: dict[str, Any]
    ) -> tuple[list[Any], list[Any], tf.Tensor]:
        grads, variables, scale = super()._scaled_gradients(loss, options)
        if not self._keep_sparse:
            grads = [
                tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad
                for grad in grads
            ]
        return grads, variables, scale

    def _reciprocal(self, scale: tf.Tensor) -> tf.Tensor:
        return tf.math.reciprocal(scale)

    def _step_options(self, name: str | None) -> dict[str, Any]:
        return {"cond": _tf.cond, "skips_nonfinite": self._enabled}


class MixedPrecisionLossScaleOptimizer(_BaseLossScaleOptimizer):
    """Wraps an optimizer with a `LossScale`, which also decides what is skipped.

    Public as `train.experimental.MixedPrecisionLossScaleOptimizer`.

    Example::

        opt = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
        train_op = MixedPrecisionLossScaleOptimizer(opt, "dynamic").minimize(loss)

    Source: TensorFlow r1.14-2.x
    `tf.compat.v1.train.experimental.MixedPrecisionLossScaleOptimizer`.
    """

    def __init__(
        self,
        opt: _types.HasOptimizerMethods,
        loss_scale: _types.Identifier,
        *,
        agree: _types.Agree | None = None,
        enabled: bool = True,
    ) -> None:
        """Wraps `opt`.

        Args:
          opt: a `tf.compat.v1.train.Optimizer`.
          loss_scale: a `LossScale` or what `loss_scale.get` takes, but not None.
          agree: function of a scalar bool tensor that returns its AND over all processes that train
            together without `tf.distribute`, called once per step; or None. Around Horovod's
            optimizer it is Horovod's by itself. Beyond r2.0.
          enabled: bool; if False, losses, gradients and steps are those of `opt`, the loss scale
            that was given is left alone, and the one in force is 1. Beyond r2.0.

        Raises:
          TypeError: `agree` is no function, or `enabled` no bool.
          ValueError: `opt` is no v1 optimizer, `loss_scale` is None or no loss scale, the strategy
            in scope is unsupported, Horovod's optimizer adds up gradients that were scaled
            differently, or `opt` is a SyncReplicasOptimizer, which belongs around this one, and
            `loss_scale` may skip a step.
        """
        if not isinstance(opt, _tf.Optimizer):
            raise ValueError(
                "opt must be an instance of tf.compat.v1.train.Optimizer, "
                f"got {opt!r}. {_KERAS_HINT}"
            )
        if loss_scale is None:
            raise ValueError("loss_scale cannot be None")
        _replicas.check_strategy()
        loss_scale = loss_scale_lib.get(loss_scale if _arguments.flag("enabled", enabled) else 1)
        agree = _agreement.function_for(agree, opt, loss_scale)
        super().__init__(opt)
        self._optimizer = opt
        self._agree, self._enabled = agree, enabled
        self._loss_scale = loss_scale
        _claims.claim(_claims.V1, loss_scale)

    @property
    def _wrapped(self) -> Any:
        return self._optimizer

    @property
    def _loss_scale(self) -> Any:
        return self._policy

    @_loss_scale.setter
    def _loss_scale(self, loss_scale: Any) -> None:
        self._policy = loss_scale

    def _step_options(self, name: str | None) -> dict[str, Any]:
        if not _policy.always_applies(self._policy):  # Else the wrapped one's operation will do.
            name = name or self.get_name()
        return {"moves_first": True, "name": name}

    def _inner_name(self, name: str | None) -> str | None:
        # The same string in each replica, or it would become one value per replica.
        return sys.intern(f"{name or self.get_name()}-wrapped")


class _LossScaleManagerAdapter(lsm.LossScaleManager):
    """A manager that takes its scale from a `LossScale`."""

    _runs_a_loss_scale = True

    def __init__(self, loss_scale: loss_scale_lib.LossScale) -> None:
        self.loss_scale = loss_scale

    def get_loss_scale(self) -> tf.Tensor:
        return self.loss_scale()

    def update_loss_scale(self, finite_grads: bool | tf.Tensor) -> Any:
        return _policy.move_together(
            lambda finite: _watch.move(
                self.loss_scale, finite, functools.partial(_policy.move, self.loss_scale)
            ),
            finite_grads,
            self.variables(),
        )

    def variables(self) -> list[tf.Variable]:
        return _policy.variables(self.loss_scale)


def _inside(manager: Any) -> Any:
    """Returns the `LossScale` that a manager takes its scale from, or else the manager."""
    return manager.loss_scale if isinstance(manager, _LossScaleManagerAdapter) else manager


def _as_manager(identifier: Any) -> Any:
    """Returns a loss-scale manager for a manager, a `LossScale`, or what `loss_scale.get` takes."""
    if _policy.is_manager(identifier):
        return identifier
    if isinstance(identifier, loss_scale_lib.ManagerLossScale):
        return identifier.manager
    known: Any = (loss_scale_lib.LossScale, dict, str, numbers.Real)
    if not isinstance(identifier, known):
        raise TypeError(
            "loss_scale_manager must be a LossScaleManager, or a LossScale, number, 'dynamic' or "
            f"config dict, got {identifier!r}."
        )
    return _LossScaleManagerAdapter(loss_scale_lib.get(identifier))


def enable_mixed_precision_graph_rewrite(
    opt: _types.HasApplyGradients, loss_scale: _types.Identifier = "dynamic"
) -> Any:
    """Wraps `opt` with a loss scale and turns TensorFlow's auto-mixed-precision rewrite on.

    The rewrite makes float32 graphs compute in float16 where that is safe, on hardware that gains
    by it; sessions and functions of `tf.function` made from now on are rewritten.

    Args:
      opt: a `tf.compat.v1.train.Optimizer` or a Keras optimizer.
      loss_scale: a `LossScale` or what `loss_scale.get` takes, but not None.

    Returns:
      A `MixedPrecisionLossScaleOptimizer`, or of a Keras optimizer a
      `keras.mixed_precision.experimental.LossScaleOptimizer`.

    Raises:
      ValueError: `opt` is neither or has a loss scale already, or `loss_scale` is None or
        no loss scale. The rewrite stays as it was.

    Source: TensorFlow r1.14-2.x `tf.train.experimental.enable_mixed_precision_graph_rewrite`.
    """
    # TensorFlow's own classes are not all public; they have the same names.
    names = {cls.__name__ for cls in type(opt).__mro__}
    if names & {LossScaleOptimizer.__name__, MixedPrecisionLossScaleOptimizer.__name__}:
        raise ValueError(f"opt has a loss scale already, got {opt!r}.")
    was_enabled = _tf.graph_rewrite_is_enabled()
    _tf.set_graph_rewrite(True)
    try:
        if _tf.is_keras_optimizer(opt):
            from tf_lossscale_compat.keras.mixed_precision import experimental  # Imports Keras.

            return experimental.LossScaleOptimizer(opt, loss_scale)
        of_v1: Any = opt
        return MixedPrecisionLossScaleOptimizer(of_v1, loss_scale)
    except Exception:
        _tf.set_graph_rewrite(was_enabled)
        raise


def disable_mixed_precision_graph_rewrite() -> None:
    """Turns TensorFlow's auto-mixed-precision rewrite off again, for sessions and functions.

    Source: TensorFlow r1.14-2.x `tf.train.experimental.disable_mixed_precision_graph_rewrite`.
    """
    _tf.set_graph_rewrite(False)
