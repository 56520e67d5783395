"""Loss-scale managers of TensorFlow r1.15, `tf.contrib.mixed_precision`."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Mapping

from absl import logging

from tf_lossscale_compat._core import (
    _arguments,
    _autograph,
    _graphs,
    _replicas,
    _scale_or_manager,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# The attributes of an `ExponentialUpdateLossScaleManager` that hold arguments.
_ARGUMENTS = ("_incr_every_n_steps", "_decr_every_n_nan_or_inf", "_incr_ratio", "_decr_ratio")


class LossScaleManager(_tf.Trackable, metaclass=abc.ABCMeta):
    """Chooses the loss scale of a `contrib.mixed_precision.LossScaleOptimizer`.

    Derive a class from it for your own update rule: `update_loss_scale` may use `tf.cond` and
    `assign`, and may return an operation, a tensor or None. `tf.train.Checkpoint` saves variables
    and managers that are attributes, under the attributes' names.

    Source: TensorFlow r1.15 `tf.contrib.mixed_precision.LossScaleManager`, which lacks
    `variables()` and cannot be saved by `tf.train.Checkpoint`.
    """

    # The names in checkpoints of attributes that have another name there, or None.
    _tflsc_saved_names: Mapping[str, str | None] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        saved = self._tflsc_saved_names.get(name, name)
        if isinstance(value, _tf.Trackable) and saved is not None:
            self._track_trackable(value, saved, overwrite=True)

    @abc.abstractmethod
    def get_loss_scale(self) -> tf.Tensor:
        """Returns the loss scale, a scalar float32 tensor or variable."""

    @abc.abstractmethod
    def update_loss_scale(self, finite_grads: bool | tf.Tensor) -> Any:
        """Updates the loss scale by one step.

        Args:
          finite_grads: scalar bool tensor, whether all gradients of the step are finite. In eager
            mode it may be a Python bool.

        Returns:
          In graph mode an operation or tensor that updates the loss scale; in eager mode None.
        """

    def variables(self) -> list[tf.Variable]:
        """Returns the list of variables that hold the manager's state."""
        return []


class FixedLossScaleManager(LossScaleManager):
    """A loss scale that never changes.

    contrib's `LossScaleOptimizer` skips a step whose gradients are not finite. With r2.0's
    `FixedLossScale` that step is applied.

    Source: TensorFlow r1.15 `tf.contrib.mixed_precision.FixedLossScaleManager`.
    """

    _tflsc_saved_names = {"_loss_scale": None}

    def __init__(self, loss_scale: _types.Real) -> None:
        """Makes the manager and, in a graph, its constant: one operation, as in r1.15.

        Args:
          loss_scale: real number, at least 1.

        Raises:
          TypeError: `loss_scale` is not a real number.
          ValueError: `loss_scale` is below 1, NaN, or not finite in float32.
        """
        value = _arguments.fixed_scale("loss_scale", loss_scale, error=TypeError)
        self._loss_scale = value
        if not tf.executing_eagerly():
            _scale_or_manager.data_of(self).constant = (value, tf.constant(value, tf.float32))

    def get_loss_scale(self) -> tf.Tensor:
        """Returns the loss scale, a scalar float32 tensor, in any graph or function, or eagerly.

        In the constructor's graph, and without eager mode also if no graph is entered, it is the
        constant that the constructor made.
        """
        value = self._loss_scale
        number, made = _scale_or_manager.data_of(self).constant or (None, None)
        if made is not None and _graphs.can_use_tensors_of(made.graph) and number == value:
            return made
        return _graphs.once_per_graph(value, lambda: tf.convert_to_tensor(value, dtype=tf.float32))

    def update_loss_scale(self, finite_grads: bool | tf.Tensor) -> Any:
        """Changes nothing; returns a no-op `tf.Operation` in graph mode, None in eager mode."""
        return _graphs.as_operation(None)

    _tflsc_update = update_loss_scale
    _tflsc_our_methods = get_loss_scale, update_loss_scale


class ExponentialUpdateLossScaleManager(LossScaleManager):
    """A loss scale that grows after a run of finite steps and shrinks after non-finite ones.

    The rule, for each step::

        if finite:
            good += 1
            if good >= incr_every_n_steps:
                scale = scale * incr_ratio if that is finite; good = bad = 0
        else:
            bad += 1; good = 0
            if bad >= decr_every_n_nan_or_inf:
                scale = max(1, scale * decr_ratio); good = bad = 0

    The state is three variables that are not trained: `loss_scale` (float32), `good_steps` and
    `bad_steps` (int32). Their names include the name or variable scope around the constructor, so
    that checkpoints of r1.15 restore. Under `strategy.scope()` they are made as mirrored variables.

    Source: TensorFlow r1.15 `tf.contrib.mixed_precision.ExponentialUpdateLossScaleManager`.
    """

    # Public programs assign their own variables or numbers to these attributes.
    _tflsc_saved_names = {
        "_loss_scale": "loss_scale",
        "_num_good_steps": "good_steps",
        "_num_bad_steps": "bad_steps",
        **dict.fromkeys(_ARGUMENTS),
    }

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _arguments.check_overrides(
            cls, ExponentialUpdateLossScaleManager, ("_reset_stats",), "update_loss_scale"
        )

    def __init__(
        self,
        init_loss_scale: _types.Real,
        incr_every_n_steps: _types.Integer,
        decr_every_n_nan_or_inf: _types.Integer = 2,
        incr_ratio: _types.Real = 2,
        decr_ratio: _types.Real = 0.8,
    ) -> None:
        """Makes the manager and its variables.

        Args:
          init_loss_scale: real number above zero, the initial loss scale.
          incr_every_n_steps: int, the loss scale grows after this many finite steps in a row.
          decr_every_n_nan_or_inf: int, the loss scale shrinks after this many non-finite steps.
            Finite steps between them do not matter, but growth resets the count.
          incr_ratio: real number above zero, the factor of growth.
          decr_ratio: real number above zero, the factor of shrinking.

        Raises:
          TypeError: a scale or ratio is not a real number.
          ValueError: one is not above zero or not finite in float32, or a period is not integral.
        """
        initial_scale = _arguments.positive("init_loss_scale", init_loss_scale, TypeError)
        self._incr_every_n_steps = _arguments.step_count(
            "incr_every_n_steps", incr_every_n_steps, "int32"
        )
        self._decr_every_n_nan_or_inf = _arguments.step_count(
            "decr_every_n_nan_or_inf", decr_every_n_nan_or_inf, "int32"
        )
        self._incr_ratio = _arguments.positive("incr_ratio", incr_ratio, TypeError)
        self._decr_ratio = _arguments.positive("decr_ratio", decr_ratio, TypeError)
        if initial_scale < 1:
            logging.warning("init_loss_scale=%r is below 1, the floor.", init_loss_scale)
        if self._incr_ratio < 1:
            logging.warning("incr_ratio=%r is below 1: growth shrinks the scale.", incr_ratio)
        if self._decr_ratio > 1:
            logging.warning("decr_ratio=%r is above 1: shrinking raises the scale.", decr_ratio)

        _scale_or_manager.data_of(self).extra_config["init_loss_scale"] = initial_scale
        self._loss_scale = _variables.make(self, "loss_scale", initial_scale, tf.float32)
        self._num_good_steps = _variables.make(self, "good_steps", 0, tf.int32)
        self._num_bad_steps = _variables.make(self, "bad_steps", 0, tf.int32)

    def variables(self) -> list[tf.Variable]:
        """Returns the loss scale and the counters of good and bad steps, three variables."""
        return [self._loss_scale, self._num_good_steps, self._num_bad_steps]

    def get_loss_scale(self) -> tf.Variable:
        """Returns the loss scale, a scalar float32 variable, as in r1.15.

        The variable follows later steps. `assign` sets the loss scale by hand.
        """
        return self._loss_scale

    @_autograph.do_not_convert
    def update_loss_scale(self, finite_grads: bool | tf.Tensor) -> Any:
        """Updates the state by one step, once for all replicas.

        Args:
          finite_grads: scalar bool tensor or Python bool. In a replica context it is each replica's
            own flag, and the step is finite only if all flags are True.

        Returns:
          In graph mode an operation or tensor that updates the state; in eager mode None.

        Raises:
          ValueError: `finite_grads` is not a scalar.
          TypeError or ValueError: `finite_grads` is not a bool.
        """
        # Subclasses may override `variables`.
        with _variables.scope_of(ExponentialUpdateLossScaleManager.variables(self)):
            return _replicas.run_cross_replica(
                lambda flag: self._tflsc_update(_replicas.true_everywhere(_as_flag, (flag,))),
                (finite_grads,),
            )

    def _tflsc_update(self, finite: Any) -> Any:
        """Takes one step of the rule; `finite` is the same on all replicas.

        It assigns only what the step changes: most finite steps add one to a counter. Parallel
        steps, in one `session.run`, in threads or on workers, therefore lose no more of each
        other's updates than with TensorFlow's class.
        """
        scale, good, bad = self._loss_scale, self._num_good_steps, self._num_bad_steps

        def reset_counters() -> Any:
            return [_variables.assign(good, 0), _variables.assign(bad, 0)]

        def grow() -> Any:
            return [_variables.multiply_if_finite(scale, self._incr_ratio), *reset_counters()]

        def shrink() -> Any:
            # 1.0 comes first: only in this order a NaN scale becomes 1, as in TensorFlow 1.15.
            lowered = tf.maximum(1.0, _variables.read_here(scale) * self._decr_ratio)
            return [_variables.assign(scale, lowered), *reset_counters()]

        def grow_or_count() -> Any:
            grows = _variables.reaches(good, self._incr_every_n_steps)
            return _variables.branch(grows, grow, lambda: _variables.add(good, 1))

        def count_bad() -> Any:
            return [_variables.add(bad, 1), _variables.assign(good, 0)]

        def shrink_or_count() -> Any:
            shrinks = _variables.reaches(bad, self._decr_every_n_nan_or_inf)
            return _variables.branch(shrinks, shrink, count_bad)

        return _variables.update_copies(
            [scale, good, bad], lambda: _variables.branch(finite, grow_or_count, shrink_or_count)
        )

    def _reset_stats(self) -> Any:
        """Sets both counters to zero, for subclasses; returns an operation, None in eager mode."""
        counters = [self._num_good_steps, self._num_bad_steps]
        return _variables.update_copies(
            counters, lambda: [_variables.assign(each, 0) for each in counters]
        )

    _tflsc_our_methods = get_loss_scale, update_loss_scale


def _as_flag(finite_grads: bool | tf.Tensor) -> tf.Tensor:
    flag = tf.convert_to_tensor(finite_grads, dtype=tf.bool)
    if flag.shape.rank not in (0, None):
        raise ValueError(f"finite_grads must be a scalar bool, got one of shape {flag.shape}.")
    return flag


def config_of(manager: LossScaleManager) -> dict[str, Any]:
    """Returns the constructor's arguments of a manager of this package, a dict."""
    if isinstance(manager, FixedLossScaleManager):
        return {"loss_scale": manager._loss_scale}
    others = {name[1:]: getattr(manager, name) for name in _ARGUMENTS}
    return {**_scale_or_manager.data_of(manager).extra_config, **others}


for _public in (LossScaleManager, FixedLossScaleManager, ExponentialUpdateLossScaleManager):
    _public.__module__ = "tf_lossscale_compat.contrib.mixed_precision"  # Where users find it.
