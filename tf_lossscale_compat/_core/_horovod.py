"""Horovod's optimizers, and the agreement of its processes on the finite flag."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Sequence

from tf_lossscale_compat._core import _tf, _wrapping
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _scaler, _types


class HorovodAgreement:
    """Computes the AND over Horovod's processes, or a set of them; can be copied and pickled."""

    def __init__(self, process_set: Any) -> None:
        self.process_set = process_set

    def __call__(self, finite: tf.Tensor) -> tf.Tensor:
        import horovod.tensorflow as hvd

        options = {} if self.process_set is None else {"process_set": self.process_set}
        options.update({"op": hvd.Sum} if hasattr(hvd, "Sum") else {"average": False})
        # Horovod matches operations of its processes by name. The name must not depend on the rest
        # of the graph: perhaps only one process writes summaries.
        with tf1.name_scope(None):
            failed = tf.cast(tf.logical_not(finite), tf.float32)
            if not tf.executing_eagerly():
                options["name"] = "tf_lossscale_compat_agree"
            failures = hvd.allreduce(failed, **options)
        return tf.equal(failures, 0.0)


def is_horovod_class(cls: type) -> bool:
    """Returns whether Horovod made this class of an optimizer."""
    # Horovod's class derives from the wrapped optimizer's class and has the name of Horovod's
    # module. Each step calls this, so it must be cheap without Horovod.
    return "horovod" in sys.modules and any(
        base.__module__.split(".")[0] == "horovod" for base in cls.__mro__
    )


def agreement_or_default(
    agree: _types.Agree | None, optimizer: _types.HasApplyGradients, scaler: _scaler.Scaler
) -> _types.Agree | None:
    """Returns `agree`; if None, Horovod's, if it made the optimizer and the finite flag decides.

    Horovod also derives classes from this package's Keras optimizers, after their construction.
    """
    if agree is None and is_horovod_class(type(optimizer)) and not scaler.update_by_gradients:
        return HorovodAgreement(getattr(optimizer, "process_set", None))
    return agree


def check_accumulation(optimizer: _types.HasApplyGradients) -> None:
    """Raises a ValueError if Horovod's optimizer adds up gradients, here of a changing scale."""
    helper = getattr(optimizer, "_agg_helper", None) if is_horovod_class(type(optimizer)) else None
    passes = getattr(helper, "backward_passes_per_step", 1)
    if passes > 1:
        cure = "backward_passes_per_step=1"
        if isinstance(optimizer, _tf.Optimizer):
            cure = (
                "the other order, hvd.DistributedOptimizer(LossScaleOptimizer(opt, ...), "
                "backward_passes_per_step=...), which adds up unscaled gradients"
            )
        raise ValueError(
            f"Horovod's optimizer adds up the gradients of backward_passes_per_step={passes} "
            "steps, and a dynamic loss scale may scale each of these differently. The weights of "
            f"the processes would diverge. Write {cure}; or use a fixed loss scale."
        )


def check_not_keras_3(*classes: type) -> None:
    """Raises a ValueError if Horovod made one of these classes of Keras 3 optimizers."""
    if any(map(is_horovod_class, classes)):
        raise ValueError(
            "Horovod does not reduce the gradients of Keras 3 optimizers, so every process would "
            "train by itself. Wrap the tape instead, hvd.DistributedGradientTape(tape). Pass the "
            "plain optimizer and agree= to the loss-scale optimizer, and call get_scaled_loss, "
            "get_unscaled_gradients and apply_gradients; or use tf_keras."
        )


def check_reduced(optimizer: _types.HasApplyGradients, grads: Sequence[_types.Gradient]) -> None:
    """Raises a ValueError if Horovod's Keras optimizer has not reduced any gradients yet.

    It reduces the gradients that it computes itself, in `fit` and `minimize`. On TensorFlow 2.4 and
    later it applies all other gradients unreduced: every process would train by itself.
    """
    if "horovod" not in sys.modules or not _tf.at_least(2, 4):
        return
    for each in _wrapping.optimizer_chain(optimizer):
        # `_aggregated_gradients` is Horovod's flag.
        if is_horovod_class(type(each)) and getattr(each, "_aggregated_gradients", None) is False:
            if _is_alone(each) or _are_zeros(grads):
                continue
            raise ValueError(
                "apply_gradients was given gradients that Horovod's optimizer did not compute, "
                "so it has not reduced them over its processes. Call minimize; or wrap the tape, "
                "hvd.DistributedGradientTape(tape), and pass the plain optimizer, without "
                "hvd.DistributedOptimizer, to the loss-scale optimizer."
            )


def _is_alone(optimizer: _types.HasApplyGradients) -> bool:
    """Returns whether Horovod's optimizer reduces gradients over a single process."""
    import horovod.tensorflow as hvd

    process_set = getattr(optimizer, "process_set", None)
    return (hvd if process_set is None else process_set).size() == 1


def _are_zeros(grads: Sequence[_types.Gradient]) -> bool:
    # Some programs apply zeros to make slot variables before the first step.
    if not tf.executing_eagerly():
        return False
    grads = [tf.convert_to_tensor(grad) for grad in grads if grad is not None]
    return not any(tf.reduce_any(tf.not_equal(grad, 0)) for grad in grads)
