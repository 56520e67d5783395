"""TensorFlow's auto-mixed-precision rewrite of graphs, with a loss scale around the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _keras_versions, _tf
from tf_lossscale_compat._core._tf import tf
from tf_lossscale_compat._v1._optimizers import MixedPrecisionLossScaleOptimizer

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._scales import _loss_scales


def enable_mixed_precision_graph_rewrite(
    opt: _types.HasApplyGradients, loss_scale: _loss_scales.Identifier = "dynamic"
) -> Any:
    """Wraps `opt` with a loss scale and turns TensorFlow's auto-mixed-precision rewrite on.

    The rewrite makes float32 graphs compute in float16 where that is safe, on hardware that it
    speeds up. It applies to sessions and functions of `tf.function` that are made afterwards.

    Args:
      opt: a `tf.compat.v1.train.Optimizer` or a Keras optimizer.
      loss_scale: a `LossScale` or a value that `loss_scale.get` takes, but not None.

    Returns:
      A `MixedPrecisionLossScaleOptimizer`; for a Keras optimizer a
      `keras.mixed_precision.experimental.LossScaleOptimizer`.

    Raises:
      ValueError: `opt` is neither or already has a loss scale, or `loss_scale` is None or not a
        loss scale. The rewrite is then not changed.

    Source: TensorFlow r1.14-2.x `tf.train.experimental.enable_mixed_precision_graph_rewrite`.
    """
    if _keras_versions.is_loss_scale_optimizer(type(opt)):
        raise ValueError(f"opt has a loss scale already, got {opt!r}. Pass one without.")
    options = tf.config.optimizer.get_experimental_options()
    was_enabled = bool(options.get("auto_mixed_precision"))
    _tf.set_graph_rewrite(True)
    try:
        if _keras_versions.is_optimizer(opt):
            from tf_lossscale_compat.keras.mixed_precision import experimental  # Imports Keras.

            return experimental.LossScaleOptimizer(opt, loss_scale)
        v1_opt: Any = opt
        return MixedPrecisionLossScaleOptimizer(v1_opt, loss_scale)
    except Exception:
        _tf.set_graph_rewrite(was_enabled)
        raise


def disable_mixed_precision_graph_rewrite() -> None:
    """Turns TensorFlow's auto-mixed-precision rewrite off, for sessions and functions.

    Source: TensorFlow r1.14-2.x `tf.train.experimental.disable_mixed_precision_graph_rewrite`.
    """
    _tf.set_graph_rewrite(False)


for _public in (enable_mixed_precision_graph_rewrite, disable_mixed_precision_graph_rewrite):
    _public.__module__ = "tf_lossscale_compat.train.experimental"  # Where users find it.
