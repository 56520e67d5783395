"""Detection of callers that need another answer from a public method than users do.

Object-based checkpointing calls slot methods of an optimizer, and looks up its children. Keras'
code for files, and its `compile` before TensorFlow 2.4, read attributes. Only the stack shows that
these call: they pass no argument for it, and call no other method of the optimizer before or after.
"""

from __future__ import annotations

import sys
from typing import Any


def _caller() -> Any:
    """Returns the frame that called the public method, which is two frames up; None without one."""
    frame: Any = sys._getframe(2)
    # A subclass's method may call this one, and Keras' optimizers define `__getattribute__`.
    passed = (frame.f_code.co_name, "__getattribute__")
    while frame is not None and frame.f_code.co_name in passed:
        frame = frame.f_back
    return frame  # The interpreter itself calls `__dir__` from no frame, for "Did you mean".


def _module(frame: Any) -> str:
    return "" if frame is None else frame.f_globals.get("__name__", "")


def is_checkpointing() -> bool:
    """Returns whether TensorFlow's object-based checkpointing calls the calling method."""
    return _module(_caller()).startswith(
        (
            "tensorflow.python.checkpoint.",
            "tensorflow.python.training.tracking.",
            "tensorflow_core.python.training.tracking.",
        )
    )


def names_in_checkpoint() -> list[str]:
    """Returns the names that a checkpoint has for the children of the object that it restores.

    TensorFlow calls the calling method, `_lookup_dependency`, for them one by one.
    """
    position = _caller().f_locals.get("checkpoint_position")
    return [] if position is None else [each.local_name for each in position.object_proto.children]


def is_loading_files() -> bool:
    """Returns whether Keras reads a file, and calls the calling method, `__dir__`, for it."""
    frame = _caller()
    return _module(frame).endswith(".saving_lib") and frame.f_back.f_code.co_name == "_load_state"


def is_hdf5_saving() -> bool:
    """Returns whether the calling property is read by the code of Keras that writes `.h5` files."""
    return _module(_caller()).endswith(".hdf5_format")


def is_compiling() -> bool:
    """Returns whether `Model.compile` of TensorFlow before 2.4 reads the calling property."""
    module = _module(_caller())
    return module.startswith("tensorflow") and module.endswith(".python.keras.engine.training")
