"""Types that annotations of this package name; nothing imports this module at run time.

Numbers are what `float` and `operator.index` take, NumPy's too, instead of unions with NumPy's
classes, which are Any without NumPy. Where a public result is an operation in graph mode and
None in eager mode it is Any, as whoever calls knows which.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Dict, SupportsFloat, TypeVar, Union

if TYPE_CHECKING:
    from typing import Literal, Protocol, SupportsIndex

    import tensorflow as tf

    from tf_lossscale_compat._core._types_trackable import Trackable
    from tf_lossscale_compat._scalers._loss_scales import LossScale
    from tf_lossscale_compat._scalers._managers import LossScaleManager

    # Base classes have the names that users call, but no signatures. Were they Any, checkers would
    # believe everything of what is derived from them.

    class Optimizer(Trackable):
        """`tf.compat.v1.train.Optimizer`."""

        GATE_NONE: int
        GATE_OP: int
        GATE_GRAPH: int
        _name: str
        _use_locking: bool
        minimize: Any

        def __init__(self, use_locking: bool, name: str) -> None: ...

    class SessionRunHook:
        """`tf.compat.v1.train.SessionRunHook`."""

        before_run: Any

    class Callback:
        """The `Callback` of any Keras."""

        model: Any
        params: Any
        set_model: Any
        set_params: Any

    # The type of a function that a decorator returns unchanged.
    Function = TypeVar("Function", bound=Callable[..., Any])
    # What a function that is called in some context returns.
    Result = TypeVar("Result")

    class HasManagerMethods(Protocol):
        """Anything with the two methods of a `LossScaleManager`."""

        @property
        def get_loss_scale(self) -> Callable[[], Any]: ...
        @property
        def update_loss_scale(self) -> Callable[[Any], Any]: ...

    class HasOptimizerMethods(Protocol):
        """Anything with the two methods of a `tf.compat.v1.train.Optimizer`."""

        @property
        def compute_gradients(self) -> Callable[..., Any]: ...
        @property
        def apply_gradients(self) -> Callable[..., Any]: ...

    class HasApplyGradients(Protocol):
        """An optimizer of Keras or of `tf.compat.v1.train`."""

        @property
        def apply_gradients(self) -> Callable[..., Any]: ...

    class CanScale(Protocol):
        """A loss scale, this package's or a user's, as a step calls it."""

        def __call__(self) -> Any: ...
        def update(self, grads: Any) -> tuple[Any, Any]: ...
        def _tflsc_variables(self) -> list[tf.Variable]: ...

    # What drives an optimizer, and a `_scaler.Scaler` is made of.
    Subject = Union[CanScale, HasManagerMethods]
    # A tensor, `tf.IndexedSlices`, `tf.RaggedTensor`, or None where a variable has no gradient; in
    # a cross-replica context it may be per-replica.
    Gradient = Any

    Real = SupportsFloat
    Integer = SupportsIndex
    Path = Union[str, "os.PathLike[str]"]
    # A function that all processes agree through.
    Agree = Callable[[tf.Tensor], tf.Tensor]
    # The argument of `loss_scale.get`.
    Identifier = Union[LossScale, LossScaleManager, Real, Literal["dynamic"], Dict[str, Any]]
