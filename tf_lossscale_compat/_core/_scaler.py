"""Scalers: one interface to loss scales and managers for an optimizer's step.

Loss scales and managers may be this package's or a user's. A method `update_loss_scale` or `update`
that is marked by `updates_from_flag` needs only the finite flag; the mark holds the update rule,
which takes the flag. A user's method has no mark, even if it overrides a marked one, and is called
itself: a manager's method with the flag, a loss scale's method with the gradients.
"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tf_lossscale_compat._core import _graphs, _variables
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from tf_lossscale_compat._core import _types

# The reciprocal of a larger loss scale is subnormal, and processors may flush it to zero.
LARGEST_WITH_RECIPROCAL = 2.0**126


class LossScaleData:
    """Holds the package's data of a loss scale or manager, also of a user's, as `_tflsc`.

    Attributes:
      weights: dict from names to variables, a `LossScale`'s state.
      extra_config: dict of the constructor's arguments that no attribute of the original holds.
      compares_by_value: bool, the loss scale is compared with numbers and tensors by its value.
      constant: a pair of a fixed manager's number and the tensor that the constructor made of it,
        in the graph of that moment; or None.
      owner: weak reference to the Keras optimizer that the loss scale belongs to, or None.
      stand_in: the loss scale that stands for this one of TensorFlow's, or None.
    """

    compares_by_value = False
    constant: tuple[float, tf.Tensor] | None = None
    owner: Callable[[], object] | None = None
    stand_in: Any = None

    def __init__(self) -> None:
        self.weights: dict[str, tf.Variable] = {}
        self.extra_config: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:  # Copies and pickles have neither owner nor graph.
        return {**vars(self), "constant": None, "owner": None, "stand_in": None}


def data_of(loss_scale: object) -> LossScaleData:
    """Returns the data of a loss scale or manager, even if its constructor was not called."""
    attributes = loss_scale.__dict__
    if "_tflsc" not in attributes:
        attributes["_tflsc"] = LossScaleData()
    return attributes["_tflsc"]


# A changing loss scale of a Keras optimizer is that one's alone while it lives. Keras optimizers
# divide when they apply, so the first of two would update the scale before the second has divided
# by it. TensorFlow 1's optimizers divide before any of them updates it, and share one freely.


def _owner_of(loss_scale: object) -> object:
    reference = getattr(getattr(loss_scale, "_tflsc", None), "owner", None)
    if reference is None or reference() is None:
        return None
    gc.collect()  # Models and their optimizers form reference cycles.
    return reference()


def check_has_no_owner(scaler: Scaler) -> None:
    """Raises a ValueError if a loss scale belongs to a Keras optimizer."""
    if _owner_of(scaler.loss_scale) is not None:
        raise ValueError(
            f"{scaler.loss_scale!r} already drives another optimizer, a Keras one. The first of "
            "the two to apply would update the loss scale before the other divides by it. Give "
            "each a loss scale of its own. If the other is not needed any more, first delete it "
            "and the models and functions that hold it."
        )


def had_owner(loss_scale: _types.LossScaleOrManager) -> bool:
    """Returns whether a loss scale belonged to a Keras optimizer that no longer exists."""
    data = getattr(unwrap(loss_scale), "_tflsc", None)
    return data is not None and data.owner is not None and _owner_of(unwrap(loss_scale)) is None


def set_owner(scaler: Scaler, owner: object) -> None:
    """Records that a loss scale belongs to a Keras optimizer, unless steps never change it."""
    if scaler.may_change() and hasattr(scaler.loss_scale, "__dict__"):
        data_of(scaler.loss_scale).owner = None if owner is None else weakref.ref(owner)


class WrapsManager:
    """Base class of the loss scale that wraps a manager."""

    manager: Any


class _Mark(NamedTuple):
    """A mark of a method. `functools.wraps` copies it to a wrapper, for which it is invalid."""

    method: Callable[..., Any]
    values: tuple[Any, ...]


def _marks(name: str, *values: Any) -> Callable[[_types.Function], _types.Function]:
    def mark(method: _types.Function) -> _types.Function:
        setattr(method, name, _Mark(method, values))
        return method

    return mark


def _mark_of(method: Callable[..., Any], name: str) -> tuple[Any, ...] | None:
    function = getattr(method, "__func__", method)
    mark = getattr(function, name, None)
    return mark.values if isinstance(mark, _Mark) and mark.method is function else None


def updates_from_flag(
    rule: Callable[[Any, Any], Any], skips: bool = True
) -> Callable[[_types.Function], _types.Function]:
    """Marks an `update` or `update_loss_scale` method that needs only the finite flag of a step.

    The rule takes the loss scale or manager and the flag. It updates the state, and returns an
    operation, a tensor or None. Non-finite steps are skipped; without `skips` only with
    `skip_nonfinite`. A rule without `skips` must update nothing: if no step is skipped, only steps
    with a record call it.
    """
    return _marks("updates_from_flag", rule, skips)


def returns_scale(method: _types.Function) -> _types.Function:
    """Marks a method of this package that returns the scale: a user's may return anything."""
    return _marks("returns_scale")(method)


def has_methods(instance: object, *names: str) -> bool:
    """Returns whether `instance` is not a class and has all these methods."""
    methods = [getattr(instance, name, None) for name in names]
    return all(map(callable, methods)) and not isinstance(instance, type)


def is_manager(value: object) -> TypeIs[_types.HasManagerMethods]:
    """Returns whether `value` has the methods of a `LossScaleManager`."""
    # Every step calls this, and `has_methods` takes three times as long.
    get, update = getattr(value, "get_loss_scale", 0), getattr(value, "update_loss_scale", 0)
    return callable(get) and callable(update) and not isinstance(value, type)


def unwrap(loss_scale: _types.LossScaleOrManager) -> _types.LossScaleOrManager:
    """Returns the manager that a loss scale wraps; any other loss scale as it is."""
    return loss_scale.manager if isinstance(loss_scale, WrapsManager) else loss_scale


def variables_of(loss_scale: _types.LossScaleOrManager) -> list[tf.Variable]:
    """Returns the variables of a loss scale or manager, a list."""
    unwrapped = unwrap(loss_scale)
    if is_manager(unwrapped):
        return _variables.variables_of(unwrapped)
    return list(data_of(unwrapped).weights.values())


class Scaler:
    """A loss scale or a manager, as one step uses it; its kind is determined once.

    Attributes:
      loss_scale: `LossScale` or `LossScaleManager`; the manager of a loss scale that wraps one.
      read: function that returns the scale as `loss_scale` does, a tensor or variable.
      update_by_gradients: `update` of a user's loss scale, else None. It takes gradients, and
        returns a pair (update, should_apply).
      update_by_flag: function that updates any other scale after a step. It takes the finite flag,
        which is the same on all replicas, and returns an operation, a tensor or None.
      has_rule: bool, `update_by_flag` is a rule of this package.
      never_skips: bool, every step is applied and nothing is updated.
    """

    def __init__(self, loss_scale: _types.LossScaleOrManager) -> None:
        unwrapped: Any = unwrap(loss_scale)  # Any: it has the methods of its kind.
        self.loss_scale = unwrapped
        self.read: Callable[[], Any]
        self.update_by_gradients: Callable[[Any], tuple[Any, Any]] | None = None
        self.update_by_flag: Callable[[Any], Any]
        if is_manager(unwrapped):
            self.read = unwrapped.get_loss_scale
            method = self.update_by_flag = unwrapped.update_loss_scale
        else:
            self.read = unwrapped.__call__
            method = self.update_by_gradients = unwrapped.update
        mark = _mark_of(method, "updates_from_flag")
        self.has_rule, self.never_skips = mark is not None, False
        if mark is not None:
            rule, skips = mark
            self.update_by_flag, self.update_by_gradients = functools.partial(rule, unwrapped), None
            skips = skips or getattr(unwrapped, "skip_nonfinite", False)
            self.never_skips = not skips

    def may_change(self) -> bool:
        """Returns whether steps may change the scale; they never change a fixed one."""
        return not self.has_rule or bool(variables_of(self.loss_scale))

    def is_read_by_user(self) -> bool:
        """Returns whether a user's method reads the scale."""
        return _mark_of(self.read, "returns_scale") is None

    def check_reciprocal(self) -> None:
        """Raises a ValueError if the reciprocal of a fixed scale may be zero in float32."""
        fixed = None
        if not self.may_change():
            fixed = getattr(self.loss_scale, "_loss_scale", None)
            fixed = getattr(self.loss_scale, "_loss_scale_value", fixed)
        if isinstance(fixed, float) and fixed > LARGEST_WITH_RECIPROCAL:
            raise ValueError(
                f"A fixed loss scale must be at most 2**126, got {fixed!r}: its reciprocal may "
                "become zero in float32, and then the gradients would become zero."
            )

    def read_for_record(self) -> tf.Tensor:
        """Returns the scale now, or at this point of a graph.

        It is NaN in a Session's graph if a user's method reads the scale.
        """
        in_graph = _graphs.in_session_graph()
        if in_graph and self.is_read_by_user():
            return tf.constant(float("nan"))
        value = self.read()
        if in_graph and _variables.is_reference(value):
            return tf.cast(value.read_value(), tf.float32)
        return snapshot(value)


def as_tensor(value: Any) -> tf.Tensor:
    """Returns a scale as a float32 scalar tensor; that of a reference variable follows it."""
    return tf.cast(tf.convert_to_tensor(value), tf.float32)


def snapshot(value: Any) -> tf.Tensor:
    """Returns what `Scaler.read` returned as a float32 scalar tensor that no update changes."""
    scale = as_tensor(value)
    if not tf.executing_eagerly() and _variables.is_reference(value):
        return _variables.deep_copy(scale)
    return scale


def scale_loss(loss: Any, scale: tf.Tensor) -> Any:
    """Returns `loss`, a tensor or a function, times `scale`, in the dtype of the loss."""
    if callable(loss):
        return lambda: scale_loss(loss(), scale)
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(scale, loss.dtype)
