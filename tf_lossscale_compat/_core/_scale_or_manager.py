"""A loss scale or manager, of this package or a user's, as optimizers and their steps use it.

`update_loss_scale` of a manager takes the finite flag of a step, `update` of a loss scale the
gradients. Classes of this package need only the flag, and have a private method `_tflsc_update`
beside it that takes the flag. A step calls this one, unless a user overrides the public method.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any, Callable

from tf_lossscale_compat._core import _graphs, _variables
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# The reciprocal of a larger loss scale is subnormal, and processors may flush it to zero.
LARGEST_WITH_RECIPROCAL = 2.0**126


class LossScaleData:
    """Holds the package's data of a loss scale or manager, also of a user's, as `_tflsc`."""

    compares_by_value = False  # With numbers and tensors.
    # A fixed manager's number, and the tensor that the constructor made of it in a graph.
    constant: tuple[float, tf.Tensor] | None = None
    # A weak reference to the Keras optimizer that the loss scale belongs to.
    owner: Callable[[], object] | None = None
    stand_in: Any = None  # The loss scale that stands for this one of TensorFlow's.

    def __init__(self) -> None:
        self.weights: dict[str, tf.Variable] = {}  # A `LossScale`'s state, by name.
        # The constructor's arguments that no attribute of the original holds.
        self.extra_config: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:  # Copies and pickles have neither owner nor graph.
        return {**vars(self), "constant": None, "owner": None, "stand_in": None}


def data_of(loss_scale: object) -> LossScaleData:
    """Returns the data of a loss scale or manager, even if its constructor was not called."""
    attributes = loss_scale.__dict__
    if "_tflsc" not in attributes:
        attributes["_tflsc"] = LossScaleData()
    return attributes["_tflsc"]


def innermost(loss_scale: _types.LossScaleOrManager) -> _types.LossScaleOrManager:
    """Returns the manager that a loss scale wraps; any other loss scale as it is."""
    wraps_manager = hasattr(type(loss_scale), "_tflsc_wraps_manager")
    return loss_scale.manager if wraps_manager else loss_scale


def has_methods(instance: object, *names: str) -> bool:
    """Returns whether `instance` is not a class and has all these methods."""
    methods = [getattr(instance, name, None) for name in names]
    return all(map(callable, methods)) and not isinstance(instance, type)


def is_manager(value: object) -> bool:
    """Returns whether `value` has the methods of a `LossScaleManager`."""
    # Every step calls this, and `has_methods` takes three times as long.
    get, update = getattr(value, "get_loss_scale", 0), getattr(value, "update_loss_scale", 0)
    return callable(get) and callable(update) and not isinstance(value, type)


def variables_of(loss_scale: _types.LossScaleOrManager) -> list[tf.Variable]:
    """Returns the variables of a loss scale or manager, a list."""
    loss_scale = innermost(loss_scale)
    if is_manager(loss_scale):
        return _variables.of(loss_scale)
    return list(data_of(loss_scale).weights.values())


# A user's methods, and this package's.


def is_ours(method: Any, instance: object) -> bool:
    """Returns whether an instance's method is this package's, and none that a user put there."""
    # Not by an attribute of the function, which `functools.wraps` would copy to a user's.
    ours = getattr(type(instance), "_tflsc_our_methods", ())
    return getattr(method, "__func__", method) in ours


def _is_updated_by_user(loss_scale: Any) -> bool:
    method = loss_scale.update_loss_scale if is_manager(loss_scale) else loss_scale.update
    return not is_ours(method, loss_scale)


def needs_gradients(loss_scale: _types.LossScaleOrManager) -> bool:
    """Returns whether a user's `update` updates the scale, by gradients."""
    loss_scale = innermost(loss_scale)
    return not is_manager(loss_scale) and _is_updated_by_user(loss_scale)


def may_change(loss_scale: _types.LossScaleOrManager) -> bool:
    """Returns False for a fixed scale of this package, which no step changes, else True."""
    loss_scale = innermost(loss_scale)
    return _is_updated_by_user(loss_scale) or bool(variables_of(loss_scale))


def is_read_by_user(loss_scale: _types.LossScaleOrManager) -> bool:
    """Returns whether a user's method reads the scale."""
    loss_scale = innermost(loss_scale)
    method = loss_scale.get_loss_scale if is_manager(loss_scale) else loss_scale.__call__
    return not is_ours(method, loss_scale)


def check_reciprocal(loss_scale: _types.LossScaleOrManager) -> None:
    """Raises a ValueError if the reciprocal of a fixed scale may be zero in float32."""
    loss_scale, fixed = innermost(loss_scale), None
    if not may_change(loss_scale):
        fixed = getattr(loss_scale, "_loss_scale", None)
        fixed = getattr(loss_scale, "_loss_scale_value", fixed)
    if isinstance(fixed, float) and fixed > LARGEST_WITH_RECIPROCAL:
        raise ValueError(
            f"A fixed loss scale must be at most 2**126, got {fixed!r}: its reciprocal may "
            "become zero in float32, and then the gradients would become zero."
        )


# A changing loss scale of a Keras optimizer is that one's alone while it lives. Keras optimizers
# divide when they apply, so the first of two would update the scale before the second has divided
# by it. TensorFlow 1's optimizers divide before any of them updates it, and share one freely.


def _owner_of(loss_scale: object) -> object:
    reference = getattr(getattr(loss_scale, "_tflsc", None), "owner", None)
    if reference is None or reference() is None:
        return None
    gc.collect()  # Models and their optimizers form reference cycles.
    return reference()


def check_has_no_owner(loss_scale: _types.LossScaleOrManager) -> None:
    """Raises a ValueError if a loss scale belongs to a Keras optimizer."""
    loss_scale = innermost(loss_scale)
    if _owner_of(loss_scale) is not None:
        raise ValueError(
            f"{loss_scale!r} already drives another optimizer, a Keras one. The first of the two "
            "to apply would update the loss scale before the other divides by it. Give each a "
            "loss scale of its own. If the other is not needed any more, first delete it and the "
            "models and functions that hold it."
        )


def had_owner(loss_scale: _types.LossScaleOrManager) -> bool:
    """Returns whether a loss scale belonged to a Keras optimizer that no longer exists."""
    data = getattr(innermost(loss_scale), "_tflsc", None)
    return data is not None and data.owner is not None and _owner_of(innermost(loss_scale)) is None


def set_owner(loss_scale: _types.LossScaleOrManager, owner: object) -> None:
    """Notes that a loss scale belongs to a Keras optimizer, unless steps never change it."""
    loss_scale = innermost(loss_scale)
    if may_change(loss_scale) and hasattr(loss_scale, "__dict__"):
        data_of(loss_scale).owner = None if owner is None else weakref.ref(owner)


# Values of a scale.


def scale_after_step(loss_scale: _types.LossScaleOrManager) -> tf.Tensor:
    """Returns the scale now, or at this point of a graph.

    It is NaN in a Session's graph if a user's method reads the scale.
    """
    in_graph = _graphs.in_session_graph()
    if in_graph and is_read_by_user(loss_scale):
        return tf.constant(float("nan"))
    loss_scale = innermost(loss_scale)
    value = loss_scale.get_loss_scale() if is_manager(loss_scale) else loss_scale()
    if in_graph and _variables.is_reference(value):
        return tf.cast(value.read_value(), tf.float32)
    return _variables.snapshot(value)


def scale_loss(loss: Any, scale: tf.Tensor) -> Any:
    """Returns `loss`, a tensor or a function, times `scale`, in the dtype of the loss."""
    if callable(loss):
        return lambda: scale_loss(loss(), scale)
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(scale, loss.dtype)
