"""Attaches `StepRecord`s to optimizers, and notifies them of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tf_lossscale_compat._core import _scaler, _variables
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from typing import Protocol

    from tf_lossscale_compat._core import _types

    class Observer(Protocol):
        """A `StepRecord`, as a step calls it."""

        @property
        def watched(self) -> object: ...
        def _check_can_observe(self) -> None: ...
        def _record_step(
            self, observation: Observation, outcome: Outcome
        ) -> tf.Operation | None: ...
        def _inspect_gradients(self, observation: Observation) -> list[tf.Operation]: ...
        def _raise_if_stuck(self, outcome: Outcome) -> None: ...


# The attribute of an optimizer that holds its record. It has the package's prefix, because users
# derive from the optimizers.
ATTRIBUTE = "_tflsc_record"


class _Attachment:
    """Holds an object's record, or None if a graph was built without one. Copies have none."""

    def __init__(self, record: Observer | None = None) -> None:
        self.record = record

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def check_can_attach(watched: object) -> None:
    """Raises a ValueError if no record can be attached to `watched`."""
    if record_of(watched) is not None:
        raise ValueError(f"watched has a StepRecord already, got {watched!r}. Use that one.")
    attached = watched.__dict__.get(ATTRIBUTE)
    if attached is not None and attached.record is None:
        raise ValueError(
            f"watched must not be part of a graph or tf.function that is traced already: a record "
            f"would not see its steps, got {watched!r}. Make the StepRecord before the first step."
        )


def attach(watched: object, record: Observer) -> None:
    """Attaches a record, which then observes `watched`."""
    watched.__dict__[ATTRIBUTE] = _Attachment(record)


def record_of(watched: object) -> Observer | None:
    """Returns the record of `watched`, or None."""
    attached = getattr(watched, "__dict__", {}).get(ATTRIBUTE)
    if attached is None or attached.record is None:
        return None
    # A shallow copy of the optimizer shares its attributes, but has no record.
    return attached.record if attached.record.watched is watched else None


def record_of_step(watched: object) -> Observer | None:
    """Returns the record of `watched` for a step, or None.

    While a graph is built, an optimizer without a record is marked: no record will see its steps.

    Raises:
      ValueError: the record was made outside of the graph or strategy of the step.
    """
    record = record_of(watched)
    if record is not None:
        record._check_can_observe()
    elif not tf.executing_eagerly() and watched is not None:
        watched.__dict__[ATTRIBUTE] = _Attachment()
    return record


class Outcome(NamedTuple):
    """The outcome of a step, for its record.

    Attributes:
      finite: bool or bool scalar tensor, False if the gradients are not finite or not applied.
      can_skip: bool, a step that is not `finite` is skipped.
      scale_before: the loss scale before the step, a float32 scalar tensor.
      scale_after: the loss scale after the step, NaN if unknown. In eager mode, both scales of a
        finite step may be None.
    """

    finite: bool | tf.Tensor
    can_skip: bool
    scale_before: tf.Tensor | None
    scale_after: tf.Tensor | None


class Observation:
    """One step, as its record observes it.

    Attributes:
      record: `StepRecord`.
      scaler: `_scaler.Scaler` of the loss scale.
      variables: list of variables.
      grads: list of their gradients.
    """

    def __init__(
        self,
        record: Observer,
        scaler: _scaler.Scaler,
        variables: _types.Variables,
        grads: _types.Gradients,
    ) -> None:
        self.record, self.scaler, self.variables, self.grads = record, scaler, variables, grads
        self._scale_before: tf.Tensor | None = None

    def update_and_observe(
        self, update: Callable[[], _types.Result], finite: bool | tf.Tensor | None = None
    ) -> _types.Result:
        """Reads the scale, and returns the result of `update`, which updates the loss scale.

        `finite` is the finite flag, or None if it is not yet known.
        """
        # A record keeps only the scale of skipped steps. Eager mode knows which steps are skipped.
        if finite is not None and _is_known_true(finite):
            return update()
        with tf.control_dependencies([] if finite is None else [finite]):
            self._scale_before = _variables.deep_copy(_scaler.snapshot(self.scaler.read()))
        with tf.control_dependencies([self._scale_before]):
            return update()

    def inspect_gradients(self) -> list[tf.Operation]:
        """Makes the record inspect a skipped step's gradients; returns operations of a graph."""
        return self.record._inspect_gradients(self)

    def notify(
        self, finite: bool | tf.Tensor, can_skip: bool, dependencies: list[Any]
    ) -> list[tf.Operation]:
        """Notifies the record of a step that has been taken.

        Args:
          finite: see `Outcome`.
          can_skip: see there.
          dependencies: list of operations, tensors and None, which have to run before.

        Returns:
          A list of operations, empty in eager mode.

        Raises:
          LossScaleError: in eager mode, as many steps in a row were skipped as end the run.
        """
        # A user's update may return anything.
        with tf.control_dependencies(
            [op for op in tf.nest.flatten(dependencies) if op is not None]
        ):
            after = None if _is_known_true(finite) else self.scaler.read_for_record()
            if not (tf.executing_eagerly() or isinstance(finite, bool)):
                finite = tf.identity(finite)
            outcome = Outcome(finite, can_skip, self._scale_before, after)
            recorded = self.record._record_step(self, outcome)
        self.record._raise_if_stuck(outcome)
        return [] if recorded is None else [recorded]


def _is_known_true(flag: bool | tf.Tensor) -> bool:
    return tf.executing_eagerly() and bool(flag)
