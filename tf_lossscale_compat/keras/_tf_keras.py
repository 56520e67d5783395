"""The wrapper for the optimizers that tf.keras 2.11 brought, of tf.keras and `tf_keras`."""

from absl import logging

from tf_lossscale_compat import _tf
from tf_lossscale_compat.keras import _shared

tf = _tf.tf


class TFKeras(_shared.WrapsTFKeras):
    """Mixed into that Keras' `LossScaleOptimizer` for such optimizers."""

    _is_legacy = False

    def _wrap(self, inner_optimizer, loss_scale):
        self._adopt(inner_optimizer, loss_scale)
        self._delegate_tracking()
        vars(self)["name"] = type(self).__name__
        inner_optimizer._is_wrapped_by_loss_scale_optimizer = True

    @_tf.do_not_convert
    def compute_gradients(self, loss, var_list, tape=None):
        """Returns (gradient, variable) pairs, the loss scaled up before and they down after.

        Args:
          loss: function without arguments that returns a float tensor, or with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.
        """
        self._note_whole_step()
        scaled = self._scaled(loss, tape)
        return self._unscaled_pairs(self._optimizer.compute_gradients(scaled, var_list, tape=tape))

    def _apply_pairs(self, grads_and_vars, scaled, **kwargs):
        grads, variables = zip(*grads_and_vars)
        with tf.init_scope():  # Branches of a conditional are no place to make slot variables.
            self.build(variables)

        def apply(grads, variables):
            self._optimizer.apply_gradients(list(zip(grads, variables)), **kwargs)

        self._step(list(grads), list(variables), scaled, apply)

    @_tf.do_not_convert
    def apply_gradients(self, grads_and_vars, name=None, **kwargs):
        """Applies gradients, unless the step is to be skipped, and updates the loss scale.

        Args:
          grads_and_vars: iterable of (gradient, variable) pairs: scaled gradients if this step
            called `scale_loss`, and else unscaled ones.
          name: str, handed to the inner optimizer, or None.
          **kwargs: handed to the inner optimizer, see there.

        Returns:
          The inner optimizer's count of applied steps, a variable.

        Raises:
          ValueError: called in a cross-replica context, or there is no gradient.
        """
        if name is not None:
            kwargs["name"] = name
        self._apply_pairs(grads_and_vars, self._calls.applying_gradients(), **kwargs)
        return self.iterations

    @property
    def variables(self):
        """The variables of the inner optimizer and after them those of the loss scale."""
        inner = self._optimizer.variables
        return type(inner)(list(inner) + _shared.variables_of(self._loss_scale))

    def set_weights(self, weights):
        """Sets `variables`, or those of the inner optimizer alone, from a list of arrays."""
        variables = self.variables
        inner = len(self._optimizer.variables)
        if len(weights) not in (inner, len(variables)):
            raise ValueError(
                f"weights must be {len(variables)} arrays, or {inner} for the inner optimizer "
                f"alone, got {len(weights)}."
            )
        for variable, weight in zip(variables, weights):
            if variable.shape != weight.shape:
                raise ValueError(
                    f"weights holds an array of shape {weight.shape} for {variable.name}, which "
                    f"has shape {variable.shape}."
                )
        for variable, weight in zip(variables, weights):
            variable.assign(weight)

    def load_own_variables(self, store):
        """Takes state from a `.keras` file, also of an optimizer without loss scale."""
        inner = self._optimizer.variables
        if len(store.keys()) != len(inner) or len(inner) == len(self.variables):
            super().load_own_variables(store)
            return
        logging.warning("The saved optimizer has no loss scale; this one keeps its own.")
        for i, variable in enumerate(inner):
            variable.assign(store[str(i)])
