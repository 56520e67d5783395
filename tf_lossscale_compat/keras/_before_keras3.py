"""Base classes of the two families of tf.keras, `_optimizer_v3` and `_optimizer_v2`.

Their optimizers aggregate gradients over replicas or processes in `apply_gradients`, after the
finite test. Sums with other workers' gradients would not be tested, and may not be finite even if
all gradients are. So a step aggregates: once, and where possible before the test.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from typing import TYPE_CHECKING, Any, Iterable, Iterator, NoReturn

from absl import logging

from tf_lossscale_compat._core import _agreement, _gradients, _tf
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _family, _methods

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

_lock = threading.Lock()


def _keeps_one_copy() -> bool:
    """Returns whether variables have one copy for all replicas; then Keras aggregates."""
    classes = type(tf.distribute.get_strategy()).__mro__
    return any(cls.__name__.startswith("CentralStorageStrategy") for cls in classes)


class Aggregation:
    """The aggregation of one step's gradients.

    If it is not `wanted`, it is switched off. Else:

    | `apply_gradients` can switch it off | methods | who aggregates |
    | --- | --- | --- |
    | yes | Keras', without replicas | nobody: these methods sum over replicas alone |
    | yes | Keras' with replicas, or a user's | the step |
    | no | Keras' | `apply_gradients`, after the test |
    | no | a user's | the step, which hides them from `apply_gradients` |

    Attributes:
      aggregates_in_step: bool, the step calls `aggregate` before the test.
      apply_kwargs: dict of arguments for `apply_gradients`, so that it does not aggregate again.
    """

    def __init__(
        self, family: BeforeKeras3Family, optimizer: _types.KerasOptimizer, wanted: bool
    ) -> None:
        self._optimizer = optimizer
        methods = family.aggregating_methods
        self._methods = [name for name in methods if hasattr(optimizer, name)]
        # Unless another case applies, the optimizer is told not to aggregate.
        self.aggregates_in_step = self._hides = False
        self.apply_kwargs = dict(family.without_aggregation)
        if not wanted:
            return
        function = getattr(optimizer, "gradient_aggregator", None)
        of_keras = _family.are_keras_methods(optimizer, methods) and (
            function is None or _family.is_of_keras(function)
        )
        if self._can_switch_off(*family.without_aggregation):
            # Keras' own methods only sum over replicas.
            self.aggregates_in_step = tf.distribute.has_strategy() or not of_keras
            return
        self.apply_kwargs = {}
        if not of_keras:  # A user's methods have to come before the test, and once.
            self.aggregates_in_step = self._hides = True

    def _can_switch_off(self, option_name: str) -> bool:
        """Returns whether `apply_gradients` of the optimizer can be told not to aggregate."""
        apply_gradients = self._optimizer.apply_gradients
        # In TensorFlow 2.2 to 2.4, Keras' own class lets the inner optimizer aggregate. An override
        # of `apply_gradients`, such as that of tensorflow/models' AdamWeightDecay, may clip only if
        # it aggregates.
        trusted = _tf.at_least(2, 5) or _family.are_keras_methods(
            self._optimizer, ["apply_gradients"]
        )
        return (
            bool(self._methods)
            and trusted
            and _family.takes_argument(apply_gradients, option_name)
            and not _keeps_one_copy()
        )

    def aggregate(
        self, grads: _types.Gradients, variables: _types.Variables
    ) -> tuple[_types.Gradients, _types.Variables]:
        """Returns aggregated gradients and their variables; both are lists."""
        pairs = list(zip(grads, variables))
        for name in self._methods:
            result = list(getattr(self._optimizer, name)(pairs))
            if not _tf.at_least(2, 4):  # It returned only gradients.
                result = list(zip(result, [variable for _, variable in pairs]))
            pairs = result
        return _gradients.unzip(pairs)

    @contextlib.contextmanager
    def suppress_aggregation(self) -> Iterator[None]:
        """Returns a context in which the optimizer's `apply_gradients` does not aggregate again."""
        if not self._hides:
            yield
            return
        attributes: Any = vars(self._optimizer)
        # Replicas' threads may overlap here: the first hides the methods, the last restores them.
        with _lock:
            users, hidden = attributes.get("_tflsc_aggregation", (0, None))
            if not users:
                hidden = {name: attributes[name] for name in self._methods if name in attributes}
                attributes.update(dict.fromkeys(self._methods, _pass_through))
            attributes["_tflsc_aggregation"] = users + 1, hidden
        try:
            yield
        finally:
            with _lock:
                users = attributes.pop("_tflsc_aggregation")[0] - 1
                if users:
                    attributes["_tflsc_aggregation"] = users, hidden
                else:
                    for name in self._methods:
                        del attributes[name]
                    attributes.update(hidden)


def filter_empty_gradients(
    grads: _types.Gradients, variables: _types.Variables
) -> tuple[_types.Gradients, _types.Variables]:
    """Returns both lists without variables that have no gradient; a warning names these."""
    without = [var.name for grad, var in zip(grads, variables) if grad is None]
    if without:
        logging.warning("There are no gradients for %s, which keep their values.", without)
    return _gradients.unzip(pair for pair in zip(grads, variables) if pair[0] is not None)


def _pass_through(grads_and_vars: Iterable[_types.Pair]) -> list[_types.Pair] | _types.Gradients:
    return list(grads_and_vars) if _tf.at_least(2, 4) else [grad for grad, _ in grads_and_vars]


class BeforeKeras3Family(_family.KerasFamily):
    """Base class of the families of `OptimizerV2` and `_BaseOptimizer`."""

    is_legacy: bool  # For `deserialize`, which returns one of either family.
    aggregating_methods: tuple[str, ...]  # `apply_gradients` of inner optimizers calls them.
    without_aggregation: dict[str, bool]  # Its argument that switches this off.

    def prepare_pairs(
        self, owner: Any, pairs: Iterable[_types.Pair]
    ) -> tuple[_types.Gradients, _types.Variables]:
        """Checks pairs, and where the family does, builds the optimizer; returns both lists."""
        raise NotImplementedError

    def delegate_tracking(self, owner: Any) -> None:
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

    def agreement(self, owner: Any) -> _types.Agree | None:
        return _agreement.agreement_or_default(owner._tflsc.agreement, owner, owner._loss_scale)

    def apply_pairs(
        self,
        owner: Any,
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
        aggregation = Aggregation(self, inner, aggregates)
        kwargs = {**kwargs, **aggregation.apply_kwargs}
        aggregate = None
        if aggregation.aggregates_in_step:
            grads, variables = filter_empty_gradients(grads, variables)
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
