"""Opt-in: makes `tf.contrib.mixed_precision` importable on TensorFlow 2."""

import sys
import types

from tf_lossscale_compat import contrib
from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import mixed_precision


def install_contrib() -> bool:
    """Makes `tf.contrib.mixed_precision` importable, for libraries that cannot be changed.

    Returns:
      True if `tf.contrib` is now this package's, False if there is another, which stays.
    """
    if hasattr(_tf.tf, "contrib") or "tensorflow.contrib" in sys.modules:
        return sys.modules.get("tensorflow.contrib") is contrib
    # In TensorFlow r1.15 the classes are in two modules of this one.
    python = types.ModuleType("tensorflow.contrib.mixed_precision.python")
    for name in ("loss_scale_manager", "loss_scale_optimizer"):
        setattr(python, name, mixed_precision)
        sys.modules[f"{python.__name__}.{name}"] = mixed_precision
    sys.modules[python.__name__] = python
    sys.modules["tensorflow.contrib"] = contrib
    sys.modules["tensorflow.contrib.mixed_precision"] = mixed_precision
    for api in _tf.api_modules():
        api.contrib = contrib
    return True


install_contrib.__module__ = "tf_lossscale_compat"  # Where users find it.
