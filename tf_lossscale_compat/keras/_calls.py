"""Which calls a training step has made, and so whether its gradients are scaled still.

`apply_gradients` is given scaled gradients by some steps (Keras 3's own) and unscaled ones by others
(`get_unscaled_gradients` before it). A step is what happens on one replica, in eager mode or in one
trace of the outermost `tf.function`, up to the gradients being applied.
"""

import weakref

from absl import logging

from tf_lossscale_compat import _replicas, _tf

tf = _tf.tf

# Not the names of the methods: `minimize`, say, scales and unscales without the user calling either.
SCALED = "scale_loss"
SCALED_BY_HAND = "get_scaled_loss"
UNSCALED = "get_unscaled_gradients"

_FORGOT = (
    "{} was called by this training step, but {} was not. The gradients are applied as they are "
    "and are {} by a factor of the loss scale. Call both or neither: scaled = "
    "opt.get_scaled_loss(loss); gradients of scaled; opt.get_unscaled_gradients(gradients); "
    "opt.apply_gradients(...)."
)
_TWICE = (
    "get_unscaled_gradients was called by this training step, but apply takes scaled gradients and "
    "divides them by the loss scale once more. Call apply_gradients, or leave "
    "get_unscaled_gradients out."
)
_ELSEWHERE = (
    "apply_gradients takes these gradients as unscaled, because this step did not call scale_loss; "
    "another step or tf.function did. If they are scaled, call apply(gradients, variables), which "
    "always divides by the loss scale."
)


class Calls:
    """The calls of each step that has not applied its gradients yet."""

    def __init__(self):
        self._in_graphs = weakref.WeakKeyDictionary()
        self._in_eager_mode = {}
        self._warned = set()
        self._has_scaled = False

    def __deepcopy__(self, memo):
        return Calls()

    def __reduce__(self):
        return Calls, ()

    def _of_this_step(self):
        if tf.executing_eagerly():
            replicas = self._in_eager_mode
        else:
            replicas = self._in_graphs.setdefault(_tf.outermost_graph(), {})
        return replicas.setdefault(_replicas.replica_id(), set())

    def note(self, *calls):
        """Takes note that this step makes `calls`."""
        self._of_this_step().update(calls)

    def applying_gradients(self):
        """Ends the step with `apply_gradients`; returns whether its gradients are scaled.

        Warns, once for each optimizer, of a step that makes one of two calls that belong together.
        """
        calls = self._of_this_step()
        scaled = SCALED in calls and UNSCALED not in calls
        scaled_elsewhere = self._has_scaled or self._is_pending(SCALED)
        if UNSCALED in calls and not calls & {SCALED, SCALED_BY_HAND}:
            self._warn(_FORGOT.format("get_unscaled_gradients", "get_scaled_loss", "too small"))
        elif SCALED_BY_HAND in calls and not calls & {SCALED, UNSCALED}:
            self._warn(_FORGOT.format("get_scaled_loss", "get_unscaled_gradients", "too large"))
        elif not calls and scaled_elsewhere:
            self._warn(_ELSEWHERE)
        self._has_scaled = self._has_scaled or scaled
        calls.clear()
        return scaled

    def applying_scaled(self):
        """Ends the step with `apply`, whose gradients are scaled."""
        calls = self._of_this_step()
        if UNSCALED in calls:
            self._warn(_TWICE)
        calls.clear()

    def _is_pending(self, call):
        steps = [self._in_eager_mode] + list(self._in_graphs.values())
        return any(call in calls for replicas in steps for calls in replicas.values())

    def _warn(self, message):
        if message not in self._warned:
            self._warned.add(message)
            logging.warning(message)
