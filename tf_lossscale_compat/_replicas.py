"""Replicas: which context this is, the one reduction per step, updating state once.

The three contexts of `tf.distribute`: no strategy; cross-replica (under `strategy.scope()`), where
values may be one per replica; replica (inside `strategy.run`), where each replica sees its own.
"""

import contextlib
import functools
import threading

from tf_lossscale_compat import _compiled, _gradients, _tf

tf = _tf.tf
tf1 = _tf.tf1

_local = threading.local()


@contextlib.contextmanager
def _marked(mark):
    before = getattr(_local, mark, False)
    setattr(_local, mark, True)
    try:
        yield
    finally:
        setattr(_local, mark, before)


def agreed():
    """Context in which flags and gradients are known to be the same on all replicas."""
    return _marked("agreed")


def _replicas_agree():
    return getattr(_local, "agreed", False)


def act_together():
    """Whether all replicas run this same step, so that state may be updated here."""
    return not in_replica_context() or _replicas_agree() or getattr(_local, "together", False)


def check_together(what):
    """Raises a RuntimeError where replicas do not act as one; `what` is the method called."""
    if not act_together():
        raise RuntimeError(
            f"{what} must be called once for all replicas, but was called in a replica context. "
            "Inside strategy.run, call it as tf.distribute.get_replica_context().merge_call("
            "lambda strategy, grads: loss_scale.update(grads), args=(grads,)), or return the "
            "gradients from strategy.run and call update(grads) under strategy.scope()."
        )


def in_cross_replica_context():
    """Whether a strategy is in scope and its replicas are not entered."""
    return tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()


def in_replica_context():
    """Whether this is one replica of a strategy."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def replica_id():
    """The number of this replica, or None in a cross-replica context."""
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return None
    number = replica.replica_id_in_sync_group
    return number if isinstance(number, int) else int(tf1.get_static_value(number))


@functools.lru_cache(maxsize=None)
def _supported_strategies():
    names = (
        "OneDeviceStrategy",
        "MirroredStrategy",
        "MultiWorkerMirroredStrategy",
        "CentralStorageStrategy",
    )
    homes = [home for api in (tf.distribute, tf1.distribute) for home in (api, api.experimental)]
    return tuple(getattr(home, name) for home in homes for name in names if hasattr(home, name))


def check_strategy():
    """Raises a ValueError where loss scaling cannot be right under the strategy in scope."""
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, _supported_strategies()):
        raise ValueError(
            f"Loss scaling does not support {type(strategy).__name__}: it needs replicas that take "
            "every step together, so that all skip it or none. Use the default strategy, "
            "OneDeviceStrategy, MirroredStrategy, MultiWorkerMirroredStrategy or "
            "CentralStorageStrategy."
        )


def _failures(test, args):
    """1.0 where `test(*args)` is False, else 0.0: what can be summed over replicas."""
    return tf.cast(tf.logical_not(test(*args)), tf.float32)


def _holds_everywhere(test, args):
    """Whether `test(*args)` is True on every replica of every worker; inside a replica or outside.

    This is the one scalar reduction per step. It is made even where outside of replicas there is
    just one value: with one replica on each worker that is how a value per replica looks there.
    """
    if not tf.distribute.has_strategy():
        return test(*args)
    check_strategy()
    strategy = tf.distribute.get_strategy()
    if tf.distribute.in_cross_replica_context():
        failures = strategy.extended.call_for_each_replica(_failures, args=(test, args))
        total = strategy.reduce(tf.distribute.ReduceOp.SUM, failures, axis=None)
    else:
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, _failures(test, args))
    return tf.equal(total, 0.0)


def all_finite(grads):
    """Whether `grads` are finite on every replica and worker.

    Args:
      grads: nested structure; in a cross-replica context its leaves may be per-replica, mirrored or
        plain.

    Returns:
      bool scalar tensor, the same everywhere.
    """
    if _replicas_agree():
        return _gradients.all_finite(grads)
    return _holds_everywhere(_gradients.all_finite, (grads,))


def _as_flag(flag):
    flag = tf.convert_to_tensor(flag, dtype=tf.bool)
    if flag.shape.rank not in (0, None):
        raise ValueError(f"finite_grads must be a scalar bool, got one of shape {flag.shape}.")
    return flag


def once_per_step(update, flag):
    """Runs `update(flag)` once for all replicas, with the AND of `flag` over them.

    Args:
      update: function of a bool scalar tensor; returns an op, a tensor or None.
      flag: bool scalar tensor or Python bool; in a cross-replica context maybe one per replica.

    Returns:
      What `update` returned.
    """
    if _replicas_agree():
        return update(_as_flag(flag))

    def update_all(flags):
        finite = _holds_everywhere(_as_flag, (flags,))
        with agreed():
            return update(finite)

    return together(update_all, (flag,))


def _replicas_can_meet():
    """Whether `merge_call` can be used here, in a replica context.

    Modes of tf.distribute that do without it (XLA on GPUs) still offer it, and v1 optimizers call
    it, unless the replica is inside a function or a branch of its own.
    """
    if _tf.uses_merge_call(tf.distribute.get_strategy()):
        return True
    try:
        tf.distribute.get_replica_context().merge_call(lambda strategy: None)
    except RuntimeError:
        return False
    return True


def together(step, args):
    """Runs `step(*args)` where all replicas act as one: in the cross-replica context if possible.

    A conditional around an optimizer's `merge_call` is only allowed there. Where replicas cannot
    meet there can be no such conflict either: each runs the step by itself, on flags that are
    reduced over all.
    """
    if not in_replica_context():
        return step(*args)
    if not _replicas_can_meet():
        with _marked("together"):
            return step(*args)

    def merged(_, *merged_args):
        return step(*merged_args)

    return tf.distribute.get_replica_context().merge_call(merged, args=args)


class _Whole:
    """Holds a variable, so that each replica is given the whole of it.

    TensorFlow before 2.4 would give each its own copy, which has lost the variable's aggregation:
    an optimizer that assigns to it would let the replicas drift apart.
    """

    def __init__(self, variable):
        self.variable = variable


def in_each_replica(fn, args):
    """Runs `fn(*args)` in every replica; without a strategy or inside a replica, just here.

    Returns what `fn` returned, an operation, or in eager mode None.
    """
    if not in_cross_replica_context():
        return fn(*args)

    def in_replica(*held):
        return fn(
            *tf.nest.map_structure(lambda v: v.variable if isinstance(v, _Whole) else v, held)
        )

    strategy = tf.distribute.get_strategy()
    held = tf.nest.map_structure(lambda v: _Whole(v) if hasattr(v, "assign") else v, args)
    results = strategy.extended.call_for_each_replica(in_replica, args=held)
    return None if tf.executing_eagerly() else strategy.group(results)


def _check_copies(variables):
    """Raises a ValueError where several replicas would each move one and the same variable."""
    strategy = tf.distribute.get_strategy()
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable):
            raise ValueError(
                f"{variable.name} was made outside strategy.scope() and is not mirrored. Make the "
                "loss scale or its manager under strategy.scope()."
            )


def _value(variable):
    """The value of `variable` at this point of the graph."""
    if not tf.distribute.has_strategy() and hasattr(variable, "handle"):
        return tf.convert_to_tensor(variable)
    return tf.identity(variable)  # A reference converts to what it holds when that is used.


@_compiled.in_eager_mode
def _assign_at_once(tensors, rule, dtypes, constants):
    """What `assign_together` does, of handles of variables and after them the rule's arguments."""
    handles, arguments = tensors[: len(dtypes)], tensors[len(dtypes) :]
    values = [
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        for handle, dtype in zip(handles, dtypes)
    ]
    for handle, value in zip(handles, rule(values + arguments, *constants)):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def assign_together(variables, rule, arguments, *constants):
    """Moves variables to what `rule` makes of their values, on every copy of them.

    All values are read before any is assigned: a reference variable of TensorFlow 1 would otherwise
    be read after its neighbour has moved.

    Args:
      variables: list of variables.
      rule: one of `_update_rule`'s functions of tensors.
      arguments: list of the tensors that it takes after the variables' values.
      *constants: what it takes after the tensors.

    Returns:
      list of operations that assign; empty in eager mode, where it has happened.
    """
    if tf.executing_eagerly() and not tf.distribute.has_strategy():
        handles = [variable.handle for variable in variables]
        dtypes = tuple(variable.dtype for variable in variables)
        _assign_at_once(handles + arguments, rule, dtypes, constants)
        return []
    if in_replica_context():
        _check_copies(variables)
    now = [_value(variable) for variable in variables]
    values = rule(now + arguments, *constants)
    assigned = []
    with tf.control_dependencies(values):
        for variable, value in zip(variables, values):
            assigned.append(variable.assign(value, read_value=False))
    if tf.executing_eagerly():
        return []
    if in_cross_replica_context():
        local_results = tf.distribute.get_strategy().experimental_local_results
        return [op for copies in assigned for op in local_results(copies)]
    return assigned
