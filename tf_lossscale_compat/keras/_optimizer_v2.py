"""Loss-scale optimizers of `OptimizerV2`: tf.keras up to 2.10, and later its legacy optimizers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Iterable

from tf_lossscale_compat._core import (
    _autograph,
    _callers,
    _gradients,
    _keras_versions,
    _scale_or_manager,
    _tf,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _base, _before_keras3, _keras_step

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._scales import _loss_scales

_DELEGATES_TRACKING = _tf.at_least(2, 3)


def _check_clipping(optimizer: object) -> None:
    """Raises a ValueError for an optimizer that clips gradients when it computes them.

    Optimizers of TensorFlow before 2.4 do. They would clip scaled gradients. No clipped gradient is
    infinite, so no step would be skipped.
    """
    if hasattr(optimizer, "_transform_gradients"):
        return
    for name in ("clipnorm", "clipvalue"):
        value = getattr(optimizer, name, None)
        if value is not None:
            raise ValueError(
                f"The wrapped optimizer must have no {name}, got {value!r}: before TensorFlow "
                "2.4, optimizers clip gradients that are still scaled. Clip what "
                "get_unscaled_gradients returns, then call apply_gradients."
            )


class OptimizerV2Step(_before_keras3.BeforeKeras3Step):
    """One call of an optimizer that wraps one derived from `OptimizerV2`."""

    wrapped: _types.OptimizerV2
    counts_skipped_by_default = _tf.at_least(2, 3)
    compute_method = "_compute_gradients"
    updates_first = True
    aggregating_methods = ("_transform_unaggregated_gradients", "_aggregate_gradients")
    without_aggregation = {"experimental_aggregate_gradients": False}

    @staticmethod
    def densify(grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients, made dense before TensorFlow 2.3 as by TensorFlow's own class.

        Numbers differ: momentum moves all rows for a dense gradient, and some for a sparse one.
        """
        return grads if _tf.at_least(2, 3) else _gradients.densify(grads)

    def compute_scaled_gradients(
        self,
        loss: _types.Loss,
        var_list: Any,
        grad_loss: tf.Tensor | None,
        tape: tf.GradientTape | None = None,
    ) -> list[_types.Pair]:
        _check_clipping(self.wrapped)
        if tape is None and callable(loss) and _tf.at_least(2, 4):
            tape = tf.GradientTape()
        kwargs = {} if tape is None else {"tape": tape}  # Before TensorFlow 2.4 there is none.
        scaled = self.scale_loss_on_tape(loss, tape)
        return self.wrapped._compute_gradients(scaled, var_list, grad_loss, **kwargs)

    def check_pairs(self, pairs: Iterable[_types.Pair]) -> _types.Unzipped:
        # A model without trainable variables can be fitted, as with the inner optimizer alone.
        return _keras_step.unzip_and_check(pairs, may_be_empty=True)


class OptimizerV2Base(_before_keras3.BeforeKeras3OptimizerBase):
    """Base class of the loss-scale optimizers of this kind."""

    _optimizer: _types.OptimizerV2
    _tflsc_step_class = OptimizerV2Step
    _tflsc_is_legacy = True
    _tflsc_registered_suffix = "V2"
    _aggregate_gradients = _base.inner_property("_aggregate_gradients")
    _clip_gradients = _base.inner_property("_clip_gradients")
    _create_all_weights = _base.inner_property("_create_all_weights")
    _create_hypers = _base.inner_property("_create_hypers")
    _create_or_restore_slot_variable = _base.inner_property("_create_or_restore_slot_variable")
    _decayed_lr = _base.inner_property("_decayed_lr")
    _get_hyper = _base.inner_property("_get_hyper")
    _restore_slot_variable = _base.inner_property("_restore_slot_variable")
    _set_hyper = _base.inner_property("_set_hyper")
    add_slot = _base.inner_property("add_slot")

    # Reading a rate makes variables of the hyperparameters, and a number that then takes the place
    # of a schedule is a constant of functions. So the rate is not read before it is set.

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's `learning_rate`."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._optimizer.learning_rate = value

    def __setattr__(self, name: str, value: Any) -> None:
        # Keras' own class of TensorFlow 2.4 has no such property, and would read this one here.
        reads = hasattr(self._tflsc_family.original, "learning_rate")
        if name in ("learning_rate", "lr") and not reads and "_tflsc" in vars(self):
            self._optimizer.learning_rate = value
        else:
            super().__setattr__(name, value)

    @_autograph.convert_passed_functions
    def _compute_gradients(
        self,
        loss: _types.Loss,
        var_list: Any,
        grad_loss: tf.Tensor | None = None,
        tape: tf.GradientTape | None = None,
    ) -> list[_types.Pair]:
        self._tflsc.scaled_rule.note_call("_compute_gradients")
        step = OptimizerV2Step(self)
        return step.unscale_pairs(step.compute_scaled_gradients(loss, var_list, grad_loss, tape))

    @_autograph.do_not_convert
    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Computes gradients of the scaled loss in a graph and unscales them.

        Args:
          loss: scalar float tensor.
          params: list of variables.

        Returns:
          A list of gradients, with the variables' shapes and dtypes.
        """
        self._tflsc.scaled_rule.note_call("get_gradients")
        _check_clipping(self._optimizer)
        scaled_loss = OptimizerV2Step.scale_loss(loss, self._loss_scale())
        scaled_grads = self._optimizer.get_gradients(scaled_loss, params)
        grads = OptimizerV2Step.unscale(self._loss_scale(), scaled_grads)
        self._tflsc.scaled_rule.remember_unscaled(grads)
        return grads

    @_autograph.convert_passed_functions
    def minimize(
        self,
        loss: Any,
        var_list: Any,
        grad_loss: Any = None,
        name: str | None = None,
        tape: Any = None,
    ) -> Any:
        """Computes gradients of the scaled loss and applies them; see `OptimizerV2.minimize`.

        Returns:
          An operation; None in eager mode.
        """
        keywords = {"var_list": var_list, "grad_loss": grad_loss}
        if _tf.at_least(2, 4):
            keywords["tape"] = tape
        pairs, options = OptimizerV2Step(self).compute_for_minimize(loss, **keywords)
        return self.apply_gradients(pairs, name=name, **options)

    @_autograph.do_not_convert
    def apply_gradients(  # type: ignore[override]
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: Any = None,
        experimental_aggregate_gradients: bool = True,
        *,
        scaled: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        args: tuple[Any, ...] = ()  # The inner optimizer may have no `name` at this position.
        apply_gradients = self._optimizer.apply_gradients
        if isinstance(name, str) and _keras_step.takes_argument(apply_gradients, "name"):
            kwargs["name"] = name
        elif name is not None:
            args = (name,)
        pairs = list(grads_and_vars)
        if not isinstance(scaled, bool):
            scaled = self._tflsc.scaled_rule.decide(scaled, pairs)
        aggregates = experimental_aggregate_gradients
        step = OptimizerV2Step(self, args=args, kwargs=kwargs, aggregates=aggregates)
        return step.take_pairs(pairs, scaled)

    # State.

    def variables(self) -> list[Any]:
        """Returns `weights`."""
        return self.weights

    @property
    def weights(self) -> list[Any]:
        """The variables of the inner optimizer, without those of the loss scale; a list."""
        # HDF5 files hold those of the loss scale too, and have no other place for them.
        of_scale = _scale_or_manager.variables_of(self._loss_scale)
        return list(self._optimizer.weights) + (of_scale if _callers.is_hdf5_saving() else [])

    def set_weights(self, weights: Any) -> None:
        variables = self._tflsc_all_variables()
        if len(weights) == len(variables):
            # In a graph, Keras' session assigns.
            _base.assign_all(variables, weights, self._tflsc_family.keras.backend.batch_set_value)
        else:  # Adam's own method also takes the weights of Keras 1.
            self._optimizer.set_weights(weights)

    def get_slot_names(self) -> list[str]:
        """Returns the names of the inner optimizer's slots, a list of str."""
        # If a checkpoint finds the slots in the child base_optimizer, names here would save them a
        # second time, and TensorFlow raises an error for that.
        if not _DELEGATES_TRACKING and _callers.is_checkpointing():
            return []
        return self._optimizer.get_slot_names()

    def get_slot(self, var: Any, slot_name: str) -> Any:
        """Returns the inner optimizer's slot variable `slot_name` for `var`."""
        return self._optimizer.get_slot(var, slot_name)

    # Making an optimizer.

    @classmethod
    def _tflsc_check_can_wrap(cls, optimizer: Any) -> None:
        super()._tflsc_check_can_wrap(optimizer)
        _check_clipping(optimizer)

    def _tflsc_init_base_class(self, name: str | None) -> str | None:
        self.__dict__.update(_hyper={}, _name="LossScaleOptimizer" if name is None else name)
        if _DELEGATES_TRACKING:
            self._tflsc_delegate_tracking()
            # Checkpoints of TensorFlow 2.0 to 2.2 have the inner optimizer under this name.
            module = sys.modules[self._tflsc_family.original.__module__]
            fake = getattr(module, "FakeOptimizerForRestoration", None)
            if fake is not None:
                self._track_trackable(fake(self._optimizer), "base_optimizer", overwrite=True)
        else:
            self._track_trackable(self._optimizer, "base_optimizer")
            self._tflsc_track_loss_scale(self._loss_scale)
        return name

    def _tflsc_track_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        super()._tflsc_track_loss_scale(loss_scale)
        for variable in _scale_or_manager.variables_of(loss_scale):
            _keras_versions.track_in_session(variable)
