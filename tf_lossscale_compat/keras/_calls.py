"""Which calls a training step has made, and so whether its gradients are scaled still.

`apply_gradients` is given scaled gradients by some steps (Keras 3's own) and unscaled ones by
others (`get_unscaled_gradients` before it). A step is what happens on one replica, in eager mode or
in the trace of one `tf.function`, up to the gradients being applied. What a function scaled and did
not apply itself, its callers apply: they are traced more than once, it maybe only with the first of
them, so such calls count for as long as the function is there.
"""

import gc
import weakref
from typing import Any, Dict, Set

from absl import logging

from tf_lossscale_compat import _replicas, _tf

tf = _tf.tf

# Kinds of calls, named after methods: `minimize`, say, makes two of them without the user.
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


class Calls:
    """The calls of each step that has not applied its gradients yet."""

    def __init__(self):
        # Each from replicas to sets of calls.
        self._in_eager_mode: Dict[Any, Set[str]] = {}
        self._in_graphs: Any = weakref.WeakKeyDictionary()
        self._collected_with = 0
        self._warned: Set[str] = set()

    def __deepcopy__(self, memo):
        return Calls()

    def __reduce__(self):
        return Calls, ()

    def _here(self):
        if tf.executing_eagerly():
            return self._in_eager_mode
        return self._in_graphs.setdefault(_tf.function_graph(), {})

    def _of_this_step(self):
        return self._here().setdefault(_replicas.replica_id(), set())

    def _elsewhere(self):
        """The calls of other functions, and in a function of eager mode, that applied nothing."""
        here = self._here()
        graphs = [graph for graph, replicas in self._in_graphs.items() if any(replicas.values())]
        if graphs and self._collected_with != len(graphs):
            # Functions that are gone, say because tracing them failed, do not count.
            del graphs
            gc.collect()
        steps = [self._in_eager_mode] + list(self._in_graphs.values())
        self._collected_with = sum(any(replicas.values()) for replicas in steps[1:])
        found = [calls for step in steps if step is not here for calls in step.values()]
        return set().union(*found)

    def note(self, *calls):
        """Takes note that this step makes `calls`."""
        self._of_this_step().update(calls)

    def applying_gradients(self):
        """Ends the step with `apply_gradients`; returns whether its gradients are scaled.

        Warns, once for each optimizer, of a step that makes one of two calls that belong together.
        """
        calls = set(self._of_this_step())
        self._of_this_step().clear()
        if not calls & {SCALED, SCALED_BY_HAND}:
            calls |= self._elsewhere()
        if UNSCALED in calls and not calls & {SCALED, SCALED_BY_HAND}:
            self._warn(_FORGOT.format("get_unscaled_gradients", "get_scaled_loss", "too small"))
        elif SCALED_BY_HAND in calls and not calls & {SCALED, UNSCALED}:
            self._warn(_FORGOT.format("get_scaled_loss", "get_unscaled_gradients", "too large"))
        return SCALED in calls and UNSCALED not in calls

    def applying_scaled(self):
        """Ends the step with `apply`, whose gradients are scaled."""
        calls = self._of_this_step()
        if UNSCALED in calls:
            self._warn(_TWICE)
        calls.clear()

    def _warn(self, message):
        if message not in self._warned:
            self._warned.add(message)
            logging.warning(message)
