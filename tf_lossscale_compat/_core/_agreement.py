"""Agreement between processes that `tf.distribute` knows nothing of: `agree`, and Horovod.

Processes that average their gradients by other means must skip the same steps, or their weights and
loss scales part for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, NoReturn

from tf_lossscale_compat._core import _horovod, _sync_replicas, _tf, _wrapping

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_lossscale_compat._core import _scaler, _types
else:
    tf = _tf.tf


def function_for(
    agree: _types.Agree | None, optimizer: _types.HasApplyGradients, scaler: _scaler.Scaler
) -> _types.Agree | None:
    """Returns the function that all processes agree through, or None where none is needed.

    Args:
      agree: function of a scalar bool tensor that returns its AND over all processes; or None. For
        None, and for a function that this returned before, a Horovod optimizer's own is taken; with
        a loss scale that needs gradients none, as Horovod's are the same everywhere.
      optimizer: the optimizer that is wrapped.
      scaler: `_scaler.Scaler` of its loss scale or manager.

    Raises:
      TypeError: `agree` is no function.
      ValueError: the optimizer adds up gradients of several steps, which a loss scale that changes
        has scaled differently; or a step may be skipped that a SyncReplicasOptimizer is to take.
    """
    if not (agree is None or callable(agree)):
        raise TypeError(f"agree must be a function of a bool tensor or None, got {agree!r}.")
    if isinstance(agree, _horovod.Agree):
        agree = None
    if not scaler.applies_all:
        _sync_replicas.check_order(optimizer)
    for each in _wrapping.with_wrapped(optimizer):
        _horovod.check_passes(each, scaler)
        agree = _horovod.or_default(agree, each, scaler)
    return agree


def common(functions: Iterable[_types.Agree | None]) -> _types.Agree | None:
    """Returns the one function that several optimizers of a step agree through, or None.

    Raises:
      ValueError: Horovod's processes are not the same for all of them.
    """
    functions = [each for each in functions if each is not None]
    if len({id(getattr(each, "process_set", None)) for each in functions}) > 1:
        raise ValueError(
            "optimizers_and_gradients holds Horovod's optimizers of several process sets. Give "
            "agree=, a function that asks the processes of all of them."
        )
    return functions[0] if functions else None


class LostAgree:
    """Stands for the `agree` of an optimizer made from a config; a step raises an error.

    The config says that there was one, and cannot hold the function.
    """

    def __call__(self, finite: tf.Tensor) -> NoReturn:
        raise ValueError(
            "agree was given to the optimizer that this one's config is of, and no config can hold "
            "a function. Set optimizer.agree, to a function or to None for a single process."
        )


def ask(agree: _types.Agree, finite: tf.Tensor) -> tf.Tensor:
    """Returns what `agree` makes of the flag, a scalar bool tensor.

    Raises:
      ValueError: it is no such tensor.
    """
    agreed = tf.convert_to_tensor(agree(finite))
    if agreed.dtype != tf.bool or agreed.shape.rank not in (0, None):
        raise ValueError(f"agree must return a scalar bool tensor, got {agreed!r}.")
    return agreed
