"""Base classes of the two families of tf.keras, `_optimizer_v3` and `_optimizer_v2`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Iterable, NoReturn, TypeVar

from tf_lossscale_compat._core import _agreement
from tf_lossscale_compat.keras import _aggregation, _family, _methods

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_lossscale_compat._core import _types

BeforeKeras3Owner = TypeVar("BeforeKeras3Owner", bound="BeforeKeras3Methods")


class BeforeKeras3Family(_family.KerasFamily[BeforeKeras3Owner]):
    """Base class of the families of `OptimizerV2` and `_BaseOptimizer`."""

    is_legacy: bool  # For `deserialize`, which returns one of either family.
    aggregation_of_inner: _aggregation.InnerAggregation

    def prepare_pairs(
        self, owner: BeforeKeras3Owner, pairs: Iterable[_types.Pair]
    ) -> tuple[_types.Gradients, _types.Variables]:
        """Checks pairs, and where the family does, builds the optimizer; returns both lists."""
        raise NotImplementedError

    def delegate_tracking(self, owner: BeforeKeras3Owner) -> None:
        """Makes checkpoints hold the inner optimizer in the owner's place, with the loss scale.

        So do those of TensorFlow 2.3 to 2.15 and `tf_keras`.
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

    def agreement(self, owner: BeforeKeras3Owner) -> _types.Agree | None:
        return _agreement.agreement_or_default(owner._tflsc.agreement, owner, owner._loss_scale)

    def apply_pairs(
        self,
        owner: BeforeKeras3Owner,
        grads_and_vars: Iterable[_types.Pair],
        scaled: bool,
        method_name: str = "apply_gradients",
        args: tuple[Any, ...] = (),
        aggregates: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Takes a step; aggregates gradients before it if `aggregates`.

        `args` and `kwargs` are for the inner optimizer's `apply_gradients`.
        """
        _family.check_step_context(owner, method_name)
        inner = owner._optimizer
        grads, variables = self.prepare_pairs(owner, grads_and_vars)
        aggregation = _aggregation.Aggregation(inner, aggregates, self.aggregation_of_inner)
        kwargs = {**kwargs, **aggregation.apply_kwargs}
        aggregate = None
        if aggregation.aggregates_in_step:
            grads, variables = _aggregation.filter_empty_gradients(grads, variables)
            aggregate = aggregation.aggregate

        def apply(grads: _types.Gradients, variables: _types.Variables) -> Any:
            with aggregation.suppress_aggregation():
                return inner.apply_gradients(list(zip(grads, variables)), *args, **kwargs)

        return self.take_step(owner, grads, variables, scaled, apply, method_name, aggregate)


class BeforeKeras3Methods(_methods.CommonMethods):
    """The public methods that both families have in the same form, and Keras 3 has not."""

    clipnorm = _methods.inner_property("clipnorm")
    clipvalue = _methods.inner_property("clipvalue")
    global_clipnorm = _methods.inner_property("global_clipnorm")

    @property
    def inner_optimizer(self) -> Any:
        """The inner optimizer, a Keras optimizer."""
        return self._optimizer

    @property
    def dynamic_scale(self) -> tf.Variable | None:
        """The loss scale, a scalar float32 variable; None if it is fixed or of another class."""
        return getattr(self._loss_scale, "current_loss_scale", None)

    @dynamic_scale.setter
    def dynamic_scale(self, value: object) -> NoReturn:
        _methods.refuse_to_set(self, "dynamic_scale", value)
