"""Differences between TensorFlow versions.

Other modules import `tf` and `tf1` from here, so that a missing TensorFlow has one error. They call
`at_least` where they depend on the version. docs/architecture.md says which of them may use names
that only some versions have. Versions of Keras differ in `_keras_versions` and in `keras/`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from typing import TYPE_CHECKING, Any, Callable, Sequence

from tf_lossscale_compat._core import _install

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        "tf_lossscale_compat needs TensorFlow 1.15 or newer, but cannot import TensorFlow "
        f"({error}). It is not installed by default, so that you can choose a build: "
        f"{_install.command('tensorflow', 'tensorflow-cpu')}."
    ) from error

try:
    from tensorflow.python.eager import function as _function
except ImportError:
    _function = None

tf1 = tf.compat.v1

if TYPE_CHECKING:
    from tf_lossscale_compat._core._types import Optimizer as Optimizer
    from tf_lossscale_compat._core._types_trackable import Trackable as Trackable
else:
    Optimizer = tf1.train.Optimizer
    # The base class of everything that tf.train.Checkpoint saves has no public name, but is a base
    # of the v1 Optimizer in every version.
    Trackable = next(
        base for base in Optimizer.__mro__ if base.__name__ in ("Trackable", "Checkpointable")
    )


_version = tuple(int(part) for part in tf.__version__.split(".")[:2])


def at_least(major: int, minor: int) -> bool:
    """Returns whether the installed TensorFlow is that version or later."""
    return _version >= (major, minor)


@functools.lru_cache(maxsize=None)
def compiled_gives_same_bits() -> bool:
    """Returns whether functions and eager mode treat subnormal numbers alike.

    In TensorFlow before 2.1 only functions flush subnormal numbers to zero.
    """
    with tf.device("/cpu:0"):
        return float(tf.constant(1e-38) * tf.constant(0.1)) == 0.0


def call_as_one_operation(function: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> Any:
    """Calls `function` with tensors; in a graph, as one operation that is not inlined.

    TensorFlow before 2.12 has no public option for this. If it has no private option either, the
    operations are inlined in the graph that calls the function.
    """
    if tf.executing_eagerly():
        return function(*tensors)
    options: Any = {"autograph": False}
    options["input_signature"] = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]
    if "experimental_attributes" in inspect.signature(tf.function).parameters:
        options["experimental_attributes"] = {"_noinline": True}
    elif hasattr(_function, "defun_with_attributes"):
        options["attributes"] = {"_noinline": True}
        return _function.defun_with_attributes(function, **options)(*tensors)
    return tf.function(function, **options)(*tensors)


def set_graph_rewrite(enabled: bool) -> None:
    """Turns TensorFlow's auto-mixed-precision rewrite on or off, for sessions and functions."""
    module: Any = getattr(tf1, "mixed_precision", None)
    if not hasattr(module, "enable_mixed_precision_graph_rewrite"):
        module = tf1.train.experimental
    if enabled:
        # Sessions read a private switch that only this public function sets. The result is not
        # needed; a fixed scale makes no variables.
        module.enable_mixed_precision_graph_rewrite(tf1.train.GradientDescentOptimizer(0.0), 1.0)
    else:
        module.disable_mixed_precision_graph_rewrite()


def api_modules() -> list[Any]:
    """Returns a list of every module that `import tensorflow` or `tensorflow.compat.v1` may bind.

    In some versions the attribute `tf.compat.v1` and the module imported under that name are
    different objects, and the import replaces the attribute.
    """
    imported = importlib.import_module("tensorflow.compat.v1")
    found = [tf, tf1, sys.modules["tensorflow"].compat.v1, imported]
    return list({id(module): module for module in found}.values())
