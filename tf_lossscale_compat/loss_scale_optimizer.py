"""Loss-scale optimizers around `tf.compat.v1.train.Optimizer`s: contrib's of r1.15 and r2.0's."""

import functools
import numbers

from tf_lossscale_compat import _gradients, _replicas, _tf
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat import loss_scale_manager as lsm

tf = _tf.tf
tf1 = _tf.tf1

_KERAS_HINT = (
    "A Keras optimizer is wrapped by "
    "tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer instead."
)


class _BaseLossScaleOptimizer(_tf.Optimizer):
    """Scales the loss, unscales the gradients, and applies them if the step is not to be skipped.

    What the two public classes share; they differ in where the scale comes from and what decides.
    """

    def __init__(self, opt, policy):
        """Wraps `opt`; `policy` is the loss scale or manager, for checkpoints."""
        get_name = getattr(opt, "get_name", None)
        super().__init__(
            use_locking=getattr(opt, "_use_locking", False),
            name=get_name() if get_name else type(opt).__name__,
        )
        for trackable, name in ((opt, "base_optimizer"), (policy, "loss_scale")):
            if isinstance(trackable, _tf.Trackable):
                self._track_trackable(trackable, name)

    # Whether a callable loss is called at once in a graph for a Session. r1.15's optimizer did, so
    # the one it wrapped needed not take callables.
    _calls_loss_in_graphs = False

    @property
    def _wrapped(self):
        """The optimizer that computes and applies gradients."""
        raise NotImplementedError

    def _scale(self):
        """Returns the loss scale, a scalar float32 tensor."""
        raise NotImplementedError

    def _reciprocal(self, scale):
        """Returns one over `scale`, rounded as the original did."""
        raise NotImplementedError

    def _policy_variables(self):
        """Returns the list of variables that the loss scale is kept in."""
        raise NotImplementedError

    def _step(self, grads, apply_if, name):
        """Updates the loss scale from `grads` and calls `apply_if(flag)`; returns an op or None."""
        raise NotImplementedError

    def compute_gradients(
        self,
        loss,
        var_list=None,
        gate_gradients=_tf.Optimizer.GATE_OP,
        aggregation_method=None,
        colocate_gradients_with_ops=False,
        grad_loss=None,
    ):
        """Returns gradients of `loss`, computed with the loss scaled up and then scaled down.

        Args:
          loss: float tensor or callable that returns one; in eager mode a callable.
          var_list: variables to differentiate with respect to; None for all trainable ones.
          gate_gradients: this and the following are handed to the wrapped optimizer, see
            `tf.compat.v1.train.Optimizer.compute_gradients`.
          aggregation_method: see there.
          colocate_gradients_with_ops: see there.
          grad_loss: see there.

        Returns:
          A list of (gradient, variable) pairs. A gradient has the dtype that the wrapped optimizer
          gave it, is `tf.IndexedSlices` where that was, and None where the loss does not depend on
          the variable.
        """
        scale = self._scale()
        if callable(loss) and self._calls_loss_in_graphs and _tf.in_plain_graph():
            loss = loss()
        if callable(loss):
            unscaled_loss = loss

            def scaled_loss():
                return _gradients.scale_loss(unscaled_loss(), scale)

        else:
            scaled_loss = _gradients.scale_loss(loss, scale)
        grads_and_vars = self._wrapped.compute_gradients(
            scaled_loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        grads_and_vars = list(grads_and_vars)
        grads = _gradients.unscale((grad for grad, _ in grads_and_vars), self._reciprocal(scale))
        return list(zip(grads, (var for _, var in grads_and_vars)))

    @_tf.do_not_convert
    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Applies unscaled gradients, unless the step is to be skipped, and updates the loss scale.

        A skipped step changes no variable, no slot and not `global_step`. The loss scale is updated
        once for each step, and on all replicas alike.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs; a gradient may be None.
          global_step: variable to increment by one if the gradients are applied, or None.
          name: str, name of the returned operation, or None.

        Returns:
          In graph mode an operation; in eager mode None.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        if _replicas.in_cross_replica_context():
            raise ValueError(
                "apply_gradients was called in a cross-replica context and must be called in a "
                "replica context: inside a function that strategy.run runs."
            )
        _replicas.check_strategy()
        grads_and_vars = list(grads_and_vars)
        if all(grad is None for grad, _ in grads_and_vars):
            raise ValueError(
                "grads_and_vars has no gradient for any variable, got {!r}.".format(
                    [getattr(var, "name", var) for _, var in grads_and_vars]
                )
            )
        return self._apply(grads_and_vars, global_step, name)

    def _apply(self, grads_and_vars, global_step, name):
        # The name is no argument: strings made in each replica would be one per replica.
        step = functools.partial(self._apply_together, name=name)
        return _replicas.together(step, (grads_and_vars, global_step))

    def _apply_together(self, grads_and_vars, global_step, name):
        def apply_here(*args):
            return _tf.as_operation(self._wrapped.apply_gradients(*args, name))

        def apply():
            return _replicas.in_each_replica(apply_here, (grads_and_vars, global_step))

        def apply_if(flag):
            if isinstance(flag, bool):
                return apply() if flag else _tf.as_operation(None)
            return _tf.cond(flag, apply, functools.partial(_tf.as_operation, None))

        return self._step([grad for grad, _ in grads_and_vars], apply_if, name)

    def variables(self):
        """Returns the variables of the wrapped optimizer and of the loss scale, a list."""
        return _tf.variables_of(self._wrapped) + self._policy_variables()

    def get_slot(self, var, name):
        """Returns the wrapped optimizer's slot variable `name` for `var`, or None."""
        return self._wrapped.get_slot(var, name)

    def get_slot_names(self):
        """Returns the names of the wrapped optimizer's slots, a list of str."""
        # A checkpoint finds the slots through the child base_optimizer. Naming them here too would
        # save them twice, which TensorFlow refuses.
        if _tf.called_by_checkpointing():
            return []
        return self._wrapped.get_slot_names()

    def get_name(self):
        """Returns the wrapped optimizer's name."""
        return self._wrapped.get_name() if hasattr(self._wrapped, "get_name") else self._name

    def _create_or_restore_slot_variable(self, *args, **kwargs):
        # A checkpoint of the wrapped optimizer alone, restored into this one.
        return self._wrapped._create_or_restore_slot_variable(*args, **kwargs)

    def _never_called(self, *args, **kwargs):
        raise RuntimeError("The wrapped optimizer applies gradients, not this one.")

    _apply_dense = _apply_sparse = _never_called
    _resource_apply_dense = _resource_apply_sparse = _never_called


def _has_methods(instance, *names):
    """Whether `instance`, which must be no class, has all these methods."""
    return not isinstance(instance, type) and all(
        callable(getattr(instance, name, None)) for name in names
    )


def _group(operations, name=None):
    """Groups operations and tensors, skipping None; None in eager mode."""
    if tf.executing_eagerly():
        return None
    return tf.group(*[op for op in operations if op is not None], name=name)


class LossScaleOptimizer(_BaseLossScaleOptimizer):
    """Wraps an optimizer with the loss scale of a manager; non-finite steps are skipped.

    Public as `contrib.mixed_precision.LossScaleOptimizer`.

    Example:
        opt = tf.compat.v1.train.AdamOptimizer(1e-3)
        manager = ExponentialUpdateLossScaleManager(2**15, incr_every_n_steps=1000)
        train_op = LossScaleOptimizer(opt, manager).minimize(loss, global_step=step)

    Source: TensorFlow r1.15 `tf.contrib.mixed_precision.LossScaleOptimizer`. Beyond it, None
    gradients are carried through, sparse gradients stay sparse, `variables()` and the slots can be
    asked for.
    """

    _calls_loss_in_graphs = True

    def __init__(self, opt, loss_scale_manager):
        """Wraps `opt`.

        Args:
          opt: a `tf.compat.v1.train.Optimizer`, or anything with its `compute_gradients` and
            `apply_gradients`.
          loss_scale_manager: a `LossScaleManager`, or anything with its two methods. Beyond r1.15
            also a `LossScale` or what `loss_scale.get` takes.

        Raises:
          TypeError: `opt` or `loss_scale_manager` lacks these methods.
          ValueError: `loss_scale_manager` is no loss scale, or the strategy in scope is
            unsupported.
        """
        # Some Keras optimizers have methods of these names, which mean something else.
        if not _has_methods(opt, "compute_gradients", "apply_gradients") or (
            _tf.is_keras_optimizer(opt)
        ):
            raise TypeError(
                "opt must have compute_gradients and apply_gradients, as a "
                f"tf.compat.v1.train.Optimizer does, got {opt!r}. {_KERAS_HINT}"
            )
        _replicas.check_strategy()
        manager = _as_manager(loss_scale_manager)
        is_adapter = isinstance(manager, _LossScaleManagerAdapter)
        super().__init__(opt, manager.loss_scale if is_adapter else manager)
        self._opt = opt
        self._loss_scale_manager = manager

    @property
    def _wrapped(self):
        return self._opt

    def _scale(self):
        return self._loss_scale_manager.get_loss_scale()

    def _policy_variables(self):
        return _tf.variables_of(self._loss_scale_manager)

    def _reciprocal(self, scale):
        return tf.math.reciprocal(scale)

    def _step(self, grads, apply_if, name):
        finite = _replicas.all_finite(grads)
        applied = apply_if(finite)
        with _replicas.agreed():
            update = self._loss_scale_manager.update_loss_scale(finite)
        return _group([applied, update])


class MixedPrecisionLossScaleOptimizer(_BaseLossScaleOptimizer):
    """Wraps an optimizer with a `LossScale`, which also decides what is skipped.

    Public as `train.experimental.MixedPrecisionLossScaleOptimizer`.

    Example:
        opt = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
        train_op = MixedPrecisionLossScaleOptimizer(opt, "dynamic").minimize(loss)

    Source: TensorFlow r1.14-2.x
    `tf.compat.v1.train.experimental.MixedPrecisionLossScaleOptimizer`.
    """

    def __init__(self, opt, loss_scale):
        """Wraps `opt`.

        Args:
          opt: a `tf.compat.v1.train.Optimizer`.
          loss_scale: a `LossScale` or what `loss_scale.get` takes, but not None.

        Raises:
          ValueError: `opt` is no v1 optimizer, `loss_scale` is None or no loss scale, or the
            strategy in scope is unsupported.
        """
        if not isinstance(opt, _tf.Optimizer):
            raise ValueError(
                "opt must be an instance of tf.compat.v1.train.Optimizer, "
                f"got {opt!r}. {_KERAS_HINT}"
            )
        if loss_scale is None:
            raise ValueError("loss_scale cannot be None")
        _replicas.check_strategy()
        loss_scale = loss_scale_lib.get(loss_scale)
        super().__init__(opt, loss_scale)
        self._optimizer = opt
        self._loss_scale = loss_scale

    @property
    def _wrapped(self):
        return self._optimizer

    def _scale(self):
        return self._loss_scale()

    def _reciprocal(self, scale):
        return 1.0 / scale

    def _policy_variables(self):
        return self._loss_scale._variables()

    def _apply(self, grads_and_vars, global_step, name):
        fixed = type(self._loss_scale) is loss_scale_lib.FixedLossScale
        if fixed and not self._loss_scale.skip_nonfinite:
            # Nothing to decide and nothing to update, so replicas need not meet.
            return self._wrapped.apply_gradients(grads_and_vars, global_step, name)
        return super()._apply(grads_and_vars, global_step, name)

    def _step(self, grads, apply_if, name):
        should_apply, update = self._loss_scale._decide(grads)
        if tf.executing_eagerly():
            apply_if(should_apply)  # First: if it fails, the loss scale has not moved.
            update()
            return None
        # The original's order, in which conditionals number the names of variables.
        updated = update()
        return _group([apply_if(should_apply), updated], name or self.get_name())


class _LossScaleManagerAdapter(lsm.LossScaleManager):
    """A manager that takes its scale from a `LossScale`."""

    def __init__(self, loss_scale):
        self.loss_scale = loss_scale

    def get_loss_scale(self):
        return self.loss_scale()

    def update_loss_scale(self, finite_grads):
        def update(finite):
            # A loss scale looks at gradients; one that is NaN or not says the same.
            witness = tf.compat.v2.where(finite, tf.constant(0.0), tf.constant(float("nan")))
            return self.loss_scale.update([witness])[0]

        return _replicas.once_per_step(update, finite_grads)

    def variables(self):
        return self.loss_scale._variables()


def _as_manager(identifier):
    """Returns a loss-scale manager for a manager, a `LossScale`, or what `loss_scale.get` takes."""
    if _has_methods(identifier, "get_loss_scale", "update_loss_scale"):
        return identifier
    if isinstance(identifier, loss_scale_lib.ManagerLossScale):
        return identifier.manager
    known = (loss_scale_lib.LossScale, dict, str, numbers.Real)
    if not isinstance(identifier, known):
        raise TypeError(
            "loss_scale_manager must be a LossScaleManager, or a LossScale, number, 'dynamic' or "
            f"config dict, got {identifier!r}."
        )
    return _LossScaleManagerAdapter(loss_scale_lib.get(identifier))


def enable_mixed_precision_graph_rewrite(opt, loss_scale="dynamic"):
    """Wraps `opt` with a loss scale and turns TensorFlow's auto-mixed-precision rewrite on.

    The rewrite makes float32 graphs compute in float16 where that is safe, on hardware that gains
    by it; sessions and `tf.function`s made from now on are rewritten.

    Args:
      opt: a `tf.compat.v1.train.Optimizer` or a Keras optimizer.
      loss_scale: a `LossScale` or what `loss_scale.get` takes, but not None.

    Returns:
      A `MixedPrecisionLossScaleOptimizer`, or of a Keras optimizer a
      `keras.mixed_precision.experimental.LossScaleOptimizer`.

    Raises:
      ValueError: `opt` is neither or has a loss scale already, or `loss_scale` is None or
        no loss scale. The rewrite stays as it was.

    Source: TensorFlow r1.14-2.x `tf.train.experimental.enable_mixed_precision_graph_rewrite`.
    """
    # TensorFlow's own classes are not all public; they have the same names.
    names = {cls.__name__ for cls in type(opt).__mro__}
    if names & {LossScaleOptimizer.__name__, MixedPrecisionLossScaleOptimizer.__name__}:
        raise ValueError(f"opt has a loss scale already, got {opt!r}.")
    was_enabled = _tf.graph_rewrite_is_enabled()
    _tf.set_graph_rewrite(True)
    try:
        if _tf.is_keras_optimizer(opt):
            from tf_lossscale_compat.keras.mixed_precision import experimental  # Imports Keras.

            return experimental.LossScaleOptimizer(opt, loss_scale)
        return MixedPrecisionLossScaleOptimizer(opt, loss_scale)
    except Exception:
        _tf.set_graph_rewrite(was_enabled)
        raise


def disable_mixed_precision_graph_rewrite():
    """Turns TensorFlow's auto-mixed-precision rewrite off again, for sessions and functions.

    Source: TensorFlow r1.14-2.x `tf.train.experimental.disable_mixed_precision_graph_rewrite`.
    """
    _tf.set_graph_rewrite(False)
