"""Types for this package's annotations; nothing imports this module at run time.

Numbers have the types that `float` and `operator.index` take, which include NumPy's and arrays; at
run time `_arguments` takes fewer. Unions with NumPy's classes would be Any without NumPy. Public
results that are an operation in graph mode and None in eager mode are Any: callers know the mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, SupportsFloat, Tuple, TypeVar, Union

if TYPE_CHECKING:
    from typing import Protocol, SupportsIndex

    import tensorflow as tf

    from tf_lossscale_compat._core._types_trackable import Trackable

    # Base classes have the names that users call, but no signatures. If the base classes were Any,
    # checkers would accept every attribute of derived classes.

    class Optimizer(Trackable):
        """`tf.compat.v1.train.Optimizer`."""

        GATE_OP: int
        _name: str
        _use_locking: bool
        minimize: Any

        def __init__(self, use_locking: bool, name: str) -> None: ...

    class Callback:  # Of any Keras.
        model: Any
        params: Any

    # What this package uses of Keras' optimizers, wrapped or as a base class.

    class KerasOptimizer(Trackable):
        iterations: Any
        apply_gradients: Any
        _is_wrapped_by_loss_scale_optimizer: bool

    class OptimizerV2(KerasOptimizer):  # Of tf.keras up to 2.10; later a legacy one.
        learning_rate: Any
        weights: list[Any]
        get_gradients: Any
        get_slot: Any
        get_slot_names: Any
        set_weights: Any
        _compute_gradients: Any

    class OptimizerV3(KerasOptimizer):  # Of tf.keras from 2.11 on, and of `tf_keras`.
        build: Any
        compute_gradients: Any

    class Keras3Optimizer(KerasOptimizer):  # Or the loss-scale class of Keras 3.
        apply: Any
        build: Any
        built: bool
        loss_scale_factor: float | None
        name: str
        _tracker: Any
        _variables: list[Any]
        _trainable_variables: list[Any]
        _trackable_children: Any
        _lookup_dependency: Any
        _track_variable: Any
        load_own_variables: Any
        save_own_variables: Any

        @property
        def variables(self) -> Any: ...

    # The type of a function that a decorator returns unchanged.
    Function = TypeVar("Function", bound=Callable[..., Any])

    class HasManagerMethods(Protocol):
        """Anything with the two methods of a `LossScaleManager`."""

        @property
        def get_loss_scale(self) -> Callable[[], Any]: ...
        @property
        def update_loss_scale(self) -> Callable[[Any], Any]: ...

    class HasApplyGradients(Protocol):
        """An optimizer of Keras or of `tf.compat.v1.train`."""

        @property
        def apply_gradients(self) -> Callable[..., Any]: ...

    class HasOptimizerMethods(HasApplyGradients, Protocol):
        """Anything with the two methods of a `tf.compat.v1.train.Optimizer`."""

        @property
        def compute_gradients(self) -> Callable[..., Any]: ...

    class LossScaleOptimizer(HasApplyGradients, Protocol):
        """A loss-scale optimizer of this package, for its steps."""

        @property
        def _tflsc_loss_scale(self) -> LossScaleOrManager: ...
        @property
        def _tflsc_wrapped(self) -> Any: ...
        @property
        def _tflsc_agreement(self) -> Agree | None: ...

    # Of this package or a user, which drives an optimizer.
    LossScaleOrManager = Any
    # Of TensorFlow or of Keras 3.
    Variable = Any
    # A tensor, `tf.IndexedSlices`, `tf.RaggedTensor`, or None if a variable has no gradient; may be
    # per-replica in a cross-replica context.
    Gradient = Any
    Pair = Tuple[Gradient, Variable]
    Gradients = List[Gradient]
    Variables = List[Variable]
    Loss = Union[tf.Tensor, Callable[[], tf.Tensor]]
    Unzipped = Tuple[Gradients, Variables]  # Pairs as two lists.
    Aggregate = Callable[[Gradients, Variables], Unzipped]
    Real = SupportsFloat
    Integer = Union[SupportsIndex, float]  # 2.0 is a whole number.
    # A function through which all processes agree.
    Agree = Callable[[tf.Tensor], tf.Tensor]
