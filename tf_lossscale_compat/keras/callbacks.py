"""A Keras callback that logs the loss scale and the skipped steps, for `fit` of every Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _arguments, _step_record, _tf
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._core._types import Callback as _Callback
else:
    _Callback = tf.keras.callbacks.Callback

__all__ = ["LossScaleCallback"]


class LossScaleCallback(_Callback):
    """Puts `loss_scale` and `skipped_steps` into the logs of epochs; ends a `fit` that is stuck.

    `record` is a `StepRecord`; None for that of the model's optimizer, which `fit` makes if there
    is none. `max_consecutive_skips`, an int, is set as the record's. `fit` ends with a
    `LossScaleError` if as many steps in a row were skipped, which is checked every `every_n_steps`.
    """

    def __init__(
        self,
        record: _step_record.StepRecord | None = None,
        every_n_steps: _types.Integer = 100,
        *,
        max_consecutive_skips: _types.Integer | None = None,
    ) -> None:
        super().__init__()
        if not (record is None or isinstance(record, _step_record.StepRecord)):
            raise TypeError(f"record must be a StepRecord or None, got {record!r}.")
        self._given = record  # If it is None, so is `record` until `fit` begins.
        self.record: _step_record.StepRecord = record  # type: ignore[assignment]
        self._every = _arguments.step_count("every_n_steps", every_n_steps, "int64", minimum=1)
        self._limit = _arguments.max_consecutive_skips(max_consecutive_skips)
        self._checked = 0
        self._supports_tf_logs = _tf.at_least(2, 5)  # Or each step waits; before, logs are copies.

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds the record, or makes it."""
        optimizer = self.model.optimizer
        if not (self._given or hasattr(type(optimizer), "_tflsc_loss_scale")):
            raise TypeError(
                f"LossScaleCallback needs a loss-scale optimizer, got {optimizer!r}. Write compile("
                "tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer(...), ...)."
            )
        record = self._given or _step_record.record_of(optimizer)
        if record is None:
            strategy = getattr(self.model, "distribute_strategy", tf.distribute.get_strategy())
            with strategy.scope():
                record = _step_record.StepRecord(optimizer)
        self.record = record
        record.max_consecutive_skips = self._limit or record.max_consecutive_skips

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Checks, not at the end of a batch, where Keras 3 would wait for the device."""
        if self.record.max_consecutive_skips and batch // self._every != self._checked:
            self._checked = batch // self._every
            self._check()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Checks, and adds to the logs."""
        session = self._check()
        # A loss scale stands for a tensor of its graph that is always the same.
        values = [self.record.watched._tflsc_loss_scale, self.record.skipped_steps]
        scale, skipped = values if session is None else session.run(values)
        logs["loss_scale"], logs["skipped_steps"] = float(scale), int(skipped)

    def _check(self) -> Any:
        """Raises the error of a run that is stuck; returns the session of a graph, or None."""
        session = None if tf.executing_eagerly() else tf1.keras.backend.get_session()
        if self.record.max_consecutive_skips:
            self.record.check(session)
        return session

    # `fit` of tf_keras asks its callbacks for these; those of Keras 3 have none.
    _implements_train_batch_hooks = staticmethod(lambda: True)
    _implements_test_batch_hooks = _implements_predict_batch_hooks = staticmethod(lambda: False)
