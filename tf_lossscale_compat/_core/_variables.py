"""The variables of a loss scale or record: made, read and assigned.

A variable may have a copy for each replica. All copies get the same update, in each mode (graph,
eager, `tf.function`) and under each strategy, inside or outside of its scope. In eager mode it is
done immediately. How to read a scale (the first three) or another value:

| function | it returns | where |
| --- | --- | --- |
| `as_float32` | a scale, which follows a reference variable | original graphs; comparisons |
| `snapshot` | a scale that no later update changes | everywhere else |
| `_scale_or_manager.scale_after_step` | the scale after the update | a record |
| `deep_copy` | a value that was read before, kept from updates | a record: the scale before |
| `snapshot_of_variable` | a variable's value, kept from assignments | a record's variables |
| `read_here` | a variable's value at this point of the graph | update rules |
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable, Sequence

from tf_lossscale_compat._core import _graphs, _replicas, _tf
from tf_lossscale_compat._core._tf import tf, tf1


def make(
    holder: _tf.Trackable,
    name: str,
    initial_value: Any,
    dtype: tf.DType | None,
    use_resource: bool | None = None,
) -> tf.Variable:
    """Makes a variable that is neither trained nor aggregated over replicas.

    Checkpoints find it under its holder, by name. `dtype` and `use_resource` may be None, for the
    dtype of the value and the default of the variable scope.
    """
    variable = tf1.Variable(
        initial_value,
        trainable=False,
        name=name,
        dtype=dtype,
        use_resource=use_resource,
        aggregation=tf1.VariableAggregation.NONE,
    )
    holder._track_trackable(variable, name)
    return variable


def of(holder: object) -> list[tf.Variable]:
    """Returns the variables of any optimizer or manager, a list."""
    variables = getattr(holder, "variables", [])
    return list(variables() if callable(variables) else variables)


def is_reference(variable: object) -> bool:
    """Returns whether `variable` is a reference variable, whose reads alias its memory."""
    return type(variable).__name__ == "RefVariable"


def deep_copy(value: tf.Tensor) -> tf.Tensor:
    """Returns a value that was read from a variable, unaffected by later assignments."""
    # XLA has no `DeepCopy`, and no reference variables.
    copies = _graphs.in_session_graph() and not _graphs.compiled_by_xla()
    return tf.raw_ops.DeepCopy(x=value) if copies else value


def as_float32(value: Any) -> tf.Tensor:
    """Returns a scale as a float32 scalar tensor; that of a reference variable follows it."""
    return tf.cast(tf.convert_to_tensor(value), tf.float32)


def snapshot(value: Any) -> tf.Tensor:
    """Returns a scale as a float32 scalar tensor that no update changes."""
    scale = tf.cast(tf.convert_to_tensor(value), tf.float32)
    return deep_copy(scale) if not tf.executing_eagerly() and is_reference(value) else scale


def snapshot_of_variable(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of `variable`, unaffected by later assignments."""
    value = tf.identity(variable)
    # A user's `variable_creator_scope` may make reference variables, whatever `use_resource` says.
    return deep_copy(value) if is_reference(variable) else value


def read_here(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of `variable` at this point of the graph."""
    if tf.distribute.has_strategy():
        return tf.identity(variable)
    if not tf.executing_eagerly() and is_reference(variable):
        return variable.read_value()  # Converting it returns an earlier read.
    return tf.convert_to_tensor(variable)


def local_copy(variable: tf.Variable) -> tf.Variable:
    """Returns this process' copy of a variable, or the variable itself."""
    strategy = getattr(variable, "distribute_strategy", None)
    if strategy is None:
        return variable
    return strategy.experimental_local_results(variable)[0]


def local_results(value: Any) -> Any:
    """Returns an assignment's result, or in a cross-replica context a list: one per local copy."""
    if value is None or not _replicas.in_cross_replica_context():
        return value
    return list(tf.distribute.get_strategy().experimental_local_results(value))


def scope_of(variables: Iterable[tf.Variable]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which the strategy that keeps copies of `variables` is in scope.

    Outside of it, reading and assigning a mirrored variable would affect only one of its copies.
    """
    if not tf.distribute.has_strategy():
        for variable in variables:
            # Plain variables lack it, also those of strategies with a single copy.
            strategy = getattr(variable, "distribute_strategy", None)
            if strategy is not None:
                return strategy.scope()
    return contextlib.nullcontext()


# What changes the state.


def reaches(counter: tf.Variable, number: Any) -> bool | tf.Tensor:
    """Returns whether one more step makes `counter` at least `number`."""
    value = read_here(counter)
    # In eager mode Python adds and compares, because two operations take longer.
    return (int(value) if tf.executing_eagerly() else value) + 1 >= number


def assign(variable: tf.Variable, value: float | tf.Tensor) -> Any:
    """Assigns `value` to each copy of `variable`; returns the assignments of a graph."""
    return local_results(variable.assign(value, read_value=False))


def add(variable: tf.Variable, number: float | tf.Tensor) -> Any:
    """Adds `number` to each copy of `variable` in one operation: parallel steps all count."""
    # Without the lock of a reference variable, threads overwrite each other's additions.
    added = variable.assign_add(number, use_locking=True, read_value=False)
    return local_results(added)


def branch(pred: bool | tf.Tensor, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """Runs one of two functions that assign, chosen by a bool or a scalar bool tensor."""
    if tf.executing_eagerly():
        return true_fn() if pred else false_fn()
    return tf1.cond(pred, lambda: _grouped(true_fn()), lambda: _grouped(false_fn()))


def _grouped(assigned: Any) -> tf.Operation | tf.Tensor:
    """Returns one operation or tensor for a graph's assignments."""
    if isinstance(assigned, (tf.Operation, tf.Tensor)):
        return assigned
    return tf.group(*[each for each in tf.nest.flatten(assigned) if each is not None])


def _check_copies(variables: Iterable[tf.Variable]) -> None:
    """Raises a ValueError if several replicas would each update the same variable."""
    if tf.distribute.in_cross_replica_context():
        return
    strategy = tf.distribute.get_strategy()
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable):
            raise ValueError(
                f"{variable.name} was made outside strategy.scope() and is not mirrored. Make the "
                "loss scale or its manager under strategy.scope()."
            )


def update_copies(
    variables: Sequence[tf.Variable], change: Callable[[], Any]
) -> tf.Operation | tf.Tensor | None:
    """Runs `change`, a function that assigns to some of `variables`, for all their copies."""
    with scope_of(variables):
        if tf.distribute.has_strategy():
            _check_copies(variables)
        changed = change()
        return None if tf.executing_eagerly() else _grouped(changed)


def multiply_if_finite(scale: Any, ratio: Any, ceiling: float | None = None) -> Any:
    """Multiplies a loss scale by `ratio`, unless the product is not finite."""
    grown = read_here(scale) * ratio
    bounded = grown if ceiling is None else tf.minimum(grown, ceiling)
    return branch(tf.math.is_finite(grown), lambda: assign(scale, bounded), lambda: None)
