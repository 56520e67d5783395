"""One call of a Keras loss-scale optimizer; the module of each Keras has a subclass."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Iterable

from tf_lossscale_compat._core import (
    _gradients,
    _graphs,
    _keras_versions,
    _scale_or_manager,
    _step,
    _variables,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _scaled_rule

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat.keras import _base


class KerasStep(_step.Step):
    """One call of a loss-scale optimizer. It does what that Keras' own class does."""

    optimizer: _base.KerasOptimizerBase
    wrapped: _types.KerasOptimizer
    # True if that Keras' own loss-scale optimizer counts skipped steps as iterations.
    counts_skipped_by_default = True
    # Name of the method that returns (gradient, variable) pairs for `minimize`, if there is one.
    compute_method: str | None = None
    # Takes the same arguments; returns pairs with the inner optimizer's gradients, still scaled.
    compute_scaled_gradients: Callable[..., list[_types.Pair]]

    def __init__(
        self, optimizer: _base.KerasOptimizerBase, method_name: str = "apply_gradients"
    ) -> None:
        super().__init__(optimizer, f"{type(optimizer).__name__}.{method_name}")
        self.skips_zero_reciprocal = not tf.executing_eagerly() and _graphs.in_session_graph()
        default = self.counts_skipped_by_default
        self.counts_skipped = optimizer._tflsc.options.get("count_skipped", default)

    def check_strategy(self) -> None:
        self.optimizer._raise_if_strategy_unsupported()

    def add_skipped_steps(self, number: int | tf.Tensor) -> Any:
        iterations = self.wrapped.iterations
        return iterations.assign_add(tf.cast(number, iterations.dtype), read_value=False)

    def overrides(self, name: str) -> bool:
        """Returns whether a subclass or a program overrides this method of the optimizer."""
        optimizer, base = self.optimizer, self.optimizer._tflsc_family.optimizer_base
        return name in vars(optimizer) or getattr(type(optimizer), name) is not getattr(base, name)

    # Scaling and unscaling.

    @staticmethod
    def division(scale: tf.Tensor) -> _gradients.Division:
        """Returns the division of gradients by `scale`, as in that Keras."""
        in_session = not tf.executing_eagerly() and _graphs.in_session_graph()
        function = _gradients.multiply_as_originals if in_session else _gradients.multiply
        return _gradients.Division(1.0 / scale, function)

    @staticmethod
    def densify(grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients, made dense if that Keras does so before it divides them."""
        return grads

    @classmethod
    def unscale(cls, scale: Any, grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients divided by `scale`, which was just read, as in that Keras."""
        division = cls.division(_variables.snapshot(scale))
        return _gradients.unscale(cls.densify(grads), division)

    @staticmethod
    def scale_loss(loss: tf.Tensor, scale: Any) -> tf.Tensor:
        """Returns `loss` times `scale`, which was just read, in the dtype of `loss`."""
        return _scale_or_manager.scale_loss(loss, _variables.snapshot(scale))

    def scale_loss_on_tape(self, loss: _types.Loss, tape: tf.GradientTape | None) -> _types.Loss:
        """Returns the scaled `loss`, a tensor on `tape` or a function."""
        overridden = self.overrides("get_scaled_loss")
        if callable(loss) and not overridden:
            return lambda: self.scale_loss(loss(), self.read())
        with contextlib.nullcontext() if tape is None else tape:
            if not overridden:
                return self.scale_loss(loss, self.read())
            # The override notes its own call. The step does the other half, and unscales.
            self.optimizer._tflsc.scaled_rule.note_call(_scaled_rule.GET_UNSCALED_GRADIENTS)
            return self.optimizer.get_scaled_loss(loss)

    def unscale_pairs(self, grads_and_vars: Iterable[_types.Pair]) -> list[_types.Pair]:
        """Returns pairs with unscaled gradients."""
        rule = self.optimizer._tflsc.scaled_rule
        unscale: Callable[..., _types.Gradients]
        if self.overrides("get_unscaled_gradients"):
            # As above: the loss was scaled.
            rule.note_call(_scaled_rule.GET_SCALED_LOSS)
            unscale = self.optimizer.get_unscaled_gradients
        else:
            unscale = functools.partial(self.unscale, self.read())
        grads, variables = _gradients.unzip(grads_and_vars)
        grads = map_except_overwrites(unscale, grads, variables)
        rule.remember_unscaled(grads)
        return list(zip(grads, variables))

    def compute_for_minimize(
        self, *arguments: Any, **keywords: Any
    ) -> tuple[list[_types.Pair], dict[str, Any]]:
        """Returns what `minimize` passes to `apply_gradients`: pairs and the argument `scaled`.

        The gradients are scaled unless methods of a subclass see them.
        """
        overridden = self.overrides("apply_gradients")
        if self.compute_method and self.overrides(self.compute_method):
            compute = getattr(self.optimizer, self.compute_method)
            pairs, scaled = compute(*arguments, **keywords), False
        else:
            pairs, scaled = self.compute_scaled_gradients(*arguments, **keywords), True
            if overridden or self.overrides("get_unscaled_gradients"):
                self.optimizer._tflsc.scaled_rule.note_call("minimize")
                pairs, scaled = self.unscale_pairs(pairs), False
        # A subclass's method may not take `scaled`, or take it and not pass it on. Before Keras 3
        # no optimizer takes `scaled`, and a subclass may pass all arguments to the inner optimizer.
        takes_scaled = not overridden or (
            self.optimizer._tflsc_takes_scaled
            and takes_argument(self.optimizer.apply_gradients, "scaled")
        )
        return pairs, {"scaled": scaled} if takes_scaled else {}

    # The step.

    def check_no_session_graph(self) -> None:
        """Raises a ValueError in a graph of a Session, where the optimizer makes no operation."""
        if not tf.executing_eagerly() and _graphs.in_session_graph():
            raise ValueError(
                f"{type(self.wrapped)!r} does not work in a tf.Graph for a Session: it makes no "
                "operation that the session could run. Use eager mode or tf.function; or an "
                "optimizer of keras.optimizers.legacy or tf.compat.v1.train, which works with "
                "sessions."
            )

    def prepare(self, pairs: Iterable[_types.Pair]) -> _types.Unzipped:
        """Checks pairs of gradients and variables, and makes the optimizer's variables for them."""
        raise NotImplementedError

    def take_pairs(self, pairs: Iterable[_types.Pair], scaled: bool) -> Any:
        """Takes a step; see `Step.take`. It divides the gradients if they are `scaled`."""
        grads, variables = self.prepare(pairs)
        division = None
        if scaled:
            division = self.division(_variables.snapshot(self.read()))
            grads = self.densify(grads)
            if any(overwrite_flags(variables)):
                grads = map_except_overwrites(_gradients.unscale, grads, variables, division)
                division = None
        return self.take(grads, variables, division)


# Pairs of gradients and variables.


def overwrite_flags(variables: _types.Variables) -> list[bool]:
    """Returns for each variable whether its gradient is its new value, as in float8."""
    return [getattr(variable, "overwrite_with_gradient", False) for variable in variables]


def map_except_overwrites(
    function: Callable[..., _types.Gradients],
    grads: _types.Gradients,
    variables: _types.Variables,
    *args: _gradients.Division,
) -> _types.Gradients:
    """Returns `function(grads, *args)`, but gradients that are new values stay: none is scaled."""
    overwrites = overwrite_flags(variables)
    mapped = [None if overwrite else grad for grad, overwrite in zip(grads, overwrites)]
    results = function(mapped, *args)
    return [grad if overwrite else new for grad, new, overwrite in zip(grads, results, overwrites)]


def unzip_and_check(pairs: Iterable[_types.Pair], may_be_empty: bool = False) -> _types.Unzipped:
    """Returns both lists; raises a ValueError without a gradient, or pair unless `may_be_empty`."""
    grads, variables = _gradients.unzip(pairs)
    if not [grad for grad in grads if grad is not None] and not (may_be_empty and not grads):
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


# The methods of an inner optimizer: Keras' own or a user's.


def is_of_keras(function_or_class: object) -> bool:
    """Returns whether it is defined in a module of Keras or TensorFlow."""
    return getattr(function_or_class, "__module__", "").split(".")[0] in _keras_versions.ROOTS


def are_keras_methods(optimizer: object, names: Iterable[str]) -> bool:
    """Returns whether those of these methods that an optimizer has are all Keras' own."""
    return all(
        name not in vars(optimizer) and is_of_keras(getattr(type(optimizer), name))
        for name in names
        if hasattr(type(optimizer), name)
    )


def takes_argument(method: Callable[..., Any], name: str) -> bool:
    """Returns whether a method takes an argument with this name."""
    return _takes_argument(getattr(method, "__func__", method), name)


@functools.lru_cache(maxsize=256)
def _takes_argument(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds
