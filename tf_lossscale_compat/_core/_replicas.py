"""Replicas: the current context, reductions, and code that runs once for all replicas.

`tf.distribute` has three contexts: no strategy; cross-replica (under `strategy.scope()`), where
values may be one per replica; and replica (inside `strategy.run`), with each replica's own values.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

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


@functools.lru_cache(maxsize=None)
def _supported_strategies() -> tuple[type, ...]:
    apis = (tf.distribute, tf1.distribute, tf.compat.v2.distribute)
    modules = [module for api in apis for module in (api, api.experimental)]
    return tuple(
        getattr(module, name) for module in modules for name in _SUPPORTED if hasattr(module, name)
    )


# Strategies of TensorFlow 1.15, of its core and its contrib, that are supported in one process:
# Estimators take them as `train_distribute=`. Workers in a cluster step apart, or are not tested.
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

    `args` are nested structures; in a cross-replica context their leaves may be per-replica.
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


class _WholeVariable:
    """Holds a variable, so that each replica is given the whole distributed variable.

    TensorFlow before 2.4 would give each replica its own copy, without the variable's aggregation.
    If an optimizer assigned to the copy, the replicas would diverge.
    """

    def __init__(self, variable: tf.Variable) -> None:
        self.variable = variable


def call_for_each_replica(fn: Callable[..., Any], args: tuple[Any, ...]) -> tf.Operation | None:
    """Runs `fn(*args)` in every replica; without a strategy or inside a replica, runs it once.

    A replica is given its own part of nested structures. Returns an operation; None in eager mode.
    """
    if not tf.distribute.has_strategy() or not tf.distribute.in_cross_replica_context():
        return _graphs.as_operation(fn(*args))

    def in_replica(*parts: Any) -> tf.Operation | None:
        parts = tf.nest.map_structure(
            lambda v: v.variable if isinstance(v, _WholeVariable) else v, parts
        )
        return _graphs.as_operation(fn(*parts))

    strategy = tf.distribute.get_strategy()
    whole = tf.nest.map_structure(lambda v: _WholeVariable(v) if hasattr(v, "assign") else v, args)
    results = strategy.extended.call_for_each_replica(in_replica, args=whole)
    return None if tf.executing_eagerly() else strategy.group(results)
