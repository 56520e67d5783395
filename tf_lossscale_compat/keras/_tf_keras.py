"""The wrapper for the optimizers that tf.keras 2.11 brought, of tf.keras and `tf_keras`."""

from absl import logging

from tf_lossscale_compat import _tf
from tf_lossscale_compat.keras import _shared

tf = _tf.tf


class _CallableList(list):
    def __call__(self):
        return self


class TFKeras(_shared.WrapsTFKeras):
    """Mixed into that Keras' `LossScaleOptimizer` for such optimizers."""

    _is_legacy = False

    def _wrap(self, inner_optimizer, loss_scale):
        self._adopt(inner_optimizer, loss_scale)
        self.name = type(self).__name__  # Keras' own has none, and fails where it is to warn.
        self._delegate_tracking()

    # Keras' own has the next two in newer versions only; before, it would keep moving averages of
    # its own.

    def build(self, var_list):
        """Makes the inner optimizer's variables for these, once."""
        self._optimizer.build(var_list)

    def finalize_variable_values(self, var_list):
        """Has the inner optimizer put its moving averages, if it keeps any, into the variables."""
        self._optimizer.finalize_variable_values(var_list)

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
        grads, variables = _shared.split(grads_and_vars)
        with tf.init_scope():  # Branches of a conditional are no place to make slot variables.
            self.build(variables)

        def apply(grads, variables):
            self._optimizer.apply_gradients(list(zip(grads, variables)), **kwargs)

        self._step(grads, variables, scaled, apply)

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
        """The variables of the inner optimizer and after them those of the loss scale.

        A list that can be called, too: in TensorFlow 2.10 this was a method.
        """
        return _CallableList(_tf.variables_of(self._optimizer) + self._loss_scale._variables())

    def set_weights(self, weights):
        """Sets `variables`, or those of the inner optimizer alone, from a list of arrays."""
        variables = self.variables
        inner = len(_tf.variables_of(self._optimizer))
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

    def save_own_variables(self, store):
        """Puts state into a `.keras` file: the inner optimizer's by number, the scale's by name."""
        for i, variable in enumerate(_tf.variables_of(self._optimizer)):
            store[str(i)] = variable.numpy()
        for name, variable in _shared.named_variables_of(self._loss_scale).items():
            store[name] = variable.numpy()

    def load_own_variables(self, store):
        """Takes state from a `.keras` file, also of another loss-scale optimizer or of none."""
        saved = set(store.keys())
        inner = {str(i): variable for i, variable in enumerate(_tf.variables_of(self._optimizer))}
        if {name for name in saved if name.isdigit()} != set(inner):
            logging.warning("The saved optimizer has other variables; none of them is loaded.")
            return
        own = _shared.named_variables_of(self._loss_scale)
        if saved != set(inner) | set(own):
            logging.warning(
                "The saved optimizer has a loss scale of another kind or none; this one keeps its "
                "own."
            )
            own = {}
        for name, variable in {**inner, **own}.items():
            variable.assign(store[name])
