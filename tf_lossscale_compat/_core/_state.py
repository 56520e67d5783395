"""Makes, reads and assigns the variables that a loss scale is kept in.

In each mode (graph, eager, `tf.function`) and under each strategy, inside of its scope or outside,
every copy of them is updated alike.
"""

import contextlib
from typing import Any

from tf_lossscale_compat._core import _compiled, _replicas, _tf

tf = _tf.tf
tf1 = _tf.tf1


def make(owner, name, initial_value, dtype, use_resource=None):
    """Makes a variable that is neither trained nor aggregated over replicas.

    Args:
      owner: trackable, under which checkpoints find the variable by its name.
      name: str.
      initial_value: scalar.
      dtype: `tf.DType`, or None for that of `initial_value`.
      use_resource: bool, or None for the default of the variable scope.
    """
    variable = tf1.Variable(
        initial_value,
        trainable=False,
        name=name,
        dtype=dtype,
        use_resource=use_resource,
        aggregation=tf1.VariableAggregation.NONE,
    )
    owner._track_trackable(variable, name)
    return variable


def scope_of(variables):
    """Context in which the strategy that keeps copies of `variables` is in scope.

    Outside of it a mirrored variable would be read and assigned as if it were one of its copies.
    """
    if not tf.distribute.has_strategy():
        for variable in variables:
            # Plain variables lack it, those of strategies with a single copy among them.
            strategy = getattr(variable, "distribute_strategy", None)
            if strategy is not None:
                return strategy.scope()
    return contextlib.nullcontext()


def _check_copies(variables):
    """Raises a ValueError where several replicas would each update one and the same variable."""
    strategy = tf.distribute.get_strategy()
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable):
            raise ValueError(
                f"{variable.name} was made outside strategy.scope() and is not mirrored. Make the "
                "loss scale or its manager under strategy.scope()."
            )


def is_reference(variable):
    """Returns whether this is a reference variable, whose reads alias its memory."""
    return type(variable).__name__ == "RefVariable"


def copied(value):
    """Returns a scalar that stays as it is when the variable that it was read from is assigned."""
    # XLA has no such operation, and knows no references.
    copies = _tf.in_session_graph() and not _tf.compiled_by_xla()
    return tf.raw_ops.DeepCopy(x=value) if copies else value


def read(variable):
    """Returns the value of `variable`, which stays as it is when the variable is assigned."""
    value = tf.identity(variable)
    return copied(value) if is_reference(variable) else value


def _value(variable):
    """Returns the value of `variable` at this point of the graph."""
    if tf.distribute.has_strategy():
        return tf.identity(variable)
    # A reference converts to what was read at an earlier point.
    return tf.convert_to_tensor(variable) if hasattr(variable, "handle") else variable.read_value()


@_compiled.in_eager_mode
def _assign_at_once(tensors, rule, dtypes, constants):
    """Assigns as `assign` does, given handles of variables and after them the rule's arguments."""
    handles, arguments = tensors[: len(dtypes)], tensors[len(dtypes) :]
    values = [
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        for handle, dtype in zip(handles, dtypes)
    ]
    for handle, value in zip(handles, rule(values + arguments, *constants)):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def assign(variables, rule, arguments, *constants):
    """Assigns what `rule` makes of the variables' values, on every copy of them.

    All values are read before any is assigned: a reference variable of TensorFlow 1 would otherwise
    be read after its neighbour was updated. They are read once the arguments are known, as in the
    originals: of two steps in one run of a graph, the second goes on from the first.

    Args:
      variables: list of variables.
      rule: one of `_update_rule`'s functions of tensors.
      arguments: list of the tensors that it takes after the variables' values; the same on all
        replicas.
      *constants: what it takes after the tensors.

    Returns:
      list of operations that assign; empty in eager mode, where it has happened.
    """
    with scope_of(variables):
        if tf.executing_eagerly() and not tf.distribute.has_strategy():
            handles = [variable.handle for variable in variables]
            dtypes = [variable.dtype for variable in variables]
            _assign_at_once(handles + arguments, rule, tuple(dtypes), constants)
            return []
        if _replicas.in_replica_context():
            _check_copies(variables)
        with tf.control_dependencies(arguments):
            read = [_value(variable) for variable in variables]
        values = rule(read + arguments, *constants)
        assigned: Any = []
        with tf.control_dependencies(values):
            for variable, value in zip(variables, values):
                assigned.append(variable.assign(value, read_value=False))
        if tf.executing_eagerly():
            return []
        return tf.nest.flatten([_replicas.local_results(copies) for copies in assigned])
