"""The family of the optimizers that tf.keras 2.11 brought, and what `OptimizerV2` shares."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Iterable, NoReturn

from absl import logging

from tf_lossscale_compat._core import (
    _autograph,
    _callers,
    _horovod,
    _keras_versions,
    _scaler,
    _state,
    _tf,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _aggregation, _family, _optimizer, _values

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._scalers import _loss_scales


class SharedFamily(_family.Family):
    """What both families of tf.keras share; see the methods of `_family.Family`."""

    is_legacy: bool  # `deserialize` of those optimizers takes it.
    aggregates_by: tuple[tuple[str, ...], str, bool]  # Arguments of `Aggregation`.

    def check_pairs(
        self, owner: Any, pairs: list[_types.Pair]
    ) -> tuple[_types.Gradients, _types.Variables]:
        """Checks what `apply_gradients` is given; returns gradients and variables."""
        raise NotImplementedError

    def delegate_tracking(self, owner: Any) -> None:
        """Makes checkpoints see the inner optimizer in the owner's place, with the loss scale.

        TensorFlow 2.3 to 2.15 and `tf_keras` write them so.
        """
        classes = type(owner).__mro__
        delegating: Any = next(each for each in classes if "DelegatingTrackable" in each.__name__)
        owner._optimizer._is_wrapped_by_loss_scale_optimizer = True  # It can hold one.
        owner.__dict__["_trackable"] = owner._optimizer  # Some versions read it while they set it.
        delegating.__init__(owner, owner._optimizer)
        self.track_loss_scale(owner, owner._loss_scale)

    def deserialize(self, config: dict[str, Any], custom_objects: dict[str, Any] | None) -> Any:
        deserialize = self.keras.optimizers.deserialize
        options = {}
        if "use_legacy_optimizer" in inspect.signature(deserialize).parameters:
            options["use_legacy_optimizer"] = self.is_legacy
        return deserialize(config, custom_objects=custom_objects, **options)

    def apply_pairs(
        self,
        owner: Any,
        grads_and_vars: Iterable[_types.Pair],
        scaled: bool | None,
        args: tuple[Any, ...] = (),
        aggregates: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Aggregates gradients if `aggregates`, and takes a step with them.

        `args` and `kwargs` are for the inner optimizer's `apply_gradients`.
        """
        pairs, inner, kept = list(grads_and_vars), owner._optimizer, owner._tflsc
        if scaled is None and _tf.at_least(2, 4) and kept.enabled:
            kept.calls.warn_if_never_asked()
        scaled = kept.calls.are_scaled(scaled, [grad for grad, _ in pairs])
        grads, variables = self.check_pairs(owner, pairs)
        aggregation = _aggregation.Aggregation(inner, aggregates, *self.aggregates_by)
        kwargs = {**kwargs, **aggregation.kwargs}
        unaggregated = None
        if aggregation.here:
            _family.check_context(owner)
            if scaled:
                grads, scaled = self.unscale(owner, grads), False
            unaggregated = _aggregation.filter_empty_gradients(grads, variables)
            grads, variables = aggregation.aggregate(*unaggregated)

        def apply(grads: _types.Gradients, variables: _types.Variables) -> Any:
            with aggregation.applied_once():
                return inner.apply_gradients(list(zip(grads, variables)), *args, **kwargs)

        return self.take_step(owner, grads, variables, scaled, apply, unaggregated)


class SharedMethods(_optimizer.LossScaling):
    """The public methods that both families of tf.keras have beyond those of all."""

    clipnorm = _optimizer.of_inner("clipnorm")
    clipvalue = _optimizer.of_inner("clipvalue")
    global_clipnorm = _optimizer.of_inner("global_clipnorm")

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that is wrapped."""
        return self._optimizer

    @property
    def dynamic_scale(self) -> tf.Variable | None:
        """The loss scale, a variable, as on Keras 3; None if it is fixed or of another kind."""
        return getattr(self._loss_scale, "current_loss_scale", None)

    @dynamic_scale.setter
    def dynamic_scale(self, value: NoReturn) -> None:
        _optimizer.refuse_to_set(self, "dynamic_scale", value)


class Family(SharedFamily):
    """See the methods of `_family.Family`."""

    is_legacy = False
    computes = "compute_gradients"
    aggregates_by = ("aggregate_gradients",), "skip_gradients_aggregation", True

    def wrap(self, owner: Any, loss_scale: _loss_scales.LossScale, name: str | None) -> str | None:
        # Keras' own has none, and fails where it is to warn.
        owner.name = type(owner).__name__ if name is None else name
        self.delegate_tracking(owner)
        return name

    def scaled_gradients(self, owner: Any, *args: Any) -> list[_types.Pair]:
        loss, var_list, tape = args
        scaled = self.scale(owner, loss, tape)
        return owner._optimizer.compute_gradients(scaled, var_list, tape=tape)

    def check_pairs(
        self, owner: Any, pairs: list[_types.Pair]
    ) -> tuple[_types.Gradients, _types.Variables]:
        grads, variables = _family.unzip_pairs(pairs)
        _family.check_context(owner)
        _horovod.check_reduced(owner, grads)
        if not tf.executing_eagerly():
            _family.check_graph(owner)
        with tf.init_scope():  # Branches of a conditional are no place to make slot variables.
            owner.build(_keras_versions.variables_to_build(grads, variables))
        return grads, variables


class TFKeras(_optimizer.WeightDecay, SharedMethods):
    """Mixed into that Keras' `LossScaleOptimizer` for such optimizers."""

    _tflsc_family: Family
    ema_momentum = _optimizer.of_inner("ema_momentum")
    ema_overwrite_frequency = _optimizer.of_inner("ema_overwrite_frequency")
    jit_compile = _optimizer.of_inner("jit_compile")
    use_ema = _optimizer.of_inner("use_ema")
    weight_decay = _optimizer.of_inner("weight_decay")

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
        """Returns (gradient, variable) pairs, computed from the scaled loss and then unscaled.

        Args:
          loss: function without arguments that returns a float tensor, or with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.
        """
        self._tflsc.calls.called("compute_gradients")
        kind = self._tflsc_family
        return kind.unscaled_pairs(self, kind.scaled_gradients(self, loss, var_list, tape))

    @_autograph.converts_functions_given
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> None:
        """Computes gradients and applies them: `compute_gradients` and `apply_gradients` in one."""
        self._tflsc_family.minimize(self, loss, var_list, tape)

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
        self._tflsc_family.apply_pairs(
            self, grads_and_vars, scaled, aggregates=aggregates, **kwargs
        )

    @property
    def variables(self) -> _values.CallableList:
        """The variables of the inner optimizer, without those of the loss scale.

        A list that can be called, too: in TensorFlow 2.10 this was a method.
        """
        # Files in HDF5 hold those, too: there is no other place for them.
        own = _scaler.variables(self._loss_scale) if _callers.is_hdf5_saving() else []
        return _values.CallableList(_state.variables_of(self._optimizer) + own)

    def save_own_variables(self, store: Any) -> None:
        """Puts state into a `.keras` file: the inner optimizer's by number, the scale's by name."""
        for i, variable in enumerate(_state.variables_of(self._optimizer)):
            store[str(i)] = variable.numpy()
        for name, variable in _values.by_name(self._loss_scale).items():
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
        own = _values.by_name(self._loss_scale)
        if saved != set(inner) | set(own):
            logging.warning(
                "The saved optimizer has a loss scale of another kind or none; this one keeps its "
                "own."
            )
            own = {}
        targets = {**inner, **own}
        _values.assign_all(targets.values(), [store[name] for name in targets])


Family.methods = TFKeras
