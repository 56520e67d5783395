"""Values of variables, for files and `set_weights`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable

import numpy as np

from tf_lossscale_compat._core import _scale
from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types
    from tf_lossscale_compat._scales import _loss_scales


class CallableList(list):
    """A list that can be called: `optimizer.variables` is a method in some versions of Keras.

    A call returns the list `called`, if there is one.
    """

    def __init__(self, variables: Iterable[Any], called: list[Any] | None = None) -> None:
        super().__init__(variables)
        self._called = called

    def __call__(self) -> list[Any]:
        return self if self._called is None else self._called


def variables_by_name(loss_scale: _loss_scales.LossScale) -> dict[str, tf.Variable]:
    """Returns a dict from names to a loss scale's variables; names are without scopes.

    A name that another variable has gets a number: in eager mode all variables without a name have
    the same one.
    """
    named: dict[str, tf.Variable] = {}
    for variable in _scale.variables_of(loss_scale):
        name = variable.name.split(":")[0].split("/")[-1]
        while name in named:
            name = f"{name}_{len(named)}"
        named[name] = variable
    return named


def _same_kind_of_number(value: np.ndarray, variable: _types.Variable) -> bool:
    """Returns whether both have an integer dtype, or neither has."""
    is_integer = tf.as_dtype(variable.dtype).is_integer
    return is_integer == np.issubdtype(value.dtype, np.integer)


def matches(values: Iterable[Any], variables: Iterable[_types.Variable]) -> bool:
    """Returns whether arrays have the variables' shapes and kinds of numbers."""
    return all(
        value.shape == tuple(variable.shape) and _same_kind_of_number(value, variable)
        for value, variable in zip(map(np.asarray, values), variables)
    )


def _assign_each(pairs: list[tuple[_types.Variable, np.ndarray]]) -> None:
    for variable, value in pairs:
        variable.assign(value)


def assign_all(
    variables: Iterable[_types.Variable],
    values: Iterable[Any],
    assign: Callable[[list[tuple[_types.Variable, np.ndarray]]], None] = _assign_each,
) -> None:
    """Assigns arrays to as many variables: all, or none after an error.

    Raises:
      ValueError: an array has another shape than its variable; or a counter is at a number's place
        and a number at a counter's. All may be integers or floats, as in JSON.
    """
    pairs = [(variable, np.asarray(value)) for variable, value in zip(variables, values)]
    for variable, value in pairs:
        if tuple(variable.shape) != value.shape:
            raise ValueError(
                f"The weights hold an array of shape {value.shape} for {variable.name}, which has "
                f"shape {variable.shape}."
            )
    wrong = [
        (each, value)
        for each, value in pairs
        if not (value.ndim or _same_kind_of_number(value, each))
    ]
    if len({np.issubdtype(value.dtype, np.integer) for _, value in wrong}) > 1:
        shown = ", ".join(f"{value!r} for {each.name}" for each, value in wrong)
        raise ValueError(
            f"The weights hold {shown}, which belong to another kind of loss scale or optimizer."
        )
    assign(pairs)
