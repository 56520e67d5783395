"""Base classes of both kinds of optimizers of tf.keras, `_optimizer_v3` and `_optimizer_v2`.

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

from tf_lossscale_compat._core import _agreement, _gradients, _graphs, _tf
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _base, _keras_step

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types

_lock = threading.Lock()
# In TensorFlow 2.2 to 2.4, Keras' own class lets the inner optimizer aggregate. An override of
# `apply_gradients`, such as that of tensorflow/models' AdamWeightDecay, may clip only if it does.
_TRUSTS_OVERRIDES = _tf.at_least(2, 5)


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
        self, step_class: type[BeforeKeras3Step], optimizer: _types.KerasOptimizer, wanted: bool
    ) -> None:
        self._optimizer = optimizer
        methods = step_class.aggregating_methods
        self._methods = [name for name in methods if hasattr(optimizer, name)]
        # Unless another case applies, the optimizer is told not to aggregate.
        self.aggregates_in_step = self._hides = False
        self.apply_kwargs = dict(step_class.without_aggregation)
        if not wanted:
            return
        function = getattr(optimizer, "gradient_aggregator", None)
        of_keras = _keras_step.are_keras_methods(optimizer, methods) and (
            function is None or _keras_step.is_of_keras(function)
        )
        if self._can_switch_off(*step_class.without_aggregation):
            # Keras' own methods only sum over replicas.
            self.aggregates_in_step = tf.distribute.has_strategy() or not of_keras
            return
        self.apply_kwargs = {}
        if not of_keras:  # A user's methods have to come before the test, and once.
            self.aggregates_in_step = self._hides = True

    def _can_switch_off(self, option_name: str) -> bool:
        """Returns whether `apply_gradients` of the optimizer can be told not to aggregate."""
        apply_gradients = self._optimizer.apply_gradients
        names = ["apply_gradients"]
        return (
            bool(self._methods)
            and (_TRUSTS_OVERRIDES or _keras_step.are_keras_methods(self._optimizer, names))
            and _keras_step.takes_argument(apply_gradients, option_name)
            and not _keeps_one_copy()
        )

    def aggregate(self, grads: _types.Gradients, variables: _types.Variables) -> _types.Unzipped:
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


def filter_empty_gradients(grads: _types.Gradients, variables: _types.Variables) -> _types.Unzipped:
    """Returns both lists without variables that have no gradient; a warning names these."""
    without = [var.name for grad, var in zip(grads, variables) if grad is None]
    if without:
        logging.warning("There are no gradients for %s, which keep their values.", without)
    return _gradients.unzip(pair for pair in zip(grads, variables) if pair[0] is not None)


def _pass_through(grads_and_vars: Iterable[_types.Pair]) -> list[_types.Pair] | _types.Gradients:
    return list(grads_and_vars) if _tf.at_least(2, 4) else [grad for grad, _ in grads_and_vars]


class BeforeKeras3Step(_keras_step.KerasStep):
    """One call of an optimizer of tf.keras; it aggregates gradients if `aggregates`.

    `args` and `kwargs` are for the inner optimizer's `apply_gradients`.
    """

    optimizer: BeforeKeras3OptimizerBase
    aggregating_methods: tuple[str, ...]  # `apply_gradients` of inner optimizers calls them.
    without_aggregation: dict[str, bool]  # Its argument that switches this off.

    _aggregation: Aggregation

    def __init__(
        self,
        optimizer: BeforeKeras3OptimizerBase,
        method_name: str = "apply_gradients",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        aggregates: bool = True,
    ) -> None:
        super().__init__(optimizer, method_name)
        self._args, self._kwargs, self._aggregates = args, dict(kwargs or {}), aggregates

    def check_pairs(self, pairs: Iterable[_types.Pair]) -> _types.Unzipped:
        """Checks pairs, and builds the optimizer where that Keras does; returns both lists."""
        raise NotImplementedError

    def prepare(self, pairs: Iterable[_types.Pair]) -> _types.Unzipped:
        self.check_context()
        grads, variables = self.check_pairs(pairs)
        self._aggregation = Aggregation(type(self), self.wrapped, self._aggregates)
        if self._aggregation.aggregates_in_step:
            grads, variables = filter_empty_gradients(grads, variables)
            self.aggregate = self._aggregation.aggregate
        return grads, variables

    def apply_with_wrapped(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        if not tf.executing_eagerly():
            grads = _graphs.to_current_graph(grads)
        pairs = list(zip(grads, variables))
        kwargs = {**self._kwargs, **self._aggregation.apply_kwargs}
        with self._aggregation.suppress_aggregation():
            return self.wrapped.apply_gradients(pairs, *self._args, **kwargs)


class BeforeKeras3OptimizerBase(_base.KerasOptimizerBase):
    """Base class of the loss-scale optimizers of tf.keras; Keras 3 has none of these methods."""

    _tflsc_is_legacy: bool  # For `_tflsc_deserialize`, which returns an optimizer of either kind.

    clipnorm = _base.inner_property("clipnorm")
    clipvalue = _base.inner_property("clipvalue")
    global_clipnorm = _base.inner_property("global_clipnorm")

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
        _base.refuse_to_set(self, "dynamic_scale", value)

    @property
    def _tflsc_agreement(self) -> _types.Agree | None:
        return _agreement.agreement_or_default(self._tflsc.agreement, self, self._loss_scale)

    def _tflsc_delegate_tracking(self) -> None:
        """Makes checkpoints hold the inner optimizer in this one's place, with the loss scale.

        So do those of TensorFlow 2.3 to 2.15 and `tf_keras`.
        """
        classes = type(self).__mro__
        delegating: Any = next(each for each in classes if "DelegatingTrackable" in each.__name__)
        self._optimizer._is_wrapped_by_loss_scale_optimizer = True  # It can hold one.
        self.__dict__["_trackable"] = self._optimizer  # Some versions read it while they set it.
        delegating.__init__(self, self._optimizer)
        self._tflsc_track_loss_scale(self._loss_scale)

    @classmethod
    def _tflsc_deserialize(
        cls, keras: types.ModuleType, config: dict[str, Any], custom_objects: dict[str, Any] | None
    ) -> Any:
        deserialize = keras.optimizers.deserialize
        options = {}
        if "use_legacy_optimizer" in inspect.signature(deserialize).parameters:
            options["use_legacy_optimizer"] = cls._tflsc_is_legacy
        return deserialize(config, custom_objects=custom_objects, **options)
