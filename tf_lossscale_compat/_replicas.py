"""Replicas: which context this is, the one reduction per step, updating state once.

The three contexts of `tf.distribute`: no strategy; cross-replica (under `strategy.scope()`), where
values may be one per replica; replica (inside `strategy.run`), where each replica sees its own.
"""

import contextlib
import threading

from tf_lossscale_compat import _gradients, _tf

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


def in_cross_replica_context():
    """Whether a strategy is in scope and its replicas are not entered."""
    return tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context()


def in_replica_context():
    """Whether this is one replica of a strategy."""
    return tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()


def _supported_strategies():
    for distribute in (tf.distribute, tf1.distribute):
        for home in (distribute, distribute.experimental):
            for name in (
                "OneDeviceStrategy",
                "MirroredStrategy",
                "MultiWorkerMirroredStrategy",
                "CentralStorageStrategy",
            ):
                if hasattr(home, name):
                    yield getattr(home, name)


def check_strategy():
    """Raises a ValueError where loss scaling cannot be right under the strategy in scope."""
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tuple(_supported_strategies())):
        raise ValueError(
            f"Loss scaling does not support {type(strategy).__name__}: its replicas need not agree "
            "on whether a step is skipped. Use the default strategy, OneDeviceStrategy, "
            "MirroredStrategy, MultiWorkerMirroredStrategy or CentralStorageStrategy."
        )


def _failures(test, args):
    """1.0 where `test(*args)` is False, else 0.0: what can be summed over replicas."""
    return tf.cast(tf.logical_not(test(*args)), tf.float32)


def _holds_everywhere(test, args):
    """Whether `test(*args)` is True on every replica; any context but that of a replica."""
    if not tf.distribute.has_strategy():
        return test(*args)
    strategy = tf.distribute.get_strategy()
    failures = strategy.extended.call_for_each_replica(_failures, args=(test, args))
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, failures, axis=None)
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
    if in_replica_context():
        return _all_reduced(_gradients.all_finite, (grads,))
    return _holds_everywhere(_gradients.all_finite, (grads,))


def _all_reduced(test, args):
    """Whether `test(*args)` is True on every replica; in a replica, without merge_call."""
    context = tf.distribute.get_replica_context()
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, _failures(test, args))
    return tf.equal(total, 0.0)


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
    if not tf.distribute.has_strategy() or _replicas_agree():
        return update(_as_flag(flag))
    if tf.distribute.in_cross_replica_context():
        if _tf.is_plain_flag(flag):  # Already the same everywhere: nothing to reduce.
            return update(_as_flag(flag))
        return update(_holds_everywhere(_as_flag, (flag,)))
    if not _tf.uses_merge_call(tf.distribute.get_strategy()):
        return update(_all_reduced(_as_flag, (flag,)))

    def merged(_, flags):
        return update(_holds_everywhere(_as_flag, (flags,)))

    return tf.distribute.get_replica_context().merge_call(merged, args=(flag,))


def together(step, args):
    """Runs `step(*args)` where all replicas act as one: in the cross-replica context if possible.

    A conditional around an optimizer's `merge_call` is only allowed there. Strategies without
    `merge_call` have no such place and no such conflict: each replica runs the step by itself, on
    flags that are reduced over all.
    """
    if not in_replica_context():
        return step(*args)
    if not _tf.uses_merge_call(tf.distribute.get_strategy()):
        with _marked("together"):
            return step(*args)

    def merged(_, *merged_args):
        return step(*merged_args)

    return tf.distribute.get_replica_context().merge_call(merged, args=args)


def in_each_replica(fn, args):
    """Runs `fn(*args)` in every replica; without a strategy or inside a replica, just here.

    Returns what `fn` returned, an operation, or in eager mode None.
    """
    if not in_cross_replica_context():
        return fn(*args)
    strategy = tf.distribute.get_strategy()
    results = strategy.extended.call_for_each_replica(fn, args=args)
    return None if tf.executing_eagerly() else strategy.group(results)


def assign_together(state, rule):
    """Moves variables to what `rule` makes of their values, on every copy of them.

    All values are read before any is assigned: a reference variable of TensorFlow 1 would otherwise
    be read after its neighbour has moved.

    Args:
      state: `_update_rule.State` of variables, or of None where there is none.
      rule: function from a state of tensors to the next.

    Returns:
      list of operations that assign; empty in eager mode, where it has happened.
    """
    now = state._make(None if variable is None else tf.identity(variable) for variable in state)
    moves = [(variable, value) for variable, value in zip(state, rule(now)) if variable is not None]
    assigned = []
    with tf.control_dependencies([value for _, value in moves]):
        for variable, value in moves:
            assigned.append(variable.assign(value, read_value=False))
    if tf.executing_eagerly():
        return []
    if in_cross_replica_context():
        local_results = tf.distribute.get_strategy().experimental_local_results
        return [op for copies in assigned for op in local_results(copies)]
    return assigned
