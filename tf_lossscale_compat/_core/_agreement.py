"""Agreement between processes outside `tf.distribute`: the argument `agree`, and Horovod.

Processes that average gradients must skip the same steps, or weights and loss scales diverge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tf_lossscale_compat._core import _horovod, _wrapping
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _scaler, _types


def check_agree(agree: object) -> None:
    """Raises a TypeError if the argument `agree` is not a function or None."""
    if not (agree is None or callable(agree)):
        raise TypeError(f"agree must be a function of a bool tensor or None, got {agree!r}.")


def resolve(
    agree: _types.Agree | None, optimizer: _types.HasApplyGradients, scaler: _scaler.Scaler
) -> _types.Agree | None:
    """Returns the function through which all processes agree, or None if none is needed.

    Args:
      agree: function of a scalar bool tensor that returns its AND over all processes; or None. For
        None, and for Horovod's function, which this returned before, Horovod's function is taken if
        Horovod made the optimizer. A loss scale that needs gradients takes none, because Horovod's
        gradients are the same in all processes.
      optimizer: the wrapped optimizer.
      scaler: `_scaler.Scaler` of its loss scale or manager.

    Raises:
      TypeError: `agree` is not a function.
      ValueError: the loss scale needs gradients, and `agree` is given; or the optimizer adds up
        gradients of several steps, and the loss scale changes between them.
    """
    check_agree(agree)
    if isinstance(agree, _horovod.HorovodAgreement):
        agree = None
    if agree is not None and scaler.update_by_gradients:
        raise ValueError(
            f"agree works on the finite flag, but {scaler.loss_scale!r} needs the gradients. Use a "
            "LossScaleManager, whose update_loss_scale takes that flag."
        )
    if scaler.may_change() or scaler.is_read_by_user():
        _check_accumulation(optimizer)
    for each in _wrapping.optimizer_chain(optimizer):
        agree = _horovod.agreement_or_default(agree, each, scaler)
    return agree


def check_takes_dynamic(optimizer: _types.HasApplyGradients) -> None:
    """Raises `resolve`'s errors of the optimizer, before a dynamic loss scale makes variables."""
    _check_accumulation(optimizer)


def _check_accumulation(optimizer: _types.HasApplyGradients) -> None:
    for each in _wrapping.optimizer_chain(optimizer):
        _horovod.check_accumulation(each)


class LostAgreement:
    """Stands for the `agree` of an optimizer made from a config, and raises an error at a step.

    The config records that there was an `agree`, but cannot hold the function.
    """

    def __call__(self, finite: tf.Tensor) -> NoReturn:
        raise ValueError(
            "This optimizer is from the config of one with agree=, and a config cannot hold a "
            "function. Set optimizer.agree to a function, or to None for a single process."
        )


def ask(agree: _types.Agree, finite: tf.Tensor) -> tf.Tensor:
    """Returns `agree` of the finite flag, a scalar bool tensor.

    Raises:
      ValueError: `agree` returned something else.
    """
    agreed = tf.convert_to_tensor(agree(finite))
    if agreed.dtype != tf.bool or agreed.shape.rank not in (0, None):
        raise ValueError(f"agree must return a scalar bool tensor, got {agreed!r}.")
    return agreed
