"""Detection of callers that need another answer from a public method than users do.

Object-based checkpointing calls slot methods of an optimizer. Keras' code for `.h5` files, and its
`compile` before TensorFlow 2.4, read properties. Only the stack shows that these call: they pass no
argument for it, and call no other method of the optimizer before or after.
"""

from __future__ import annotations

import sys
from typing import Any


def _module() -> str:
    """Returns the name of the module that called the public method, which is two frames up."""
    frame: Any = sys._getframe(2)
    # A subclass's method may call this one, and Keras' optimizers define `__getattribute__`.
    passed = (frame.f_code.co_name, "__getattribute__")
    while frame.f_code.co_name in passed:
        frame = frame.f_back
    return frame.f_globals.get("__name__", "")


def is_checkpointing() -> bool:
    """Returns whether TensorFlow's object-based checkpointing calls the calling method."""
    return _module().startswith(
        (
            "tensorflow.python.checkpoint.",
            "tensorflow.python.training.tracking.",
            "tensorflow_core.python.training.tracking.",
        )
    )


def is_hdf5_saving() -> bool:
    """Returns whether the calling property is read by the code of Keras that writes `.h5` files."""
    return _module().endswith(".hdf5_format")


def is_compiling() -> bool:
    """Returns whether `Model.compile` of TensorFlow before 2.4 reads the calling property."""
    module = _module()
    return module.startswith("tensorflow") and module.endswith(".python.keras.engine.training")
