"""Families: the optimizers of each base class of Keras, and what their loss-scale optimizers do.

`ScaledRule` decides whether `apply_gradients` gets scaled gradients, which a step divides.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

from absl import logging

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _gradients,
    _graphs,
    _keras_versions,
    _scale,
    _step,
    _tf,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scales import _loss_scales

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types

# `apply_gradients` takes scaled gradients after the first was called, unscaled ones after others.
SCALE_LOSS = "scale_loss"
GET_SCALED_LOSS = "get_scaled_loss"
GET_UNSCALED_GRADIENTS = "get_unscaled_gradients"
RECORDED_OVERRIDES = (SCALE_LOSS, GET_SCALED_LOSS, GET_UNSCALED_GRADIENTS)

_SAY_SCALED = (
    "write apply_gradients(..., scaled=True), which divides the gradients by the loss scale, or "
    "scaled=False, which applies them as they are. You cannot write it in fit of Keras 3: make two "
    "optimizers, one of them for fit, or override train_step"
)
_STEP_EXAMPLE = (
    "scaled = opt.get_scaled_loss(loss); gradients of scaled; "
    "opt.get_unscaled_gradients(gradients); opt.apply_gradients(...)"
)
_ONE_CALLED = (
    "{} of this optimizer was called, but {} never was. The gradients are applied as they are and "
    f"are {{}} by a factor of the loss scale. Call both or neither: {_STEP_EXAMPLE}."
)
_NONE_CALLED = (
    "apply_gradients of this optimizer was called, but neither get_scaled_loss nor "
    f"get_unscaled_gradients ever was, so nothing was scaled. Write {_STEP_EXAMPLE}. If you want "
    "no scaling, write apply_gradients(..., scaled=False), which ends this warning."
)
_NEVER_ASKED = (
    "apply_gradients cannot tell whether the gradients are scaled: none of scale_loss, "
    "get_scaled_loss and get_unscaled_gradients of this optimizer was ever called. If another "
    "optimizer or the program scaled the loss, write apply_gradients(..., scaled=True), which "
    "divides the gradients by the loss scale. If nothing did, write scaled=False, which applies "
    "them as they are, or use the inner optimizer without this class. To make slots, call "
    "build(variables) instead."
)
IT_TAKES = (
    "It takes initial_scale, the scale at the start; dynamic_growth_steps, the finite steps after "
    "which it doubles; dynamic=False for a fixed scale; loss_scale for other factors or bounds, as "
    "in loss_scale=DynamicLossScale(multiplier=4.0); name; count_skipped; and agree."
)
_DIVIDED_TWICE = (
    "get_unscaled_gradients of this optimizer was called, but apply takes scaled gradients and "
    "divides them by the loss scale once more. Call apply_gradients, or leave "
    "get_unscaled_gradients out."
)


class ScaledRule:
    """Decides whether the gradients that `apply_gradients` of one optimizer gets are scaled.

    Keras 3's own steps pass scaled gradients to it, and other steps unscaled ones. The caller says
    which. If the caller does not, the rule goes by which methods were ever called on this
    optimizer: not by their order, place or thread. If none was, the gradients are unscaled; but of
    an optimizer that `must_be_asked` this is an error, as there programs of both kinds exist. A
    call that comes too late for a function that was traced by the rule is an error. `apply` needs
    no rule, and its calls are not recorded. Those of `minimize` are recorded if methods of a
    subclass see its gradients, which are then unscaled. If the rule has two answers, gradients are
    recognized as unscaled if they are the objects that this optimizer unscaled after the first
    `scale_loss`.

    Attributes:
      called_methods: set of str, the recorded methods that were ever called.
    """

    def __init__(self, must_be_asked: bool) -> None:
        self._must_be_asked = must_be_asked
        self.called_methods: set[str] = set()
        self._traced = False  # True once a function or graph follows the rule for good.
        self._warned: set[str] = set()
        # By id.
        self._unscaled: weakref.WeakValueDictionary[int, tf.Tensor | tf.IndexedSlices] = (
            weakref.WeakValueDictionary()
        )

    def _answer_after(self, methods: set[str]) -> bool | None:
        """Returns the rule's answer after calls of these methods; None if it has two answers."""
        return None if len(methods) > 1 and SCALE_LOSS in methods else SCALE_LOSS in methods

    @_autograph.do_not_convert
    def record_call(self, method: str) -> None:
        """Records a call; raises a ValueError if a traced `apply_gradients` has another answer."""
        before = self._answer_after(self.called_methods)
        after = self._answer_after(self.called_methods | {method})
        if self._traced and after is not before:
            raise ValueError(
                f"{method} was called after apply_gradients had been traced into a function or "
                f"graph. That always takes {'scaled' if before else 'unscaled'} gradients, but "
                f"gradients after {method} are "
                f"{'scaled' if method == SCALE_LOSS else 'unscaled'}. In that function "
                f"{_SAY_SCALED}; or make one optimizer for each."
            )
        self.called_methods.add(method)

    def remember_unscaled(self, grads: object) -> None:
        """Remembers unscaled gradients, if `apply_gradients` may also get scaled ones."""
        if SCALE_LOSS in self.called_methods and isinstance(grads, (list, tuple)):
            tensors = [grad for grad in grads if isinstance(grad, (tf.Tensor, tf.IndexedSlices))]
            self._unscaled.update(zip(map(id, tensors), tensors))

    def are_remembered(self, pairs: list[_types.Pair]) -> bool:
        """Returns whether all gradients of these pairs are objects that were remembered."""
        grads = [grad for grad, _ in pairs if grad is not None]
        return bool(grads) and all(self._unscaled.get(id(grad)) is grad for grad in grads)

    def decide(self, scaled: Any, pairs: list[_types.Pair]) -> bool:
        """Returns whether the gradients of these pairs are scaled; `scaled` is the caller's.

        Raises a ValueError if the rule has no answer, or two and the gradients are not known to be
        unscaled. Warns once for each optimizer if only one of two methods that belong together was
        ever called, or none.
        """
        if isinstance(scaled, bool):
            return scaled
        if scaled is not None:
            _arguments.flag("scaled", scaled, or_none=True)  # Raises the error.
        if self._must_be_asked and not self.called_methods:
            raise ValueError(_NEVER_ASKED)
        answer = self._answer_after(self.called_methods)
        if answer is None and self.are_remembered(pairs):
            return False
        if answer is None:
            others = " and ".join(sorted(self.called_methods - {SCALE_LOSS}))
            raise ValueError(
                f"apply_gradients cannot tell whether the gradients are scaled: {SCALE_LOSS} of "
                f"this optimizer was called, after which they are, and {others}, after which they "
                f"are not. Only gradients that {GET_UNSCALED_GRADIENTS} returned after the first "
                f"{SCALE_LOSS} are recognized as unscaled, and only before any clipping. So "
                f"{_SAY_SCALED}."
            )
        if not tf.executing_eagerly():
            self._traced = True
        if not self.called_methods and _tf.at_least(2, 4):
            self.warn_once(_NONE_CALLED)
        elif self.called_methods == {GET_UNSCALED_GRADIENTS}:
            self.warn_once(_ONE_CALLED.format(GET_UNSCALED_GRADIENTS, GET_SCALED_LOSS, "too small"))
        elif self.called_methods == {GET_SCALED_LOSS}:
            self.warn_once(_ONE_CALLED.format(GET_SCALED_LOSS, GET_UNSCALED_GRADIENTS, "too large"))
        return answer

    def warn_if_divided_twice(self, pairs: list[_types.Pair]) -> None:
        """Warns if `apply` may get unscaled gradients.

        After `scale_loss`, as in a step of Keras 3, only those that are remembered.
        """
        if GET_UNSCALED_GRADIENTS not in self.called_methods:
            return
        if SCALE_LOSS not in self.called_methods or self.are_remembered(pairs):
            self.warn_once(_DIVIDED_TWICE)

    def warn_once(self, message: str) -> None:
        """Logs a warning, once for each optimizer."""
        if message not in self._warned:
            self._warned.add(message)
            logging.warning(message)


class KerasData:
    """The data of a loss-scale optimizer, beside its loss scale and the inner optimizer."""

    def __init__(self, scaled_rule: ScaledRule) -> None:
        self.scaled_rule = scaled_rule
        self.agreement: _types.Agree | None = None
        # The constructor's other arguments, but for defaults; configs hold them.
        self.options: dict[str, Any] = {}
        # The loss scale's variables as Keras 3 has them, by name.
        self.keras_variables: dict[str, Any] = {}
        self.constructed = False  # The constructor of this package's class has set all attributes.


class _KerasStep(_step.Step):
    """One step of a Keras optimizer; `apply` applies unscaled gradients by the inner optimizer."""

    def __init__(self, owner: Any, apply: _types.Apply, aggregate: _types.Aggregate | None) -> None:
        family, loss_scale = owner._tflsc_family, owner._loss_scale
        super().__init__(owner, owner._optimizer, loss_scale, family.agreement(owner))
        self._apply, self.aggregate = apply, aggregate
        self.counts_skipped = owner._tflsc.options.get(
            "count_skipped", family.counts_skipped_by_default
        )
        self.updates_first = family.updates_first

    def check_strategy(self) -> None:
        self.owner._raise_if_strategy_unsupported()

    def apply(self, grads: _types.Gradients, variables: _types.Variables) -> Any:
        if not tf.executing_eagerly():
            grads = _graphs.to_current_graph(grads)
        return self._apply(grads, variables)

    def add_skipped_steps(self, number: int | tf.Tensor) -> Any:
        return self.owner._tflsc_family.add_skipped_steps(self.owner, number)


class KerasFamily:
    """Base class of all families.

    A family has no state of an optimizer. Its methods take the optimizer, the owner.
    """

    # Methods that steps of that Keras' own class call.
    forbidden_overrides: tuple[str, ...] = ("_apply_gradients", "_apply_gradients_cross_replica")
    # Hyperparameters that the wrapper has too, and in some versions its config, without an effect.
    without_effect: tuple[str, ...] = ()
    # Configs say `dynamic` even of a dynamic loss scale, which is the default.
    config_says_dynamic = True
    # True if copies of that Keras' optimizers, also of its own loss-scale class, have no state.
    copies_lose_state = False
    # True if `apply_gradients` of that Keras' own class takes scaled gradients; see `ScaledRule`.
    takes_scaled = False
    # True if that Keras' own loss-scale optimizer counts skipped steps as iterations.
    counts_skipped_by_default = True
    # True if that Keras' own class updates the loss scale before the conditional of a graph.
    updates_first = False
    # Name of the method that returns (gradient, variable) pairs for `minimize`, if there is one.
    compute_method: str | None = None
    # Returns such pairs with scaled gradients, computed by the inner optimizer. It takes the owner
    # and the arguments of that method.
    compute_scaled_gradients: Callable[..., list[_types.Pair]]
    # The end of the name by which files of models know the class.
    registered_suffix = ""

    def __init__(
        self,
        methods_class: type,
        keras: types.ModuleType,
        base: type,
        original: type[Any],
        experimental: bool,
    ) -> None:
        self.methods_class = methods_class  # Of the public methods of the family's optimizers.
        self.keras, self.base = keras, base  # All optimizers of the family derive from the latter.
        self.original = original  # That Keras' own loss-scale class, or without one `base`.
        self.experimental = experimental  # The constructor takes a `LossScale`, as in r2.0.
        self.optimizer_argument = "optimizer" if experimental else "inner_optimizer"

    # Making an optimizer.

    def refuse_arguments(self, name: str, arguments: Iterable[str]) -> NoReturn:
        """Raises the error of that Keras' own class for unknown arguments of the constructor."""
        raise TypeError(f"{name} takes no {' and no '.join(arguments)}. {IT_TAKES}")

    def check_name(self, name: object) -> None:
        """Raises a TypeError or ValueError if `name` cannot be the optimizer's name."""
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"name must be a str or None, got {name!r}.")

    def check_can_wrap(self, owner: Any, optimizer: Any) -> None:
        """Raises a TypeError or ValueError if `owner` cannot wrap `optimizer`."""
        base = base_to_wrap(optimizer, self.optimizer_argument)
        if base is not self.base:
            raise TypeError(
                f"{self.optimizer_argument} must derive from {self.base!r}, as "
                f"{type(owner).__name__} wraps only such optimizers, got {optimizer!r}. Derive the "
                "subclass from type(LossScaleOptimizer(optimizer)), which wraps this kind of "
                "optimizer."
            )

    def check_count_skipped(self, count_skipped: bool | None, optimizer: Any) -> None:
        """Raises a ValueError if skipped steps cannot be counted as iterations of `optimizer`."""
        if count_skipped and getattr(optimizer, "gradient_accumulation_steps", None):
            raise ValueError(
                "count_skipped must not be True if the inner optimizer has "
                "gradient_accumulation_steps, got True: its iterations are derived from the "
                "gradients that it has accumulated. Leave one of the two out."
            )

    def check_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        """Raises a ValueError if an optimizer of this family cannot have this loss scale."""
        _scale.check_has_no_owner(loss_scale)
        _scale.check_reciprocal(loss_scale)

    def init_base_class(self, owner: Any, name: str | None) -> str | None:
        """Makes `owner` an optimizer of that Keras; returns its name for configs, or None."""
        raise NotImplementedError

    def deserialize(self, config: dict[str, Any], custom_objects: dict[str, Any] | None) -> Any:
        """Returns the optimizer that a config describes."""
        raise NotImplementedError

    # The loss scale in use.

    def track_loss_scale(self, owner: Any, loss_scale: _loss_scales.LossScale) -> None:
        """Makes checkpoints and files hold this loss scale, and no earlier one."""
        owner._track_trackable(loss_scale, "loss_scale", overwrite=True)

    def set_loss_scale(self, owner: Any, loss_scale: _loss_scales.Identifier) -> None:
        """Replaces the loss scale, as code for TensorFlow 2.0 does."""
        old = owner._loss_scale
        if loss_scale is old:
            return
        new = _loss_scales.get(_loss_scales.require(loss_scale))
        if _scale.unwrap(new) is _scale.unwrap(old):  # The same manager.
            return
        self.check_loss_scale(new)
        agreement = _agreement.resolve(owner._tflsc.agreement, owner._optimizer, new)
        self.track_loss_scale(owner, new)
        owner._tflsc.agreement = agreement
        owner.__dict__["_loss_scale"] = new
        _scale.set_owner(new, owner)
        _scale.set_owner(old, None)

    def all_variables(self, owner: Any) -> _types.Variables:
        """Returns the variables whose values `set_weights` takes."""
        return _graphs.variables_of(owner._optimizer) + _scale.variables_of(owner._loss_scale)

    # Scaling and unscaling.

    def unscale(self, owner: Any, grads: Iterable[_types.Gradient]) -> _types.Gradients:
        """Returns gradients divided by the loss scale, as in that Keras."""
        division = self.division(_scale.snapshot(owner._loss_scale()))
        return _gradients.unscale(self.densify(owner, list(grads)), division)

    def division(self, scale: tf.Tensor) -> _gradients.Division:
        """Returns the division of gradients by `scale`, as in that Keras."""
        return _gradients.Division(1.0 / scale)

    def densify(self, owner: Any, grads: _types.Gradients) -> _types.Gradients:
        """Returns gradients, made dense if that Keras does so before it divides them."""
        return grads

    def scale_loss(self, owner: Any, loss: tf.Tensor) -> tf.Tensor:
        """Returns `loss` times the loss scale, in the dtype of `loss`."""
        return _scale.scale_loss(loss, _scale.snapshot(owner._loss_scale()))

    def scale_loss_on_tape(
        self, owner: Any, loss: _types.Loss, tape: tf.GradientTape | None
    ) -> _types.Loss:
        """Returns the scaled `loss`, a tensor on `tape` or a function."""
        scale: Callable[..., Any] = functools.partial(self.scale_loss, owner)
        if _scale.overrides(owner, self.methods_class, "get_scaled_loss"):
            # The override records its own call. The step does the other half, and unscales.
            owner._tflsc.scaled_rule.record_call(GET_UNSCALED_GRADIENTS)
            scale = owner.get_scaled_loss
        elif callable(loss):
            return lambda: scale(loss())
        with contextlib.nullcontext() if tape is None else tape:
            return scale(loss)

    def unscale_pairs(self, owner: Any, grads_and_vars: Iterable[_types.Pair]) -> list[_types.Pair]:
        """Returns pairs with unscaled gradients."""
        unscale: Callable[..., _types.Gradients] = functools.partial(self.unscale, owner)
        if _scale.overrides(owner, self.methods_class, "get_unscaled_gradients"):
            # As above: the loss was scaled.
            owner._tflsc.scaled_rule.record_call(GET_SCALED_LOSS)
            unscale = owner.get_unscaled_gradients
        grads, variables = _gradients.unzip(grads_and_vars)
        grads = map_except_overwrites(unscale, grads, variables)
        owner._tflsc.scaled_rule.remember_unscaled(grads)
        return list(zip(grads, variables))

    # A step.

    def compute_for_minimize(
        self, owner: Any, *arguments: Any, **keywords: Any
    ) -> tuple[list[_types.Pair], dict[str, Any]]:
        """Returns what `minimize` passes to `apply_gradients`: pairs and the argument `scaled`.

        The gradients are scaled unless methods of a subclass see them.
        """
        overrides = functools.partial(_scale.overrides, owner, self.methods_class)
        overridden = overrides("apply_gradients")
        if self.compute_method and overrides(self.compute_method):
            pairs, scaled = getattr(owner, self.compute_method)(*arguments, **keywords), False
        else:
            pairs, scaled = self.compute_scaled_gradients(owner, *arguments, **keywords), True
            if overridden or overrides("get_unscaled_gradients"):
                owner._tflsc.scaled_rule.record_call("minimize")
                pairs, scaled = self.unscale_pairs(owner, pairs), False
        # A subclass's method may not take `scaled`, or take it and not pass it on. Before Keras 3
        # no optimizer takes `scaled`, and a subclass may pass all arguments to the inner optimizer.
        takes_scaled = not overridden or (
            self.takes_scaled and takes_argument(owner.apply_gradients, "scaled")
        )
        return pairs, {"scaled": scaled} if takes_scaled else {}

    def variables_for_apply(
        self, owner: Any, trainable_variables: Iterable[Any] | None
    ) -> _types.Variables:
        """Returns the variables of `apply`, a list."""
        if trainable_variables is None:
            raise ValueError("trainable_variables must be the list of variables, got None.")
        return list(trainable_variables)

    def apply_pairs(
        self,
        owner: Any,
        grads_and_vars: Iterable[_types.Pair],
        scaled: bool,
        method_name: str = "apply_gradients",
    ) -> Any:
        """Checks pairs of gradients and variables, and takes a step with them.

        `method_name`, of the public method, is for errors.
        """
        raise NotImplementedError

    def take_step(
        self,
        owner: Any,
        grads: _types.Gradients,
        variables: _types.Variables,
        scaled: bool,
        apply: _types.Apply,
        method_name: str,
        aggregate: _types.Aggregate | None = None,
    ) -> Any:
        """Takes a step; see `Step.take`. It divides the gradients if they are `scaled`.

        For `aggregate` see `Step`. `apply` applies unscaled gradients by the inner optimizer.
        """
        step, division = _KerasStep(owner, apply, aggregate), None
        if scaled:
            division = self.division(_scale.snapshot(step.read()))
            grads = self.densify(owner, grads)
            if any(overwrite_flags(variables)):
                grads = map_except_overwrites(_gradients.unscale, grads, variables, division)
                division = None
        return step.take(grads, variables, f"{type(owner).__name__}.{method_name}", division)

    def agreement(self, owner: Any) -> _types.Agree | None:
        """Returns the function through which processes agree in a step, or None."""
        return owner._tflsc.agreement

    def add_skipped_steps(self, owner: Any, number: int | tf.Tensor) -> Any:
        """Counts skipped steps; see `Step.add_skipped_steps`."""
        iterations = owner._optimizer.iterations
        return iterations.assign_add(tf.cast(number, iterations.dtype), read_value=False)


def base_to_wrap(optimizer: object, argument: str) -> type:
    """Returns the base class of the optimizer's family; `argument` is its name in errors.

    Raises a TypeError or ValueError if no loss-scale optimizer can wrap it.
    """
    base = None if isinstance(optimizer, type) else _keras_versions.base_of(type(optimizer))
    if base is None:
        hint = ""
        if isinstance(optimizer, _tf.Optimizer):
            hint = (
                " A tf.compat.v1.train.Optimizer is wrapped by "
                "tf_lossscale_compat.train.experimental.MixedPrecisionLossScaleOptimizer or "
                "tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer instead."
            )
        raise TypeError(f"{argument} must be a Keras optimizer, got {optimizer!r}.{hint}")
    if _keras_versions.is_loss_scale_optimizer(type(optimizer)):
        raise TypeError(
            f"{argument} must have no loss scale itself, as a LossScaleOptimizer cannot wrap "
            f"another LossScaleOptimizer, got {optimizer!r}. Pass its inner_optimizer; or, as "
            "compile wraps optimizers under a float16 policy, wrap the optimizer before compile."
        )
    # Set where checkpoints can hold one loss scale: by `delegate_tracking`, not on Keras 3.
    if getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False):
        raise ValueError(
            f'"{argument}" is already wrapped by a LossScaleOptimizer, got {optimizer!r}: use that '
            "one, or make another optimizer."
        )
    # TensorFlow 2.10 has classes of their own for them; later versions, a mesh as an attribute.
    of_dtensor = getattr(optimizer, "_mesh", None) is not None or any(
        ".dtensor." in each.__module__ for each in type(optimizer).__mro__
    )
    if of_dtensor and base.__name__ == _keras_versions.OPTIMIZER_V3:
        raise TypeError(
            f"{argument} must not be an optimizer of tf.keras.dtensor, got {optimizer!r}: its "
            "gradients are on a mesh, but a loss scale is not. Use an optimizer of "
            "tf.keras.optimizers without a mesh, under a strategy of tf.distribute."
        )
    return base


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


def unzip_and_check(
    grads_and_vars: Iterable[_types.Pair], may_be_empty: bool = False
) -> tuple[_types.Gradients, _types.Variables]:
    """Returns both lists; raises a ValueError without a gradient, or pair unless `may_be_empty`."""
    grads, variables = _gradients.unzip(grads_and_vars)
    if not [grad for grad in grads if grad is not None] and not (may_be_empty and not grads):
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


def check_step_context(owner: Any, method_name: str) -> None:
    """Raises a ValueError in a cross-replica context, before a step makes any variable."""
    name = f"{type(owner).__name__}.{method_name}"
    _step.check_context(name, owner._raise_if_strategy_unsupported)


def check_no_session_graph(owner: Any) -> None:
    """Raises a ValueError in a graph for a Session, where the optimizer returns no operation."""
    if _graphs.in_session_graph():
        raise ValueError(
            f"{type(owner._optimizer)!r} does not work in a tf.Graph for a Session: it makes no "
            "operation that the session could run. Use eager mode or tf.function; or an "
            "optimizer of keras.optimizers.legacy or tf.compat.v1.train, which works with sessions."
        )


# The methods of an inner optimizer: Keras' own or a user's.


def is_of_keras(function: object) -> bool:
    """Returns whether a function is defined in a module of Keras."""
    return getattr(function, "__module__", "").split(".")[0] in _keras_versions.ROOTS


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
