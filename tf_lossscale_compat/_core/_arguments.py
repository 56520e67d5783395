"""Checks of arguments and of subclasses, shared by all public classes.

Arguments are checked before any variable is made, so that a bad argument leaves nothing behind.
An odd value that TensorFlow accepts is accepted with a warning.
"""

from __future__ import annotations

import numbers
from typing import Any

from tf_lossscale_compat._core._tf import tf  # First: it says what to do without TensorFlow.

# isort: split
import numpy as np
from absl import logging


def as_number(value: Any) -> Any:
    """Returns the number that an array or an eager tensor holds; else `value`."""
    if tf.is_tensor(value) and not hasattr(value, "assign"):
        # Tensors of graphs have no `numpy` method.
        value = getattr(value, "numpy", lambda: value)()
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def real_number(name: str, value: Any, error: type[Exception] = ValueError) -> float:
    """Returns `value` as a float that float32 can hold.

    Raises:
      error: `value` is not a real number.
      ValueError: `value` is NaN, infinite or beyond float32.
    """
    value = as_number(value)
    is_bool = isinstance(value, bool)  # Checkers take no number to be one.
    if not isinstance(value, numbers.Real):
        raise error(
            f"{name} must be a real number (Python, NumPy or an eager tensor), got "
            f"{value!r} of type {type(value).__name__}."
        )
    if is_bool:
        logging.warning("%s=%r is a bool and is used as the number %s.", name, value, float(value))
    try:
        real = float(value)
    except OverflowError:
        real = float("inf")
    with np.errstate(over="ignore"):
        fits = np.isfinite(np.float32(real))
    if not fits:
        raise ValueError(f"{name} must be finite in float32, got {value!r}.")
    return real


def fixed_scale(name: str, value: Any, error: type[Exception] = ValueError) -> float:
    """Returns `value` as a float, if it can be a fixed loss scale."""
    try:
        scale = real_number(name, value, error)
    except ValueError as error_of_number:
        raise ValueError(f"{error_of_number} A fixed scale must be at least 1.") from None
    if scale < 1:
        raise ValueError(f"{name} must be at least 1, got {value!r}.")
    return scale


def positive(name: str, value: Any, error: type[Exception] = ValueError) -> float:
    """Returns `value` as a float that is above zero in float32."""
    real = real_number(name, value, error)
    # Processors flush numbers below the smallest normal one to zero. A scale of zero stays zero.
    if not np.float32(real) >= np.finfo(np.float32).tiny:
        raise ValueError(
            f"{name} must be above zero in float32, where the smallest is 1.1755e-38, got "
            f"{value!r}."
        )
    return real


def step_count(name: str, value: Any, dtype: str, minimum: int | None = None) -> int:
    """Returns `value`, a number of steps, as an int that `dtype` can count to.

    Raises:
      ValueError: `value` is not integral (2.0 is), too large, or below `minimum`.
    """
    value = as_number(value)
    try:
        integral = isinstance(value, numbers.Real) and int(value) == value  # type: ignore[call-overload]
    except (OverflowError, ValueError):  # Raised by int() for infinity and NaN.
        integral = False
    if not integral:
        raise ValueError(
            f"{name} must be a whole number of steps, got {value!r} of type {type(value).__name__}."
        )
    steps = int(value)
    if abs(steps) > np.iinfo(dtype).max:
        raise ValueError(f"{name} must fit the {np.dtype(dtype).name} step counter, got {value!r}.")
    if minimum is not None and steps < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}.")
    if steps < 1:
        logging.warning("%s=%r is below 1 and acts as 1: every such step counts.", name, value)
    return steps


def max_consecutive_skips(value: Any) -> int | None:
    """Returns the argument `max_consecutive_skips`: an int above zero, or None."""
    return None if value is None else step_count("max_consecutive_skips", value, "int64", minimum=1)


def check_overrides(cls: type, base: type, names: tuple[str, ...], alternative: str) -> None:
    """Raises a TypeError if a subclass overrides methods that steps of the original alone call.

    Mixins that come before `base` are checked, too. The error says to override `alternative`.
    """
    for each in cls.__mro__[: cls.__mro__.index(base)]:
        for name in names:
            if name in vars(each):
                raise TypeError(
                    f"{cls.__name__} overrides {name}, which no step of this package calls. "
                    f"Override {alternative} instead."
                )


def flag(name: str, value: Any, or_none: bool = False) -> Any:
    """Returns `value`, which must be a bool, or if `or_none` None."""
    if not (isinstance(value, bool) or (or_none and value is None)):
        expected = "True, False or None" if or_none else "a bool"
        raise TypeError(f"{name} must be {expected}, got {value!r}.")
    return value
