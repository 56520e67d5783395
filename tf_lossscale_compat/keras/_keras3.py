"""Loss-scale optimizers of Keras 3, with the TensorFlow backend."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Iterable, NoReturn

from absl import logging

from tf_lossscale_compat._core import (
    _agreement,
    _arguments,
    _autograph,
    _callers,
    _gradients,
    _graphs,
    _replicas,
    _scale_or_manager,
    _tf,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scales import _loss_scales
from tf_lossscale_compat.keras import _base, _keras_step, _scaled_rule

if TYPE_CHECKING:
    import types

    from tf_lossscale_compat._core import _types

    # The base class of Keras 3's optimizers, for type checkers.
    from tf_lossscale_compat._core._types import Keras3Optimizer as _Keras3Optimizer
else:
    _Keras3Optimizer = object

_KerasOptimizerBase: Any = _base.KerasOptimizerBase  # For the properties that get a setter here.
# What a step with scaled gradients does not call, what it does, and what that has to do there.
_BYPASSED = (
    ("get_scaled_loss", "scale_loss", "call super().scale_loss"),
    (
        "get_unscaled_gradients",
        "apply_gradients",
        "call get_unscaled_gradients, and super().apply_gradients(grads_and_vars, scaled=False)",
    ),
)

_SUMS_NOTHING = (
    "Keras {} sums no gradients over replicas, with a loss-scale optimizer or without: in fit, and "
    "in a step that does not sum them itself, each replica trains by itself on its part of the "
    "data. Install Keras 3.5 or newer, or use tf_keras."
)


def _refuse(next_creator: object, **kwargs: Any) -> NoReturn:
    """Raises the error for a variable that TensorFlow would make, but fail to initialize."""
    raise ValueError(
        "On several replicas, an optimizer of Keras 3 cannot make its variables in a tf.function. "
        "Call optimizer.build(model.trainable_variables) under strategy.scope() before."
    )


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


class Keras3Step(_keras_step.KerasStep):
    """One call of an optimizer of Keras 3."""

    optimizer: Keras3OptimizerBase
    wrapped: _types.Keras3Optimizer
    counts_skipped_by_default = False

    # Gradients are divided as by Keras' own class.

    @staticmethod
    def division(scale: tf.Tensor) -> _gradients.Division:
        return _gradients.Division(scale, _gradients.divide)

    @classmethod
    def unscale(cls, scale: Any, grads: _types.Gradients) -> _types.Gradients:
        return [
            None if grad is None else tf.cast(divided, grad.dtype)
            for grad, divided in zip(grads, super().unscale(scale, grads))
        ]

    def compute_scaled_gradients(
        self, loss: _types.Loss, var_list: Any, tape: tf.GradientTape | None
    ) -> list[_types.Pair]:
        if tape is None:
            if not callable(loss):
                raise ValueError(f"loss must be callable if no tape is given, got {loss!r}.")
            tape = tf.GradientTape()
        scaled: Any = self.scale_loss_on_tape(loss, tape)
        if callable(scaled):
            with tape:
                scaled = scaled()
        variables = list(var_list() if callable(var_list) else var_list)
        return list(zip(tape.gradient(scaled, variables), variables))

    def prepare(self, pairs: Iterable[_types.Pair]) -> _types.Unzipped:
        grads, variables = _keras_step.unzip_and_check(pairs)
        if not self.optimizer.built:
            self.check_context()
        self.check_no_session_graph()
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            version = self.optimizer._tflsc_family.keras.__version__
            if _major_minor(version) < (3, 5):
                self.optimizer._tflsc.scaled_rule.warn_once(_SUMS_NOTHING.format(version))
        if not self.optimizer.built:
            self.optimizer.build(variables)
        return grads, variables

    def apply_with_wrapped(self, grads: _types.Gradients, variables: _types.Variables) -> None:
        if not tf.executing_eagerly():
            grads = _graphs.to_current_graph(grads)
        self.wrapped.apply(grads, variables)

    def add_skipped_steps(self, number: int | tf.Tensor) -> None:
        self.wrapped.iterations.assign_add(number)

    def check_bypassed(self) -> None:
        """Raises a ValueError if a step with scaled gradients would silently bypass overrides."""
        for name, caller, call in _BYPASSED:
            if self.overrides(name) and not self.overrides(caller):
                raise ValueError(
                    f"{type(self.optimizer).__name__} overrides {name}, which fit of Keras 3 and "
                    f"other steps with scale_loss do not call. Override {caller}, which they do "
                    f"call: there {call}."
                )


class Keras3OptimizerBase(_base.KerasOptimizerBase, _Keras3Optimizer):
    """Base class of the loss-scale optimizers of Keras 3."""

    _tflsc_step_class = Keras3Step
    # Configs of Keras 3.0 to 3.11 hold them.
    _tflsc_without_effect = (
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
    _tflsc_uncalled = (
        "_common_apply",
        "_stateful_handle_finite_grads",
        "_stateful_handle_non_finite_grads",
        "_tf_apply",
        "_unscale_grads",
        "check_finite",
    )
    _tflsc_takes_scaled = True
    _tflsc_copies_lose_state = True
    # All of Keras' own class are dynamic, and it refuses the entry.
    _tflsc_config_says_dynamic = False

    _optimizer: _types.Keras3Optimizer
    dynamic_scale: Any
    exclude_from_weight_decay = _base.inner_property("exclude_from_weight_decay")

    # Before Keras 3.9, Keras' own class counts no steps, and its base class assigns a variable.

    @property
    def iterations(self) -> Any:
        """The inner optimizer's count of steps, an integer scalar variable.

        Skipped steps count as `count_skipped` of the constructor says.
        """
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, variable: Any) -> None:
        self._track_trackable(variable, "iterations")

    # Keras' own class has an attribute and not a property. It is None only in the constructor.
    inner_optimizer: _types.Keras3Optimizer = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "dynamic_scale" and not hasattr(value, "assign"):
            _base.refuse_to_set(self, name, value)
        data: Any = vars(self).get("_tflsc")
        constructed = data is not None and data.constructed
        replaces_inner = constructed and name == "inner_optimizer"
        if replaces_inner:  # In Keras' own class it can be replaced, too.
            self._tflsc_check_can_wrap(value)
            _base.check_count_skipped(data.options.get("count_skipped"), value)
        super().__setattr__(name, value)
        if replaces_inner:
            value.loss_scale_factor = None
            self.__dict__["_optimizer"] = value
        elif constructed and name == "name":
            data.options["name"] = value

    def _track_trackable(self, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, _tf.Trackable):  # Optimizers of Keras 3.0 are in no checkpoint.
            super()._track_trackable(*args, **kwargs)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        is_plain = not self._tflsc.keras_variables
        if not is_plain:
            self._tflsc_copy_count_and_rate()
        return self._tflsc_children(is_plain, *args, **kwargs)

    def _lookup_dependency(self, name: str, *children: Any) -> Any:
        saved = _callers.names_in_checkpoint()
        if not saved:
            return super()._lookup_dependency(name, *children)
        is_plain = "inner_optimizer" not in saved
        found = self._tflsc_children(is_plain).get(name)
        if found is None and name == "loss_scale":
            return self._loss_scale
        return found

    @_KerasOptimizerBase.initial_scale.setter
    def initial_scale(self, value: Any) -> None:
        value = _arguments.positive("initial_scale", value)
        loss_scale = self._tflsc_settable_loss_scale("initial_scale")
        # As the constructor was called.
        options = _scale_or_manager.data_of(loss_scale).extra_config
        floor, ceiling = options.get("min_loss_scale", 1.0), options.get("max_loss_scale")
        _loss_scales.checked_bounds("initial_scale", value, floor, ceiling)
        loss_scale._initial_loss_scale = value
        if not self.built:
            self.dynamic_scale.assign(value)

    @_KerasOptimizerBase.dynamic_growth_steps.setter
    def dynamic_growth_steps(self, value: Any) -> None:
        value = _arguments.step_count("dynamic_growth_steps", value, "int64")
        self._tflsc_settable_loss_scale("dynamic_growth_steps")._increment_period = value

    def _tflsc_settable_loss_scale(self, name: str) -> _loss_scales.DynamicLossScale:
        if not isinstance(self._loss_scale, _loss_scales.DynamicLossScale):
            raise AttributeError(
                f"{name} can be set only if the loss scale is a DynamicLossScale, but it is "
                f"{self._loss_scale!r}."
            )
        return self._loss_scale

    @property
    def variables(self) -> _base.CallableList:
        """The variables of the optimizer, the loss scale and the inner optimizer.

        They are a list that can be called, because some optimizers before Keras 3 had a method.
        A call returns what it returned there: the inner optimizer's step count and slots.
        """
        inner = self.inner_optimizer
        # Slots are in lists. Attributes are the rate, and what a `Nadam` multiplies up.
        others = {id(each) for each in vars(inner).values()} - {id(inner.iterations)}
        called = [each for each in inner.variables if id(each) not in others]
        return _base.CallableList(super().variables, called)

    def build(self, variables: Iterable[Any]) -> None:
        """Makes the inner optimizer's variables for these variables, once."""
        if self.built:
            return
        inner, keras = self.inner_optimizer, self._tflsc_family.keras
        if not inner.built:  # A second build would lose slots, and not every `build` checks.
            too_late = not tf.executing_eagerly() and _replicas.makes_several_copies()
            if _major_minor(keras.__version__) < (3, 5):  # There TensorFlow initializes them.
                too_late = False
            # State trees have paths as keys: these are as in the first step of Keras' own class.
            scope = keras.name_scope(self.name, caller=self)
            refusal = tf.variable_creator_scope(_refuse) if too_late else contextlib.nullcontext()
            try:
                with scope, refusal:
                    self._tflsc_build_inner(variables)
            except BaseException:
                inner.built = False  # Keras sets it before it makes variables.
                raise
            inner.built = True  # Not every `build` sets it.
        # Checkpoints of Keras 3.12 and later name the variables that this adds to the wrapper.
        if _major_minor(keras.__version__) >= (3, 12):
            self._tflsc_super_of_original().build(variables)
        self.built = True

    def _tflsc_build_inner(self, variables: Iterable[Any]) -> None:
        """Builds the inner optimizer as Keras' own class does: while Keras tracks no variables.

        Files then have the same order, because an `Adafactor`'s placeholders are not among its
        variables. Keras' own class also loses the product that a `Nadam` has. Here it comes last.
        """
        inner = self.inner_optimizer
        with sys.modules[self._tflsc_family.original.__module__].tracking.DotNotTrackScope():
            inner.build(variables)
        tracked = {id(variable) for variable in inner.variables}
        cls = type(self._variables[0])  # In Keras 3.3, it is not keras.Variable.
        for value in list(vars(inner).values()):
            if isinstance(value, cls) and id(value) not in tracked:
                inner._track_variable(value)

    @_autograph.do_not_convert
    def scale_loss(self, loss: Any) -> tf.Tensor:
        # As in Keras' own class: a large scale would be infinite in float16.
        loss = tf.convert_to_tensor(loss)
        if loss.dtype.is_integer or loss.dtype.size < 4:
            loss = tf.cast(loss, tf.float32)
        return super().scale_loss(loss)

    @_autograph.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        *args: Any,
        scaled: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if args or kwargs:
            _refuse_step_arguments(self, [*map(repr, args), *kwargs])
        pairs, step = list(grads_and_vars), Keras3Step(self)
        if not isinstance(scaled, bool):
            rule = self._tflsc.scaled_rule
            if not rule.called_methods:
                step.check_context()  # Its error comes before that of the rule.
            scaled = rule.decide(scaled, pairs)
            if scaled and _scaled_rule.SCALE_LOSS in rule.called_methods:
                step.check_bypassed()
        if step.overrides("apply"):  # Keras' own class calls it here, too.
            if not scaled:
                raise ValueError(
                    f"{type(self).__name__} overrides apply, which takes scaled gradients, but "
                    "apply_gradients was given unscaled gradients. Call apply with scaled "
                    "gradients; or override apply_gradients instead of apply."
                )
            self.apply(*_keras_step.unzip_and_check(pairs))
        else:
            step.take_pairs(pairs, scaled)
        return self.inner_optimizer.iterations

    @_autograph.convert_passed_functions
    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Computes gradients of the scaled loss and applies them, as optimizers before Keras 3 do.

        Args:
          loss: function without arguments that returns a scalar float tensor; with `tape` a tensor.
          var_list: list of variables, or a function that returns one.
          tape: the `tf.GradientTape` that recorded `loss`, or None.

        Returns:
          `iterations`.

        Raises:
          ValueError: `loss` is a tensor and `tape` is None; no variable has a gradient; or called
            in a cross-replica context.
        """
        pairs, options = Keras3Step(self).compute_for_minimize(loss, var_list, tape)
        self.apply_gradients(pairs, **options)
        return self.iterations

    def save_own_variables(self, store: Any) -> None:
        """Writes the state to a file, by number."""
        if self._tflsc.keras_variables:
            super().save_own_variables(store)
        else:
            self.inner_optimizer.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Reads the state from a file, also of another loss-scale optimizer or of the inner one.

        In all of them the inner optimizer's variables come last. If the file has as many variables
        before them as this optimizer saves, they are read; else the loss scale keeps its state.
        Nothing is read if this optimizer is not built, or the saved one was not.
        """
        if not self.built:
            logging.warning(
                "%s has not been built, so the saved optimizer's state is not loaded. Call "
                "build(model.trainable_variables) first.",
                self.name,
            )
            return
        inner = self.inner_optimizer.variables
        outer = self._variables if self._tflsc.keras_variables else []
        saved_outer = len(store.keys()) - len(inner)
        values = [store[str(i)] for i in range(len(store.keys()))]
        # An optimizer that was not built saved fewer variables.
        may_be_other = saved_outer != len(outer) or not outer
        if saved_outer < 0 or (may_be_other and not _base.matches(values[saved_outer:], inner)):
            super().load_own_variables(store)  # It warns.
            return
        # Files of Keras' own class have two of the loss scale's variables, first as here.
        dynamic = isinstance(self._loss_scale, _loss_scales.DynamicLossScale)
        extra = len(self._tflsc.keras_variables) - 2 if dynamic else 0
        # The shapes and kinds of numbers tell another class of loss scale with as many variables.
        known_number = saved_outer in (len(outer), len(outer) - extra)
        if known_number and _base.matches(values[:saved_outer], outer):
            outer = outer[:saved_outer]
        else:
            logging.warning(
                "The saved optimizer has a loss scale of another kind or none; %s keeps its own.",
                self.name,
            )
            outer, values = [], values[saved_outer:]
        _base.assign_all([*outer, *inner], values)

    # Making an optimizer.

    @classmethod
    def _tflsc_refuse_arguments(cls, arguments: Iterable[str]) -> NoReturn:
        for each in arguments:
            if each in cls._tflsc_without_effect:
                raise ValueError(
                    f"{cls.__name__} takes no `{each}`: set it on the `inner_optimizer`, "
                    "which applies the gradients."
                )
        names = ", ".join(f"`{each}`" for each in arguments)
        raise ValueError(f"{cls.__name__} does not take these arguments: {names}. {_base.IT_TAKES}")

    @classmethod
    def _tflsc_check_name(cls, name: object) -> None:
        super()._tflsc_check_name(name)
        if name is not None:
            cls._tflsc_family.keras.name_scope(name)  # Raises Keras' error of a name with a slash.

    @classmethod
    def _tflsc_check_can_wrap(cls, optimizer: Any) -> None:
        super()._tflsc_check_can_wrap(optimizer)
        backend = cls._tflsc_family.keras.backend.backend()
        if backend != "tensorflow":
            raise ValueError(
                f"{cls.__name__} needs the TensorFlow backend of Keras, but the backend is "
                f"{backend!r}. Set the environment variable KERAS_BACKEND=tensorflow."
            )
        _agreement.check_not_keras_3(cls, *map(type, _agreement.optimizer_chain(optimizer)))
        if not _keras_step.are_keras_methods(optimizer, ["apply_gradients"]):
            raise ValueError(
                f"{cls._tflsc_family.optimizer_argument} must have no apply_gradients of its own, "
                f"got {optimizer!r}: a loss-scale optimizer of Keras 3 calls only apply. Override "
                "apply(self, grads, trainable_variables=None) instead. apply_gradients of Keras 3 "
                "calls it, too, and the gradients are unscaled there."
            )

    @classmethod
    def _tflsc_check_loss_scale(cls, loss_scale: _loss_scales.LossScale) -> None:
        # Division by the scale needs no reciprocal of it.
        _scale_or_manager.check_has_no_owner(loss_scale)

    @classmethod
    def _tflsc_deserialize(
        cls, keras: types.ModuleType, config: dict[str, Any], custom_objects: dict[str, Any] | None
    ) -> Any:
        return keras.saving.deserialize_keras_object(config, custom_objects=custom_objects)

    def _tflsc_init_base_class(self, name: str | None) -> str:
        self._tflsc_super_of_original().__init__(learning_rate=0.0, name=name)
        # Files and checkpoints of Keras' own class have it under this name.
        self.inner_optimizer = self._optimizer
        self._optimizer.loss_scale_factor = None  # It would divide the gradients once more.
        self._tflsc_track_loss_scale(self._loss_scale)
        return self.name  # All configs of Keras' own class have it.

    def _tflsc_super_of_original(self) -> Any:
        """Returns `super()` of Keras' own loss-scale class."""
        return super(self._tflsc_family.original, self)

    # The loss scale's variables are also Keras variables. Order and names are those of Keras' own
    # class, so that each class reads the other's files.

    def _tflsc_track_loss_scale(self, loss_scale: _loss_scales.LossScale) -> None:
        if self.built:
            raise ValueError(
                "_loss_scale cannot be replaced once the optimizer is built: Keras 3 knows its "
                "variables by their order. Make a new optimizer with the other loss scale."
            )
        super()._tflsc_track_loss_scale(loss_scale)
        keras_variables = self._tflsc.keras_variables
        if keras_variables:
            # Checkpoints reject a list from which a variable was removed: make a new one.
            for name, variable in keras_variables.items():
                if getattr(self, name, None) is variable:
                    delattr(self, name)
            keras_variables.clear()
            del self._tracker
            self._tflsc_super_of_original().__init__(learning_rate=0.0, name=self.name)
        if isinstance(loss_scale, _loss_scales.DynamicLossScale):
            for name, variable in (
                ("step_counter", loss_scale.good_steps),
                ("dynamic_scale", loss_scale.current_loss_scale),
            ):
                setattr(self, name, self._tflsc_track_as_keras_variable(name, variable))
        for name, variable in _base.variables_by_name(loss_scale).items():
            if not any(variable is each.value for each in keras_variables.values()):
                self._tflsc_track_as_keras_variable(name, variable)

    def _tflsc_track_as_keras_variable(self, name: str, variable: tf.Variable) -> Any:
        """Makes a Keras variable of `variable`, adds it to the optimizer's and returns it."""
        keras = self._tflsc_family.keras
        with keras.name_scope(self.name, caller=self):  # State trees have paths as keys.
            keras_variable = keras.Variable(
                initializer=variable, trainable=False, dtype=variable.dtype.name, name=name
            )
        keras_variable._value = variable  # Before 3.10, Keras makes a copy of it.
        self._track_variable(keras_variable)
        self._tflsc.keras_variables[name] = keras_variable
        return keras_variable

    def _tflsc_all_variables(self) -> _types.Variables:
        return self.variables

    def _tflsc_variables_for_apply(self, variables: Iterable[Any] | None) -> _types.Variables:
        if variables is not None:
            return list(variables)
        if not self.built:
            raise ValueError(
                "trainable_variables may be left out only once the optimizer is built: call "
                "build(variables) first."
            )
        return list(self.inner_optimizer._trainable_variables)

    # A loss scale without variables leaves checkpoints and files as they are of the inner optimizer
    # alone. Else they are as those of Keras' own class, and each class reads the other's.

    def _tflsc_children(self, is_plain: bool, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns this optimizer's children, or those that a plain optimizer has."""
        children = self._tflsc_super_of_original()._trackable_children(*args, **kwargs)
        # All variables of these two are the optimizer's. Keras' own class has no such child, and
        # each class would miss one in the other's checkpoints. If a checkpoint has one,
        # `_lookup_dependency` finds it. A user's loss scale may have more than variables.
        if type(self._loss_scale) in (_loss_scales.DynamicLossScale, _loss_scales.FixedLossScale):
            children.pop("loss_scale", None)
        if not is_plain:
            return children
        for name in ("_learning_rate", "inner_optimizer"):
            children.pop(name, None)
        return {**children, **self.inner_optimizer._trackable_children(*args, **kwargs)}

    def _tflsc_copy_count_and_rate(self) -> None:
        """Assigns the inner optimizer's step count and rate to the wrapper's, which nothing reads.

        A plain optimizer that restores a checkpoint finds these in the place of its own.
        """
        inner, (iterations, learning_rate) = self.inner_optimizer, self._variables[:2]
        iterations.assign(inner.variables[0])
        learning_rate.assign(getattr(inner, "learning_rate", learning_rate))


def _refuse_step_arguments(optimizer: Keras3OptimizerBase, arguments: list[str]) -> NoReturn:
    """Raises the TypeError for arguments of `apply_gradients` that were gone with Keras 2."""
    version = optimizer._tflsc_family.keras.__version__
    cure = "Write apply_gradients(zip(grads, variables))."
    if any("aggregat" in each or each in ("True", "False") for each in arguments):
        cure = f"Delete that. Keras {version} always sums gradients over replicas: delete your "
        cure += "own sum before this call, too."
        if _major_minor(version) < (3, 5):
            cure = f"Delete that. Keras {version} sums no gradients over replicas: keep your "
            cure += "own sum before this call."
    raise TypeError(
        f"{type(optimizer).__name__}.apply_gradients takes grads_and_vars and scaled= on Keras 3, "
        f"got also {', '.join(arguments)}. {cure}"
    )
