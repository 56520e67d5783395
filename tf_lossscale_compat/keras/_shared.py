"""What the wrappers of all Keras families share: the step, and the loss scale's face."""

import inspect
from typing import Any

from tf_lossscale_compat import _gradients, _replicas, _tf
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat import loss_scale_manager as lsm
from tf_lossscale_compat.keras import _calls

tf = _tf.tf


# Stands for the class of Keras that each family puts beside this one, with all its attributes.
_MixedIntoKeras: Any = object


class LossScaling(_MixedIntoKeras):
    """Scales losses, unscales gradients once, and has the inner optimizer apply them or not.

    Mixed into a class of each Keras family, which adds what that family's optimizers have beyond
    this and says how gradients are applied.
    """

    def _adopt(self, inner_optimizer, loss_scale):
        """Remembers both; a family calls it at the place that its own constructor needs."""
        # Past every __setattr__ of a family: checkpoints are to find these under one name each.
        self.__dict__.update(
            _optimizer=inner_optimizer, _loss_scale=loss_scale, _calls=_calls.Calls()
        )

    # The loss scale's face.

    @property
    def dynamic(self):
        """Whether the loss scale changes by itself."""
        fixed = (loss_scale_lib.FixedLossScale, lsm.FixedLossScaleManager)
        return not isinstance(getattr(self._loss_scale, "manager", self._loss_scale), fixed)

    @property
    def initial_scale(self):
        """The loss scale at the start, a float; None if a custom `LossScale` does not tell."""
        if isinstance(self._loss_scale, loss_scale_lib.FixedLossScale):
            return self._loss_scale.get_config()["loss_scale_value"]
        return getattr(self._loss_scale, "initial_loss_scale", None)

    @property
    def dynamic_growth_steps(self):
        """After how many finite steps in a row the scale grows, an int; None if it does not."""
        return getattr(self._loss_scale, "increment_period", None)

    @property
    def dynamic_counter(self):
        """Finite steps since the loss scale last changed, a variable; None if not counted."""
        return getattr(self._loss_scale, "good_steps", None)

    @property
    def lr(self):
        """The inner optimizer's learning rate, by the name that Keras 1 had for it."""
        return self.learning_rate

    @lr.setter
    def lr(self, value):
        self.learning_rate = value

    # Scaling and unscaling.

    def _scale(self, loss):
        return _gradients.scale_loss(loss, self._loss_scale())

    def _unscale(self, grads):
        return _gradients.unscale(grads, 1.0 / self._loss_scale())

    @_tf.do_not_convert
    def scale_loss(self, loss):
        """Returns `loss` times the loss scale, in the manner of Keras 3.

        After it, in the same step, `apply` and `apply_gradients` take scaled gradients.

        Args:
          loss: float tensor.
        """
        self._calls.note(_calls.SCALED)
        return self._scale(loss)

    @_tf.do_not_convert
    def get_scaled_loss(self, loss):
        """Returns `loss` times the loss scale; call `get_unscaled_gradients` with its gradients.

        Args:
          loss: float tensor, or a function without arguments that returns one.

        Returns:
          A tensor of the dtype of `loss`, or a function that returns one.
        """
        self._calls.note(_calls.SCALED_BY_HAND)
        if callable(loss):
            return lambda: self._scale(loss())
        return self._scale(loss)

    @_tf.do_not_convert
    def get_unscaled_gradients(self, grads):
        """Returns `grads` divided by the loss scale; `apply_gradients` then takes them as they are.

        Args:
          grads: iterable of tensors, `tf.IndexedSlices` and None.

        Returns:
          A list as long; a gradient keeps its dtype, sparse stays sparse, None stays None.
        """
        self._calls.note(_calls.UNSCALED)
        return self._unscale(grads)

    # The step.

    def _step(self, grads, variables, scaled, apply):
        """Unscales if need be, decides, applies or skips, and updates the loss scale.

        Args:
          grads: list of gradients.
          variables: list of variables, as long.
          scaled: bool, whether `grads` are to be divided by the loss scale.
          apply: function of both lists, called in a replica context, that has the inner optimizer
            apply unscaled gradients; returns an operation, a tensor or None.

        Returns:
          In a graph for a Session an operation, else what `tf.group` makes of it.
        """
        if _replicas.in_cross_replica_context():
            raise ValueError(
                f"{type(self).__name__} was asked to apply gradients in a cross-replica context. "
                "Call it in a replica context: inside a function that strategy.run runs."
            )
        _replicas.check_strategy()
        if scaled:
            grads = self._unscale_for(grads, variables)
        fixed = isinstance(self._loss_scale, loss_scale_lib.FixedLossScale)
        if fixed and not self._loss_scale.skip_nonfinite:
            return _tf.as_operation(apply(grads, variables))

        def apply_here(*args):
            return _tf.as_operation(apply(*args))

        def step(*args):
            def apply_everywhere():
                return _replicas.in_each_replica(apply_here, args)

            should_apply, update = self._loss_scale._decide(args[0])
            if tf.executing_eagerly():
                if should_apply:
                    apply_everywhere()
                update()  # Last: if applying fails, the loss scale has not moved.
                return None
            if isinstance(should_apply, bool):
                applied = apply_everywhere() if should_apply else tf.no_op()
            else:
                applied = tf.cond(should_apply, apply_everywhere, tf.no_op)
            updated = update()
            return tf.group(applied, *([] if updated is None else [updated]))

        return _replicas.together(step, (list(grads), list(variables)))

    def _unscale_for(self, grads, variables):
        """`_unscale`, where a family may leave the gradients of some variables alone."""
        return self._unscale(grads)

    def _apply_pairs(self, grads_and_vars, scaled, **kwargs):
        """Applies (gradient, variable) pairs; `kwargs` are for the inner `apply_gradients`."""
        raise NotImplementedError

    @_tf.do_not_convert
    def apply(self, grads, trainable_variables=None):
        """Applies scaled gradients in the manner of Keras 3, unless the step is to be skipped.

        Args:
          grads: list of gradients of a loss that was scaled.
          trainable_variables: list of variables, as long; on Keras 3 None stands for those that
            the optimizer was built with.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        if trainable_variables is None:
            raise ValueError("trainable_variables must be the list of variables, got None.")
        grads, variables = list(grads), list(trainable_variables)
        if len(grads) != len(variables):
            raise ValueError(
                f"grads must be one for each of {len(variables)} variables, got {len(grads)}."
            )
        self._calls.applying_scaled()
        self._apply_pairs(zip(grads, variables), scaled=True)


def split(grads_and_vars):
    """Returns the list of gradients and that of variables.

    Raises:
      ValueError: there is no gradient.
    """
    grads_and_vars = list(grads_and_vars)
    grads = [grad for grad, _ in grads_and_vars]
    variables = [variable for _, variable in grads_and_vars]
    if all(grad is None for grad in grads):  # Also where there are no pairs.
        names = [getattr(variable, "name", variable) for variable in variables]
        raise ValueError(f"No gradients provided for any variable of {names}.")
    return grads, variables


def named_variables_of(loss_scale):
    """The variables of a `LossScale`, a dict from the names they were made with, without scopes."""
    return {
        variable.name.split(":")[0].split("/")[-1]: variable for variable in loss_scale._variables()
    }


class WrapsTFKeras(LossScaling):
    """What both kinds of optimizers of tf.keras and `tf_keras` share beyond that."""

    @property
    def inner_optimizer(self):
        """The optimizer that is wrapped."""
        return self._optimizer

    def _delegate_tracking(self):
        """Makes checkpoints see the inner optimizer in this one's place, with the loss scale in it.

        TensorFlow 2.4 to 2.15 and `tf_keras` write them so.
        """
        delegating: Any = next(c for c in type(self).__mro__ if "DelegatingTrackable" in c.__name__)
        self._optimizer._is_wrapped_by_loss_scale_optimizer = True  # There is room for one.
        self.__dict__["_trackable"] = self._optimizer  # Which some ask for while it is being set.
        delegating.__init__(self, self._optimizer)
        self._track_trackable(self._loss_scale, "loss_scale")

    def _note_whole_step(self):
        self._calls.note(_calls.SCALED_BY_HAND, _calls.UNSCALED)

    def _scaled(self, loss, tape):
        """`loss`, a tensor on `tape` or a function, scaled."""
        if callable(loss):
            return lambda: self._scale(loss())
        if tape is None:
            return self._scale(loss)
        with tape:
            return self._scale(loss)

    def _unscaled_pairs(self, grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        grads = self._unscale(grad for grad, _ in grads_and_vars)
        return list(zip(grads, (variable for _, variable in grads_and_vars)))

    def _serialize_inner(self):
        return self._keras.optimizers.serialize(self._optimizer)

    @classmethod
    def _deserialize_inner(cls, config, custom_objects):
        deserialize = cls._keras.optimizers.deserialize
        options = {}
        if "use_legacy_optimizer" in inspect.signature(deserialize).parameters:
            options["use_legacy_optimizer"] = cls._is_legacy
        return deserialize(config, custom_objects=custom_objects, **options)
