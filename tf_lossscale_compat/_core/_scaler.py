"""Scalers: one interface of loss scales and managers for an optimizer's step.

Either may be this package's own or a user's. If its method `update_loss_scale` or `update` is
marked by `updates_from_flag`, it needs only the finite flag of a step, and has

    _tflsc_update_from_flag(finite)   updates the state; returns an operation, a tensor or None
    _tflsc_skips_nonfinite            a step that is not finite is skipped

A user's method has no mark, even if it overrides a marked one, and is called itself: a manager's
with the flag, a loss scale's with the gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable

from tf_lossscale_compat._core import _graphs, _replicas, _state, _tf

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import TypeIs

    from tf_lossscale_compat._core import _types
else:
    tf = _tf.tf

# One over a larger loss scale is subnormal, and processors may flush it to zero.
LARGEST_WITH_RECIPROCAL = 2.0**126


def updates_from_flag(method: _types.Function) -> _types.Function:
    """Marks an `update` or `update_loss_scale` that needs only the finite flag of a step."""
    # The method, not True: functools.wraps copies attributes to a wrapper, which is not marked.
    marked: Any = method
    marked.updates_from_flag = method
    return method


def reads(name: str | None = None) -> Callable[[_types.Function], _types.Function]:
    """Marks a method that returns the scale and reads it anew at each call.

    Args:
      name: str, the attribute that it reads, if that can be a reference variable; else None.
    """

    def mark(method: _types.Function) -> _types.Function:
        marked: Any = method
        marked.reads = method, name
        return method

    return mark


def _is_marked(method: Callable[..., Any]) -> bool:
    function = getattr(method, "__func__", method)
    return getattr(function, "updates_from_flag", None) is function


def has_methods(instance: object, *names: str) -> bool:
    """Returns whether `instance`, which must be no class, has all these methods."""
    if isinstance(instance, type):
        return False
    for name in names:  # noqa: SIM110  Every step asks this: no generator.
        if not callable(getattr(instance, name, None)):
            return False
    return True


def is_manager(subject: object) -> TypeIs[_types.HasManagerMethods]:
    """Returns whether `subject` has the methods of a `LossScaleManager`."""
    return has_methods(subject, "get_loss_scale", "update_loss_scale")


def unwrap(subject: Any) -> Any:
    """Returns the manager that a `ManagerLossScale` wraps, or `subject`."""
    # Users' classes may have an attribute of this name.
    wraps = getattr(type(subject), "_tflsc_wraps_manager", False) is True
    return subject.manager if wraps else subject


class Scaler:
    """A loss scale or a manager, as one step asks it; its kind is found once.

    Attributes:
      subject: `LossScale` or `LossScaleManager`.
      read: function that returns the scale as `subject` does, a tensor or variable.
      updates_from_flag: bool, its update is this package's own.
      needs_gradients: bool, its update is a user's and is given gradients in place of a flag.
      skip_nonfinite: bool, a step that is not finite is skipped whatever `subject` says.
      applies_all: bool, every step is applied and nothing is updated.
    """

    def __init__(self, subject: _types.Subject, skip_nonfinite: bool = False) -> None:
        manager = is_manager(subject)
        known: Any = subject  # With the methods of its kind, and of its mark.
        method = known.update_loss_scale if manager else known.update
        own = _is_marked(method)
        self.subject, self.skip_nonfinite, self.updates_from_flag = subject, skip_nonfinite, own
        self.read: Callable[[], Any] = known.get_loss_scale if manager else known
        self._update: Callable[[Any], Any] = known._tflsc_update_from_flag if own else method
        self.needs_gradients = not (own or manager)
        self.applies_all = own and not (skip_nonfinite or known._tflsc_skips_nonfinite)

    def scale(self) -> tf.Tensor:
        """Returns what losses are multiplied with and gradients divided by, a float32 scalar."""
        return _as_scale(self.read())

    def update(self, finite: tf.Tensor) -> Any:
        """Updates the loss scale after a step.

        Args:
          finite: bool scalar tensor, the same on all replicas.

        Returns:
          An operation, a tensor or None.
        """
        return self._update(finite)

    def update_from_gradients(self, grads: list[_types.Gradient]) -> tuple[Any, bool | tf.Tensor]:
        """Returns what the user's `update(grads)` returns: (update, should_apply)."""
        return self._update(grads)

    def check_reciprocal(self) -> None:
        """Raises a ValueError where one over a fixed scale is zero in float32."""
        if not self.never_changes():
            return
        subject = unwrap(self.subject)
        value = getattr(subject, "_loss_scale_value", getattr(subject, "_loss_scale", None))
        if isinstance(value, float) and value > LARGEST_WITH_RECIPROCAL:
            raise ValueError(
                f"A fixed loss scale must be at most 2**126, got {value!r}: processors take one "
                "over it for zero, and gradients would become zero."
            )

    def never_changes(self) -> bool:
        """Returns whether no step changes the scale: a fixed one with this package's update."""
        return self.updates_from_flag and not variables(self.subject)


def scale(subject: Callable[[], Any] | _types.HasManagerMethods) -> tf.Tensor:
    """Returns the scale of a loss scale or manager, a float32 scalar tensor."""
    return _as_scale(subject.get_loss_scale() if is_manager(subject) else subject())


def as_tensor(value: Any) -> tf.Tensor:
    """Returns a scale as a float32 scalar tensor; of a reference variable, one that follows it."""
    return tf.cast(tf.convert_to_tensor(value), tf.float32)


def _as_scale(value: Any) -> tf.Tensor:
    scale = as_tensor(value)
    return _state.copied(scale) if _state.is_reference(value) else scale


def _read_mark(subject: _types.Subject) -> list[Any] | None:
    """Returns the arguments of the mark `reads`, where it is this package's method that reads."""
    method = subject.get_loss_scale if is_manager(subject) else type(subject).__call__
    function = getattr(method, "__func__", method)
    marked, *arguments = getattr(function, "reads", (None,))
    return arguments if marked is function else None


def is_users(subject: _types.Subject) -> bool:
    """Returns whether a user's method reads the scale."""
    return _read_mark(unwrap(subject)) is None


def scale_at_this_point(subject: _types.Subject) -> tf.Tensor:
    """Returns the scale, read here in a graph; NaN if a user's class may return an earlier read."""
    if not _graphs.in_session_graph():
        return scale(subject)
    subject = unwrap(subject)
    mark = _read_mark(subject)
    if mark is None:
        return tf.constant(float("nan"))
    value: Any = None if mark == [None] else getattr(subject, *mark)
    if not _state.is_reference(value):
        return scale(subject)
    return tf.cast(value.read_value(), tf.float32)


def variables(subject: _types.Subject) -> list[tf.Variable]:
    """Returns the variables of a loss scale or manager, a list."""
    return _state.variables_of(subject) if is_manager(subject) else subject._tflsc_variables()


def update_cross_replica(
    update: Callable[[tf.Tensor], _types.Result],
    flag: bool | tf.Tensor,
    variables: Iterable[tf.Variable],
) -> _types.Result:
    """Calls `update` once for all replicas, with the AND of `flag` over them, in any context.

    Args:
      update: function of a bool scalar tensor.
      flag: bool scalar tensor or Python bool, each replica's own; in a cross-replica context it
        may be per-replica.
      variables: list of the variables that it updates.
    """
    with _state.scope_of(variables):
        return _replicas.run_cross_replica(lambda flag: update(_replicas.all_true(flag)), (flag,))
