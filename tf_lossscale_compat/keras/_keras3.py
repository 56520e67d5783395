"""The wrapper for optimizers of Keras 3 on its TensorFlow backend."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Iterable, NoReturn

from absl import logging

from tf_lossscale_compat._core import (
    _arguments,
    _autograph,
    _horovod,
    _scaler,
    _step,
    _tf,
    _unscaling,
)
from tf_lossscale_compat._scalers import _loss_scales
from tf_lossscale_compat.keras import _aggregation, _calls, _shared

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._core._types import Keras3Optimizer as _MixedIntoKeras3
else:
    tf = _tf.tf
    _MixedIntoKeras3 = object

_LossScaling: Any = _shared.LossScaling  # Whose properties get setters here.
# The call that an override of what `fit` calls has to make, for errors.
_CALL = {
    _calls.LOSS_SCALED: (
        "return self.get_scaled_loss(loss), and make the optimizer with scaled=True"
    ),
    _calls.UNSCALED: (
        "call get_unscaled_gradients, and super().apply_gradients(grads_and_vars, scaled=False)"
    ),
}

_SUMS_NOTHING = (
    "Keras {} sums no gradients over replicas, with a loss-scale optimizer or without: in fit, and "
    "in a step that does not sum them itself, each replica trains by itself on its part of the "
    "data. Install Keras 3.5 or newer, or use tf_keras."
)


def _version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


class Keras3(_shared.WeightDecay, _MixedIntoKeras3):
    """Mixed into Keras 3's `LossScaleOptimizer`; replaces its loss scale and its step.

    The loss scale's variables are Keras variables here too, in the order and under the names that
    Keras' own class has for them, so that files of either are read by the other.
    """

    _optimizer: _types.Keras3Optimizer
    _tflsc_keras_variables: dict[str, Any]  # Those of the loss scale, as Keras variables.

    # Keras' base class keeps these on the wrapper, too; only the inner optimizer's are used.
    _tflsc_inner_only = (
        "clipnorm",
        "clipvalue",
        "ema_momentum",
        "ema_overwrite_frequency",
        "global_clipnorm",
        "gradient_accumulation_steps",
        "loss_scale_factor",
        "use_ema",
        "weight_decay",
    )

    # Methods of Keras' own class that its steps go through.
    _tflsc_forbidden_overrides = (
        "_common_apply",
        "_stateful_handle_finite_grads",
        "_stateful_handle_non_finite_grads",
        "_tf_apply",
        "_unscale_grads",
        "check_finite",
    )

    def _tflsc_wrap(
        self, inner_optimizer: Any, loss_scale: _loss_scales.LossScale, name: str | None
    ) -> str:
        backend = self._tflsc_keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"{type(self).__name__} needs the TensorFlow backend of Keras, and the backend is "
                f"{backend!r}. Set the environment variable KERAS_BACKEND=tensorflow."
            )
        super(self._tflsc_keras_own, self).__init__(learning_rate=0.0, name=name)
        # As an attribute, and under this name, Keras' own files and checkpoints know it.
        self.inner_optimizer = inner_optimizer
        # Gradients would be divided twice.
        inner_optimizer.loss_scale_factor = None
        self.__dict__["_tflsc_keras_variables"] = {}
        self._tflsc_track_loss_scale(loss_scale)
        return self.name  # In configs always, as in those of Keras' own class.

    def _tflsc_check_inner(self, optimizer: object) -> None:
        _horovod.refuse(type(optimizer), type(self))
        if not _aggregation.has_keras_methods(optimizer, ["apply_gradients"]):
            raise ValueError(
                f"{self._tflsc_argument} must have no apply_gradients of its own, got "
                f"{optimizer!r}: a loss-scale optimizer of Keras 3 calls apply, and would pass "
                "over it. Override apply(self, grads, trainable_variables=None) instead, which "
                "apply_gradients of Keras 3 calls, too; the gradients are unscaled there."
            )

    _tflsc_fixed_scale_hint = (
        " Or leave this wrapper out, and set `loss_scale_factor` of the optimizer."
    )
    _tflsc_scaled_by_default = True
    _tflsc_counts_skipped = False
    _tflsc_copies_begin_anew = True
    _tflsc_says_dynamic = False  # Keras' own knows no other, and refuses the entry.
    # Configs of Keras 3.0 to 3.11 hold these of the wrapper, too.
    _tflsc_ignored_in_configs = _tflsc_inner_only

    def _tflsc_refuse(self, arguments: tuple[str, ...]) -> NoReturn:
        for name in arguments:
            if name in self._tflsc_ignored_in_configs:
                raise ValueError(
                    f"{type(self).__name__} takes no `{name}`: set it on the `inner_optimizer`, "
                    "which applies the gradients."
                )
        names = ", ".join(f"`{name}`" for name in arguments)
        raise ValueError(f"{type(self).__name__} does not take these arguments: {names}.")

    # Before 3.9, Keras' own class counts no steps here, and its base class assigns a variable.

    @property
    def iterations(self) -> Any:
        """The inner optimizer's count of applied steps."""
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        self._track_trackable(variable, "iterations")

    inner_optimizer: Any = None  # An attribute of each instance, no property.

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "dynamic_scale" and not hasattr(value, "assign"):
            self._tflsc_refuse_to_set(name, value)
        # Keras' own class lets it be replaced, too.
        replaces = name == "inner_optimizer" and "_tflsc_options" in vars(self)
        if replaces:
            self._tflsc_check_wrapped(value, "enabled" not in self._tflsc_options)
        super().__setattr__(name, value)
        if name == "name" and "_tflsc_options" in vars(self):
            self._tflsc_options["name"] = value
        if replaces:
            value.loss_scale_factor = None
            self.__dict__["_optimizer"] = value

    def _tflsc_track_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        if self.built:
            raise ValueError(
                "_loss_scale cannot be replaced once the optimizer is built: Keras 3 knows its "
                "variables by their places. Make a new optimizer with the other loss scale."
            )
        super()._tflsc_track_loss_scale(loss_scale)
        if self._tflsc_keras_variables:  # Checkpoints take no list that something was removed from.
            for name, variable in self._tflsc_keras_variables.items():
                if getattr(self, name, None) is variable:
                    delattr(self, name)
            self._tflsc_keras_variables.clear()
            del self._tracker
            super(self._tflsc_keras_own, self).__init__(learning_rate=0.0, name=self.name)
        if isinstance(loss_scale, _loss_scales.DynamicLossScale):
            self.step_counter = self._tflsc_as_keras_variable("step_counter", loss_scale.good_steps)
            self.dynamic_scale = self._tflsc_as_keras_variable(
                "dynamic_scale", loss_scale.current_loss_scale
            )
        for name, variable in _shared.named_variables_of(loss_scale).items():
            if not any(variable is owned.value for owned in self._tflsc_keras_variables.values()):
                self._tflsc_as_keras_variable(name, variable)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        children = super()._trackable_children(*args, **kwargs)
        # All that this package's own hold is owned, and Keras' own class has no such child: each
        # would miss the other's in a checkpoint. Where a checkpoint has one, it is found all the
        # same. One of a user's may hold more than its variables.
        if type(self._loss_scale) in (_loss_scales.DynamicLossScale, _loss_scales.FixedLossScale):
            children.pop("loss_scale", None)
        return children

    def _lookup_dependency(self, name: str, *children: Any) -> Any:
        found = super()._lookup_dependency(name, *children)
        if found is None and children and name == "loss_scale":
            return self._loss_scale
        return found

    @_LossScaling.initial_scale.setter
    def initial_scale(self, value: Any) -> None:
        value = _arguments.positive("initial_scale", value)
        self._tflsc_settable("initial_scale")._initial_loss_scale = value
        if not self.built:
            self.dynamic_scale.assign(value)

    @_LossScaling.dynamic_growth_steps.setter
    def dynamic_growth_steps(self, value: Any) -> None:
        value = _arguments.period("dynamic_growth_steps", value, "int64")
        self._tflsc_settable("dynamic_growth_steps")._increment_period = value

    def _tflsc_settable(self, name: str) -> _loss_scales.DynamicLossScale:
        if not isinstance(self._loss_scale, _loss_scales.DynamicLossScale):
            raise AttributeError(
                f"{name} can be set where the loss scale is a DynamicLossScale, and it is "
                f"{self._loss_scale!r}."
            )
        return self._loss_scale

    def _tflsc_as_keras_variable(self, name: str, variable: tf.Variable) -> Any:
        """Makes `variable` one of the optimizer's, as the Keras variable that is returned."""
        with self._tflsc_keras.name_scope(self.name, caller=self):  # State trees go by the path.
            owned = self._tflsc_keras.Variable(
                initializer=variable, trainable=False, dtype=variable.dtype.name, name=name
            )
        owned._value = variable  # Before 3.10, Keras makes a copy of it.
        self._track_variable(owned)
        self._tflsc_keras_variables[name] = owned
        return owned

    @property
    def variables(self) -> _shared.CallableList:
        """The optimizer's own variables, the loss scale's, and the inner optimizer's.

        A list that can be called, too: before Keras 3 this was a method of some optimizers.
        """
        return _shared.CallableList(super().variables)

    def _tflsc_count_skipped(self, number: int | tf.Tensor) -> None:
        self.inner_optimizer.iterations.assign_add(number)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Not supported, as in Keras' own class on TensorFlow.

        Raises:
          ValueError: always.
        """
        raise ValueError(
            f"stateless_apply of {type(self).__name__} is not supported: a step assigns "
            "variables. Call apply(grads, trainable_variables), inside a tf.function if need be."
        )

    def build(self, variables: Iterable[Any]) -> None:
        """Makes the inner optimizer's variables for these, once."""
        if not self.built:
            if not self.inner_optimizer.built:  # Not every build checks; slots would be lost.
                self._tflsc_build_inner(variables)
                self.inner_optimizer.built = True  # Nor does every build set it.
            # From there on its own class keeps these variables, and checkpoints name them so.
            if _version(self._tflsc_keras.__version__) >= (3, 12):
                super(self._tflsc_keras_own, self).build(variables)
            self.built = True

    def _tflsc_build_inner(self, variables: Iterable[_types.Variable]) -> None:
        """Builds the inner optimizer as Keras' own class does: while Keras tracks no variables.

        Files have the same order then: the placeholders of an Adafactor are not among the
        optimizer's variables. Neither is the product that a `Nadam` keeps, which Keras' own class
        loses in files. Here it comes after all others.
        """
        inner = self.inner_optimizer
        with sys.modules[self._tflsc_keras_own.__module__].tracking.DotNotTrackScope():
            inner.build(variables)
        known = {id(variable) for variable in inner.variables}
        cls = type(self._variables[0])  # Keras 3.3 shows a class of its own as keras.Variable.
        for value in list(vars(inner).values()):
            if isinstance(value, cls) and id(value) not in known:
                inner._track_variable(value)

    @_autograph.do_not_convert
    def scale_loss(self, loss: Any) -> tf.Tensor:
        # As by Keras' own: a large scale is infinite in float16.
        loss = tf.convert_to_tensor(loss)
        if loss.dtype.is_integer or loss.dtype.size < 4:
            loss = tf.cast(loss, tf.float32)
        return super().scale_loss(loss)

    def _tflsc_check_passed_over(self) -> None:
        """Raises a ValueError where a step with scaled gradients is none of a subclass's own.

        Its methods would be passed over in silence.
        """
        for name, called in (
            (_calls.LOSS_SCALED, "scale_loss"),
            (_calls.UNSCALED, "apply_gradients"),
        ):
            if _step.overrides(self, Keras3, name) and not _step.overrides(self, Keras3, called):
                raise ValueError(
                    f"{type(self).__name__} overrides {name}, which fit of Keras 3 and other steps "
                    f"with scale_loss do not call. Override {called} too, which they call: there "
                    f"{_CALL[name]}."
                )

    # Divided as by Keras' own: a reciprocal may be zero in a gradient's dtype, or not exact.

    def _tflsc_check_scaler(self, scaler: _scaler.Scaler) -> None:
        pass

    def _tflsc_unscale(self, grads: Iterable[_types.Gradient]) -> list[_types.Gradient]:
        grads = list(grads)
        return [
            None if grad is None else tf.cast(divided, grad.dtype)
            for grad, divided in zip(
                grads, _unscaling.divide(grads, _scaler.scale(self._loss_scale))
            )
        ]

    def _tflsc_to_unscale(
        self, grads: list[_types.Gradient], variables: list[_types.Variable], scale: tf.Tensor
    ) -> tuple[list[_types.Gradient], _unscaling.Unscaling | None]:
        if "enabled" in self._tflsc_options:  # By one, and in the gradients' own dtype.
            return grads, None
        if any(getattr(variable, "overwrite_with_gradient", False) for variable in variables):
            return _shared.of_scaled(_unscaling.divide, grads, variables, scale), None
        return grads, _unscaling.Unscaling(scale, divides=True)

    def _tflsc_apply_pairs(self, grads_and_vars: Iterable[_types.Pair], scaled: bool) -> None:
        grads, variables = _shared.unzip_pairs(grads_and_vars)
        _shared.check_context(self, grads)
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            version = self._tflsc_keras.__version__
            if _version(version) < (3, 5):
                self._tflsc_calls.warn(_SUMS_NOTHING.format(version))
        if not self.built:
            with self._tflsc_keras.name_scope(self.name, caller=self):
                self.build(variables)
        self._tflsc_step(grads, variables, scaled, self.inner_optimizer.apply)

    @_autograph.do_not_convert
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *, scaled: bool | None = None
    ) -> Any:
        pairs, said = list(grads_and_vars), scaled
        scaled = self._tflsc_calls.are_scaled(said, [grad for grad, _ in pairs])
        if scaled and said is None and _calls.SCALED in self._tflsc_calls.asked:
            self._tflsc_check_passed_over()
        if _step.overrides(self, Keras3, "apply"):  # Keras' own class calls it from here, too.
            if not scaled:
                raise ValueError(
                    f"{type(self).__name__} has an apply of its own, which is given scaled "
                    "gradients, and apply_gradients was given unscaled ones. Call apply with "
                    "scaled gradients; or override apply_gradients in place of apply."
                )
            self.apply(*_shared.unzip_pairs(pairs))
        else:
            self._tflsc_apply_pairs(pairs, scaled)
        return self.iterations

    def _tflsc_built_for(self) -> list[_types.Variable]:
        if not self.built:
            raise ValueError(
                "trainable_variables may be left out only once the optimizer is built: call "
                "build(variables) first."
            )
        return self.inner_optimizer._trainable_variables

    @_autograph.converts_functions_given
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Computes gradients of the scaled loss and applies them, as optimizers before Keras 3 did.

        Args:
          loss: function without arguments that returns a float tensor, or with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.
        """
        self._tflsc_minimize(loss, var_list, tape)
        return self.iterations

    def _tflsc_scaled_gradients(
        self, loss: _types.Loss, var_list: Any, tape: tf.GradientTape | None
    ) -> list[_types.Pair]:
        if tape is None:
            if not callable(loss):
                raise ValueError(f"loss must be callable where no tape is given, got {loss!r}.")
            tape = tf.GradientTape()
        scaled = self._tflsc_scaled(loss, tape)
        if callable(scaled):
            with tape:
                scaled = scaled()
        variables = list(var_list() if callable(var_list) else var_list)
        return list(zip(tape.gradient(scaled, variables), variables))

    def load_own_variables(self, store: Any) -> None:
        """Takes state from a file, also of another loss-scale optimizer or of the inner one alone.

        The inner optimizer's variables are the last in all of them. What comes before is taken if
        there is as much of it as this optimizer has; else the loss scale keeps its value. Nothing
        is taken before the optimizer is built, since the inner one has no slots then, nor from a
        file of one that was not.
        """
        if not self.built:
            logging.warning(
                "%s has not been built, so the saved optimizer's state is not loaded. Call "
                "build(model.trainable_variables) first.",
                self.name,
            )
            return
        inner = self.inner_optimizer.variables
        own = self.variables[: len(self.variables) - len(inner)]
        first = len(store.keys()) - len(inner)
        values = [store[str(i)] for i in range(len(store.keys()))]
        # Of an optimizer that was not built there are fewer, and other variables stand there.
        if first < 0 or (first != len(own) and not _shared.values_fit(values[first:], inner)):
            super().load_own_variables(store)  # It warns.
            return
        # Files of Keras' own class hold two of the loss scale, which come first here, too.
        dynamic = isinstance(self._loss_scale, _loss_scales.DynamicLossScale)
        more = len(self._tflsc_keras_variables) - 2 if dynamic else 0
        # As many may be of another kind of loss scale, with its counter where the scale is here.
        if first in (len(own), len(own) - more) and _shared.values_fit(values[:first], own):
            own = own[:first]
        else:
            logging.warning(
                "The saved optimizer has a loss scale of another kind or none; %s keeps its own.",
                self.name,
            )
            own, values = [], values[first:]
        _shared.assign_all([*own, *inner], values)

    def _tflsc_all_variables(self) -> list[_types.Variable]:
        return self.variables

    @classmethod
    def _tflsc_deserialize_inner(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None
    ) -> Any:
        return cls._tflsc_keras.saving.deserialize_keras_object(
            config, custom_objects=custom_objects
        )
