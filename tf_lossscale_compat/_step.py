"""One training step, for every optimizer of this package.

The caller multiplies the loss with `_policy.scale` (`_gradients.scale_loss`) and divides the
gradients by the same value (`_gradients.unscale`), or, where nobody else sees them, leaves that to
`take`, which it calls then and which in eager mode divides and tests in one
(`_gradients.unscale_and_test`). In `take` each replica waits for the others, so that from there on
all of them act as one (`_replicas.together`). The policy is asked: the gradients of each replica
are tested, one scalar is summed over all replicas and workers, processes that no strategy knows of
agree if the caller says how, and what comes out is the same everywhere (`_policy.decide`). If the
step is to be applied, every replica hands its own gradients to the wrapped optimizer; if not, none
does. Last the policy's state moves, on every copy of its variables, so that an optimizer that fails
leaves it where it was (but for graphs of `MixedPrecisionLossScaleOptimizer`, which moves first, as
the original does).
"""

import functools

from tf_lossscale_compat import _agreement, _gradients, _policy, _replicas, _tf, _watch

tf = _tf.tf


def check_place(what):
    """Raises a ValueError where no step can be taken; `what` was called."""
    if _replicas.in_cross_replica_context():
        raise ValueError(
            f"{what} was called in a cross-replica context and must be called in a replica "
            "context: inside a function that strategy.run runs."
        )
    _replicas.check_strategy()


def overrides(optimizer, cls, *names):
    """Whether a subclass of `cls`, or this optimizer, has methods of its own under these names."""
    return any(
        name in vars(optimizer) or getattr(type(optimizer), name) is not getattr(cls, name)
        for name in names
    )


def _selects(wrapped, variables):
    """Whether XLA had better compute a step that is skipped, too, and select what variables hold.

    It makes selections of a conditional if each of its branches does something. They are fused with
    what is around, but read and write all of each variable; what they save does not pay for the
    slots of an optimizer that keeps any, such as Adam's moments. Around a sparse gradient's
    update, XLA keeps the conditional anyway.
    """
    if wrapped is None:
        return False
    try:
        slots, weights = [
            sum(tf.TensorShape(variable.shape).num_elements() or 0 for variable in some)
            for some in (_tf.variables_of(wrapped), variables)
        ]
    except Exception:  # What is wrapped may be anything that computes and applies gradients.
        return False
    return slots < weights


def take(
    policy,
    grads,
    variables,
    apply,
    extra=(),
    *,
    what,
    cond=tf.cond,
    skips_nonfinite=False,
    moves_first=False,
    skip=None,
    agree=None,
    name=None,
    watched=None,
    reciprocal=None,
    wrapped=None,
):
    """Applies gradients, unscaled, or skips them, and moves the loss scale by one step.

    Args:
      policy: loss scale or manager.
      grads: list of gradients, None among them.
      variables: list of variables, as long.
      apply: function of `grads`, `variables` and `*extra` that has the wrapped optimizer apply
        them; called in a replica context. Returns an operation, a tensor or None.
      extra: tuple of what else `apply` is given.
      what: str, what was called, for errors.
      cond: what builds the conditional in a graph, and so names variables that `apply` makes in it.
      skips_nonfinite: bool, whether a non-finite step is skipped even if the policy would not.
      moves_first: bool, whether in a graph the state moves before the conditional, which then is
        numbered after the policy's own.
      skip: function of how many steps are skipped, 1 or a scalar integer tensor that is 1 or 0,
        called for all replicas at once, or None; returns what assigns to a variable, or None.
      agree: function of a scalar bool tensor that returns its AND over processes that no strategy
        knows of, or None; called once, before anything is applied or moved.
      name: str, the name of the operation that is returned, or None.
      watched: optimizer or policy whose record, beside that of `policy`, is told of the step; None
        for none.
      reciprocal: float32 scalar tensor, one over the loss scale that `grads` are yet to be divided
        by; None where they are unscaled.
      wrapped: the wrapped optimizer, or None for any function that applies; see `_selects`.

    Returns:
      An operation; None in eager mode.

    Raises:
      ValueError: called in a cross-replica context, or under a strategy that is not supported.
    """
    check_place(what)
    records = _watch.records_of(watched, _policy.held(policy))
    watch = _watch.Step(policy, records, variables=variables)
    nothing_to_decide = _policy.always_applies(policy) and not skips_nonfinite and not records
    found = None
    if reciprocal is not None:
        alone = tf.executing_eagerly() and not tf.distribute.has_strategy()
        if alone and not nothing_to_decide and _policy.goes_by_flag(policy):
            grads, found = _gradients.unscale_and_test(grads, reciprocal)
        else:
            grads = _gradients.unscale(grads, reciprocal)
    if nothing_to_decide:
        # Nothing to decide and nothing to move, so replicas need not meet.
        applied = apply(grads, variables, *extra)
        if not isinstance(applied, tf.Operation):
            applied = _tf.as_operation(applied)
        return applied if name is None or applied is None else tf.group(applied, name=name)

    def step(grads, variables, extra):
        ask = None if agree is None else functools.partial(_agreement.ask, agree)
        watch.grads = grads
        should_apply, finite, move = _policy.decide(
            policy, grads, skips_nonfinite, ask, watch.moving, found
        )
        # Of the policies of this package, one that has a step applied that is not finite has all.
        skips = should_apply is not True

        def applied():
            return _replicas.in_each_replica(apply, (grads, variables) + extra)

        by_xla = _tf.compiled_by_xla()

        def skipped():
            # Here, where the gradients are at hand: one more conditional would take them in again.
            looked = watch.look()
            counted = None if skip is None or by_xla else _replicas.local_results(skip(1))
            return _tf.as_operation([op for op in (counted, *looked) if op is not None])

        if tf.executing_eagerly():
            applied() if should_apply else skipped()
            move()
            watch.told([], finite, skips)
            return None
        selects = by_xla and _selects(wrapped, variables)

        def then(done, flag):
            if not selects:
                return done
            with tf.control_dependencies([done]):
                return tf.constant(flag)

        moved = move() if moves_first else None
        if isinstance(should_apply, bool):
            done = applied() if should_apply else skipped()
        else:
            done = cond(should_apply, lambda: then(applied(), True), lambda: then(skipped(), False))
        counted = None
        if by_xla and skip is not None:
            # Behind the conditional, which XLA keeps only if the branch that skips does nothing.
            with tf.control_dependencies([done]):
                number = tf.cast(tf.logical_not(should_apply), tf.int32)
                counted = _tf.as_operation(_replicas.local_results(skip(number)))
        if not moves_first:
            with tf.control_dependencies([done]):
                moved = move(done if isinstance(done, tf.Tensor) else None)
        told = watch.told([done, moved], finite, skips)
        return tf.group(*[op for op in (done, counted, moved, *told) if op is not None], name=name)

    return _replicas.together(step, (grads, variables, extra))
