"""Makes the variables of a loss scale, and copies their values."""

from __future__ import annotations

from typing import Any

from tf_lossscale_compat._core import _graphs, _tf
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


def variables_of(holder: object) -> list[tf.Variable]:
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


def snapshot_of(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of `variable`, unaffected by later assignments."""
    value = tf.identity(variable)
    # A user's `variable_creator_scope` may make reference variables, whatever `use_resource` says.
    return deep_copy(value) if is_reference(variable) else value
