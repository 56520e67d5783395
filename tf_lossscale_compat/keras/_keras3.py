"""The wrapper for optimizers of Keras 3 on its TensorFlow backend."""

from typing import Any

from absl import logging

from tf_lossscale_compat import _tf
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.keras import _shared

tf = _tf.tf


class Keras3(_shared.LossScaling):
    """Mixed into Keras 3's `LossScaleOptimizer`, whose own scale and step it takes the place of.

    The loss scale's variables are Keras variables here too, in the order and under the names that
    Keras' own class has for them, so that files of either are read by the other.
    """

    def _wrap(self, inner_optimizer, loss_scale):
        backend = self._keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"{type(self).__name__} needs the TensorFlow backend of Keras, and the backend is "
                f"{backend!r}. Set the environment variable KERAS_BACKEND=tensorflow."
            )
        super(self._native, self).__init__(learning_rate=0.0, name=None)
        self._adopt(None, loss_scale)
        # As an attribute, and under this name, Keras' own files and checkpoints know it.
        self.inner_optimizer = inner_optimizer
        # Gradients would be divided twice.
        inner_optimizer.loss_scale_factor = None
        self._track_trackable(loss_scale, "loss_scale")
        if isinstance(loss_scale, loss_scale_lib.DynamicLossScale):
            self.step_counter = self._own("step_counter", loss_scale.good_steps)
            self.dynamic_scale = self._own("dynamic_scale", loss_scale.current_loss_scale)
        else:
            for name, variable in _shared.named_variables_of(loss_scale).items():
                self._own(name, variable)

    inner_optimizer: Any = None  # An attribute of each instance, no property.

    def _own(self, name, variable):
        """Makes `variable` one of the optimizer's, as the Keras variable that is returned."""
        owned = self._keras.Variable(
            initializer=variable, trainable=False, dtype=variable.dtype.name, name=name
        )
        if owned.value is not variable:
            raise RuntimeError(
                f"Keras {self._keras.__version__} cannot take a tf.Variable over as its own; a "
                "newer Keras 3 can."
            )
        self._track_variable(owned)
        return owned

    def build(self, variables):
        """Makes the inner optimizer's variables for these, once."""
        if not self.built:
            self.inner_optimizer.build(variables)
            super(self._native, self).build(variables)

    def _unscale_for(self, grads, variables):
        # Their "gradients" are new values (float8 training), not derivatives of the loss.
        keeps = [getattr(variable, "overwrite_with_gradient", False) for variable in variables]
        unscaled = self._unscale([None if keep else grad for grad, keep in zip(grads, keeps)])
        return [grad if keep else new for grad, new, keep in zip(grads, unscaled, keeps)]

    def _apply_pairs(self, grads_and_vars, scaled, **kwargs):
        grads, variables = _shared.split(grads_and_vars)
        if not self.built:
            with self._keras.name_scope(self.name, caller=self):
                self.build(variables)
        self._step(grads, variables, scaled, self.inner_optimizer.apply)

    @_tf.do_not_convert
    def apply_gradients(self, grads_and_vars):
        """Applies gradients, unless the step is to be skipped, and updates the loss scale.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs: scaled gradients if this step
            called `scale_loss`, as Keras' own training step does, and else unscaled ones.

        Returns:
          The inner optimizer's count of applied steps.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        self._apply_pairs(grads_and_vars, self._calls.applying_gradients())
        return self.iterations

    @_tf.do_not_convert
    def apply(self, grads, trainable_variables=None):
        if trainable_variables is None:
            if not self.built:
                raise ValueError(
                    "trainable_variables may be left out only once the optimizer is built: call "
                    "build(variables) first."
                )
            trainable_variables = self._trainable_variables
        super().apply(grads, trainable_variables)

    @_tf.do_not_convert
    def minimize(self, loss, var_list, tape=None):
        """Computes gradients of the scaled loss and applies them, as optimizers before Keras 3 did.

        Args:
          loss: function without arguments that returns a float tensor, or with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.
        """
        if tape is None:
            if not callable(loss):
                raise ValueError(f"loss must be callable where no tape is given, got {loss!r}.")
            tape = tf.GradientTape()
        with tape:
            scaled = self._scale(loss() if callable(loss) else loss)
        variables = list(var_list() if callable(var_list) else var_list)
        self._apply_pairs(zip(tape.gradient(scaled, variables), variables), scaled=True)
        return self.iterations

    def load_own_variables(self, store):
        """Takes state from a file, also of another loss-scale optimizer or of the inner one alone.

        The inner optimizer's variables are the last in all of them. What comes before is taken if
        there is as much of it as this optimizer has; else the loss scale keeps its value. Nothing
        is taken before the optimizer is built, since the inner one has no slots then.
        """
        if not self.built:
            logging.warning(
                "%s has not been built, so the saved optimizer's state is not loaded. Call "
                "build(model.trainable_variables) first.",
                self.name,
            )
            return
        inner = self.inner_optimizer.variables
        if len(store.keys()) == len(self.variables) or len(store.keys()) < len(inner):
            super().load_own_variables(store)
            return
        logging.warning(
            "The saved optimizer has a loss scale of another kind or none; %s keeps its own.",
            self.name,
        )
        first = len(store.keys()) - len(inner)
        for i, variable in enumerate(inner):
            variable.assign(store[str(first + i)])

    def _serialize_inner(self):
        return self._keras.saving.serialize_keras_object(self.inner_optimizer)

    @classmethod
    def _deserialize_inner(cls, config, custom_objects):
        return cls._keras.saving.deserialize_keras_object(config, custom_objects=custom_objects)
