"""TensorFlow's `Trackable`, as type checkers see it; nothing imports this module at run time.

It is TensorFlow's own where a checker knows its types, so that loss scales can be given to a
`tf.train.Checkpoint`. Elsewhere it is a class of no further attributes instead of Any, of which
checkers believe everything.
"""
# mypy: disable-error-code="no-redef"

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # All names, as only so a module that cannot be found leaves the one below as it is. Of two,
    # checkers take the one that is not in an except clause.
    try:
        from tensorflow.python.trackable.base import *  # noqa: F403
    except ImportError:

        class Trackable:
            """A base class of what `tf.train.Checkpoint` saves."""

            _track_trackable: Any
