"""A Keras loss-scale optimizer as its family sees it, and the data that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Callable, Iterable, Protocol

    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._scales import _loss_scales
    from tf_lossscale_compat.keras import _family, _scaled_rule

    class KerasOwner(Protocol):
        """A loss-scale optimizer, as its family uses it."""

        _tflsc: KerasData
        _optimizer: Any  # The inner optimizer.
        _loss_scale: _loss_scales.LossScale

        def get_scaled_loss(self, loss: Any) -> Any: ...
        def get_unscaled_gradients(self, grads: Iterable[Any]) -> list[Any]: ...
        def _raise_if_strategy_unsupported(self) -> None: ...
        @property
        def _tflsc_family(self) -> _family.KerasFamily[Any]: ...
        @property
        def apply_gradients(self) -> Callable[..., Any]: ...
        @property
        def _track_trackable(self) -> Callable[..., Any]: ...


class KerasData:
    """The data of a loss-scale optimizer, beside its loss scale and the inner optimizer.

    Attributes:
      scaled_rule: `ScaledRule`, says whether `apply_gradients` gets scaled gradients.
      agreement: function of a scalar bool tensor, or None.
      options: dict of the constructor's other arguments, but for defaults; configs hold them.
      keras_variables: dict from names to the loss scale's variables as Keras 3 has them.
      constructed: bool, the constructor of this package's class has set all attributes.
    """

    def __init__(self, scaled_rule: _scaled_rule.ScaledRule) -> None:
        self.scaled_rule = scaled_rule
        self.agreement: _types.Agree | None = None
        self.options: dict[str, Any] = {}
        self.keras_variables: dict[str, Any] = {}
        self.constructed = False
