"""Attaches `StepRecord`s to optimizers, and notifies them of steps."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ContextManager, Iterator

from tf_lossscale_compat._core import _scaler, _state
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from typing import Protocol

    from tf_lossscale_compat._core import _types

    class Observer(Protocol):
        """A `StepRecord`, as a step calls it."""

        @property
        def watched(self) -> object: ...
        def _check_context(self) -> None: ...
        def _record_step(self, observation: RecordedObservation) -> tf.Operation | None: ...
        def _inspect_gradients(self, observation: RecordedObservation) -> list[tf.Operation]: ...
        def _raise_if_stuck(self, observation: RecordedObservation) -> None: ...


# Has the package's prefix, because users derive from the optimizers.
_ATTRIBUTE = "_tflsc_record"


class _Attachment:
    """Holds an object's record, or None if a graph was built without one. Copies have none."""

    def __init__(self, record: Observer | None = None) -> None:
        self.record = record

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()


def check(watched: object) -> None:
    """Raises a ValueError if no record can be attached to `watched`."""
    if record_of(watched) is not None:
        raise ValueError(f"watched has a StepRecord already, got {watched!r}.")
    attached = watched.__dict__.get(_ATTRIBUTE)
    if attached is not None and attached.record is None:
        raise ValueError(
            f"watched must not be part of a graph or tf.function that is traced already: a record "
            f"would not see its steps, got {watched!r}. Make the StepRecord before the first step."
        )


def attach(watched: object, record: Observer) -> None:
    """Attaches a record, which then observes `watched`."""
    watched.__dict__[_ATTRIBUTE] = _Attachment(record)


def record_of(watched: object) -> Observer | None:
    """Returns the record of `watched`, or None."""
    attached = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    if attached is None or attached.record is None:
        return None
    # A shallow copy of the optimizer shares its attributes, but has no record.
    return attached.record if attached.record.watched is watched else None


def observe(scaler: _scaler.Scaler, watched: object, variables: _types.Variables) -> Observation:
    """Returns the `Observation` of a step.

    While a graph is built, an optimizer without a record is marked: no record will see its steps.
    """
    record = record_of(watched)
    if record is not None:
        return RecordedObservation(scaler, record, variables)
    if not tf.executing_eagerly() and watched is not None:
        watched.__dict__[_ATTRIBUTE] = _Attachment()
    return Observation()


class Observation:
    """One step without a record; base class of that with one.

    Attributes:
      grads: list of gradients.
    """

    has_record = False
    grads: _types.Gradients

    def updating(self, finite: bool | tf.Tensor | None = None) -> ContextManager[None]:
        """Returns a context for the loss scale's update; `finite` is None if not yet known."""
        return contextlib.nullcontext()

    def inspect_gradients(self) -> list[tf.Operation]:
        """Makes the record inspect the gradients of a skipped step; returns operations."""
        return []

    def notify(
        self, dependencies: list[Any], finite: bool | tf.Tensor, skips_nonfinite: bool
    ) -> list[tf.Operation]:
        """Notifies the record of a step that has been taken.

        Args:
          dependencies: list of operations, tensors and None, which have to run before.
          finite: see `RecordedObservation`.
          skips_nonfinite: see there.

        Returns:
          A list of operations, empty in eager mode.

        Raises:
          LossScaleError: in eager mode, more steps in a row were skipped than the record allows.
        """
        return []


class RecordedObservation(Observation):
    """One step, as its record sees it.

    Attributes:
      record: `StepRecord`.
      variables: list of variables.
      finite: bool or bool scalar tensor, False if the gradients are not finite or not applied.
      skips_nonfinite: bool, a step that is not `finite` is skipped.
      scale_before: the loss scale before the step, a float32 scalar tensor.
      scale_after: the loss scale after the step, NaN if unknown; None after a finite step in eager
        mode.
      inspected: bool, the record has inspected the gradients already.
    """

    has_record = True
    scale_before: tf.Tensor | None = None
    inspected: bool = False

    def __init__(
        self, scaler: _scaler.Scaler, record: Observer, variables: _types.Variables
    ) -> None:
        self._scaler, self.record, self.variables = scaler, record, variables
        record._check_context()

    @contextlib.contextmanager
    def updating(self, finite: bool | tf.Tensor | None = None) -> Iterator[None]:
        # A record keeps only the scale of skipped steps. Eager mode knows which steps are skipped.
        if finite is not None and _is_known_true(finite):
            yield
            return
        with tf.control_dependencies([] if finite is None else [finite]):
            self.scale_before = _state.deep_copy(_scaler.snapshot(self._scaler.read()))
        with tf.control_dependencies([self.scale_before]):
            yield

    def inspect_gradients(self) -> list[tf.Operation]:
        self.inspected = True
        return self.record._inspect_gradients(self)

    def notify(
        self, dependencies: list[Any], finite: bool | tf.Tensor, skips_nonfinite: bool
    ) -> list[tf.Operation]:
        self.finite, self.skips_nonfinite = finite, skips_nonfinite
        # A user's update may return anything.
        with tf.control_dependencies(
            [op for op in tf.nest.flatten(dependencies) if op is not None]
        ):
            self.scale_after = None if _is_known_true(finite) else self._scaler.read_for_record()
            if not (tf.executing_eagerly() or isinstance(finite, bool)):
                self.finite = tf.identity(finite)
            recorded = self.record._record_step(self)
        self.record._raise_if_stuck(self)
        return [] if recorded is None else [recorded]


def _is_known_true(flag: bool | tf.Tensor) -> bool:
    return tf.executing_eagerly() and bool(flag)
