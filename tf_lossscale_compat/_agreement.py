"""Agreement between processes that `tf.distribute` knows nothing of: `agree`, Horovod, clusters.

Processes that average their gradients by other means must skip the same steps, or their weights and
loss scales part for good.
"""

from tf_lossscale_compat import _policy, _tf

tf = _tf.tf
tf1 = _tf.tf1


def function_for(agree, optimizer, policy, skips_nonfinite=False):
    """Returns what asks all processes whether a step was finite, or None where nobody is to be.

    Args:
      agree: function of a scalar bool tensor that returns its AND over all processes, or None, for
        which a Horovod optimizer brings its own.
      optimizer: the optimizer that is wrapped.
      policy: its loss scale or manager.
      skips_nonfinite: bool, whether a non-finite step is skipped even if the policy would not.

    Raises:
      TypeError: `agree` is no function.
      ValueError: the optimizer adds up gradients of several steps, which a loss scale that moves
        has scaled differently; or a step may be skipped that a SyncReplicasOptimizer is to take.
    """
    if not (agree is None or callable(agree)):
        raise TypeError(f"agree must be a function of a bool tensor or None, got {agree!r}.")
    if skips_nonfinite or not _policy.always_applies(policy):
        check_order(optimizer)
    for each in _tf.with_wrapped(optimizer):
        helper = getattr(each, "_agg_helper", None) if _is_horovods(type(each)) else None
        passes = getattr(helper, "backward_passes_per_step", 1)
        if passes > 1 and not _policy.never_moves(policy):
            cure = "backward_passes_per_step=1"
            if isinstance(each, _tf.Optimizer):
                cure = (
                    "the other order, hvd.DistributedOptimizer(LossScaleOptimizer(opt, ...), "
                    "backward_passes_per_step=...), which adds up unscaled gradients"
                )
            raise ValueError(
                f"Horovod's optimizer adds up the gradients of backward_passes_per_step={passes} "
                "steps, and a loss scale that moves has scaled each of these differently: the "
                f"processes' weights would part. Write {cure}; or use a fixed loss scale."
            )
        if agree is None and _is_horovods(type(each)):
            agree = _HorovodAgree(getattr(each, "process_set", None))
    return agree


def _is_horovods(cls):
    # Horovod makes a class that derives from the wrapped optimizer's own, with its module's name.
    return any(base.__module__.split(".")[0] == "horovod" for base in cls.__mro__)


def check_horovod(*classes):
    """Raises a ValueError where one of these, classes of Keras 3 optimizers, is of Horovod."""
    if any(map(_is_horovods, classes)):
        raise ValueError(
            "Horovod reduces no gradients of Keras 3 optimizers: every process would train by "
            "itself. Wrap the tape instead, hvd.DistributedGradientTape(tape), give the "
            "loss-scale optimizer the plain optimizer and agree=, and call get_scaled_loss, "
            "get_unscaled_gradients and apply_gradients; or use tf_keras."
        )


def check_reduced(optimizer):
    """Raises a ValueError where Horovod's Keras optimizer has not reduced any gradients yet.

    It does so where it computes them, in `fit` and `minimize`. From TensorFlow 2.4 on it takes what
    comes from elsewhere as it is: every process would train by itself.
    """
    if not _tf.at_least(2, 4):
        return
    for each in _tf.with_wrapped(optimizer):
        # The second is Horovod's own flag.
        if _is_horovods(type(each)) and getattr(each, "_aggregated_gradients", None) is False:
            raise ValueError(
                "apply_gradients was given gradients that Horovod's optimizer did not compute, "
                "and so has not reduced over its processes. Call minimize; or wrap the tape, "
                "hvd.DistributedGradientTape(tape), and give the loss-scale optimizer the "
                "plain optimizer, which hvd.DistributedOptimizer is not around."
            )


def check_order(optimizer):
    """Raises a ValueError around SyncReplicasOptimizer, whose steps must not be skipped."""
    sync = tf1.train.SyncReplicasOptimizer
    if any(isinstance(each, sync) for each in _tf.with_wrapped(optimizer)):
        raise ValueError(
            "A loss scale around SyncReplicasOptimizer would have one worker skip a step, and the "
            "others wait for its gradients for ever. Write the other order, "
            "SyncReplicasOptimizer(LossScaleOptimizer(opt, ...), ...), which skips the whole step."
        )


def reopen_accumulators(step, variables, global_step):
    """Returns a step after which SyncReplicasOptimizer's accumulators are at the global step.

    They count each step that they are emptied for. After one that was skipped they are ahead of it,
    and would drop all gradients from then on as out of date, while the workers wait.

    Args:
      step: operation, a step of the optimizer that is inside of SyncReplicasOptimizer, or maybe is.
      variables: list of what it trains, by whose names the accumulators are found.
      global_step: what it increments if it is applied, or None.
    """
    if global_step is None or not _tf.in_plain_graph():
        return step
    names = {f"{variable.name}/grad_accum".encode() for variable in variables}
    done = [step]
    for accumulator in tf1.get_default_graph().get_operations():
        kind = accumulator.type
        if not kind.endswith("ConditionalAccumulator"):
            continue
        if accumulator.get_attr("shared_name") not in names:
            continue
        name = "AccumulatorSetGlobalStep"
        put = getattr(tf.raw_ops, f"Resource{name}" if kind.startswith("Resource") else name)
        with tf.control_dependencies([step]), tf1.device(accumulator.device):
            now = tf.cast(global_step.read_value(), tf.int64)
            done.append(put(handle=accumulator.outputs[0], new_global_step=now))
    return tf.group(*done) if len(done) > 1 else step


class _HorovodAgree:
    """The AND over all of Horovod's processes, or those of a set; can be copied and pickled."""

    def __init__(self, process_set):
        self._process_set = process_set

    def __call__(self, finite):
        import horovod.tensorflow as hvd

        options = {} if self._process_set is None else {"process_set": self._process_set}
        options.update({"op": hvd.Sum} if hasattr(hvd, "Sum") else {"average": False})
        failures = hvd.allreduce(tf.cast(tf.logical_not(finite), tf.float32), **options)
        return tf.equal(failures, 0.0)


class Lost:
    """Stands for an `agree` that a config told of and cannot hold; a step raises an error."""

    def __call__(self, finite):
        raise ValueError(
            "agree was given to the optimizer that this one's config is of, and no config can hold "
            "a function. Set optimizer.agree, to a function or to None for a single process."
        )


def ask(agree, finite):
    """Returns what `agree` makes of the flag, a scalar bool tensor.

    Raises:
      ValueError: it is no such tensor.
    """
    agreed = tf.convert_to_tensor(agree(finite))
    if agreed.dtype != tf.bool or agreed.shape.rank not in (0, None):
        raise ValueError(f"agree must return a scalar bool tensor, got {agreed!r}.")
    return agreed
