"""Agreement between processes outside `tf.distribute`: the argument `agree`, and Horovod.

Processes that average gradients must skip the same steps, or weights and loss scales diverge.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Iterator, NoReturn

from tf_lossscale_compat._core import _scale_or_manager, _tf
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


def check_agree(agree: object) -> None:
    """Raises a TypeError if the argument `agree` is not a function or None."""
    if not (agree is None or callable(agree)):
        raise TypeError(f"agree must be a function of a bool tensor or None, got {agree!r}.")


def resolve(
    agree: _types.Agree | None,
    optimizer: _types.HasApplyGradients,
    loss_scale: _types.LossScaleOrManager,
) -> _types.Agree | None:
    """Returns the function through which all processes agree, or None if none is needed.

    A user's function is returned. Else it is Horovod's, if Horovod made the wrapped `optimizer` and
    the loss scale needs no gradients: these are the same in all of Horovod's processes. `agree` may
    be Horovod's from an earlier call. Raises an error if the three do not go together.
    """
    check_agree(agree)
    if isinstance(agree, HorovodAgreement):
        agree = None
    if agree is not None and _scale_or_manager.needs_gradients(loss_scale):
        raise ValueError(
            f"agree works on the finite flag, but {loss_scale!r} needs the gradients. Use a "
            "LossScaleManager, whose update_loss_scale takes that flag."
        )
    if _scale_or_manager.may_change(loss_scale) or _scale_or_manager.is_read_by_user(loss_scale):
        check_takes_dynamic(optimizer)
    for each in optimizer_chain(optimizer):
        agree = agreement_or_default(agree, each, loss_scale)
    return agree


def lost_agreement(finite: tf.Tensor) -> NoReturn:
    """Stands for the `agree` of an optimizer made from a config, and raises an error at a step."""
    raise ValueError(
        "This optimizer is from the config of one with agree=, and a config cannot hold a "
        "function. Set optimizer.agree to a function, or to None for a single process."
    )


def optimizer_chain(
    optimizer: _types.HasApplyGradients | None,
) -> Iterator[_types.HasApplyGradients]:
    """Yields an optimizer and the optimizers that it wraps, outermost first."""
    names = ("inner_optimizer", "_optimizer", "_opt", "_base_optimizer", "optimizer", "opt")
    seen = set()
    while optimizer is not None and id(optimizer) not in seen:
        yield optimizer
        seen.add(id(optimizer))
        inner = [getattr(optimizer, "__dict__", {}).get(name) for name in names]
        optimizer = next((each for each in inner if hasattr(each, "apply_gradients")), None)


# Horovod.


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
    agree: _types.Agree | None,
    optimizer: _types.HasApplyGradients,
    loss_scale: _types.LossScaleOrManager,
) -> _types.Agree | None:
    """Returns `agree`, or if it is None and Horovod made the optimizer, Horovod's; see `resolve`.

    Horovod also derives classes from this package's Keras optimizers, after their construction.
    """
    is_horovods = agree is None and is_horovod_class(type(optimizer))
    if is_horovods and not _scale_or_manager.needs_gradients(loss_scale):
        return HorovodAgreement(getattr(optimizer, "process_set", None))
    return agree


def passes_per_step(optimizer: object) -> int:
    """Returns of how many steps Horovod adds up gradients for this optimizer; 1 without it."""
    helper = getattr(optimizer, "_agg_helper", None) if is_horovod_class(type(optimizer)) else None
    return getattr(helper, "backward_passes_per_step", 1)


def check_takes_dynamic(optimizer: _types.HasApplyGradients) -> None:
    """Raises a ValueError if Horovod adds up gradients of several steps inside an optimizer."""
    for each in optimizer_chain(optimizer):
        passes = passes_per_step(each)
        if passes <= 1:
            continue
        cure = "backward_passes_per_step=1"
        if isinstance(each, _tf.Optimizer):
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
