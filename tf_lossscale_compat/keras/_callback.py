"""`LossScaleCallback`, which becomes a callback of its model's Keras."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tf_lossscale_compat._core import _arguments, _keras_versions, _step_record
from tf_lossscale_compat._core._step_record import StepRecord
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat.keras import _lookup, _methods
from tf_lossscale_compat.monitoring import _monitor, _summaries

if TYPE_CHECKING:
    import types

    from typing_extensions import Self

    from tf_lossscale_compat._core import _types

    _Callback = TypeVar("_Callback", bound="LossScaleCallback")

_HINT = (
    "the model's training step does not apply gradients with the optimizer that it watches. Have "
    "it call apply_gradients, apply or minimize of the model's loss-scale optimizer."
)

# The base class of Keras' callbacks, for type checkers. At run time it depends on the Keras.
if TYPE_CHECKING:
    from tf_lossscale_compat._core._types import Callback as _CallbackBase
else:
    _CallbackBase = object


class _CallbackClass(NamedTuple):
    """A class of callbacks: the Keras that it is for, and the public class or a subclass."""

    keras: types.ModuleType
    public: type[LossScaleCallback]


class LossScaleCallback(_CallbackBase):
    """Writes a loss scale's summaries for TensorBoard, logs, and ends a `fit` that is stuck.

    It works with models of Keras 3 on TensorFlow, of `tf_keras` and of tf.keras::

        callback = LossScaleCallback(log_dir="logs/loss_scale", max_consecutive_skips=50)
        model.fit(x, y, callbacks=[callback])

    It adds `loss_scale`, a float, and `skipped_steps`, an int that counts since the record was
    made, to the logs of each epoch. `History`, the callbacks after it and the progress bar show
    them; the progress bar of TensorFlow 2.2 to 2.4 does not.

    The callback reads the record when `fit` begins, every N steps and at the end of each epoch, and
    does not wait for the device in between. It writes and logs the same as
    `monitoring.write_summaries`. It also logs a warning if the record sees no step at all.
    """

    _tflsc_class: _CallbackClass

    _monitor: Any  # A `Monitor`; None until `fit` begins if no record was given.

    def __new__(cls, record: StepRecord | None = None, *args: Any, **kwargs: Any) -> Self:
        """Makes an instance of the class for one Keras; `set_model` may change the class."""
        if hasattr(cls, "_tflsc_class"):
            return object.__new__(cls)
        watched = getattr(record, "watched", None)
        family = getattr(watched, "_tflsc_family", None)
        return object.__new__(_class_for(cls, getattr(family, "keras", tf.keras)))

    def __init__(
        self,
        record: StepRecord | None = None,
        log_dir: _types.Path | None = None,
        every_n_steps: _types.Integer = 100,
        *,
        max_consecutive_skips: _types.Integer | None = None,
        log_every_n_secs: _types.Real = 60,
    ) -> None:
        """Makes the callback.

        Args:
          record: `StepRecord`; None for the record of the model's optimizer. If that optimizer has
            none, `fit` makes it. The optimizer must then be one of this package, and must not have
            taken a step except with `run_eagerly`.
          log_dir: str or path, the folder for summaries, best one of its own; None for no
            summaries.
          every_n_steps: int above zero, the number of steps between two readings in an epoch.
          max_consecutive_skips: int above zero, the number of skipped steps in a row that ends
            `fit` with a `LossScaleError`; None for that of the record.
          log_every_n_secs: real number, the least time in seconds between two log lines about
            skipped steps.

        Raises:
          TypeError: an argument has another type.
          ValueError: a number cannot be used.
        """
        self._tflsc_class.keras.callbacks.Callback.__init__(self)
        limit = _arguments.max_consecutive_skips(max_consecutive_skips)
        self._options = limit, _arguments.seconds("log_every_n_secs", log_every_n_secs)
        self._monitor = None if record is None else _monitor.Monitor(record, *self._options)
        self._record_argument = record
        self._log_dir = _arguments.path("log_dir", log_dir)
        self._every_n_steps = _arguments.step_count(
            "every_n_steps", every_n_steps, "int64", minimum=1
        )
        self._supports_tf_logs = True

    @property
    def record(self) -> StepRecord | None:
        """The `StepRecord`, or None if it was not given and `fit` has not begun."""
        return None if self._monitor is None else self._monitor.record

    def set_model(self, model: Any) -> None:
        # The model says which Keras it is of.
        keras = _keras_of_model(model)
        if keras not in (None, self._tflsc_class.keras) and "_tflsc_class" in vars(type(self)):
            self.__class__ = _class_for(self._tflsc_class.public, keras)
            params = getattr(self, "params", None)
            keras.callbacks.Callback.__init__(self)
            self.params, self._supports_tf_logs = params, True
        super().set_model(model)

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        # Before TensorFlow 2.2, the progress bar shows only the names in this list.
        shown = (params or {}).get("metrics")
        if isinstance(shown, list):
            shown.extend(name for name in ("loss_scale", "skipped_steps") if name not in shown)

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras; raises a TypeError or ValueError if there can be no record."""
        self._close_writer()
        record = _record_of(self.model) if self._record_argument is None else self._record_argument
        if self._monitor is None or self._monitor.record is not record:
            self._monitor = _monitor.Monitor(record, *self._options)
        if self._log_dir is not None and _summaries.this_process_writes(record):
            self._monitor.writer = _summaries.file_writer(self._log_dir)
        session = _session(self._tflsc_class.keras)
        with contextlib.nullcontext() if session is None else session.graph.as_default():
            self._monitor.prepare()
        self._monitor.start(session)
        self._last_read_batch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._last_read_batch = 0

    # If this were at the end of a batch, Keras 3 would wait for the device in each batch.
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._supports_tf_logs = True
        if batch - self._last_read_batch >= self._every_n_steps:
            self._last_read_batch = batch
            self._log_and_write()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras; `logs` gets `loss_scale` and `skipped_steps`."""
        reading = self._log_and_write()
        if logs is not None:
            logs["loss_scale"], logs["skipped_steps"] = reading.scale, reading.skipped_steps
        self._monitor.warn_if_unused(reading, _HINT)

    def _log_and_write(self) -> _summaries.Reading:
        session = _session(self._tflsc_class.keras)
        reading = self._monitor.read(session)
        self._monitor.log_and_write(reading, session)
        self._monitor.raise_if_stuck(reading, session)
        return reading

    def on_train_end(self, logs: Any = None) -> None:
        session = _session(self._tflsc_class.keras)
        self._monitor.log_and_write(self._monitor.read(session), session, log_every_n_secs=0)
        self._close_writer()

    def _close_writer(self) -> None:
        if self._monitor is not None and self._monitor.writer is not None:
            self._monitor.writer.close()
            self._monitor.writer = None


class _TensorLogsMixin:
    """Base class if Keras passes logs as tensors, without a wait, to callbacks that take them."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Up to TensorFlow 2.4 such callbacks get a copy of the logs. At the end of an epoch this
        # one must get the original, as `History` does.
        self._supports_tf_logs = False


@_lookup.cached
def _class_for(public: type[_Callback], keras: types.ModuleType) -> type[_Callback]:
    """Returns the class that is both `public` and a callback of that Keras."""
    base = keras.callbacks.Callback
    bases = (_TensorLogsMixin, base) if hasattr(base, "_implements_train_batch_hooks") else (base,)
    shown = {name: getattr(public, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(
        public.__name__, (public, *bases), {"_tflsc_class": _CallbackClass(keras, public), **shown}
    )


def _keras_of_model(model: object) -> types.ModuleType | None:
    """Returns the Keras that a model is of, or None."""
    classes = _keras_versions.classes_of_keras(type(model))
    return next((_lookup.keras_of(cls) for cls in classes if cls.__name__ == "Model"), None)


def _record_of(model: object) -> StepRecord:
    """Returns the record of the model's optimizer; makes it if there is none."""
    optimizer = getattr(model, "optimizer", None)
    if not isinstance(optimizer, _methods.CommonMethods):
        raise TypeError(
            "record must be given if the model's optimizer is not a loss-scale optimizer of "
            f"tf_lossscale_compat, got record=None and the optimizer {optimizer!r}."
        )
    record = _step_record.record_of(optimizer)
    if isinstance(record, StepRecord):
        return record
    strategy = getattr(model, "distribute_strategy", None)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        try:
            return StepRecord(optimizer)
        except ValueError as error:
            raise ValueError(
                "record must be a StepRecord made before the first step, got None. Or pass the "
                f"callback to the first fit, too. {error}"
            ) from error


def _session(keras: types.ModuleType) -> tf.compat.v1.Session | None:
    """Returns the session in which that Keras runs its graph, or None in eager mode."""
    if tf.executing_eagerly():
        return None
    # In some versions, no public module has it.
    backend = keras.callbacks.Callback.__module__.rsplit(".", 1)[0] + ".backend"
    return sys.modules[backend].get_session()


# Users import it from here.
LossScaleCallback.__module__ = "tf_lossscale_compat.keras.callbacks"
