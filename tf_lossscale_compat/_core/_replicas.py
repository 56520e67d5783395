"""Replicas: the current context, reductions, and steps of all replicas as one.

`tf.distribute` has three contexts: no strategy; cross-replica (under `strategy.scope()`), where
values may be one per replica; and replica (inside `strategy.run`), with each replica's own values.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterable, Sequence

from tf_lossscale_compat._core import _graphs, _tf
from tf_lossscale_compat._core._tf import tf, tf1

# Strategies whose replicas take every step together. All API modules are searched for them, because
# a name may stand for a different class in each.
_SUPPORTED = (
    "OneDeviceStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "CentralStorageStrategy",
)


def in_cross_replica_context() -> bool:
    """Returns whether a strategy is in scope, outside of its replicas."""
    return tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()


def in_replica_context() -> bool:
    """Returns whether this code runs in one replica of a strategy."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def makes_several_copies() -> bool:
    """Returns whether a variable that is made here, in a replica, has several copies."""
    # Several workers with one replica each make one, and so does `CentralStorageStrategy`.
    strategy = tf.distribute.get_strategy()
    return in_replica_context() and len(strategy.extended.parameter_devices) > 1


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


@functools.lru_cache(maxsize=None)
def _supported_strategies() -> tuple[type, ...]:
    apis = (tf.distribute, tf1.distribute, tf.compat.v2.distribute)
    modules = [module for api in apis for module in (api, api.experimental)]
    return tuple(
        getattr(module, name) for module in modules for name in _SUPPORTED if hasattr(module, name)
    )


# Strategies of TensorFlow 1.15, of its core and its contrib, that are supported in one process:
# Estimators take them as `train_distribute=`. Their workers in a cluster take separate steps, or
# were never tested.
_IN_ONE_PROCESS = (
    "ParameterServerStrategy",
    "ParameterServerStrategyV1",
    "CollectiveAllReduceStrategy",
)


def _is_supported(strategy: tf.distribute.Strategy) -> bool:
    if isinstance(strategy, _supported_strategies()):
        return True
    cls = type(strategy)
    if cls.__name__ == "MirroredStrategy" and ".contrib.distribute." in cls.__module__:
        return True
    # On TensorFlow 2.0 and later these strategies may coordinate workers.
    in_one_process = not (_tf.at_least(2, 0) or getattr(strategy.extended, "_cluster_spec", True))
    return in_one_process and cls.__name__ in _IN_ONE_PROCESS


def check_strategy() -> None:
    """Raises a ValueError if loss scaling does not support the strategy in scope."""
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    cls = type(strategy)
    if not _is_supported(strategy):
        # The error names the module: TensorFlow 1.15's contrib has classes of the same names.
        names = [f"tf.distribute.{name}" for name in _SUPPORTED[:2]]
        raise ValueError(
            f"Loss scaling does not support {cls.__name__}: it needs replicas that take every step "
            "together, so that all skip it or none. Use the default strategy, "
            f"{', '.join(names)}, {_SUPPORTED[2]} or experimental.{_SUPPORTED[3]}; or, on "
            "TensorFlow 1.15 in one process, ParameterServerStrategy or contrib's "
            f"CollectiveAllReduceStrategy. This one is from {cls.__module__}."
        )


def all_reduce_sum(fn: Callable[..., tf.Tensor], args: tuple[Any, ...]) -> tf.Tensor:
    """Returns the sum of `fn(*args)`, a tensor, over all replicas, each with its own arguments.

    `args` is a tuple of nested structures; in a cross-replica context their leaves may be
    per-replica.
    """
    if not tf.distribute.has_strategy():
        return fn(*args)
    if tf.distribute.in_cross_replica_context():
        strategy = tf.distribute.get_strategy()
        each = strategy.extended.call_for_each_replica(fn, args=args)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)
    replica = tf.distribute.get_replica_context()
    return replica.all_reduce(tf.distribute.ReduceOp.SUM, fn(*args))


def true_everywhere(test: Callable[..., tf.Tensor], args: tuple[Any, ...]) -> tf.Tensor:
    """Returns whether `test(*args)` is True on every replica of every worker, in any context.

    It reduces one scalar. A cross-replica context reduces even a plain value: with one replica on
    each worker, a per-replica value looks plain.
    """
    if not tf.distribute.has_strategy():
        return test(*args)
    check_strategy()

    def failed(*args: Any) -> tf.Tensor:
        return tf.cast(tf.logical_not(test(*args)), tf.float32)

    return tf.equal(all_reduce_sum(failed, args), 0.0)


def _can_merge_call() -> bool:
    """Returns whether `merge_call` can be used here, in a replica context.

    Modes of tf.distribute without merge_call (XLA on GPUs) still have the method, and v1 optimizers
    call it. In these modes it fails only inside a function or branch within the replica.
    """
    uses = getattr(tf.distribute.get_strategy().extended, "_use_merge_call", None)
    if uses is None or uses():
        return True
    try:
        tf.distribute.get_replica_context().merge_call(lambda strategy: None)
    except RuntimeError:
        return False
    return True


def run_cross_replica(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Runs `fn(*args)` for all replicas as one: in the cross-replica context if possible.

    Only in that context can a conditional contain an optimizer's `merge_call`. Where `merge_call`
    fails, each replica runs `fn` by itself, with flags that are reduced over all replicas.
    """
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return fn(*args)
    if not _can_merge_call():
        return fn(*args)

    def merged(_: tf.distribute.Strategy, *merged_args: Any) -> Any:
        return fn(*merged_args)

    return tf.distribute.get_replica_context().merge_call(merged, args=args)


def local_copy(variable: tf.Variable) -> tf.Variable:
    """Returns this process' copy of a variable, or the variable itself."""
    strategy = getattr(variable, "distribute_strategy", None)
    if strategy is None:
        return variable
    return strategy.experimental_local_results(variable)[0]


def local_results(value: Any) -> Any:
    """Returns an assignment's result for each replica of this process; None for None."""
    if value is None or not in_cross_replica_context():
        return value
    return list(tf.distribute.get_strategy().experimental_local_results(value))


class _WholeVariable:
    """Holds a variable, so that each replica is given the whole distributed variable.

    TensorFlow before 2.4 would give each replica its own copy, without the variable's aggregation.
    If an optimizer assigned to the copy, the replicas would diverge.
    """

    def __init__(self, variable: tf.Variable) -> None:
        self.variable = variable


def call_for_each_replica(fn: Callable[..., Any], args: tuple[Any, ...]) -> tf.Operation | None:
    """Runs `fn(*args)` in every replica; without a strategy or inside a replica, runs it once.

    `args` is a tuple of nested structures; each replica is given its own part of them. Returns an
    operation; None in eager mode.
    """
    if not tf.distribute.has_strategy() or not tf.distribute.in_cross_replica_context():
        result = fn(*args)
        return None if tf.executing_eagerly() else _graphs.as_operation(result)

    def in_replica(*parts: Any) -> tf.Operation | None:
        parts = tf.nest.map_structure(
            lambda v: v.variable if isinstance(v, _WholeVariable) else v, parts
        )
        return _graphs.as_operation(fn(*parts))

    strategy = tf.distribute.get_strategy()
    wrapped = tf.nest.map_structure(
        lambda v: _WholeVariable(v) if hasattr(v, "assign") else v, args
    )
    results = strategy.extended.call_for_each_replica(in_replica, args=wrapped)
    return None if tf.executing_eagerly() else strategy.group(results)


# Updates of a loss scale's variables, which may have a copy for each replica. All copies get the
# same update, in each mode (graph, eager, `tf.function`) and under each strategy, inside or outside
# of its scope. In eager mode it is done immediately.


def read_here(variable: tf.Variable) -> tf.Tensor:
    """Returns the value of `variable` at this point of the graph."""
    if tf.distribute.has_strategy():
        return tf.identity(variable)
    if not tf.executing_eagerly() and _graphs.is_reference(variable):
        return variable.read_value()  # Converting it returns an earlier read.
    return tf.convert_to_tensor(variable)


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
        if in_replica_context():
            _check_copies(variables)
        changed = change()
        return None if tf.executing_eagerly() else _grouped(changed)
