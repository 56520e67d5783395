"""Loss-scale optimizers of tf.keras in TensorFlow 2.11 to 2.15, also of `tf_keras`.

TensorFlow 2.9 and 2.10 have them in `optimizers.experimental`. Keras' own loss-scale class is
`LossScaleOptimizerV3`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

from absl import logging

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _callers,
    _scale_or_manager,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _base, _before_keras3, _keras_step

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


# Before, moving averages are paired with variables by position.
_PAIRS_BY_NAME = _tf.at_least(2, 11)


class OptimizerV3Step(_before_keras3.BeforeKeras3Step):
    """One call of an optimizer that wraps one derived from `_BaseOptimizer`."""

    optimizer: OptimizerV3Base
    wrapped: _types.OptimizerV3
    compute_method = "compute_gradients"
    aggregating_methods = ("aggregate_gradients",)
    without_aggregation = {"skip_gradients_aggregation": True}

    def compute_scaled_gradients(
        self, loss: _types.Loss, var_list: Any, tape: tf.GradientTape | None
    ) -> list[_types.Pair]:
        if tape is None and callable(loss):
            tape = tf.GradientTape()
        scaled = self.scale_loss_on_tape(loss, tape)
        return self.wrapped.compute_gradients(scaled, var_list, tape=tape)

    def check_pairs(self, pairs: Iterable[_types.Pair]) -> _types.Unzipped:
        grads, variables = _keras_step.unzip_and_check(pairs)
        self.check_no_session_graph()
        built = variables
        if not _PAIRS_BY_NAME:
            built = [variable for grad, variable in zip(grads, variables) if grad is not None]
        with tf.init_scope():  # Slot variables cannot be made in a branch of a conditional.
            self.optimizer.build(built)
        return grads, variables


class OptimizerV3Base(_before_keras3.BeforeKeras3OptimizerBase):
    """Base class of the loss-scale optimizers of this kind."""

    _optimizer: _types.OptimizerV3
    _tflsc_step_class = OptimizerV3Step
    _tflsc_is_legacy = False
    name: str
    ema_momentum = _base.inner_property("ema_momentum")
    ema_overwrite_frequency = _base.inner_property("ema_overwrite_frequency")
    jit_compile = _base.inner_property("jit_compile")
    use_ema = _base.inner_property("use_ema")
    weight_decay = _base.inner_property("weight_decay")
    exclude_from_weight_decay = _base.inner_property("exclude_from_weight_decay")
    # In some versions Keras' own class lacks this and the next method, and those of its base class
    # would make moving averages for the wrapper.
    finalize_variable_values = _base.inner_property("finalize_variable_values")

    def build(self, var_list: Iterable[Any]) -> None:
        """Makes the inner optimizer's variables for the variables of `var_list`, once."""
        self._optimizer.build(var_list)

    @_autograph.convert_passed_functions
    def compute_gradients(
        self, loss: Any, var_list: Any, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Computes gradients of the scaled loss and unscales them.

        Args:
          loss: function without arguments that returns a scalar float tensor; with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.

        Returns:
          A list of pairs (gradient, variable). A gradient has its variable's shape and dtype, and
          may be None.

        Raises:
          ValueError: `apply_gradients` was traced before, for scaled gradients.
        """
        self._tflsc.scaled_rule.note_call("compute_gradients")
        step = OptimizerV3Step(self)
        return step.unscale_pairs(step.compute_scaled_gradients(loss, var_list, tape))

    @_autograph.convert_passed_functions
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        """Computes gradients of the scaled loss and applies them; see `compute_gradients`."""
        pairs, options = OptimizerV3Step(self).compute_for_minimize(loss, var_list, tape)
        self.apply_gradients(pairs, **options)

    @_autograph.do_not_convert
    def apply_gradients(  # type: ignore[override]
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        skip_gradients_aggregation: bool | None = False,
        *,
        scaled: bool | None = None,
        experimental_aggregate_gradients: bool = True,
        **kwargs: Any,
    ) -> tf.Tensor | None:
        _arguments.flag("skip_gradients_aggregation", skip_gradients_aggregation, or_none=True)
        pairs = list(grads_and_vars)
        if not isinstance(scaled, bool):
            scaled = self._tflsc.scaled_rule.decide(scaled, pairs)
        aggregates = experimental_aggregate_gradients and not skip_gradients_aggregation
        step = OptimizerV3Step(self, kwargs=kwargs, aggregates=aggregates)
        step.take_pairs(pairs, scaled)
        if tf.executing_eagerly() or _agreement.passes_per_step(self) == 1:
            return None
        # Horovod builds a conditional of this call and an addition to the iterations.
        return tf.identity(self._optimizer.iterations)

    @property
    def variables(self) -> _base.CallableList:
        """The variables of the inner optimizer, without those of the loss scale.

        They are a list that can be called, because this was a method in TensorFlow 2.10.
        """
        # HDF5 files hold those of the loss scale too, and have no other place for them.
        of_scale = _scale_or_manager.variables_of(self._loss_scale)
        saved = of_scale if _callers.is_hdf5_saving() else []
        return _base.CallableList(_variables.of(self._optimizer) + saved)

    def save_own_variables(self, store: Any) -> None:
        """Writes the inner optimizer's variables by number, and the loss scale's by name.

        The latter are attributes of an HDF5 group: a plain optimizer reads the others only if the
        group has nothing else.
        """
        for i, variable in enumerate(_variables.of(self._optimizer)):
            store[str(i)] = variable.numpy()
        attributes = getattr(store, "attrs", store)
        for name, variable in _base.variables_by_name(self._loss_scale).items():
            attributes[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads the state from a `.keras` file, also of another loss scale or of none."""
        # After 2.21.0, tf_keras gives a mapping of the group's datasets, which has no attributes.
        group = getattr(next(iter(store.values()), None), "parent", store)
        values = {**getattr(group, "attrs", {}), **store}
        inner = {str(i): variable for i, variable in enumerate(_variables.of(self._optimizer))}
        if {name for name in values if name.isdigit()} != set(inner):
            logging.warning(
                "The saved optimizer has other variables, or this one none yet: nothing is loaded. "
                "Call build(model.trainable_variables) first."
            )
            return
        scaling = _base.variables_by_name(self._loss_scale)
        if set(values) != set(inner) | set(scaling):
            logging.warning(
                "The saved optimizer has a loss scale of another kind or none; this one keeps its "
                "own."
            )
            scaling = {}
        targets = {**inner, **scaling}
        _base.assign_all(targets.values(), [values[name] for name in targets])

    def _tflsc_init_base_class(self, name: str | None) -> str | None:
        # Keras' own class sets no name, and fails when it warns with it.
        self.name = type(self).__name__ if name is None else name
        self._tflsc_delegate_tracking()
        return name
