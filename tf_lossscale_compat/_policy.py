"""What an optimizer asks of a loss scale or manager: the scale, and what a step does to it.

A policy is a `LossScaleManager` or a `LossScale`, this package's own or a user's. One whose method
`update_loss_scale` or `update` is marked by `moves_by_flag` needs nothing of a step but whether its
gradients are finite, and has

    _move(finite)      moves the state; returns an operation, a tensor or None
    _skips_nonfinite   (a loss scale) whether a step that is not finite is skipped

A user's method, an override of a marked one among them, bears no mark and is called itself: a
manager's with the flag, a loss scale's with the gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from tf_lossscale_compat import _replicas, _state, _tf

if TYPE_CHECKING:
    from tf_lossscale_compat import _types

tf = _tf.tf


def moves_by_flag(method: _types.Function) -> _types.Function:
    """Decorates an `update` or `update_loss_scale` that is told all it needs by the finite flag."""
    # Itself, as functools.wraps copies attributes to what it wraps with.
    marked: Any = method
    marked.moves_by_flag = method
    return method


def reads(name: str | None = None) -> Callable[[_types.Function], _types.Function]:
    """Decorates what returns a policy's scale and reads it anew at each call.

    Args:
      name: str, the attribute that it reads; None where that is no reference variable.
    """

    def mark(method: _types.Function) -> _types.Function:
        marked: Any = method
        marked.reads = method, name
        return method

    return mark


def _is_marked(method):
    function = getattr(method, "__func__", method)
    return getattr(function, "moves_by_flag", None) is function


def has_methods(instance, *names):
    """Whether `instance`, which must be no class, has all these methods."""
    return not isinstance(instance, type) and all(
        callable(getattr(instance, name, None)) for name in names
    )


def is_manager(policy):
    """Whether `policy` has the methods of a `LossScaleManager`."""
    return has_methods(policy, "get_loss_scale", "update_loss_scale")


def held(policy):
    """What a `ManagerLossScale` or a manager made of a `LossScale` runs; else the policy itself."""
    # Users' policies may have attributes of these names.
    if getattr(type(policy), "_runs_a_manager", False) is True:
        return held(policy.manager)
    if getattr(type(policy), "_runs_a_loss_scale", False) is True:
        return held(policy.loss_scale)
    return policy


def _update(policy):
    """Returns the method that a step calls."""
    return policy.update_loss_scale if is_manager(policy) else policy.update


def scale(policy):
    """Returns what losses are multiplied with and gradients divided by, a scalar float32 tensor."""
    value = policy.get_loss_scale() if is_manager(policy) else policy()
    return tf.cast(tf.convert_to_tensor(value), tf.float32)


def scale_now(policy):
    """As `scale`, read at this point of a graph; NaN where a policy of the user's hinders that."""
    if not _tf.in_plain_graph():
        return scale(policy)
    policy = held(policy)
    # A user's may hand out a tensor that it has read before.
    method = policy.get_loss_scale if is_manager(policy) else type(policy).__call__
    function = getattr(method, "__func__", method)
    of, name = getattr(function, "reads", (None, None))
    if of is not function:
        return tf.constant(float("nan"))
    value: Any = None if name is None else getattr(policy, name)
    if not _state.is_reference(value):
        return scale(policy)
    return tf.cast(value.read_value(), tf.float32)


def variables(policy):
    """Returns the variables that the policy is kept in, a list."""
    return _tf.variables_of(policy) if is_manager(policy) else policy._variables()


def updates_by_flag(policy):
    """Whether the policy's `update` or `update_loss_scale` is this package's own."""
    return _is_marked(_update(policy))


def always_applies(policy):
    """Whether every step is applied and leaves the policy as it is."""
    return not is_manager(policy) and _is_marked(policy.update) and not policy._skips_nonfinite


def never_moves(policy):
    """Whether no step changes the scale: of a fixed one, unless a subclass has its own `update`."""
    return updates_by_flag(policy) and not variables(policy)


def goes_by_flag(policy):
    """Whether a policy needs no more of a step than whether it was finite."""
    return updates_by_flag(policy) or is_manager(policy)


def move(policy, finite):
    """Tells a policy that needs no more whether a step was finite; returns what moves its state."""
    if updates_by_flag(policy):
        return policy._move(finite)
    if is_manager(policy):
        return policy.update_loss_scale(finite)
    raise ValueError(
        f"{policy!r} looks at gradients, and only a flag is known here. Call its update(grads) "
        "instead of update_loss_scale(finite_grads)."
    )


def move_together(move, flag, variables):
    """Calls `move` once for all replicas, with the AND of `flag` over them, in any context.

    Args:
      move: function of a bool scalar tensor.
      flag: bool scalar tensor or Python bool; each replica's own, or outside of them maybe one per
        replica.
      variables: list of the variables that it moves.
    """
    with _state.scope_of(variables):
        return _replicas.together(lambda flag: move(_replicas.all_true(flag)), (flag,))


def decide(policy, grads, skips_nonfinite, agree, moving, finite=None):
    """Looks at the gradients of one step where all replicas act as one.

    Args:
      policy: loss scale or manager.
      grads: list of unscaled gradients; in a cross-replica context its leaves may be per-replica.
      skips_nonfinite: bool, whether a non-finite step is skipped even if the policy would not.
      agree: function of a scalar bool tensor that returns its AND over all processes, or None.
      moving: function of the finite flag, if that is known by then, that returns a context in which
        the policy is to move.
      finite: bool scalar tensor, whether the gradients are finite everywhere; None where that is
        yet to be found out.

    Returns:
      A triple: whether the gradients are to be applied, a bool or a bool scalar tensor that is the
      same on all replicas; the same for whether they are finite, as far as the policy asks; and a
      function that moves the state, which may be given the latter once more, as a tensor.

    Raises:
      ValueError: the policy decides by gradients, which processes that are to agree may see
        differently.
    """
    by_flag = goes_by_flag(policy)
    if always_applies(policy) and not skips_nonfinite:
        agree = None  # It decides nothing, and not every process need look on.
    if agree is not None and not by_flag:
        raise ValueError(
            f"agree tells all processes a flag, and {policy!r} looks at gradients. Use a "
            "LossScaleManager, whose update_loss_scale is given that flag."
        )
    if not (by_flag or skips_nonfinite):
        finite = True
    else:
        finite = _replicas.all_finite(grads) if finite is None else finite
        if agree is not None:
            finite = agree(finite)
    if by_flag:

        def move_by_flag(once_more=None):
            with moving(finite):
                return move(policy, finite if once_more is None else once_more)

        lets_through = always_applies(policy) and not skips_nonfinite
        return lets_through or finite, finite, move_by_flag
    with moving():
        update, should_apply = policy.update(grads)
    if finite is not True:
        should_apply = tf.logical_and(finite, should_apply)
    return should_apply, should_apply, lambda once_more=None: update
