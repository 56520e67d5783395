"""Decides whether `apply_gradients` gets scaled gradients, which a step divides."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from absl import logging

from tf_lossscale_compat._core import _arguments, _autograph, _tf
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# `apply_gradients` takes scaled gradients after the first was called, unscaled ones after others.
SCALE_LOSS = "scale_loss"
GET_SCALED_LOSS = "get_scaled_loss"
GET_UNSCALED_GRADIENTS = "get_unscaled_gradients"
NOTED_OVERRIDES = (SCALE_LOSS, GET_SCALED_LOSS, GET_UNSCALED_GRADIENTS)

_SAY_SCALED = (
    "write apply_gradients(..., scaled=True), which divides the gradients by the loss scale, or "
    "scaled=False, which applies them as they are. You cannot write it in fit of Keras 3: make two "
    "optimizers, one of them for fit, or override train_step"
)
_STEP_EXAMPLE = (
    "scaled = opt.get_scaled_loss(loss); gradients of scaled; "
    "opt.get_unscaled_gradients(gradients); opt.apply_gradients(...)"
)
_ONE_CALLED = (
    "{} of this optimizer was called, but {} never was. The gradients are applied as they are and "
    f"are {{}} by a factor of the loss scale. Call both or neither: {_STEP_EXAMPLE}."
)
_NONE_CALLED = (
    "apply_gradients of this optimizer was called, but neither get_scaled_loss nor "
    f"get_unscaled_gradients ever was, so nothing was scaled. Write {_STEP_EXAMPLE}. If you want "
    "no scaling, write apply_gradients(..., scaled=False), which ends this warning."
)
_NEVER_ASKED = (
    "apply_gradients cannot tell whether the gradients are scaled: none of scale_loss, "
    "get_scaled_loss and get_unscaled_gradients of this optimizer was ever called. If another "
    "optimizer or the program scaled them, and nobody has divided them yet, write "
    "apply_gradients(..., scaled=True), which divides them by the loss scale of this optimizer. "
    "Else write scaled=False, which applies them as they are, or use the inner optimizer without "
    "this class. To make slots, call build(variables) instead."
)
_DIVIDED_TWICE = (
    "get_unscaled_gradients of this optimizer was called, but apply takes scaled gradients and "
    "divides them by the loss scale once more. Call apply_gradients, or leave "
    "get_unscaled_gradients out."
)


class ScaledRule:
    """Decides whether the gradients that `apply_gradients` of one optimizer gets are scaled.

    The caller says it, or the methods decide that were ever called on this optimizer, whatever
    their order, place and thread:

    | called | gradients are |
    | --- | --- |
    | none | unscaled, with a warning from 2.4 on; an error if the optimizer `must_be_asked` |
    | `scale_loss` alone | scaled |
    | others alone | unscaled |
    | `scale_loss` and others | unscaled if this optimizer unscaled them after it, else an error |

    A call that comes too late for a function that was traced by the rule is an error. `apply` needs
    no rule. `minimize` counts as one of the others if methods of a subclass see its gradients.

    Attributes:
      called_methods: set of str, the noted methods that were ever called.
    """

    def __init__(self, must_be_asked: bool) -> None:
        self._must_be_asked = must_be_asked  # As of Keras 3: programs there are of both kinds.
        self.called_methods: set[str] = set()
        self._traced = False  # True once a function or graph follows the rule for good.
        self._warned: set[str] = set()
        # By id.
        self._unscaled: weakref.WeakValueDictionary[int, tf.Tensor | tf.IndexedSlices] = (
            weakref.WeakValueDictionary()
        )

    def _answer_after(self, methods: set[str]) -> bool | None:
        """Returns the rule's answer after calls of these methods; None if it has two answers."""
        return None if len(methods) > 1 and SCALE_LOSS in methods else SCALE_LOSS in methods

    @_autograph.do_not_convert
    def note_call(self, method: str) -> None:
        """Notes a call; raises a ValueError if a traced `apply_gradients` has another answer."""
        before = self._answer_after(self.called_methods)
        after = self._answer_after(self.called_methods | {method})
        if self._traced and after is not before:
            raise ValueError(
                f"{method} was called after apply_gradients had been traced into a function or "
                f"graph. That always takes {'scaled' if before else 'unscaled'} gradients, but "
                f"gradients after {method} are "
                f"{'scaled' if method == SCALE_LOSS else 'unscaled'}. In that function "
                f"{_SAY_SCALED}; or make one optimizer for each."
            )
        self.called_methods.add(method)

    def remember_unscaled(self, grads: object) -> None:
        """Remembers unscaled gradients, if `apply_gradients` may also get scaled ones."""
        if SCALE_LOSS in self.called_methods and isinstance(grads, (list, tuple)):
            tensors = [grad for grad in grads if isinstance(grad, (tf.Tensor, tf.IndexedSlices))]
            self._unscaled.update(zip(map(id, tensors), tensors))

    def are_remembered(self, pairs: list[_types.Pair]) -> bool:
        """Returns whether all gradients of these pairs are objects that were remembered."""
        grads = [grad for grad, _ in pairs if grad is not None]
        return bool(grads) and all(self._unscaled.get(id(grad)) is grad for grad in grads)

    def decide(self, scaled: Any, pairs: list[_types.Pair]) -> bool:
        """Returns whether gradients of these pairs are scaled, if the caller's `scaled` is None.

        Raises a ValueError if the rule has no answer, or two and they are not known to be unscaled.
        Warns once for each optimizer if one of two methods that belong together was called alone,
        or from TensorFlow 2.4 on none.
        """
        if scaled is not None:
            _arguments.flag("scaled", scaled, or_none=True)  # Raises the error.
        if self._must_be_asked and not self.called_methods:
            raise ValueError(_NEVER_ASKED)
        answer = self._answer_after(self.called_methods)
        if answer is None and self.are_remembered(pairs):
            return False
        if answer is None:
            others = " and ".join(sorted(self.called_methods - {SCALE_LOSS}))
            raise ValueError(
                f"apply_gradients cannot tell whether the gradients are scaled: {SCALE_LOSS} of "
                f"this optimizer was called, after which they are, and {others}, after which they "
                f"are not. Only gradients that {GET_UNSCALED_GRADIENTS} returned after the first "
                f"{SCALE_LOSS} are recognized as unscaled, and only before any clipping. So "
                f"{_SAY_SCALED}."
            )
        if not tf.executing_eagerly():
            self._traced = True
        if not self.called_methods and _tf.at_least(2, 4):
            self.warn_once(_NONE_CALLED)
        elif self.called_methods == {GET_UNSCALED_GRADIENTS}:
            self.warn_once(_ONE_CALLED.format(GET_UNSCALED_GRADIENTS, GET_SCALED_LOSS, "too small"))
        elif self.called_methods == {GET_SCALED_LOSS}:
            self.warn_once(_ONE_CALLED.format(GET_SCALED_LOSS, GET_UNSCALED_GRADIENTS, "too large"))
        return answer

    def warn_if_divided_twice(self, pairs: list[_types.Pair]) -> None:
        """Warns if `apply` may get unscaled gradients.

        After `scale_loss`, as in a step of Keras 3, only those that are remembered.
        """
        if GET_UNSCALED_GRADIENTS not in self.called_methods:
            return
        if SCALE_LOSS not in self.called_methods or self.are_remembered(pairs):
            self.warn_once(_DIVIDED_TWICE)

    def warn_once(self, message: str) -> None:
        """Logs a warning, once for each optimizer."""
        if message not in self._warned:
            self._warned.add(message)
            logging.warning(message)
