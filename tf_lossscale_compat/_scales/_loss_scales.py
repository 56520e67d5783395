"""Loss scales of TensorFlow r2.0, `tf.train.experimental`, made directly or by `get`."""

from __future__ import annotations

import abc
import numbers
from typing import TYPE_CHECKING, Any, Dict, TypeVar, Union, overload

from absl import logging

from tf_lossscale_compat._core import (
    _arguments,
    _autograph,
    _gradients,
    _graphs,
    _replicas,
    _scale_or_manager,
    _tf,
    _variables,
)
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._scales._managers import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    config_of,
)
from tf_lossscale_compat._scales._tensor_like import TensorLike

if TYPE_CHECKING:
    from typing_extensions import Literal, Self

    from tf_lossscale_compat._core import _types

    LossScaleT = TypeVar("LossScaleT", bound="LossScale")
    # The argument of `get`.
    Identifier = Union[
        "LossScale", LossScaleManager, _types.Real, Literal["dynamic"], Dict[str, Any]
    ]


class LossScale(TensorLike, _tf.Trackable, metaclass=abc.ABCMeta):
    """A loss scale, and its update by the gradients of each step.

    Call it for the current value; give `update` the unscaled gradients of every step. Subclasses
    keep their state in variables made by `_add_weight`, which `tf.train.Checkpoint` saves.

    A loss scale can be used as a number or a scalar float32 tensor: in `float`, formats, products,
    quotients, `<` and `>`, `tf.cast`, and the result of a `tf.function`. It equals only itself,
    unless it was read as the `loss_scale` of an experimental Keras optimizer; see there.

    Source: TensorFlow r2.0 `tf.train.experimental.LossScale`.
    """

    def __init__(self) -> None:
        pass  # The original's signature. Subclasses need not call it.

    # r2.0's name for its variables. Some programs read it; some subclasses use it for other values.
    @property
    def _weights(self) -> Any:
        return self.__dict__.get("_weights", _scale_or_manager.data_of(self).weights)

    @_weights.setter
    def _weights(self, value: Any) -> None:
        self.__dict__["_weights"] = value

    @abc.abstractmethod
    def __call__(self) -> tf.Tensor:
        """Returns the current loss scale, a scalar float32 tensor."""

    @abc.abstractmethod
    def update(self, grads: Any) -> tuple[Any, bool | tf.Tensor]:
        """Updates the loss scale by the gradients of one step.

        Args:
          grads: nested structure of unscaled gradients, or one gradient; None in it is ignored.

        Returns:
          A pair: an operation or tensor that updates the loss scale when it is run (None in eager
          mode, after the update), and a bool or scalar bool tensor, True to apply the gradients.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as a dict."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a loss scale from a config that `get_config` returned."""
        return cls(**config)

    def _add_weight(
        self, name: str, initial_value: Any, dtype: tf.DType | None = None
    ) -> tf.Variable:
        """Makes a variable that belongs to this loss scale's state.

        Args:
          name: str, the variable's name, also in checkpoints.
          initial_value: scalar.
          dtype: `tf.DType`, or None for the dtype of `initial_value`.

        Returns:
          A resource variable that is neither trained nor aggregated over replicas.

        Raises:
          RuntimeError: this loss scale already has a weight of that name.
        """
        weights = _scale_or_manager.data_of(self).weights
        if name in weights:
            raise RuntimeError(f"This loss scale has a weight named {name!r} already.")
        weights[name] = _variables.make(self, name, initial_value, dtype, use_resource=True)
        return weights[name]


def _test_and_update(loss_scale: Any, grads: Any) -> tuple[Any, Any]:
    """Updates a loss scale by the finite flag; returns (update, should_apply)."""
    if _replicas.in_replica_context():
        raise RuntimeError(
            f"{type(loss_scale).__name__}.update must be called once for all replicas, but was "
            "called in a replica context. Inside strategy.run, call it as "
            "tf.distribute.get_replica_context().merge_call(lambda strategy, grads: "
            "loss_scale.update(grads), args=(grads,)), or return the gradients from strategy.run "
            "and call update(grads) under strategy.scope()."
        )
    with _variables.scope_of(_scale_or_manager.variables_of(loss_scale)):
        finite = _gradients.finite_everywhere(grads)
        return loss_scale._tflsc_update(finite), finite


class FixedLossScale(LossScale):
    """A loss scale that never changes and, as in r2.0, applies non-finite gradients.

    Source: TensorFlow r2.0 `tf.train.experimental.FixedLossScale`.
    """

    _tflsc_may_skip = False

    def __init__(self, loss_scale_value: _types.Real, *, skip_nonfinite: bool = False) -> None:
        """Makes the loss scale; no tensor is made until it is called.

        Args:
          loss_scale_value: real number, at least 1.
          skip_nonfinite: bool. If True, non-finite steps are skipped, as by contrib's optimizer
            with a fixed manager. r2.0 does not have this argument.

        Raises:
          TypeError: `skip_nonfinite` is not a bool.
          ValueError: the value is not a real number, below 1, NaN, or not finite in float32.
        """
        self._loss_scale_value = _arguments.fixed_scale("loss_scale_value", loss_scale_value)
        self._tflsc_may_skip = _arguments.flag("skip_nonfinite", skip_nonfinite)

    @property
    def skip_nonfinite(self) -> bool:
        """True if non-finite steps are skipped."""
        return self._tflsc_may_skip

    @_autograph.do_not_convert
    def __call__(self) -> tf.Tensor:
        """Returns the loss scale, a scalar float32 tensor."""
        return tf.constant(self._loss_scale_value, dtype=tf.float32)

    @_autograph.do_not_convert
    def update(self, grads: Any) -> tuple[Any, bool | tf.Tensor]:
        """Changes nothing.

        Args:
          grads: nested structure of gradients; tested only with `skip_nonfinite`.

        Returns:
          A pair: None in eager mode, else a no-op; and True. With `skip_nonfinite` the second is a
          scalar bool tensor, whether all gradients are finite on all replicas.
        """
        _gradients.refuse_flags(grads)
        finite = _gradients.finite_everywhere(grads) if self.skip_nonfinite else True
        return self._tflsc_update(finite), finite

    def _tflsc_update(self, finite: Any) -> Any:
        return _graphs.as_operation(None)

    _tflsc_our_methods = __call__, update

    def __repr__(self) -> str:
        skip = ", skip_nonfinite=True" if self.skip_nonfinite else ""
        return f"FixedLossScale({self._loss_scale_value}{skip})"

    def get_config(self) -> dict[str, Any]:
        """Returns `{"loss_scale_value": float}`, and `skip_nonfinite` if it is True."""
        skip = {"skip_nonfinite": True} if self.skip_nonfinite else {}
        return {"loss_scale_value": self._loss_scale_value, **skip}


def checked_bounds(
    name: str, initial: Any, min_loss_scale: Any, max_loss_scale: Any
) -> tuple[float, float | None]:
    """Returns the bounds as floats, checked with the initial scale, which `name` names."""
    floor = _arguments.positive("min_loss_scale", min_loss_scale)
    ceiling = None
    if max_loss_scale is not None:
        ceiling = _arguments.positive("max_loss_scale", max_loss_scale)
        if ceiling < max(float(initial), floor):
            raise ValueError(
                f"max_loss_scale must be at least {name}={initial!r} and "
                f"min_loss_scale={min_loss_scale!r}, got {max_loss_scale!r}."
            )
    if float(initial) < floor:
        if floor != 1.0:
            raise ValueError(
                f"min_loss_scale must be at most {name}={initial!r}, got {min_loss_scale!r}."
            )
        logging.warning(
            "%s=%r is below min_loss_scale=1.0: the first non-finite step will raise it to 1.0. To "
            "keep it low, make a DynamicLossScale with a lower min_loss_scale.",
            name,
            initial,
        )
    return floor, ceiling


class DynamicLossScale(LossScale):
    """A loss scale that grows after a run of finite steps and shrinks at each non-finite one.

    The rule, for each step::

        if finite:
            good += 1
            if good >= increment_period:
                if scale * multiplier is finite: scale = min(scale * multiplier, max_loss_scale)
                good = 0
        else:
            good = 0
            scale = min(max(scale / multiplier, min_loss_scale), max_loss_scale)

    The variables `current_loss_scale` and `good_steps` are mirrored under `strategy.scope()`.

    Source: TensorFlow r2.0 `tf.train.experimental.DynamicLossScale`. The original lacks
    the bounds (TensorFlow issue 38357).
    """

    # The bounds of shrinking and growth, floats. Plain attributes with the arguments' defaults,
    # because subclasses set them in various ways.
    min_loss_scale: float = 1.0
    max_loss_scale: float | None = None
    # r2.0's names for the state, which public programs read and set.
    _current_loss_scale: tf.Variable
    _num_good_steps: tf.Variable

    def __init__(
        self,
        initial_loss_scale: _types.Real = 2**15,
        increment_period: _types.Integer = 2000,
        multiplier: _types.Real = 2.0,
        *,
        min_loss_scale: _types.Real = 1.0,
        max_loss_scale: _types.Real | None = None,
    ) -> None:
        """Makes the loss scale and its variables.

        Args:
          initial_loss_scale: real number above zero, the initial loss scale. A scale that is too
            high falls faster than one that is too low rises.
          increment_period: int, the scale grows after this many finite steps in a row.
          multiplier: real number above zero. Growth multiplies by it, and shrinking divides by it.
          min_loss_scale: real number above zero, the smallest scale after shrinking.
          max_loss_scale: real number, the largest scale, or None for the largest float32.

        Raises:
          ValueError: an argument is not a real number, not above zero, not finite in float32, or
            (the period) not integral; or the bounds exclude the initial scale.
        """
        self._initial_loss_scale = _arguments.positive("initial_loss_scale", initial_loss_scale)
        self._increment_period = _arguments.step_count(
            "increment_period", increment_period, "int64"
        )
        self._multiplier = _arguments.positive("multiplier", multiplier)
        floor, ceiling = checked_bounds(
            "initial_loss_scale", initial_loss_scale, min_loss_scale, max_loss_scale
        )
        if self._multiplier < 1:
            logging.warning("multiplier=%r is below 1: growth shrinks the scale.", multiplier)
        # Where an argument has its default, a value that a subclass has set before stays.
        bounds = {"min_loss_scale": floor, "max_loss_scale": ceiling}
        changed = {k: v for k, v in bounds.items() if v != getattr(DynamicLossScale, k)}
        _scale_or_manager.data_of(self).extra_config = changed
        self.__dict__.update(changed)

        self._current_loss_scale = self._add_weight(
            "current_loss_scale", self._initial_loss_scale, tf.float32
        )
        self._num_good_steps = self._add_weight("good_steps", 0, tf.int64)

    @property
    def initial_loss_scale(self) -> float:
        """The loss scale at the start, a float."""
        return self._initial_loss_scale

    @property
    def increment_period(self) -> int:
        """The number of finite steps in a row after which the loss scale grows, an int."""
        return self._increment_period

    @property
    def multiplier(self) -> float:
        """The factor by which growth multiplies and shrinking divides, a float."""
        return self._multiplier

    @property
    def current_loss_scale(self) -> tf.Variable:
        """The loss scale, a float32 variable."""
        return self._current_loss_scale

    @property
    def good_steps(self) -> tf.Variable:
        """The number of finite steps since growth or a non-finite step, an int64 variable."""
        return self._num_good_steps

    @_autograph.do_not_convert
    def __call__(self) -> tf.Tensor:
        """Returns the current loss scale, a scalar float32 tensor."""
        return tf.convert_to_tensor(self._current_loss_scale)

    @_autograph.do_not_convert
    def update(self, grads: Any) -> tuple[Any, bool | tf.Tensor]:
        """Updates the state by one step.

        Args:
          grads: nested structure of unscaled gradients, or one gradient: tensors and
            `tf.IndexedSlices` of any shape and dtype; None is ignored. In a cross-replica context
            they may be per-replica.

        Returns:
          A pair: None in eager mode, else a scalar tensor whose evaluation updates the state; and
          whether all gradients are finite on all replicas, a scalar bool tensor.

        Raises:
          RuntimeError: called in a replica context.
          TypeError: `grads` holds a bool or something else that is no number.
        """
        return _test_and_update(self, grads)

    def _tflsc_update(self, finite: Any) -> Any:
        """Takes one step of the rule; see `ExponentialUpdateLossScaleManager._tflsc_update`.

        In a graph it returns a tensor, as in r2.0: public programs call `tf.identity` on it.
        """
        scale, good = self._current_loss_scale, self._num_good_steps
        ceiling = self.max_loss_scale  # Perhaps None.

        def grow() -> Any:
            grown = _variables.multiply_if_finite(scale, self._multiplier, ceiling)
            return [grown, _variables.assign(good, 0)]

        def shrink() -> Any:
            reset = _variables.assign(good, 0)
            # Divides, because multiplication by the reciprocal rounds differently.
            lowered = _variables.read_here(scale) / self._multiplier
            lowered = tf.maximum(lowered, self.min_loss_scale)
            # A multiplier below 1 raises the scale here.
            lowered = lowered if ceiling is None else tf.minimum(lowered, ceiling)
            return [reset, _variables.assign(scale, lowered)]

        def grow_or_count() -> Any:
            grows = _variables.reaches(good, self._increment_period)
            return _variables.branch(grows, grow, lambda: _variables.add(good, 1))

        return _variables.update_copies(
            [scale, good], lambda: _variables.branch(finite, grow_or_count, shrink)
        )

    _tflsc_our_methods = __call__, update

    def __repr__(self) -> str:
        config = DynamicLossScale.get_config(self)
        # Variables that were made in a graph have no values here.
        if tf.executing_eagerly() and not hasattr(self._current_loss_scale, "graph"):
            scale, steps = self._current_loss_scale.numpy(), self._num_good_steps.numpy()
            config = {"current_loss_scale": scale, "num_good_steps": steps, **config}
        shown = ", ".join(f"{name}={value!s}" for name, value in config.items())
        return f"DynamicLossScale({shown})"

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, a dict; those that r2.0 lacks only if changed."""
        return {
            "initial_loss_scale": self._initial_loss_scale,
            "increment_period": self._increment_period,
            "multiplier": self._multiplier,
            **_scale_or_manager.data_of(self).extra_config,
        }


class _SharedStateLossScale(DynamicLossScale):
    """A dynamic loss scale that uses the state of a TensorFlow loss scale, such as a policy's."""

    def __init__(self, original: Any) -> None:
        self._state = {
            "current_loss_scale": original._current_loss_scale,
            "good_steps": original._num_good_steps,
        }
        super().__init__(**original.get_config())

    def _add_weight(self, name: str, initial_value: Any, dtype: Any = None) -> tf.Variable:
        weights = _scale_or_manager.data_of(self).weights
        weights[name] = self._state[name]
        self._track_trackable(weights[name], name)
        return weights[name]


_SharedStateLossScale.__name__ = "DynamicLossScale"  # In configs.


class ManagerLossScale(LossScale):
    """A loss scale that wraps a loss-scale manager; non-finite steps are skipped."""

    _tflsc_wraps_manager = True

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        if isinstance(manager, _tf.Trackable):
            self._track_trackable(manager, "manager")

    def __call__(self) -> tf.Tensor:
        return _variables.snapshot(self.manager.get_loss_scale())

    @_autograph.do_not_convert
    def update(self, grads: Any) -> tuple[Any, bool | tf.Tensor]:
        return _test_and_update(self, grads)

    def _tflsc_update(self, finite: Any) -> Any:
        update = self.manager.update_loss_scale
        is_ours = _scale_or_manager.is_ours(update, self.manager)
        updated = self.manager._tflsc_update(finite) if is_ours else update(finite)
        # A user's manager may return anything; a loss scale's update has one form.
        if tf.executing_eagerly():
            return None
        return tf.no_op() if updated is None else updated

    def __repr__(self) -> str:
        return f"LossScale of {self.manager!r}"

    @property
    def initial_loss_scale(self) -> Any:
        if isinstance(self.manager, FixedLossScaleManager):
            return self.manager._loss_scale
        if isinstance(self.manager, ExponentialUpdateLossScaleManager):
            return _scale_or_manager.data_of(self.manager).extra_config.get("init_loss_scale")
        return None

    @property
    def increment_period(self) -> Any:
        return getattr(self.manager, "_incr_every_n_steps", None)

    @property
    def good_steps(self) -> Any:
        return getattr(self.manager, "_num_good_steps", None)

    def get_config(self) -> dict[str, Any]:
        name = type(self.manager).__name__
        if type(self.manager) not in _MANAGERS.values():
            raise NotImplementedError(
                f"A {name} has no config: save weights or a tf.train.Checkpoint, and make the loss "
                "scale from a new manager."
            )
        return {"class_name": name, "config": config_of(self.manager)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        if config.get("class_name") not in _MANAGERS or not isinstance(config.get("config"), dict):
            raise ValueError(f"config names no loss-scale manager, got {config!r}.")
        return cls(_MANAGERS[config["class_name"]](**config["config"]))


_STAND_INS = {
    "FixedLossScale": lambda original: FixedLossScale(**original.get_config()),
    "DynamicLossScale": _SharedStateLossScale,
}
_MANAGERS = {
    cls.__name__: cls for cls in (FixedLossScaleManager, ExponentialUpdateLossScaleManager)
}
_CLASSES = {cls.__name__: cls for cls in (FixedLossScale, DynamicLossScale, ManagerLossScale)}
_DYNAMIC = ("dynamic", DynamicLossScale.__name__, ExponentialUpdateLossScaleManager.__name__)


def serialize(loss_scale: LossScale) -> dict[str, Any]:
    """Returns a `LossScale` as `{"class_name": str, "config": dict}`, which `get` takes."""
    if not isinstance(loss_scale, LossScale):
        raise ValueError(f"loss_scale must be a LossScale, got {loss_scale!r}.")
    return {"class_name": type(loss_scale).__name__, "config": loss_scale.get_config()}


def deserialize(
    config: dict[str, Any], custom_objects: dict[str, type[LossScale]] | None = None
) -> LossScale:
    """Makes a `LossScale` from a dict that `serialize` returned, or from a Keras config of r2.0.

    Args:
      config: dict with the keys `class_name` and `config`.
      custom_objects: dict from class names to other `LossScale` classes, or None.

    Raises:
      ValueError: `config` is not such a dict, names an unknown class, or does not fit the class.
    """
    if not (
        isinstance(config, dict)
        and isinstance(config.get("class_name"), str)
        and isinstance(config.get("config"), dict)
    ):
        raise ValueError(
            "config must be a dict with a str under 'class_name' and a dict under 'config', "
            f"got {config!r}."
        )
    classes = dict(_CLASSES, **(custom_objects or {}))
    if config["class_name"] not in classes:
        raise ValueError(
            "config names the unknown loss scale {!r}. Known are {}. Pass others in "
            "custom_objects.".format(config["class_name"], ", ".join(sorted(classes)))
        )
    try:
        return classes[config["class_name"]].from_config(config["config"])
    except TypeError as error:  # Arguments are missing or unknown.
        raise ValueError(f"config does not fit its class, got {config!r}: {error}") from error


def require(identifier: Identifier | None) -> Identifier:
    """Returns the argument `loss_scale` of an optimizer; raises a ValueError if it is None."""
    if identifier is None:
        raise ValueError("loss_scale cannot be None. Write a number, 'dynamic' or a LossScale.")
    return identifier


def will_be_dynamic(identifier: Any) -> bool:
    """Returns whether `get` will make a dynamic loss scale or manager of `identifier`."""
    if isinstance(identifier, dict):
        name = identifier.get("class_name")
        wraps = name == ManagerLossScale.__name__  # Its config holds that of the manager.
        return will_be_dynamic(identifier.get("config") if wraps else name)
    return isinstance(identifier, str) and identifier in _DYNAMIC


def for_tensorflows(loss_scale: Any) -> Any:
    """Returns the loss scale that is made for one of TensorFlow's; any other object as it is."""
    cls = type(loss_scale)
    root = cls.__module__.split(".")[0]
    if root not in ("tensorflow", "tensorflow_core") or cls.__name__ not in _STAND_INS:
        return loss_scale
    data = _scale_or_manager.data_of(loss_scale)
    if data.stand_in is None:
        data.stand_in = _STAND_INS[cls.__name__](loss_scale)
    return data.stand_in


@overload
def get(identifier: None) -> None: ...


@overload
def get(identifier: LossScaleT) -> LossScaleT: ...


@overload
def get(identifier: Identifier) -> LossScale: ...


def get(identifier: Identifier | None) -> LossScale | None:
    """Returns the loss scale that `identifier` stands for.

    Args:
      identifier: a real number for a `FixedLossScale`; 'dynamic' for a `DynamicLossScale` with its
        defaults; a `LossScale`, which is returned; a dict that `deserialize` takes; a
        `LossScaleManager`, or any object with its two methods, which the loss scale then wraps;
        TensorFlow's `FixedLossScale` or `DynamicLossScale`, such as a policy's, whose variables the
        loss scale then uses; or None, which is returned.

    Raises:
      ValueError: `identifier` is none of these, or a number that cannot be a loss scale.
    """
    identifier = for_tensorflows(identifier)
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    if _scale_or_manager.is_manager(identifier):  # Of any class, including TensorFlow's on 1.15.
        return ManagerLossScale(identifier)
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if isinstance(identifier, str) and identifier == "dynamic":
        return DynamicLossScale()
    number = _arguments.as_number(identifier)
    if isinstance(number, numbers.Real):
        return FixedLossScale(number)
    raise ValueError(
        f"Cannot make a loss scale from {identifier!r}: it must be a number, 'dynamic', a "
        "LossScale of this package or of TensorFlow, a LossScaleManager, a config dict or None."
    )


for _public in (LossScale, FixedLossScale, DynamicLossScale, serialize, deserialize, get):
    _public.__module__ = "tf_lossscale_compat.loss_scale"  # Where users find it.
