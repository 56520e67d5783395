"""Gradients as flat lists of tensors, and back: dense, sparse, ragged, None, with variables."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Iterable

from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

# Called for every gradient of every step. `isinstance` is slow for tensors.
_is_subclass: Any = functools.lru_cache(maxsize=None)(issubclass)


def unzip(
    grads_and_vars: Iterable[_types.Pair],
) -> tuple[_types.Gradients, _types.Variables]:
    """Returns the gradients and the variables of pairs, two lists."""
    pairs = list(grads_and_vars)
    return [grad for grad, _ in pairs], [variable for _, variable in pairs]


def flatten(grads: Iterable[_types.Gradient]) -> tuple[list[tf.Tensor], tuple[int, ...]]:
    """Returns the values of gradients, a list of tensors that leaves out None.

    It also returns the positions of sparse gradients' values in that list, a tuple.
    """
    tensors: list[tf.Tensor] = []
    sparse_positions: list[int] = []
    for grad in grads:
        cls = type(grad)
        if not _is_subclass(cls, tf.Tensor):
            if grad is None:
                continue
            if _is_subclass(cls, tf.IndexedSlices):
                sparse_positions.append(len(tensors))
                grad = grad.values
            elif _is_subclass(cls, tf.RaggedTensor):
                grad = grad.flat_values
            try:
                grad = tf.convert_to_tensor(grad)
            except (TypeError, ValueError):
                raise TypeError(f"Gradients must be numbers, got {grad!r}.") from None
        tensors.append(grad)
    return tensors, tuple(sparse_positions)


def refuse_flags(grads: Any) -> None:
    """Raises a TypeError if a bool, or a bool tensor, is among `grads`, a nested structure."""
    for grad in tf.nest.flatten(grads):
        if tf.bool == getattr(grad, "dtype", type(grad)):
            raise TypeError(
                f"Gradients must be numbers, got the bool {grad!r}. A step's flag is for a "
                "LossScaleManager: update_loss_scale(finite). A LossScale tests the gradients."
            )


def number_dtype(tensor: tf.Tensor) -> tf.DType:
    """Returns the dtype of a gradient's values; raises a TypeError if they are no numbers."""
    refuse_flags(tensor)
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise TypeError(f"Gradients must be numbers, got a tensor of dtype {tensor.dtype.name}.")
    return tensor.dtype


def densify(grads: Iterable[_types.Gradient]) -> _types.Gradients:
    """Returns gradients with sparse ones made dense."""
    return [
        tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad for grad in grads
    ]


def append_indices(
    grads: Iterable[_types.Gradient], tensors: list[tf.Tensor], sparse_positions: tuple[int, ...]
) -> tuple[list[tf.Tensor], tuple[int, ...]]:
    """Returns tensors followed by sparse gradients' indices, and positions whose shapes vary."""
    indices = [
        tf.convert_to_tensor(grad.indices) for grad in grads if isinstance(grad, tf.IndexedSlices)
    ]
    varying_positions = sparse_positions + tuple(range(len(tensors), len(tensors) + len(indices)))
    return tensors + indices, varying_positions


def unflatten(grads: _types.Gradients, values: list[tf.Tensor]) -> _types.Gradients:
    """Returns gradients with these values and the structure of `grads`: None, sparse or ragged."""
    for cls in set(map(type, grads)):
        if not _is_subclass(cls, tf.Tensor):
            break
    else:
        return values
    left = iter(values)
    restored = []
    for grad in grads:
        if isinstance(grad, tf.IndexedSlices):
            restored.append(tf.IndexedSlices(next(left), grad.indices, grad.dense_shape))
        elif isinstance(grad, tf.RaggedTensor):
            restored.append(grad.with_flat_values(next(left)))
        else:
            restored.append(None if grad is None else next(left))
    return restored
