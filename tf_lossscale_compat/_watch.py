"""Who looks on at the steps of an optimizer or the moves of a policy: its `StepRecord`, if any."""

import collections
import contextlib

from tf_lossscale_compat import _policy, _state, _tf

tf = _tf.tf

# An attribute of users' optimizers and policies, too, which have names of their own.
_NAME = "_tf_lossscale_compat_watch"


class OfOne:
    """What is noted at one object: a copy of that, or what a pickle brings back, is without it."""

    def __deepcopy__(self, memo):
        return None

    def __reduce__(self):
        return type(None), ()


class _Watch(OfOne):
    """The record of one object, or that a graph was built for it without one."""

    def __init__(self, record=None):
        self.record = record


def _watch_of(owner):
    known = getattr(owner, "__dict__", {}).get(_NAME)
    if known is None or known.record is None or known.record.watched is owner:
        return known
    return None  # A shallow copy has taken it over.


def check(owner):
    """Raises a TypeError or ValueError where `owner` cannot be given a record."""
    if not hasattr(owner, "__dict__"):
        raise TypeError(f"watched must have a __dict__, and {owner!r} has none.")
    known = _watch_of(owner)
    if known is not None and known.record is not None:
        raise ValueError(f"watched has a StepRecord already, got {owner!r}.")
    if known is not None:
        raise ValueError(
            f"watched must not be part of a graph or tf.function that is traced already, whose "
            f"steps no record would see, got {owner!r}. Make the StepRecord before the first step."
        )


def watch(owner, record):
    """Has `record` be told of `owner` from now on."""
    owner.__dict__[_NAME] = _Watch(record)


def record_of(owner):
    """The record of `owner`, or None."""
    known = _watch_of(owner)
    return None if known is None else known.record


def records_of(*owners):
    """The records of these objects, a list.

    Where a graph is built, an object without one is marked: what the graph does is never seen.
    """
    records = []
    for owner in owners:
        known = _watch_of(owner)
        if known is None:
            if not tf.executing_eagerly() and hasattr(owner, "__dict__"):
                owner.__dict__[_NAME] = _Watch()
        elif known.record is not None and known.record not in records:
            records.append(known.record)
    return records


def move(policy, finite, move, grads=None):
    """Moves a policy outside of an optimizer's step, and tells its record.

    Args:
      policy: loss scale or manager.
      finite: bool scalar tensor, the same on all replicas.
      move: function of `finite` that moves it.
      grads: list of gradients, or None where only the flag is known.

    Returns:
      What `move` returned; in a graph, where there is a record, what waits for that, a tensor if it
      was one.
    """
    kept = _policy.held(policy)
    # An override of the user's calls what it overrides, which is not one more step.
    by_itself = kept is not policy or _policy.updates_by_flag(policy)
    step = Step(policy, records_of(kept) if by_itself else [], grads=grads)
    with step.moving(finite):
        update = move(finite)
    told = step.told([update], finite, not _policy.always_applies(policy))
    if told and isinstance(update, tf.Tensor):
        with tf.control_dependencies(told):
            return tf.identity(update)
    return tf.group(update, *told) if told else update


class Step:
    """What records are told of one step.

    Attributes:
      finite: bool or bool scalar tensor, False where the gradients were not finite or are not
        applied.
      skipped: bool, whether a step that is not `finite` is skipped.
      before: the loss scale before the step, a float32 scalar tensor.
      after: the loss scale after it; NaN where it cannot be known.
      grads: list of gradients, or None where only a flag is known.
      looked: bool, whether the records have looked at them already.
    """

    def __init__(self, policy, records, *, grads=None, variables=None):
        self.policy, self.records, self.grads, self._variables = policy, records, grads, variables
        self.finite, self.skipped, self.before, self.after = True, True, None, None
        self.looked = False
        for record in records:
            record._check_place()

    @property
    def names(self):
        """Those of the variables, or else the places of the gradients, a list of str."""
        if self._variables is None:
            return [str(i) for i in range(len(self.grads))]
        names = [_name(each) for each in self._variables]
        times = collections.Counter(names)
        return [f"{name} [{i}]" if times[name] > 1 else name for i, name in enumerate(names)]

    @property
    def shapes(self):
        """Those of the variables, as far as they are known, a list of str."""
        return [str(variable.shape) for variable in self._variables or ()]

    @contextlib.contextmanager
    def moving(self, finite=None):
        """Context in which the policy moves, once this flag is known; None where there is none."""
        # The scale is told of skipped steps alone, and in eager mode it is known which are.
        if not self.records or (finite is not None and _known_true(finite)):
            yield
            return
        with tf.control_dependencies([] if finite is None else [finite]):
            self.before = _state.copied(_policy.scale(self.policy))
        with tf.control_dependencies([self.before]):
            yield

    def look(self):
        """Has the records look at the gradients of a step that is skipped; returns operations."""
        self.looked = True
        return [op for record in self.records for op in record._look(self)]

    def told(self, done, finite, skipped=True):
        """Tells the records of a step that has been taken.

        Args:
          done: list of what has to happen before; None among them.
          finite: see the attribute.
          skipped: see the attribute.

        Returns:
          A list of operations, empty in eager mode.

        Raises:
          LossScaleError: in eager mode, this skipped step is one too many for a record.
        """
        if not self.records:
            return []
        self.finite, self.skipped = finite, skipped
        # A user's policy may return anything.
        with tf.control_dependencies([op for op in tf.nest.flatten(done) if op is not None]):
            self.after = None if _known_true(finite) else _policy.scale_now(self.policy)
            if not (tf.executing_eagerly() or isinstance(finite, bool)):
                self.finite = tf.identity(finite)
            told = [record._tell(self) for record in self.records]
        for record in self.records:
            record._told(self)
        return [op for op in told if op is not None]


def _known_true(flag):
    return tf.executing_eagerly() and bool(flag)


def _name(variable):
    # Keras 3 tells layers apart by their path alone.
    return getattr(variable, "path", None) or variable.name.split(":")[0]
