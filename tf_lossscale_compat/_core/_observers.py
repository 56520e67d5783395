"""Attaches `StepRecord`s to optimizers and loss scales, and notifies them of steps."""

import collections
import contextlib

from tf_lossscale_compat._core import _scaler, _state, _tf

tf = _tf.tf

# With the package's prefix, as users' optimizers and loss scales get this attribute, too.
_ATTRIBUTE = "_tflsc_record"


class NotCopied:
    """The value of an attribute that is None in copies and pickles of its object."""

    def __deepcopy__(self, memo):
        return None

    def __reduce__(self):
        return type(None), ()


class _Attached(NotCopied):
    """The record of an object; None if a graph was built while it had none."""

    def __init__(self, record=None):
        self.record = record


def _attached_to(owner):
    known = getattr(owner, "__dict__", {}).get(_ATTRIBUTE)
    if known is None or known.record is None or known.record.watched is owner:
        return known
    return None  # `owner` is a shallow copy of the object that has the record.


def check(owner):
    """Raises a TypeError or ValueError where `owner` cannot be given a record."""
    if not hasattr(owner, "__dict__"):
        raise TypeError(f"watched must have a __dict__, and {owner!r} has none.")
    known = _attached_to(owner)
    if known is not None and known.record is not None:
        raise ValueError(f"watched has a StepRecord already, got {owner!r}.")
    if known is not None:
        raise ValueError(
            f"watched must not be part of a graph or tf.function that is traced already, whose "
            f"steps no record would see, got {owner!r}. Make the StepRecord before the first step."
        )


def attach(owner, record):
    """Attaches a record, which observes `owner` from now on."""
    owner.__dict__[_ATTRIBUTE] = _Attached(record)


def record_of(owner):
    """Returns the record of `owner`, or None."""
    known = _attached_to(owner)
    return None if known is None else known.record


def records_of(*owners):
    """Returns the records of these objects, a list.

    Where a graph is built, an object without one is marked: what the graph does is never seen.
    """
    records = []
    for owner in owners:
        known = _attached_to(owner)
        if known is None:
            if not tf.executing_eagerly() and hasattr(owner, "__dict__"):
                owner.__dict__[_ATTRIBUTE] = _Attached()
        elif known.record is not None and known.record not in records:
            records.append(known.record)
    return records


def observe(scaler, observed, variables):
    """Returns the `Observation` of a step, by the records of an optimizer and of its loss scale.

    Args:
      scaler: `_scaler.Scaler`.
      observed: optimizer or loss scale, or None.
      variables: list of variables.
    """
    records = records_of(observed, _scaler.unwrap(scaler.subject))
    return Observation(scaler.subject, records, variables, None) if records else _UNOBSERVED


def update_observed(subject, finite, update, grads=None):
    """Updates a loss scale outside of an optimizer's step, and notifies its record.

    Args:
      subject: loss scale or manager.
      finite: bool scalar tensor, the same on all replicas.
      update: function of `finite` that updates it.
      grads: list of gradients, or None where only the flag is known.

    Returns:
      The result of `update`; in a graph with a record, one that waits for the record, too.
    """
    kept = _scaler.unwrap(subject)
    scaler = _scaler.Scaler(subject)
    # A user's override may call the method that it overrides, which is no step of its own.
    by_itself = kept is not subject or scaler.updates_from_flag
    observation = Observation(subject, records_of(kept) if by_itself else [], None, grads)
    with observation.updating(finite):
        updated = update(finite)
    notified = observation.notify([updated], finite, skips=not scaler.applies_all)
    if notified and isinstance(updated, tf.Tensor):
        with tf.control_dependencies(notified):
            return tf.identity(updated)
    return tf.group(updated, *notified) if notified else updated


class Observation:
    """One step, as its records see it.

    Attributes:
      records: list of `StepRecord`s; for none nothing is done.
      finite: bool or bool scalar tensor, False where the gradients were not finite or are not
        applied.
      skips_nonfinite: bool, a step that is not `finite` is skipped.
      before: the loss scale before the step, a float32 scalar tensor.
      after: the loss scale after it; NaN where it cannot be known.
      grads: list of gradients, or None where only a flag is known.
      inspected: bool, the records have inspected the gradients already.
    """

    def __init__(self, subject, records, variables, grads):
        self._subject, self.records = subject, records
        self._variables, self.grads = variables, grads
        self.finite, self.skips_nonfinite, self.before, self.after = True, True, None, None
        self.inspected = False
        for record in records:
            record._check_context()

    @property
    def names(self):
        """Names of the variables, or else places of the gradients, a list of str."""
        if self._variables is None:
            return [str(i) for i in range(len(self.grads))]
        names = [_name(each) for each in self._variables]
        times = collections.Counter(names)
        return [f"{name} [{i}]" if times[name] > 1 else name for i, name in enumerate(names)]

    @property
    def shapes(self):
        """Shapes of the variables, as far as they are known, a list of str."""
        return [str(variable.shape) for variable in self._variables or ()]

    def updating(self, finite=None):
        """Context to update the loss scale in, which records it before; None for no flag yet."""
        return self._updating(finite) if self.records else _NOTHING

    @contextlib.contextmanager
    def _updating(self, finite):
        # Records keep the scale of skipped steps alone, and in eager mode it is known which are.
        if finite is not None and _known_true(finite):
            yield
            return
        with tf.control_dependencies([] if finite is None else [finite]):
            self.before = _state.copied(_scaler.scale(self._subject))
        with tf.control_dependencies([self.before]):
            yield

    def inspect_gradients(self):
        """Makes the records inspect the gradients of a skipped step; returns operations."""
        self.inspected = True
        return [op for record in self.records for op in record._inspect_gradients(self)]

    def notify(self, done, finite, skips=True):
        """Notifies the records of a step that has been taken.

        Args:
          done: list of what has to happen before; None among them.
          finite: see the attribute.
          skips: bool, a step that is not `finite` is skipped.

        Returns:
          A list of operations, empty in eager mode.

        Raises:
          LossScaleError: in eager mode, this skipped step is one too many for a record.
        """
        if not self.records:
            return []
        self.finite, self.skips_nonfinite = finite, skips
        # A user's update may return anything.
        with tf.control_dependencies([op for op in tf.nest.flatten(done) if op is not None]):
            known = _known_true(finite)
            self.after = None if known else _scaler.scale_at_this_point(self._subject)
            if not (tf.executing_eagerly() or isinstance(finite, bool)):
                self.finite = tf.identity(finite)
            recorded = [record._record_step(self) for record in self.records]
        for record in self.records:
            record._raise_if_stuck(self)
        return [op for op in recorded if op is not None]


_NOTHING = contextlib.nullcontext()
_UNOBSERVED = Observation(None, [], None, None)


def _known_true(flag):
    return tf.executing_eagerly() and bool(flag)


def _name(variable):
    # Keras 3 distinguishes layers by their path alone.
    return getattr(variable, "path", None) or variable.name.split(":")[0]
