"""Reads the loss scales in a checkpoint of TensorFlow 1 or 2."""

from __future__ import annotations

import collections
import glob
import os
import re
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from tf_lossscale_compat._core._tf import tf

if TYPE_CHECKING:
    from tf_lossscale_compat._core import _types


class CheckpointError(ValueError):
    """Raised if a file cannot be read, or does not hold the loss scale."""


class LossScaleState(NamedTuple):
    """The state of one dynamic loss scale.

    Attributes:
      scale: float, the loss scale.
      good_steps: int, finite steps since the scale last changed or a step was not finite.
      bad_steps: int, contrib's non-finite steps since the scale last changed; None for others.
      layout: str, such as "contrib by name". The first word is the class that wrote it: "contrib"
        (the manager of r1.15), "dynamic" (the loss scale of r2.0, and of Keras from TensorFlow 2.4
        to tf_keras) or "keras3". The rest is the format: "by name" (Saver) or "by object"
        (`tf.train.Checkpoint`, SavedModel).
      key: str, identifies the loss scale in its file.
    """

    scale: float
    good_steps: int
    bad_steps: int | None
    layout: str
    key: str


class _Scalars(NamedTuple):
    """The scalars of a file."""

    dtypes: dict[str, str]  # By name: "f" for a float scalar, "i" for int32, "q" for int64.
    value_of: Callable[[str], Any]


_DTYPE_CODES = {tf.float32: "f", tf.int32: "i", tf.int64: "q"}
_MAX_CHARACTERS = 1 << 24  # In the names of all objects.
_DATA_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def _is_file(path: str) -> bool:
    # Excludes local pipes and devices, which may never end.
    return os.path.isfile(path) or (
        "://" in path and tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    )


def _latest_in(folder: str, state_file: str) -> str:
    """Returns the checkpoint that the file `checkpoint` of a folder names."""
    state = tf.train.get_checkpoint_state(folder)
    latest = state.model_checkpoint_path if state else ""
    for name in (latest, os.path.basename(latest)):  # The folder may have been moved.
        path = os.path.join(folder, name)
        if _is_file(path + ".index") or _is_file(path):
            return path
    raise CheckpointError(f"{state_file!r} names {latest!r}, which is not there.")


def _in_folder(folder: str) -> str:
    """Returns a folder's checkpoint: the latest, or the only one."""
    state_file = os.path.join(folder, "checkpoint")
    if _is_file(state_file):
        return _latest_in(folder, state_file)
    saved_model = os.path.join(folder, "variables", "variables")
    if _is_file(saved_model + ".index"):
        return saved_model
    names = sorted(tf.io.gfile.listdir(folder))
    found = [name for name in names if name.endswith(".index")]
    if len(found) != 1:
        raise CheckpointError(
            f"{folder!r} holds {len(found) or 'no'} checkpoints and no file `checkpoint` that says "
            f"which is the latest. Give the path of one{': ' if found else ''}{found[:20] or ''}."
        )
    return os.path.join(folder, found[0])


def _read_path(path: str) -> tuple[list[LossScaleState | None], list[str]]:
    """Returns the states in a path, None among them, and the names of all its entries."""
    if tf.io.gfile.isdir(path) and not _is_file(path + ".index"):
        path = _in_folder(path)
    prefix = _DATA_FILE.sub("", path)
    if _is_file(prefix + ".index"):
        return _read_tensorflow(prefix)
    if not _is_file(path):
        what = "is neither a file nor a folder nor the prefix of a checkpoint"
        raise CheckpointError(f"{path!r} {what}.")
    if path.endswith((".keras", ".h5", ".hdf5")):
        raise CheckpointError(
            f"path must be a checkpoint of TensorFlow, got a file of Keras, {path!r}: load the "
            "model and read `optimizer.loss_scale`, or `optimizer.dynamic_scale` of Keras 3's own "
            "class."
        )
    raise CheckpointError(
        f"{path!r} is not a checkpoint of TensorFlow. (One of TensorFlow 0.x, which Saver "
        "calls version V1: restore it with tf.compat.v1.train.Saver and save it again.)"
    )


def _state(scalars: _Scalars, names: list[Any], layout: str, key: str) -> LossScaleState | None:
    """Returns a state, or None if the scale or a counter is not a scalar of its type."""
    dtypes = [scalars.dtypes.get(name) for name in names]
    if dtypes[0] != "f" or not all(dtype in ("i", "q") for dtype in dtypes[1:]):
        return None
    scale, good, *bad = map(scalars.value_of, names)
    return LossScaleState(scale, good, bad[0] if bad else None, layout, key)


def _read_tensorflow(prefix: str) -> tuple[list[LossScaleState | None], list[str]]:
    """Reads TensorFlow's files, `prefix.index` and `prefix.data-00000-of-00001`."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    for data in glob.glob(glob.escape(prefix) + ".data-*"):  # Local files.
        if not _is_file(data):
            raise CheckpointError(f"{data!r} is not a file.")
    # load_checkpoint would prefer a folder of this name.
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    dtypes = {
        name: _DTYPE_CODES[types[name]]
        for name in shapes
        if not shapes[name] and types[name] in _DTYPE_CODES
    }
    scalars = _Scalars(dtypes, lambda name: reader.get_tensor(name).item())
    if shapes.get(_OBJECT_GRAPH) != []:
        return _find_by_name(scalars), sorted(shapes)
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(_OBJECT_GRAPH)
    )
    return _find_by_object(scalars, graph.nodes), sorted(shapes)


_NUMBERED = re.compile(r"^(?P<scope>(?:.*/)?)(?P<base>[a-z_]+?)(?:_(?P<number>[1-9]\d*))?$")


def _find_by_name(scalars: _Scalars) -> list[LossScaleState | None]:
    """Finds the loss scales that `tf.compat.v1.train.Saver` wrote, under any scope."""
    # {scope: {(base name, dtype): [(number, name)]}}; a graph numbers equal names.
    scopes: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, dtype in scalars.dtypes.items():
        match = _NUMBERED.match(name)
        if match:
            found = scopes[match.group("scope")][match.group("base"), dtype]
            found.append((int(match.group("number") or 0), name))
    states = []
    for found in scopes.values():
        # contrib's counters are int32 and r2.0's are int64: they share a name.
        contrib = [found["loss_scale", "f"], found["good_steps", "i"], found["bad_steps", "i"]]
        dynamic = [found["current_loss_scale", "f"], found["good_steps", "q"]]
        for columns, layout in ((contrib, "contrib by name"), (dynamic, "dynamic by name")):
            states += [_state(scalars, names, layout, names[0]) for names in _rows(*columns)]
    return states


def _rows(scales: list[tuple[int, Any]], *counters: list[tuple[int, Any]]) -> list[list[Any]]:
    """Returns the names that belong to the first, second, ... loss scale of a scope."""
    if len({len(column) for column in counters}) > 1:
        return []  # Another variable is also called good_steps, and it is unknown which.
    # A loss scale's variables are made together, so all columns are numbered in the same order.
    scales, rows = sorted(scales), list(zip(*map(sorted, counters)))
    if len(scales) != len(rows):
        # Other variables are also called loss_scale. Only managers make bad_steps, numbered alike.
        scales = [(row[-1][0], dict(scales).get(row[-1][0])) for row in rows]
    return [[name for _, name in (scale, *row)] for scale, row in zip(scales, rows)]


_OBJECT_LAYOUTS = (
    ("contrib by object", ("loss_scale", "good_steps", "bad_steps")),
    ("dynamic by object", ("current_loss_scale", "good_steps")),
    ("keras3 by object", ("dynamic_scale", "step_counter")),
)


def _find_by_object(scalars: _Scalars, nodes: Any) -> list[LossScaleState | None]:
    """Finds the loss scales that `tf.train.Checkpoint` wrote, anywhere in the object graph."""
    states = []
    # Shortest paths from the root, {index of a node: path}.
    paths, queue, characters_left = {0: ""}, [0], _MAX_CHARACTERS
    for index in queue:  # The loop appends to it.
        path = paths[index]
        children = {child.local_name: child.node_id for child in nodes[index].children}
        for name, child in children.items():
            if child not in paths:
                paths[child] = f"{path}/{name}" if path else name
                # A chain's names grow with the square of its length.
                characters_left -= len(paths[child])
                if characters_left < 0:
                    raise ValueError("its objects are nested too deeply")
                queue.append(child)
        keys = {
            name: nodes[child].attributes[-1].checkpoint_key
            for name, child in children.items()
            if nodes[child].attributes
        }
        for layout, names in _OBJECT_LAYOUTS:
            # With a user's subclass, this package's Keras 3 optimizer has it under both names.
            if names[0] != "dynamic_scale" or "loss_scale" not in children:
                key = path or "."
                states.append(_state(scalars, [keys.get(name) for name in names], layout, key))
    return states


def format_scale(scale: float) -> str:
    return f"{scale:.16g}"  # Distinguishes all float32 numbers.


def find(path: _types.Path) -> list[LossScaleState]:
    """Finds all dynamic loss scales in a checkpoint; nothing is written to it.

    Args:
      path: str or path-like: the prefix of a TensorFlow checkpoint or one of its files; a
        SavedModel; or a folder of checkpoints, for the latest (by its file `checkpoint`) or the
        only checkpoint. Paths that TensorFlow reads, such as `gs://…`, work, too.

    Returns:
      A list of `LossScaleState`, sorted by key; empty if there is none.

    Raises:
      CheckpointError: the file cannot be read, is damaged, or is not a checkpoint. For a file of
        Keras (`.keras`, `.weights.h5`, `.h5`), load the model and read `optimizer.loss_scale`.
      TypeError: `path` is not a path.
    """
    return _find(path)[0]


def _find(path: _types.Path) -> tuple[list[LossScaleState], list[str]]:
    try:
        path = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"path must be a str or path-like, got {path!r}.") from None
    try:
        states, names = _read_path(path)
    except CheckpointError:
        raise
    except Exception as error:  # Reading a file of unknown contents may raise any error.
        raise CheckpointError(
            f"Cannot read {path!r} as a checkpoint: {error or type(error).__name__}."
        ) from error
    return sorted(filter(None, states), key=lambda state: state.key), names


def read(path: _types.Path, key: str | None = None) -> LossScaleState:
    """Reads the state of a dynamic loss scale from a checkpoint, whatever wrote it.

    Args:
      path: see `find`.
      key: str, `LossScaleState.key` of the loss scale to read, if there are several; or None.

    Returns:
      A `LossScaleState`.

    Raises:
      CheckpointError: the file cannot be read or is not a checkpoint; or it holds no dynamic loss
        scale, none with this key, or several without a key.
      TypeError: `path` is not a path.
    """
    states, names = _find(path)
    if not states:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise CheckpointError(
            f"{os.fsdecode(path)!r} holds no dynamic loss scale (a fixed one has no state). "
            f"It holds {len(names)} other names" + (f": {shown}." if names else ".")
        )
    chosen = [state for state in states if key is None or state.key == key]
    if len(chosen) == 1:
        return chosen[0]
    listed = "; ".join(
        f"key={state.key!r} ({state.layout}, scale {format_scale(state.scale)})" for state in states
    )
    if key is not None and not chosen:
        raise CheckpointError(f"{os.fsdecode(path)!r} holds no loss scale {key!r}, but {listed}.")
    raise CheckpointError(
        f"{os.fsdecode(path)!r} holds {len(states)} loss scales: choose one with key=. There are "
        f"{listed}."
    )


for _public in (CheckpointError, LossScaleState, find, read):
    _public.__module__ = "tf_lossscale_compat.checkpoint"  # Where users find it.
