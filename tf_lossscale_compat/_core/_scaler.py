"""Scalers: one interface of loss scales and managers for an optimizer's step.

Either may be this package's own or a user's. Where its method `update_loss_scale` or `update` is
marked by `updates_from_flag`, it needs only the finite flag of a step, and the mark holds the
function that is given it. A user's method has no mark, even if it overrides a marked one, and is
called itself: a manager's with the flag, a loss scale's with the gradients.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tf_lossscale_compat._core import _graphs, _state, _tf

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import TypeIs

    from tf_lossscale_compat._core import _types
else:
    tf = _tf.tf

# One over a larger loss scale is subnormal, and processors may flush it to zero.
LARGEST_WITH_RECIPROCAL = 2.0**126


class Kept:
    """What the package keeps on a loss scale or manager, of its own or a user's, as `_tflsc`.

    Attributes:
      weights: dict from names to variables, a `LossScale`'s state.
      options: dict of the constructor's arguments that no attribute of the original's holds.
      by_value: bool, it is compared with numbers and tensors by its value.
      constant: the number of a fixed manager and the tensor of it that the constructor made in the
        graph of then, or None.
      claim: the optimizers that it drives, see `_ownership`, or None.
    """

    by_value = False
    constant: tuple[float, tf.Tensor] | None = None
    claim: Any = None

    def __init__(self) -> None:
        self.weights: dict[str, tf.Variable] = {}
        self.options: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:  # Copies and pickles have no owner and no graph.
        return {**vars(self), "constant": None, "claim": None}


def kept(subject: object) -> Kept:
    """Returns what is kept on a loss scale or manager, also of one that called no constructor."""
    attributes = subject.__dict__
    if "_tflsc" not in attributes:
        attributes["_tflsc"] = Kept()
    return attributes["_tflsc"]


class WrapsManager:
    """Base class of the loss scale that wraps a manager."""

    manager: Any


class _Rule(NamedTuple):
    """The mark of a method that needs only the finite flag of a step.

    Attributes:
      method: the method; `functools.wraps` copies the mark to a wrapper, which is not marked.
      update: function of the loss scale or manager and the flag; it updates the state and returns
        an operation, a tensor or None.
      skips: bool, a step that is not finite is skipped; if False, where `skip_nonfinite` says so.
    """

    method: Callable[..., Any]
    update: Callable[[Any, Any], Any]
    skips: bool


def updates_from_flag(
    update: Callable[[Any, Any], Any], skips: bool = True
) -> Callable[[_types.Function], _types.Function]:
    """Marks an `update` or `update_loss_scale` that needs only the finite flag; see `_Rule`."""

    def mark(method: _types.Function) -> _types.Function:
        marked: Any = method
        marked.updates_from_flag = _Rule(method, update, skips)
        return method

    return mark


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


def _rule_of(method: Callable[..., Any]) -> _Rule | None:
    function = getattr(method, "__func__", method)
    rule = getattr(function, "updates_from_flag", None)
    return rule if isinstance(rule, _Rule) and rule.method is function else None


def has_methods(instance: object, *names: str) -> bool:
    """Returns whether `instance`, which must be no class, has all these methods."""
    if isinstance(instance, type):
        return False
    return all(callable(getattr(instance, name, None)) for name in names)


def is_manager(subject: object) -> TypeIs[_types.HasManagerMethods]:
    """Returns whether `subject` has the methods of a `LossScaleManager`."""
    return (
        callable(getattr(subject, "get_loss_scale", None))
        and callable(getattr(subject, "update_loss_scale", None))
        and not isinstance(subject, type)
    )


def unwrap(subject: Any) -> Any:
    """Returns the manager that a `ManagerLossScale` wraps, or `subject`."""
    return subject.manager if isinstance(subject, WrapsManager) else subject


class Scaler:
    """A loss scale or a manager, as one step asks it; its kind is found once.

    Attributes:
      subject: `LossScale` or `LossScaleManager`.
      read: function that returns the scale as `subject` does, a tensor or variable.
      update: function that updates the scale after a step. It is given the finite flag, the same
        on all replicas, and returns an operation, a tensor or None; where the update
        `needs_gradients`, these, and it returns a pair (update, should_apply).
      updates_from_flag: bool, its update is this package's own.
      needs_gradients: bool, its update is a user's and is given gradients in place of a flag.
      skip_nonfinite: bool, a step that is not finite is skipped whatever `subject` says.
      applies_all: bool, every step is applied and nothing is updated.
    """

    def __init__(self, subject: _types.Subject, skip_nonfinite: bool = False) -> None:
        manager = is_manager(subject)
        known: Any = subject  # With the methods of its kind, and of its mark.
        method = known.update_loss_scale if manager else known.update
        rule = _rule_of(method)
        self.subject, self.skip_nonfinite = subject, skip_nonfinite
        self.read: Callable[[], Any] = known.get_loss_scale if manager else known
        self.updates_from_flag = rule is not None
        self.needs_gradients = rule is None and not manager
        if rule is None:
            self.update: Callable[[Any], Any] = method
            self.applies_all = False
        else:
            self.update = functools.partial(rule.update, subject)
            skips = skip_nonfinite or rule.skips or getattr(subject, "skip_nonfinite", False)
            self.applies_all = not skips

    def scale(self) -> tf.Tensor:
        """Returns what losses are multiplied with and gradients divided by, a float32 scalar."""
        return _as_scale(self.read())

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
    scale = tf.cast(tf.convert_to_tensor(value), tf.float32)
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
    subject = unwrap(subject)
    if is_manager(subject):
        return _state.variables_of(subject)
    return list(kept(subject).weights.values())
