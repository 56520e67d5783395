"""AutoGraph, off for the package's own functions and on for those that users give them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tf_lossscale_compat._core import _tf

try:
    from tensorflow.python.autograph.core import ag_ctx as _ag_ctx
    from tensorflow.python.autograph.impl import api as _autograph
except ImportError:
    _ag_ctx = _autograph = None

# Autograph would rewrite this package's Python line by line when a user's tf.function calls it:
# slow to trace, and of no use, as there is no tensor-dependent Python control flow here.
if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

    def do_not_convert(func: _types.Function) -> _types.Function: ...
else:
    do_not_convert = _tf.tf.autograph.experimental.do_not_convert


def converts_functions_given(method: _types.Function) -> _types.Function:
    """Decorates a method as `do_not_convert` does, but for the functions that it is given.

    What a user's loss calls is converted as it would be where the method is called.
    """
    unconverted = do_not_convert(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # Not `self`, which may be callable.
        given = {name: as_converted_here(each) for name, each in kwargs.items()}
        return unconverted(self, *[as_converted_here(each) for each in args], **given)

    decorated: Any = call
    return decorated


def as_converted_here(function: Any) -> Any:
    """Returns a function as autograph has it here, to be called where autograph is off.

    Nothing public says so; without it autograph leaves the function alone. Other values stay.
    """
    if _autograph is None or not callable(function):
        return function
    context = _ag_ctx.control_status_ctx()
    if context.status is not _ag_ctx.Status.ENABLED:
        return function
    converted = _autograph.tf_convert(function, context)

    def call(*args: Any, **kwargs: Any) -> Any:
        with context:  # In force, too, for functions that it calls.
            return converted(*args, **kwargs)

    return call
