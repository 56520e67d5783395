"""The wrapper for the optimizers that tf.keras 2.11 brought, of tf.keras and `tf_keras`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from absl import logging

from tf_lossscale_compat._core import _autograph, _callers, _keras_versions, _scaler, _state, _tf
from tf_lossscale_compat.keras import _shared

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._scalers import _loss_scales
else:
    tf = _tf.tf


class TFKeras(_shared.WeightDecay, _shared.WrapsTFKeras):
    """Mixed into that Keras' `LossScaleOptimizer` for such optimizers."""

    _optimizer: _types.TFKerasOptimizer

    _tflsc_is_legacy = False
    _tflsc_computes = "compute_gradients"
    _tflsc_aggregates_by = ("aggregate_gradients",), "skip_gradients_aggregation", True

    ema_momentum = _shared.of_inner("ema_momentum")
    ema_overwrite_frequency = _shared.of_inner("ema_overwrite_frequency")
    jit_compile = _shared.of_inner("jit_compile")
    use_ema = _shared.of_inner("use_ema")
    weight_decay = _shared.of_inner("weight_decay")

    def _tflsc_wrap(
        self,
        inner_optimizer: _types.KerasOptimizer,
        loss_scale: _loss_scales.LossScale,
        name: str | None,
    ) -> str | None:
        # Keras' own has none, and fails where it is to warn.
        self.name = type(self).__name__ if name is None else name
        self._tflsc_delegate_tracking()
        return name

    # Keras' own has the next two in newer versions only; before, it would keep moving averages of
    # its own.

    def build(self, var_list: Iterable[Any]) -> None:
        """Makes the inner optimizer's variables for these, once."""
        self._optimizer.build(var_list)

    def finalize_variable_values(self, var_list: Iterable[Any]) -> None:
        """Has the inner optimizer put its moving averages, if it keeps any, into the variables."""
        self._optimizer.finalize_variable_values(var_list)

    @_autograph.converts_functions_given
    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Returns (gradient, variable) pairs, the loss scaled up before and they down after.

        Args:
          loss: function without arguments that returns a float tensor, or with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.
        """
        self._tflsc_calls.called("compute_gradients")
        return self._tflsc_unscaled_pairs(self._tflsc_scaled_gradients(loss, var_list, tape))

    def _tflsc_scaled_gradients(
        self, loss: _types.Loss, var_list: Any, tape: tf.GradientTape | None
    ) -> list[_types.Pair]:
        scaled = self._tflsc_scaled(loss, tape)
        return self._optimizer.compute_gradients(scaled, var_list, tape=tape)

    @_autograph.converts_functions_given
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        """Computes gradients and applies them: `compute_gradients` and `apply_gradients` in one."""
        self._tflsc_minimize(loss, var_list, tape)

    def _tflsc_check_pairs(
        self, grads_and_vars: list[_types.Pair]
    ) -> tuple[list[_types.Gradient], list[_types.Variable]]:
        grads, variables = _shared.unzip_pairs(grads_and_vars)
        _shared.check_context(self, grads)
        with tf.init_scope():  # Branches of a conditional are no place to make slot variables.
            self.build(_keras_versions.variables_to_build(grads, variables))
        return grads, variables

    @_autograph.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        skip_gradients_aggregation: bool = False,
        *,
        scaled: bool | None = None,
        experimental_aggregate_gradients: bool = True,
        **kwargs: Any,
    ) -> None:
        aggregates = experimental_aggregate_gradients and not skip_gradients_aggregation
        self._tflsc_apply_pairs(grads_and_vars, scaled, aggregates=aggregates, **kwargs)

    @property
    def variables(self) -> _shared.CallableList:
        """The variables of the inner optimizer, without those of the loss scale.

        A list that can be called, too: in TensorFlow 2.10 this was a method.
        """
        # Files in HDF5 hold those, too: there is no other place for them.
        own = _scaler.variables(self._loss_scale) if _callers.is_hdf5_saving() else []
        return _shared.CallableList(_state.variables_of(self._optimizer) + own)

    def save_own_variables(self, store: Any) -> None:
        """Puts state into a `.keras` file: the inner optimizer's by number, the scale's by name."""
        for i, variable in enumerate(_state.variables_of(self._optimizer)):
            store[str(i)] = variable.numpy()
        for name, variable in _shared.named_variables_of(self._loss_scale).items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Takes state from a `.keras` file, also of another loss-scale optimizer or of none."""
        saved = set(store.keys())
        inner = {
            str(i): variable for i, variable in enumerate(_state.variables_of(self._optimizer))
        }
        if {name for name in saved if name.isdigit()} != set(inner):
            logging.warning("The saved optimizer has other variables; none of them is loaded.")
            return
        own = _shared.named_variables_of(self._loss_scale)
        if saved != set(inner) | set(own):
            logging.warning(
                "The saved optimizer has a loss scale of another kind or none; this one keeps its "
                "own."
            )
            own = {}
        targets = {**inner, **own}
        _shared.assign_all(targets.values(), [store[name] for name in targets])
