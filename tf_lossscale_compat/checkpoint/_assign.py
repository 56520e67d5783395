"""Assigns the state of a loss scale to the variables of another loss scale of any kind."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tf_lossscale_compat._core import _arguments
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.checkpoint._reader import LossScaleState


class _StateVariables(NamedTuple):
    """Variables, and the bounds of the scale."""

    scale: Any
    good: Any
    bad: Any
    floor: float = 0.0
    ceiling: float = math.inf


# The names of the variables in this package's classes and TensorFlow's: contrib's manager; r2.0's
# loss scale; the loss scale of Keras 2.4 to tf_keras; Keras 3's optimizer.
_VARIABLE_NAMES = (
    ("_loss_scale", "_num_good_steps", "_num_bad_steps"),
    ("_current_loss_scale", "_num_good_steps"),
    ("current_loss_scale", "counter"),
)
_KERAS_3_NAMES = ("dynamic_scale", "step_counter")
# The attributes in which an optimizer or adapter keeps its loss scale or manager.
_HOLDER_ATTRIBUTES = ("_loss_scale_manager", "_loss_scale", "manager")


def _variables_of(holder: object, names: tuple[str, ...]) -> list[Any] | None:
    """Returns scale, good steps and bad steps or None; None if one of them is not a variable."""
    found = [getattr(holder, name, None) for name in names]
    if not all(callable(getattr(value, "assign", None)) for value in found):
        return None
    return [*found, None][:3]


def _state_variables_of(holder: object) -> _StateVariables | None:
    """Returns a loss scale's `_StateVariables`, or None; raises a ValueError if it is fixed."""
    # By class name, because TensorFlow's classes do not derive from this package's.
    classes = {cls.__name__ for cls in type(holder).__mro__}
    fixed = classes & {"FixedLossScale", "FixedLossScaleManager"}
    if fixed or getattr(holder, "dynamic", None) is False:
        raise ValueError(
            f"target has a fixed loss scale, which has no state: {holder!r}. Make a new one with "
            "the scale that was read, or use a dynamic one."
        )
    for names in _VARIABLE_NAMES:
        variables = _variables_of(holder, names)
        if variables:
            floor = getattr(holder, "min_loss_scale", 1.0)
            ceiling = getattr(holder, "max_loss_scale", None) or math.inf
            scale, good, bad = variables
            return _StateVariables(scale, good, bad, floor, ceiling)
    for name in _HOLDER_ATTRIBUTES:
        inner = getattr(holder, name, None)
        found = None if inner is None else _state_variables_of(inner)
        if found is not None:
            return found
    variables = _variables_of(holder, _KERAS_3_NAMES)
    return _StateVariables(*variables) if variables else None


def _checked_assignments(
    state: LossScaleState, variables: _StateVariables
) -> list[tuple[Any, float]]:
    """Returns [(variable, value)] of a state, after all checks."""
    scale = _arguments.positive("state.scale", state.scale)
    good, bad = state.good_steps, state.bad_steps or 0
    if scale > variables.ceiling:
        raise ValueError(
            f"state.scale is {scale!r}, above the target's max_loss_scale={variables.ceiling!r}."
        )
    if scale < variables.floor:
        if variables.floor != 1.0:
            raise ValueError(
                f"state.scale is {scale!r}, below the target's min_loss_scale={variables.floor!r}."
            )
        _arguments.warn_odd("state.scale={!r} is below 1, the target's floor.", scale)
    for name, steps in (("good_steps", good), ("bad_steps", bad)):
        if not isinstance(steps, int) or steps < 0:
            raise ValueError(f"state.{name} must be an int of at least 0, got {steps!r}.")
    if bad and variables.bad is None:
        _arguments.warn_odd("state.bad_steps={!r} is dropped: the target does not count them.", bad)
    counts = [
        # All counts above any period act alike. The limit is one less than the largest number,
        # because the rule adds one.
        (variable, min(steps, tf.as_dtype(variable.dtype).base_dtype.max - 1))
        for variable, steps in ((variables.good, good), (variables.bad, bad))
        if variable is not None
    ]
    return [(variables.scale, scale), *counts]


def assign(state: LossScaleState, target: Any, session: Any = None) -> Any:
    """Assigns the state of a loss scale to a loss scale of any kind, which continues from there.

    Only contrib's manager counts bad steps. Other targets drop the count with a warning; from other
    sources it is 0. Periods, ratios and bounds are the target's.

    Args:
      state: a `LossScaleState`, as `read` returns it.
      target: an `ExponentialUpdateLossScaleManager`, a `DynamicLossScale`, or an optimizer that has
        one of them; TensorFlow's classes for these; a Keras `LossScaleOptimizer` (of this package,
        `tf.keras` 2.4 and later, `tf_keras` or Keras 3), after `build` or `compile` and a step.
        Under a strategy it must be made in its scope; call this outside of `strategy.run`.
      session: `tf.compat.v1.Session` to assign in, for a target that is part of a `tf.Graph`; None
        to return the operation.

    Returns:
      In graph mode without `session` an operation that assigns; run it after the initialization of
      variables. Otherwise None, after the assignment.

    Raises:
      TypeError: `state` is not a `LossScaleState`, or `target` has no loss scale.
      ValueError: `target` has a fixed loss scale, or its bounds exclude the scale; it is a Keras
        optimizer that has no variables yet; `state` holds values that no loss scale can have; or
        `session` is given for a target outside of graphs. The target is then not changed.
    """
    if not isinstance(state, LossScaleState):
        raise TypeError(f"state must be a LossScaleState, as read() returns it, got {state!r}.")
    variables = _state_variables_of(target)
    if variables is None:
        if hasattr(target, "inner_optimizer"):
            raise ValueError(
                "target has no variables for its loss scale yet: call its build() with the "
                f"variables to train first. It is {target!r}."
            )
        raise TypeError(
            "target must be a dynamic loss scale, a loss-scale manager with state, or an optimizer "
            f"that has one of them, got {target!r}."
        )
    assignments = _checked_assignments(state, variables)
    graph = getattr(variables.scale, "graph", None)
    if graph is None:
        if session is not None:
            raise ValueError(
                "session must be None: the variables of target are not part of a graph."
            )
        with tf.init_scope():
            for variable, value in assignments:
                variable.assign(value)
        return None
    with graph.as_default():
        operation = tf.group(*[variable.assign(value) for variable, value in assignments])
    if session is None:
        return operation
    session.run(operation)
    return None


# Where users find it.
assign.__module__ = "tf_lossscale_compat.checkpoint"
