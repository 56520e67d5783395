"""Aggregation of gradients over replicas or processes: once, and where possible before the test.

Optimizers of tf.keras and `tf_keras` aggregate in their `apply_gradients`, after the finite test.
Sums with other workers' gradients would not be tested, and may not be finite even if all gradients
are.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Iterable, Iterator, NamedTuple

from absl import logging

from tf_lossscale_compat._core import _gradients, _tf
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _inner

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

_lock = threading.Lock()


def _keeps_one_copy() -> bool:
    """Returns whether variables have one copy for all replicas; then Keras aggregates."""
    classes = type(tf.distribute.get_strategy()).__mro__
    return any(cls.__name__.startswith("CentralStorageStrategy") for cls in classes)


class InnerAggregation(NamedTuple):
    """The way in which `apply_gradients` of a family's inner optimizers aggregates.

    Attributes:
      methods: tuple of str, the methods that it calls, in order.
      option: str, its argument that switches this off.
      off_value: bool, the value of the argument that does.
    """

    methods: tuple[str, ...]
    option: str
    off_value: bool


class Aggregation:
    """The aggregation of one step's gradients, if it is `wanted`.

    There are five cases:

    - Nothing is to be aggregated: it is switched off.
    - It can be switched off, there are no replicas, and the methods are Keras': it is, too, because
      Keras' methods sum over replicas alone.
    - It can be switched off, and there are replicas or the methods are a user's: the step does it.
    - It cannot be switched off, and the methods are Keras': it aggregates itself, after the test.
    - It cannot be switched off, and the methods are a user's: the step does it and hides them.

    Attributes:
      aggregates_in_step: bool, the step calls `aggregate` before the test.
      apply_kwargs: dict of arguments for `apply_gradients`, so that it does not aggregate again.
    """

    def __init__(
        self,
        optimizer: _types.KerasOptimizer,
        wanted: bool,
        of_inner: InnerAggregation,
    ) -> None:
        self._optimizer = optimizer
        self._methods = [name for name in of_inner.methods if hasattr(optimizer, name)]
        # Unless another case applies, the optimizer is told not to aggregate.
        self.aggregates_in_step = self._hides = False
        self.apply_kwargs = {of_inner.option: of_inner.off_value}
        if not wanted:
            return
        function = getattr(optimizer, "gradient_aggregator", None)
        of_keras = _inner.are_keras_methods(optimizer, of_inner.methods) and (
            function is None or _inner.is_of_keras(function)
        )
        if self._can_switch_off(of_inner.option):
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
        trusted = _tf.at_least(2, 5) or _inner.are_keras_methods(
            self._optimizer, ["apply_gradients"]
        )
        return (
            bool(self._methods)
            and trusted
            and _inner.takes_argument(apply_gradients, option_name)
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
