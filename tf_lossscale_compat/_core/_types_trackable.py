"""TensorFlow's `Trackable`, as type checkers see it; nothing imports this module at run time.

If a checker knows TensorFlow's types, it is TensorFlow's class, so that loss scales can be given to
a `tf.train.Checkpoint`. Otherwise it is a class without other attributes. It is not Any, because
checkers accept every attribute of Any.
"""
# mypy: disable-error-code="no-redef"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Only the import of all names leaves the class below as it is if the module is not found. If
    # there are two, checkers take the one that is not in an except clause.
    try:
        from tensorflow.python.trackable.base import *  # noqa: F403
    except ImportError:

        class Trackable:
            """A base class of objects that `tf.train.Checkpoint` saves."""

            _track_trackable: Any
