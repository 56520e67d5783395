"""Loss-scale optimizers around `tf.compat.v1.train.Optimizer`s: contrib's of r1.15 and r2.0's.

A `_V1Step` does the work of a call of their public methods. Users derive from the optimizers'
classes, and names of methods there cannot clash with theirs.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, Callable, Iterable

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _callers,
    _gradients,
    _graphs,
    _keras_versions,
    _replicas,
    _scale_or_manager,
    _step,
    _step_record,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._tf import tf, tf1
from tf_lossscale_compat._scales import _loss_scales

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

_KERAS_HINT = (
    "A Keras optimizer is wrapped by "
    "tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer instead."
)


class _V1Step(_step.Step):
    """One call of a loss-scale optimizer; for each original there is a subclass.

    `name` is that of the user's call, or None.
    """

    optimizer: LossScaleOptimizerBase
    # Methods that only steps of the original call.
    uncalled_methods: tuple[str, ...]
    # Computes the reciprocal of the scale, as the original does.
    reciprocal: Callable[[tf.Tensor], tf.Tensor]

    def __init__(
        self,
        optimizer: LossScaleOptimizerBase,
        method_name: str,
        global_step: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(optimizer, method_name)
        self.skips_zero_reciprocal = not tf.executing_eagerly()
        self._global_step, self._wrapped_name = global_step, name

    def compute_with_wrapped(self, loss: _types.Loss, options: dict[str, Any]) -> list[_types.Pair]:
        """Calls the wrapped optimizer's `compute_gradients` as the original does."""
        return list(self.wrapped.compute_gradients(loss, **options))

    def loss_to_scale(self, loss: _types.Loss) -> _types.Loss:
        """Returns the loss to scale. A function stays one, unless the original calls it first."""
        return loss

    def original_reads_scale_twice(self, value: Any) -> bool:
        """Returns whether the original's graph reads the scale, `value`, by two operations."""
        return True

    def densify(self, grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients, made dense if the original does so before it divides them."""
        return grads

    def division(self, scale: tf.Tensor) -> _gradients.Division:
        """Returns the division of gradients by `scale`, in graphs by the original's operations."""
        eager = tf.executing_eagerly()
        function = _gradients.multiply if eager else _gradients.multiply_as_originals
        return _gradients.Division(self.reciprocal(scale), function)

    def compute_gradients(self, loss: _types.Loss, options: dict[str, Any]) -> list[_types.Pair]:
        """Returns pairs of unscaled gradients and variables; see the optimizer's method."""
        # Makes as many operations as the original: the seeds of later operations depend on it.
        value = self.read()
        loss = self.loss_to_scale(loss)
        scale = _variables.as_float32(value)  # Not a snapshot, which adds an operation.
        pairs = self.compute_with_wrapped(_scale_or_manager.scale_loss(loss, scale), options)
        if not tf.executing_eagerly() and self.original_reads_scale_twice(value):
            ours = not _scale_or_manager.is_read_by_user(self.loss_scale)
            if ours and _scale_or_manager.may_change(self.loss_scale):
                # No update comes in between. The name is that of reading a variable.
                scale = tf.identity(scale, name="ReadVariableOp")
            else:
                scale = _variables.as_float32(self.read())
        grads, variables = _gradients.unzip(pairs)
        unscaled = _gradients.unscale(self.densify(grads), self.division(scale))
        return list(zip(unscaled, variables))

    def minimize(self, loss: _types.Loss, options: dict[str, Any]) -> Any:
        """Computes and applies gradients, without user code between."""
        value = self.read()
        loss = self.loss_to_scale(loss)
        scale = _variables.snapshot(value)  # Another step may assign in between.
        pairs = self.compute_with_wrapped(_scale_or_manager.scale_loss(loss, scale), options)
        return self.take_pairs(pairs, scale)

    def take_pairs(self, pairs: list[_types.Pair], scale: tf.Tensor | None = None) -> Any:
        """Takes a step; see `Step.take`. It divides the gradients by `scale`, if there is one."""
        grads, variables = _gradients.unzip(pairs)
        if all(grad is None for grad in grads):
            names = [getattr(variable, "name", variable) for variable in variables]
            argument = "loss" if self.method_name == "minimize" else "grads_and_vars"
            raise ValueError(f"{argument} has no gradient for any variable, got {names!r}.")
        division = None
        if scale is not None:
            grads, division = self.densify(grads), self.division(scale)
        return self.take(grads, variables, division)

    def apply_with_wrapped(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        pairs = list(zip(grads, variables))
        return self.wrapped.apply_gradients(pairs, self._global_step, self._wrapped_name)


class _MixedPrecisionStep(_V1Step):
    """A call of r2.0's optimizer, with a `LossScale`."""

    uncalled_methods = (
        "_apply_gradients",
        "_distributed_apply",
        "_doing_dynamic_loss_scaling",
        "_scale_grad",
        "_scale_loss",
        "_unscale_grads",
    )
    reciprocal = staticmethod(lambda scale: 1.0 / scale)
    updates_first = True

    def __init__(self, optimizer: LossScaleOptimizerBase, *arguments: Any) -> None:
        super().__init__(optimizer, *arguments)
        if self.may_skip or _step_record.record_of(optimizer) is not None:
            self.name = self._wrapped_name or optimizer.get_name()
            # The same string object in each replica: others would become per-replica values.
            self._wrapped_name = sys.intern(f"{self.name}-wrapped")

    def compute_with_wrapped(self, loss: _types.Loss, options: dict[str, Any]) -> list[_types.Pair]:
        return list(self.wrapped.compute_gradients(loss=loss, **options))


class _ContribStep(_V1Step):
    """A call of contrib's optimizer, with a manager."""

    optimizer: LossScaleOptimizer

    uncalled_methods = ("_down_scale",)
    reciprocal = staticmethod(tf.math.reciprocal)
    cond = staticmethod(_graphs.cond_with_v1_names)

    def loss_to_scale(self, loss: _types.Loss) -> _types.Loss:
        # r1.15's optimizer calls it before it makes an operation of the scale, in graphs and in
        # functions of 1.15. Seeds of random operations in the loss depend on that. The wrapped
        # optimizer may take no function. Functions of TensorFlow 2 had no such optimizer.
        if tf.executing_eagerly() or not callable(loss):
            return loss
        in_function = not _graphs.in_session_graph()
        return loss if in_function and _tf.at_least(2, 0) else loss()

    def original_reads_scale_twice(self, value: Any) -> bool:
        # Each use of a variable makes an operation that reads it; that of a reference does not.
        return hasattr(value, "assign") and not _variables.is_reference(value)

    def densify(self, grads: _types.Gradients) -> _types.Gradients:
        return grads if self.optimizer._tflsc_keep_sparse else _gradients.densify(grads)

    if not _tf.at_least(2, 0):

        def apply_with_wrapped(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
            if not tf.executing_eagerly():
                return super().apply_with_wrapped(grads, variables)
            with tf1.name_scope("cond"):  # Eager steps have a conditional's names, too.
                return super().apply_with_wrapped(grads, variables)


class LossScaleOptimizerBase(_tf.Optimizer):
    """Scales the loss, unscales the gradients, and applies them unless the step is skipped.

    Base class of both public classes. One takes a manager, the other a `LossScale`.
    """

    _tflsc_step_class: type[_V1Step]
    # The wrapped optimizer, which has another name in each original.
    _tflsc_wrapped: Any
    _tflsc_agreement: _types.Agree | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = cls._tflsc_step_class.uncalled_methods
        instead = "compute_gradients or apply_gradients"
        _arguments.check_overrides(cls, LossScaleOptimizerBase, names, instead)

    def __init__(self, opt: Any, loss_scale: Any, agree: _types.Agree | None) -> None:
        try:
            name = opt.get_name()
        except AttributeError:  # For example, the base class' constructor was not called.
            name = type(opt).__name__
        super().__init__(use_locking=getattr(opt, "_use_locking", False), name=name)
        if isinstance(opt, _tf.Trackable):
            self._track_trackable(opt, "base_optimizer")
        vars(self)["_tflsc_loss_scale"], self._tflsc_agreement = loss_scale, agree
        self._tflsc_loss_scale = loss_scale

    @property
    def _tflsc_loss_scale(self) -> Any:
        """The loss scale or manager; public programs replace it at run time."""
        if "_tflsc_loss_scale" not in vars(self):  # A constructor did not call the base class'.
            raise RuntimeError(
                f"{type(self).__name__} has no loss scale yet: call super().__init__(...) in its "
                "constructor."
            )
        return vars(self)["_tflsc_loss_scale"]

    @_tflsc_loss_scale.setter
    def _tflsc_loss_scale(self, loss_scale: _types.LossScaleOrManager) -> None:
        # Else a subclass sets it before it calls the constructor.
        if "_tflsc_loss_scale" in vars(self):
            _scale_or_manager.check_reciprocal(loss_scale)
            agree = _agreement.resolve(self._tflsc_agreement, self._tflsc_wrapped, loss_scale)
            _scale_or_manager.check_has_no_owner(loss_scale)
            self._tflsc_agreement = agree
        vars(self)["_tflsc_loss_scale"] = loss_scale
        # Checkpoints must hold the loss scale in use. Subclasses may set it before Optimizer's
        # constructor has prepared tracking, or without calling that constructor.
        if isinstance(loss_scale, _tf.Trackable) and hasattr(self, "_non_slot_dict"):
            self._track_trackable(loss_scale, "loss_scale", overwrite=True)

    @_autograph.convert_passed_functions
    def compute_gradients(
        self,
        loss: tf.Tensor | Callable[[], tf.Tensor],
        var_list: Any = None,
        gate_gradients: int = _tf.Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: Any = None,
    ) -> list[tuple[Any, Any]]:
        """Returns gradients of `loss`, computed from the scaled loss and then unscaled.

        Args:
          loss: float tensor or callable that returns one; in eager mode a callable.
          var_list: variables to differentiate with respect to; None for all trainable variables.
          gate_gradients: this and the following arguments are passed to the wrapped optimizer, see
            `tf.compat.v1.train.Optimizer.compute_gradients`.
          aggregation_method: see there.
          colocate_gradients_with_ops: see there.
          grad_loss: see there.

        Returns:
          A list of (gradient, variable) pairs. A gradient has the wrapped optimizer's dtype, may be
          `tf.IndexedSlices`, and is None if the loss does not depend on the variable.
        """
        options = {
            "var_list": var_list,
            "gate_gradients": gate_gradients,
            "aggregation_method": aggregation_method,
            "colocate_gradients_with_ops": colocate_gradients_with_ops,
            "grad_loss": grad_loss,
        }
        return self._tflsc_step_class(self, "compute_gradients").compute_gradients(loss, options)

    @_autograph.convert_passed_functions
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

        The arguments are theirs, and the result and the errors those of `apply_gradients`.
        """
        options = {
            "var_list": var_list,
            "gate_gradients": gate_gradients,
            "aggregation_method": aggregation_method,
            "colocate_gradients_with_ops": colocate_gradients_with_ops,
            "grad_loss": grad_loss,
        }
        computes_as_here = _scale_or_manager.is_ours(self.compute_gradients, self)
        if computes_as_here and _scale_or_manager.is_ours(self.apply_gradients, self):
            step = self._tflsc_step_class(self, "minimize", global_step, name)
            return step.minimize(loss, options)
        # As in TensorFlow, they are called if a subclass overrides one, or a program replaces one.
        return super().minimize(loss, global_step, name=name, **options)

    @_autograph.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies unscaled gradients, unless the step is skipped, and updates the loss scale.

        A skipped step changes no variable, no slot and not `global_step`. The loss scale is updated
        once per step, to the same value on all replicas.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs; a gradient may be None.
          global_step: variable to increment by one if the gradients are applied, or None.
          name: str, name of an operation of the step, as with the original, or None.

        Returns:
          In graph mode an operation; in eager mode None.

        Raises:
          ValueError: called in a cross-replica context, under a strategy that is not supported, or
            without a gradient.
          LossScaleError: in eager mode, a `StepRecord` ends the run.
        """
        step = self._tflsc_step_class(self, "apply_gradients", global_step, name)
        return step.take_pairs(list(grads_and_vars))

    _tflsc_our_methods = compute_gradients, apply_gradients

    def variables(self) -> list[tf.Variable]:
        """Returns the variables of the wrapped optimizer and of the loss scale, a list."""
        wrapped = _variables.of(self._tflsc_wrapped)
        return wrapped + _scale_or_manager.variables_of(self._tflsc_loss_scale)

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns the wrapped optimizer's slot variable `name` for `var`, or None."""
        return self._tflsc_wrapped.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the wrapped optimizer's slots, a list of str."""
        # Checkpoints find the slots through the child base_optimizer. If this returned them, they
        # would be saved twice, which TensorFlow rejects.
        if _callers.is_checkpointing():
            return []
        return self._tflsc_wrapped.get_slot_names()

    def get_name(self) -> str:
        """Returns the wrapped optimizer's name."""
        return self._name

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        # Called to restore a checkpoint of the wrapped optimizer into this one.
        return self._tflsc_wrapped._create_or_restore_slot_variable(*args, **kwargs)


class LossScaleOptimizer(LossScaleOptimizerBase):
    """Wraps an optimizer with the loss scale of a manager; non-finite steps are skipped.

    Example::

        opt = tf.compat.v1.train.AdamOptimizer(1e-3)
        manager = ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=1000)
        train_op = LossScaleOptimizer(opt, manager).minimize(loss, global_step=step)

    Source: TensorFlow r1.15 `tf.contrib.mixed_precision.LossScaleOptimizer`. The original
    fails on None gradients, and does not keep sparse gradients or return slots and `variables()`.
    """

    _tflsc_step_class = _ContribStep
    _tflsc_keep_sparse = False

    def __init__(
        self,
        opt: _types.HasOptimizerMethods,
        loss_scale_manager: _types.HasManagerMethods,
        *,
        keep_sparse: bool = False,
        agree: _types.Agree | None = None,
    ) -> None:
        """Wraps `opt`.

        Args:
          opt: a `tf.compat.v1.train.Optimizer`, or any object with its `compute_gradients` and
            `apply_gradients`.
          loss_scale_manager: a `LossScaleManager`, or any object with its two methods.
          keep_sparse: bool. If False, `compute_gradients` makes `tf.IndexedSlices` dense, as in
            r1.15. If True, they stay sparse: that needs less memory, and changes the results of
            Momentum, RMSProp and clipping by the global norm. Not in r1.15.
          agree: function of a scalar bool tensor that returns its AND over all processes that train
            together without `tf.distribute`, called once per step; or None. If `opt` is Horovod's,
            the default is Horovod's function. Not in r1.15.

        Raises:
          TypeError: `opt` or `loss_scale_manager` lacks these methods, `agree` is not a function,
            or `keep_sparse` is not a bool.
          ValueError: the strategy in scope is unsupported; the scale is fixed above 2**126, or
            belongs to a Keras optimizer; or Horovod's optimizer adds up gradients of a
            changing scale.
        """
        # Some Keras optimizers have methods with these names, but another meaning.
        if not _scale_or_manager.has_methods(opt, "compute_gradients", "apply_gradients") or (
            _keras_versions.is_optimizer(opt)
        ):
            raise TypeError(
                "opt must have compute_gradients and apply_gradients, as a "
                f"tf.compat.v1.train.Optimizer does, got {opt!r}. {_KERAS_HINT}"
            )
        _replicas.check_strategy()
        _check_manager(loss_scale_manager)
        self._tflsc_keep_sparse = _arguments.flag("keep_sparse", keep_sparse)
        self._opt = opt
        super().__init__(opt, loss_scale_manager, agree)

    _tflsc_wrapped = property(operator.attrgetter("_opt"))

    @property
    def _loss_scale_manager(self) -> Any:
        return vars(self).get("_tflsc_loss_scale")

    @_loss_scale_manager.setter
    def _loss_scale_manager(self, manager: Any) -> None:
        _check_manager(manager)
        self._tflsc_loss_scale = manager


class MixedPrecisionLossScaleOptimizer(LossScaleOptimizerBase):
    """Wraps an optimizer with a `LossScale`, which also decides which steps are skipped.

    Example::

        opt = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
        train_op = MixedPrecisionLossScaleOptimizer(opt, "dynamic").minimize(loss)

    Source: TensorFlow r1.14-2.x
    `tf.compat.v1.train.experimental.MixedPrecisionLossScaleOptimizer`.
    """

    _tflsc_step_class = _MixedPrecisionStep

    def __init__(
        self,
        opt: _types.HasOptimizerMethods,
        loss_scale: _loss_scales.Identifier,
        *,
        agree: _types.Agree | None = None,
    ) -> None:
        """Wraps `opt`.

        Args:
          opt: a `tf.compat.v1.train.Optimizer`.
          loss_scale: a `LossScale` or a value that `loss_scale.get` takes, but not None.
          agree: see `contrib.mixed_precision.LossScaleOptimizer`. Not in r2.0.

        Raises:
          TypeError: `agree` is not a function.
          ValueError: `opt` is not a v1 optimizer; `loss_scale` is None, not a loss scale, fixed
            above 2**126, belongs to a Keras optimizer, or decides by gradients and `agree` is
            given; the strategy in scope is unsupported; or Horovod's optimizer adds up gradients of
            a changing scale.
        """
        if not isinstance(opt, _tf.Optimizer):
            raise ValueError(
                "opt must be an instance of tf.compat.v1.train.Optimizer, "
                f"got {opt!r}. {_KERAS_HINT}"
            )
        loss_scale = _loss_scales.require(loss_scale)
        _agreement.check_agree(agree)
        _replicas.check_strategy()
        if _loss_scales.will_be_dynamic(loss_scale):
            _agreement.check_takes_dynamic(opt)  # Before it makes variables.
        loss_scale = _loss_scales.get(loss_scale)
        self._optimizer = opt
        super().__init__(opt, loss_scale, agree)

    _tflsc_wrapped = property(operator.attrgetter("_optimizer"))

    @property
    def _loss_scale(self) -> Any:
        return vars(self).get("_tflsc_loss_scale")

    @_loss_scale.setter
    def _loss_scale(self, loss_scale: Any) -> None:
        if not _scale_or_manager.has_methods(loss_scale, "update", "__call__"):
            raise TypeError(
                f"_loss_scale must be a LossScale, got {loss_scale!r}. Write "
                "tf_lossscale_compat.loss_scale.get(...), which makes one of a number, a manager, "
                "a config or 'dynamic'."
            )
        self._tflsc_loss_scale = _loss_scales.for_tensorflows(loss_scale)


def _check_manager(manager: Any) -> None:
    if not _scale_or_manager.is_manager(manager):
        raise TypeError(
            "loss_scale_manager must be a LossScaleManager, or have its two methods, got "
            f"{manager!r}. Make a manager, such as FixedLossScaleManager(1024), or use "
            "tf_lossscale_compat.train.experimental.MixedPrecisionLossScaleOptimizer, which takes "
            "a LossScale, a number, 'dynamic' or a config."
        )


# Where users find them.
LossScaleOptimizer.__module__ = "tf_lossscale_compat.contrib.mixed_precision"
MixedPrecisionLossScaleOptimizer.__module__ = "tf_lossscale_compat.train.experimental"
