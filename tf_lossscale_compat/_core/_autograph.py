"""AutoGraph: off for this package's functions, on for functions that users pass in."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable

from tf_lossscale_compat._core import _tf

try:
    from tensorflow.python.autograph.core import ag_ctx as _ag_ctx
    from tensorflow.python.autograph.impl import api as _autograph
except ImportError:
    _ag_ctx = _autograph = None

# AutoGraph would rewrite this package's Python when a user's tf.function calls it. That makes
# tracing slow and is useless: no Python control flow here depends on tensors.
if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types

    def do_not_convert(func: _types.Function) -> _types.Function: ...
else:
    do_not_convert = _tf.tf.autograph.experimental.do_not_convert


def convert_passed_functions(method: _types.Function) -> _types.Function:
    """Decorates a method like `do_not_convert`, except that functions passed to it are converted.

    A user's loss function is converted as it would be where the method is called.
    """
    unconverted = do_not_convert(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # Not `self`, which may be callable.
        converted_args = [_as_converted_here(each) if callable(each) else each for each in args]
        kwargs = {k: _as_converted_here(v) if callable(v) else v for k, v in kwargs.items()}
        return unconverted(self, *converted_args, **kwargs)

    decorated: Any = call
    return decorated


def _as_converted_here(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as AutoGraph converts it here, to be called where AutoGraph is off.

    Without TensorFlow's private module it is returned unchanged.
    """
    if _autograph is None:
        return function
    context = _ag_ctx.control_status_ctx()
    if context.status is not _ag_ctx.Status.ENABLED:
        return function
    converted = _autograph.tf_convert(function, context)

    def call(*args: Any, **kwargs: Any) -> Any:
        with context:  # Also applies to functions that it calls.
            return converted(*args, **kwargs)

    return call
