"""Names of the gradients that were not finite, for records with `names=True`."""

from __future__ import annotations

import collections
import functools
import zlib
from typing import TYPE_CHECKING, Any, Callable, Iterable, NamedTuple

from tf_lossscale_compat._core import _finite, _tf
from tf_lossscale_compat._core._tf import tf, tf1

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

KINDS = ("NaN", "+inf", "-inf")


class BadGradient(NamedTuple):
    """A gradient that was not finite on one replica.

    Attributes:
      name: str, the name of its variable.
      replica: int, the replica's number, starting at 0.
      kinds: tuple of str, the kinds of its non-finite elements: "NaN", "+inf", "-inf".
      elements: int, the number of its non-finite elements.
      largest_finite: float, the largest magnitude of its finite elements, 0.0 if there is none.
    """

    name: str
    replica: int
    kinds: tuple[str, ...]
    elements: int
    largest_finite: float


class NonfiniteCounts(NamedTuple):
    """Counts of non-finite elements in the gradients of one list of variables."""

    key: int  # Identifies the names.
    names: list[str]
    # Of shape [replicas, gradients, 4]: the number of elements of each kind in the last skipped
    # step, and the largest finite magnitude.
    last: Any
    totals: Any  # Of shape [gradients, 3]: the number of steps with elements of each kind.

    def bad_gradients(self, rows: Any) -> tuple[BadGradient, ...]:
        """Returns the `BadGradient`s in a value of `last`, a tuple."""
        return tuple(
            BadGradient(
                name,
                replica,
                tuple(kind for kind, count in zip(KINDS, row) if count),
                int(row[: len(KINDS)].sum()),
                float(row[-1]),
            )
            for i, name in enumerate(self.names)
            for replica, row in enumerate(rows[:, i])
            if row[: len(KINDS)].any()
        )


def names_of(variables: Iterable[Any]) -> list[str]:
    """Returns names of variables, a list of str."""
    names = [_name(each) for each in variables]
    times = collections.Counter(names)
    return [f"{name} [{i}]" if times[name] > 1 else name for i, name in enumerate(names)]


def _name(variable: Any) -> str:
    # Keras 3 distinguishes layers only by their path.
    return getattr(variable, "path", None) or variable.name.split(":")[0]


def key_of(variables: Iterable[Any], names: list[str]) -> int:
    """Returns an int that identifies a list of variables with these `names`."""
    # It does not count the lists, because a resumed run may see them in another order.
    shapes = [str(variable.shape) for variable in variables]
    return zlib.crc32("\n".join([*names, *shapes]).encode())


@functools.lru_cache(maxsize=None)
def _counter_for(dtype: tf.DType) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that counts NaN, +inf and -inf, and finds the largest finite magnitude.

    All tensors of a dtype share one function, because tracing it for each would take seconds.
    """

    def count(values: tf.Tensor) -> tf.Tensor:
        infinite, zeros = tf.math.is_inf(values), tf.zeros_like(values)
        kinds = [
            tf.math.is_nan(values),
            tf.logical_and(infinite, values > zeros),
            tf.logical_and(infinite, values < zeros),
        ]
        counts = [tf.reduce_sum(tf.cast(kind, tf.float64)) for kind in kinds]
        finite = tf1.where(tf.math.is_finite(values), tf.abs(values), zeros)
        # The maximum of no elements would be minus infinity.
        largest = tf.maximum(tf.reduce_max(finite), tf.zeros([], dtype))
        return tf.stack([*counts, tf.cast(largest, tf.float64)])

    return tf.function(count, input_signature=[tf.TensorSpec(None, dtype)], autograph=False)


def count_nonfinite(grads: Iterable[_types.Gradient]) -> tf.Tensor:
    """Returns what `_counter_for` finds in each of `grads`.

    It is in this replica's row of a [replicas, gradients, 4] tensor; the other rows are zero.
    """
    tested = [list(_finite.tested_values(grad)) or [tf.zeros([])] for grad in grads]
    tensors = [tf.stack(parts) if len(parts) > 1 else parts[0] for parts in tested]

    def count_each(*tensors: tf.Tensor) -> tf.Tensor:
        return tf.stack([_counter_for(values.dtype)(values) for values in tensors])

    # One operation, because each operation costs time, even in a branch that is not taken.
    counts = _tf.call_as_one_operation(count_each, tensors)
    if not tf.distribute.has_strategy():
        return counts[None]
    replica = tf.distribute.get_replica_context()
    one_hot = tf.one_hot(
        replica.replica_id_in_sync_group, replica.num_replicas_in_sync, dtype=counts.dtype
    )
    return one_hot[:, None, None] * counts[None]
