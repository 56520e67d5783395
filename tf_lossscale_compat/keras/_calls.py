"""The rule for whether gradients are scaled, from the methods ever called on an optimizer.

Some steps (Keras 3's own) give `apply_gradients` scaled gradients, and others unscaled ones. If the
caller does not say which, the constructor's `scaled` does. If neither does, the rule goes by which
methods were ever called on this optimizer, and by nothing else: not by order, place or thread.
`apply` and `minimize` need no rule and leave no record. If the rule has two answers, gradients that
`get_unscaled_gradients` returned are recognized as the same objects.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from absl import logging

from tf_lossscale_compat._core import _arguments, _autograph
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# All others that are recorded mean that gradients are unscaled by the time that they are applied.
SCALED = "scale_loss"
LOSS_SCALED = "get_scaled_loss"
UNSCALED = "get_unscaled_gradients"
RECORDED = (SCALED, LOSS_SCALED, UNSCALED)

_SAY = (
    "write apply_gradients(..., scaled=True), which divides the gradients by the loss scale, or "
    "scaled=False, which applies them as they are. You cannot write it in fit of Keras 3: make the "
    "optimizer with scaled=True, and write scaled=False in the steps that unscale"
)
_STEP = (
    "scaled = opt.get_scaled_loss(loss); gradients of scaled; "
    "opt.get_unscaled_gradients(gradients); opt.apply_gradients(...)"
)
_FORGOT = (
    "{} of this optimizer was called, but {} never was. The gradients are applied as they are and "
    f"are {{}} by a factor of the loss scale. Call both or neither: {_STEP}."
)
_NEVER = (
    "apply_gradients of this optimizer was called, but neither get_scaled_loss nor "
    f"get_unscaled_gradients ever was, so nothing was scaled. Write {_STEP}. If you want no "
    "scaling, write apply_gradients(..., scaled=False), which ends this warning."
)
_NEITHER = (
    "apply_gradients of this optimizer was called, but none of scale_loss, get_scaled_loss and "
    "get_unscaled_gradients ever was. The gradients are divided by the loss scale, as Keras 3 "
    "always does. If the loss was not scaled, write apply_gradients(..., scaled=False). If it was, "
    "write scaled=True, which ends this warning."
)
_TWICE = (
    "get_unscaled_gradients of this optimizer was called, but apply takes scaled gradients and "
    "divides them by the loss scale once more. Call apply_gradients, or leave "
    "get_unscaled_gradients out."
)
_MADE_SCALED = (
    "{} of this optimizer was called, but apply_gradients got no scaled=. As the optimizer was "
    "made with scaled=True, the gradients are divided by the loss scale. If they are unscaled "
    "already, write apply_gradients(..., scaled=False). If not, scaled=True ends this warning."
)


class Calls:
    """Decides, by the methods that were called on one optimizer, which gradients it is given.

    Attributes:
      asked: set of the methods that were called.
      said: the constructor's `scaled`, for the calls of `apply_gradients` that say none.
    """

    def __init__(self, scaled_unless_asked: bool, said: bool | None) -> None:
        self._scaled_unless_asked = scaled_unless_asked
        self._said_unscaled = False  # True once a call said `scaled=False`.
        self.asked: set[str] = set()
        self.said = said
        self._traced = False  # True once a function or graph follows the rule for good.
        self._warned: set[str] = set()
        # By id.
        self._unscaled: weakref.WeakValueDictionary[int, tf.Tensor | tf.IndexedSlices] = (
            weakref.WeakValueDictionary()
        )

    def _are_scaled(self, asked: set[str]) -> bool | None:
        """Returns whether the rule takes gradients as scaled; None where it contradicts itself."""
        if not asked:
            return self._scaled_unless_asked
        return None if len(asked) > 1 and SCALED in asked else SCALED in asked

    @_autograph.do_not_convert
    def called(self, method: str) -> None:
        """Records a call; a ValueError if `apply_gradients` was traced under another answer."""
        before, after = self._are_scaled(self.asked), self._are_scaled(self.asked | {method})
        if self._traced and after is not before:
            raise ValueError(
                f"{method} was called after apply_gradients had been traced into a function or "
                f"graph. That always takes {'scaled' if before else 'unscaled'} gradients, but "
                f"gradients after {method} are {'scaled' if method == SCALED else 'unscaled'}. In "
                f"that function {_SAY}; or make one optimizer for each."
            )
        self.asked.add(method)

    def returned(self, grads: object) -> None:
        """Takes notice of gradients that were unscaled, where others may be scaled."""
        if (self.said or SCALED in self.asked) and isinstance(grads, (list, tuple)):
            known = [grad for grad in grads if isinstance(grad, (tf.Tensor, tf.IndexedSlices))]
            self._unscaled.update(zip(map(id, known), known))

    def are_unscaled(self, grads: _types.Gradients) -> bool:
        """Returns whether these are gradients as they were `returned`."""
        grads = [grad for grad in grads if grad is not None]
        return bool(grads) and all(self._unscaled.get(id(grad)) is grad for grad in grads)

    def are_scaled(self, scaled: bool | None, grads: _types.Gradients) -> bool:
        """Returns whether gradients are scaled: as the caller or constructor says, or by the rule.

        Where the rule has two answers, they are not scaled if they are `are_unscaled`.

        Warns, once for each optimizer, where one of two calls that belong together was never made,
        and where gradients are divided that no call says are scaled.
        """
        if scaled is not None:
            _arguments.optional_flag("scaled", scaled)
            self._said_unscaled |= not scaled
            return scaled
        if self.said is not None:
            if self.said:
                self._check_made_scaled(grads)
            return self.said
        answer = self._are_scaled(self.asked)
        if answer is None and self.are_unscaled(grads):
            return False
        if answer is None:
            others = " and ".join(sorted(self.asked - {SCALED}))
            known = ""
            if UNSCALED in self.asked:
                known = (
                    f"Gradients that {UNSCALED} returned are recognized as unscaled, but here are "
                    "others, such as clipped ones. "
                )
            raise ValueError(
                f"apply_gradients cannot tell whether the gradients are scaled: {SCALED} of this "
                f"optimizer was called, after which they are, and {others}, after which they are "
                f"not. {known}So {_SAY}."
            )
        if not tf.executing_eagerly():
            self._traced = True
        if answer and not self.asked:
            self.warn(_NEITHER)
        elif self.asked == {UNSCALED}:
            self.warn(_FORGOT.format(UNSCALED, LOSS_SCALED, "too small"))
        elif self.asked == {LOSS_SCALED}:
            self.warn(_FORGOT.format(LOSS_SCALED, UNSCALED, "too large"))
        return answer

    def _check_made_scaled(self, grads: _types.Gradients) -> None:
        """Raises a ValueError or warns where unscaled gradients are taken as the constructor says.

        They are known, or no call has ever said `scaled=False` of what was unscaled.
        """
        if self.are_unscaled(grads):
            raise ValueError(
                "apply_gradients was given gradients that this optimizer unscaled, and it was made "
                "with scaled=True, which would divide them by the loss scale once more. Write "
                "apply_gradients(..., scaled=False)."
            )
        unscale = self.asked - {SCALED, LOSS_SCALED}
        if unscale and not self._said_unscaled:
            self.warn(_MADE_SCALED.format(" and ".join(sorted(unscale))))

    def warn_if_never_asked(self) -> None:
        """Warns where a step may have scaled nothing."""
        if not self.asked and self.said is None:
            self.warn(_NEVER)

    def applying_scaled(self) -> None:
        """Warns where `apply` may be given what is unscaled already."""
        if UNSCALED in self.asked:
            self.warn(_TWICE)

    def warn(self, message: str) -> None:
        """Logs a warning, once for each optimizer."""
        if message not in self._warned:
            self._warned.add(message)
            logging.warning(message)
