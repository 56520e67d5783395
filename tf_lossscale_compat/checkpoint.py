"""Find the loss scale in a checkpoint, whatever wrote it, and put it into any other kind.

state = checkpoint.read("model.ckpt-1000")
checkpoint.assign(state, optimizer)
"""

from __future__ import annotations

import collections
import json
import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_lossscale_compat import _arguments, _keras_files, _tf
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat import loss_scale_manager as lsm

if TYPE_CHECKING:
    import argparse

    from tf_lossscale_compat import _types

tf = _tf.tf

__all__ = ["CheckpointError", "LossScaleState", "assign", "find", "read"]


class CheckpointError(ValueError):
    """A file that cannot be read, or does not hold what is asked for."""


class LossScaleState(NamedTuple):
    """The state of one dynamic loss scale.

    Attributes:
      scale: float, the loss scale.
      good_steps: int, finite steps since the scale was last changed or a step was not finite.
      bad_steps: int, non-finite steps since the scale was last changed; None for all
        but contrib's manager, which do not count them.
      layout: str, such as "contrib by name": what wrote it, "contrib" (the manager of r1.15),
        "dynamic" (the loss scale of r2.0, and of Keras from TensorFlow 2.4 to tf_keras) or
        "keras3"; and how, "by name" (Saver), "by object" (`tf.train.Checkpoint`, SavedModel) or
        "HDF5".
      key: str, which one it is in its file.
    """

    scale: float
    good_steps: int
    bad_steps: int | None
    layout: str
    key: str


# --- Reading

# What reading a file needs: {name: "f" for a float scalar, "i" for an int32 one, "q" for an int64
# one}, and a function from the name of one to its value.
_Scalars = collections.namedtuple("_Scalars", ["kinds", "value_of"])
_KINDS = {tf.float32: "f", tf.float64: "f", tf.int32: "i", tf.int64: "q"}
_DATA_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_MAX_KEY = 1 << 14  # Chains of objects make squares of their names.


def _is_file(path):
    # Locally no pipes or devices, which have no end.
    return os.path.isfile(path) or (
        "://" in path and tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    )


def _in_folder(folder):
    """Returns the one checkpoint of a folder: the latest, or the only one."""
    state_file = os.path.join(folder, "checkpoint")
    if _is_file(state_file):
        told = tf.train.get_checkpoint_state(folder)
        latest = told.model_checkpoint_path if told else ""
        # The folder may have been moved since.
        for name in (latest, os.path.basename(latest)) if latest else ():
            path = os.path.join(folder, name)
            if _is_file(path + ".index") or _is_file(path):
                return path
        raise CheckpointError(f"{state_file!r} names {latest!r}, which is not there.")
    saved_model = os.path.join(folder, "variables", "variables")
    if _is_file(saved_model + ".index"):
        return saved_model
    unzipped = os.path.join(folder, _keras_files.WEIGHTS)  # Keras 3 can leave `.keras` unzipped.
    if _is_file(unzipped) and _is_file(os.path.join(folder, "config.json")):
        return unzipped
    names = sorted(tf.io.gfile.listdir(folder))
    found = [name for name in names if name.endswith((".index", ".keras", ".h5"))]
    if len(found) != 1:
        raise CheckpointError(
            f"{folder!r} holds {len(found) or 'no'} checkpoints and no file `checkpoint` that says "
            f"which is the latest. Give the path of one{': ' if found else ''}{found[:20] or ''}."
        )
    return os.path.join(folder, found[0])


def _look_into(path):
    """Returns (states, with None among them; names of what else is there) of a path."""
    if tf.io.gfile.isdir(path) and not _is_file(path + ".index"):
        path = _in_folder(path)
    prefix = _DATA_FILE.sub("", path)
    if _is_file(prefix + ".index"):
        return _from_tensorflow(prefix)
    if not _is_file(path):
        what = "is neither a file nor a folder nor the prefix of a checkpoint"
        raise CheckpointError(f"{path!r} {what}.")
    with tf.io.gfile.GFile(path, "rb") as file:
        start = file.read(8)
        file.seek(0)
        if start[:4] == b"PK\x03\x04":
            return _from_hdf5(*_keras_files.read_keras(file))
        if start == b"\x89HDF\r\n\x1a\n":
            remote = "://" in path
            return _from_hdf5(
                *(_keras_files.read_copy(file) if remote else _keras_files.read_hdf5(path))
            )
    raise CheckpointError(
        f"{path!r} is no checkpoint of TensorFlow or Keras. (One of TensorFlow 0.x, which Saver "
        "calls version V1: restore it with tf.compat.v1.train.Saver and save it again.)"
    )


def _state(scalars, names, layout, key):
    """Returns a state if the scale, the counter and maybe another are scalars of their types."""
    kinds = [scalars.kinds.get(name) for name in names]
    if kinds[0] != "f" or not all(kind in ("i", "q") for kind in kinds[1:]):
        return None
    scale, good, *bad = map(scalars.value_of, names)
    return LossScaleState(scale, good, bad[0] if bad else None, layout, key)


def _from_tensorflow(prefix):
    """Finds what TensorFlow wrote, `prefix.index` and `prefix.data-00000-of-00001`."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    # Not load_checkpoint, which looks into a folder of this name if there is one.
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    kinds = {
        name: _KINDS[types[name]] for name in shapes if not shapes[name] and types[name] in _KINDS
    }
    scalars = _Scalars(kinds, lambda name: reader.get_tensor(name).item())
    if shapes.get(_OBJECT_GRAPH, [0]) or types[_OBJECT_GRAPH] != tf.string:
        return _by_name(scalars), sorted(shapes)
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor(_OBJECT_GRAPH)
    )
    return _by_object(scalars, graph.nodes), sorted(shapes)


_NUMBERED = re.compile(r"^(?P<scope>(?:.*/)?)(?P<base>[a-z_]+?)(?:_(?P<number>[1-9]\d*))?$")


def _by_name(scalars):
    """Finds what `tf.compat.v1.train.Saver` wrote, under whatever scopes."""
    # {scope: {(base name, kind): [(number, name)]}}; the graph numbers names that are taken.
    scopes: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, kind in scalars.kinds.items():
        match = _NUMBERED.match(name)
        if match:
            found = scopes[match.group("scope")][match.group("base"), kind]
            found.append((int(match.group("number") or 0), name))
    states = []
    for found in scopes.values():
        # contrib's counters are int32 and r2.0's are int64: they share a name.
        contrib = [found["loss_scale", "f"], found["good_steps", "i"], found["bad_steps", "i"]]
        dynamic = [found["current_loss_scale", "f"], found["good_steps", "q"]]
        for columns, layout in ((contrib, "contrib by name"), (dynamic, "dynamic by name")):
            states += [_state(scalars, names, layout, names[0]) for names in _rows(*columns)]
    return states


def _rows(scales, *counters):
    """Puts together the names that belong to the first, second, ... loss scale of a scope."""
    first, *others = [sorted(column) for column in (scales, *counters)]
    if len({len(column) for column in others}) == 1:
        # Made one after the other, so numbered in the same order, whatever the numbers are.
        rows = list(zip(*others))
        if len(first) != len(rows):
            # Other variables are called loss_scale too. Only managers make bad_steps, with it.
            numbered = dict(first)
            rows = [row for row in rows if row[-1][0] in numbered]
            first = [(number, numbered[number]) for number, _ in (row[-1] for row in rows)]
        return [[name for _, name in (scale, *row)] for scale, row in zip(first, rows)]
    by_number = [dict(column) for column in (first, *others)]
    numbers = set.intersection(*map(set, by_number))
    return [[column[number] for column in by_number] for number in sorted(numbers)]


_BY_OBJECT = (
    ("contrib by object", ("loss_scale", "good_steps", "bad_steps")),
    ("dynamic by object", ("current_loss_scale", "good_steps")),
    ("keras3 by object", ("dynamic_scale", "step_counter")),
)


def _by_object(scalars, nodes):
    """Finds what `tf.train.Checkpoint` wrote, wherever it hangs in the object graph."""
    states = []
    # Shortest paths from the root, {index of a node: path}.
    paths, waiting = {0: ""}, collections.deque([0])
    while waiting:
        index = waiting.popleft()
        path, children = paths[index], {}
        for child in nodes[index].children:
            children[child.local_name] = child.node_id
        for name, child in sorted(children.items()):
            if child not in paths:
                paths[child] = f"{path}/{name}" if path else name
                if len(paths[child]) > _MAX_KEY:
                    raise ValueError("its objects are nested too deeply")
                waiting.append(child)
        keys = {
            name: attribute.checkpoint_key
            for name, child in children.items()
            for attribute in nodes[child].attributes
            if attribute.name == "VARIABLE_VALUE"
        }
        for layout, names in _BY_OBJECT:
            # This package's Keras 3 optimizer has them under both names.
            if names[0] != "dynamic_scale" or "loss_scale" not in children:
                key = path or "."
                states.append(_state(scalars, [keys.get(name) for name in names], layout, key))
    return states


def _from_hdf5(groups, kinds, values):
    """Finds what Keras 3's LossScaleOptimizer left in an HDF5 file."""
    scalars, states = _Scalars(kinds, values.get), []

    def own_of(group):
        """Returns the number of variables before those of the optimizer inside, or None."""
        inner = group + "/inner_optimizer/vars"
        count = groups.get(group + "/vars", 0)
        if kinds.get(inner + "/0") != "q":
            return None
        # Its first two, iteration and mostly learning rate, stand there by themselves, too.
        begin = [values.get(f"{inner}/{number}") for number in range(2)]
        places = [
            place
            for place in range(2, count)
            if [values.get(f"{group}/vars/{place + number}") for number in range(2)] == begin
        ]
        told = count - groups[inner]
        if told in places:
            return told
        return places[0] if len(places) == 1 else None

    for group in sorted(groups):
        # In .keras and .weights.h5 variables are numbered: iteration, learning rate, step counter,
        # scale, others that subclasses have, and what the optimizer inside has. With a manager,
        # this package's has the manager's variables in the scale's place; with a fixed scale none.
        if group + "/inner_optimizer" in groups:
            own = own_of(group)
            variables = [f"{group}/vars/{number}" for number in range(6 if own is None else own)]
            order = "".join(kinds.get(name, "-") for name in variables)
            # Where it is not known what is whose, a counter has to follow: that of the one inside.
            end = "q" if own is None else ""
            if order.startswith("qfqf" + end):
                states.append(_state(scalars, variables[3:1:-1], "keras3 HDF5", group))
            elif order.startswith("qffqq" + end):
                states.append(_state(scalars, variables[2:5], "contrib HDF5", group))
        # In Keras' older .h5 they go by their names, and so in files of this package's tf_keras
        # optimizers.
        key = group[: -len("/vars")] if group.endswith("/vars") else group
        for layout, names in _BY_OBJECT:
            names = [f"{group}/{name}" for name in names]
            states.append(_state(scalars, names, layout.replace("by object", "HDF5"), key))
    return states, sorted(kinds)


def _shown(scale):
    return f"{scale:.16g}"  # Of a float32 no digit is lost that tells it from others.


def find(path: _types.Path) -> list[LossScaleState]:
    """Finds all dynamic loss scales in a checkpoint; nothing is written to it.

    Args:
      path: str or path-like: the prefix of a TensorFlow checkpoint or one of its files; a Keras
        file (`.keras`, `.weights.h5`, `.h5`); a SavedModel; or a folder of checkpoints, for the
        latest of them (as its file `checkpoint` says) or the only one. Paths that TensorFlow
        reads, such as `gs://…`, are fine.

    Returns:
      A list of `LossScaleState`, sorted by key; empty if there is none.

    Raises:
      CheckpointError: it cannot be read, is damaged, or is no checkpoint.
      TypeError: `path` is no path.
    """
    return _find(path)[0]


def _find(path):
    try:
        path = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"path must be a str or path-like, got {path!r}.") from None
    try:
        states, names = _look_into(path)
    except CheckpointError:
        raise
    except Exception as error:  # Whatever reading a file of unknown contents raises.
        raise CheckpointError(
            f"Cannot read {path!r} as a checkpoint: {error or type(error).__name__}."
        ) from error
    return sorted(filter(None, states), key=lambda state: state.key), names


def read(path: _types.Path, key: str | None = None) -> LossScaleState:
    """Reads the state of a dynamic loss scale from a checkpoint, whatever wrote it.

    Args:
      path: see `find`.
      key: str, which loss scale to take where there are several; as in `LossScaleState.key`.

    Returns:
      A `LossScaleState`.

    Raises:
      CheckpointError: the file cannot be read or is no checkpoint; it holds no dynamic loss scale,
        none of that key, or several and no key is given.
      TypeError: `path` is no path.
    """
    states, names = _find(path)
    if not states:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise CheckpointError(
            f"{os.fsdecode(path)!r} holds no dynamic loss scale (a fixed one has no state, and "
            "Keras before 3 saves it in TensorFlow's formats only, not in .h5 or .keras). It "
            f"holds {len(names)} other names" + (f": {shown}." if names else ".")
        )
    chosen = [state for state in states if key is None or state.key == key]
    if len(chosen) == 1:
        return chosen[0]
    listed = "; ".join(
        f"key={state.key!r} ({state.layout}, scale {_shown(state.scale)})" for state in states
    )
    if key is not None and not chosen:
        raise CheckpointError(f"{os.fsdecode(path)!r} holds no loss scale {key!r}, but {listed}.")
    raise CheckpointError(
        f"{os.fsdecode(path)!r} holds {len(states)} loss scales: choose one with key=. There are "
        f"{listed}."
    )


# --- Assigning

_Target = collections.namedtuple("_Target", ["scale", "good", "bad", "lowest", "highest"])

# What the variables are called: contrib's manager; r2.0's loss scale; that of Keras 2.4 to
# tf_keras; Keras 3's optimizer. TensorFlow's own classes and this package's alike.
_VARIABLES = (
    ("_loss_scale", "_num_good_steps", "_num_bad_steps"),
    ("_current_loss_scale", "_num_good_steps"),
    ("current_loss_scale", "counter"),
)
_KERAS_3 = ("dynamic_scale", "step_counter")
# What an optimizer or an adapter keeps its loss scale or manager under.
_INNER = ("_loss_scale_manager", "_loss_scale", "manager", "loss_scale")


def _variables_of(owner, names):
    """Returns scale, good steps and bad steps or None, or None if one of them is no variable."""
    found = [getattr(owner, name, None) for name in names]
    if not all(callable(getattr(value, "assign", None)) for value in found):
        return None
    return (*found, None)[:3]


def _target_of(owner, depth=0):
    """Returns where a loss scale's state is kept, or None; raises a ValueError if it is fixed."""
    fixed = (loss_scale_lib.FixedLossScale, lsm.FixedLossScaleManager)
    if (
        isinstance(owner, fixed)
        or type(owner).__name__.startswith("FixedLossScale")
        or (depth == 0 and getattr(owner, "dynamic", None) is False)
    ):
        raise ValueError(
            f"target has a fixed loss scale, which has no state: {owner!r}. Make a new one with "
            "the scale that was read, or take a dynamic one."
        )
    for names in _VARIABLES:
        variables = _variables_of(owner, names)
        if variables:
            lowest = getattr(owner, "min_loss_scale", 1.0)
            return _Target(*variables, lowest, getattr(owner, "max_loss_scale", None))
    for name in _INNER if depth < 4 else ():
        inner = getattr(owner, name, None)
        if hasattr(inner, "__dict__") and not callable(getattr(inner, "assign", None)):
            target = _target_of(inner, depth + 1)
            if target is not None:
                return target
    variables = _variables_of(owner, _KERAS_3)
    return _Target(*variables, None, None) if variables else None


def _checked(state, target):
    """Returns [(variable, value)], after all that may be wrong with them has been looked at."""
    scale, good, bad = state[:3]
    if not (isinstance(scale, float) and math.isfinite(scale) and scale > 0):
        raise ValueError(f"state.scale must be a finite float above zero, got {scale!r}.")
    scale = _arguments.real_number("state.scale", scale)
    if target.highest is not None and scale > target.highest:
        raise ValueError(
            f"state.scale is {scale!r}, above the target's max_loss_scale={target.highest!r}."
        )
    if target.lowest is not None and scale < target.lowest:
        if target.lowest != 1.0:
            raise ValueError(
                f"state.scale is {scale!r}, below the target's min_loss_scale={target.lowest!r}."
            )
        _arguments.warn_odd("state.scale={!r} is below 1, the target's floor.", scale)
    for name, steps in (("good_steps", good), ("bad_steps", 0 if bad is None else bad)):
        if not isinstance(steps, int):
            raise ValueError(f"state.{name} must be an int, got {steps!r}.")
        if steps < 0:
            raise ValueError(f"state.{name} must not be negative, got {steps!r}.")
    if bad and target.bad is None:
        _arguments.warn_odd("state.bad_steps={!r} is dropped: the target does not count them.", bad)
    counts = [
        # Any count that no period reaches stands for the same. One less than the largest, for the
        # rule adds one.
        (variable, min(steps, tf.as_dtype(variable.dtype).base_dtype.max - 1))
        for variable, steps in ((target.good, good), (target.bad, bad or 0))
        if variable is not None
    ]
    return [(target.scale, scale), *counts]


def assign(state: LossScaleState, target: Any, session: Any = None) -> Any:
    """Puts the state of a loss scale into one of any kind, which goes on from there.

    The number of bad steps is dropped where the target does not count them (only contrib's manager
    does), with a warning, and is 0 where the source did not. Periods, ratios and bounds are the
    target's.

    Args:
      state: a `LossScaleState`, as `read` returns it.
      target: an `ExponentialUpdateLossScaleManager`, a `DynamicLossScale`, or an optimizer that has
        one of them; TensorFlow's own of these; a Keras `LossScaleOptimizer` (this package's, that
        of `tf.keras` 2.4 and later, `tf_keras` or Keras 3), after `build` or `compile` and a step.
        Under a strategy, one made in its scope; call this outside of `strategy.run`.
      session: `tf.compat.v1.Session` to assign in, for a target that is part of a `tf.Graph`; None
        to be given the operation.

    Returns:
      In graph mode without `session` an operation that assigns when it is run, after the variables
      have been initialized; otherwise None, and it has happened.

    Raises:
      TypeError: `state` is no `LossScaleState`, or `target` nothing that has a loss scale.
      ValueError: `target` has a fixed loss scale, or one whose bounds the scale is not in; it is a
        Keras optimizer without variables yet; `state` holds what no loss scale can be; a `session`
        is given for a target outside of graphs. The target is as it was.
    """
    if not isinstance(state, LossScaleState):
        raise TypeError(f"state must be a LossScaleState, as read() returns it, got {state!r}.")
    place = None if isinstance(target, type) else _target_of(target)
    if place is None:
        if hasattr(target, "inner_optimizer"):
            raise ValueError(
                "target has no variables for its loss scale yet: call its build() with the "
                f"variables to train first. It is {target!r}."
            )
        raise TypeError(
            "target must be a dynamic loss scale, a loss-scale manager with state, or an optimizer "
            f"that has one of them, got {target!r}."
        )
    assignments = _checked(state, place)
    graph = getattr(place.scale, "graph", None)
    if graph is None:
        if session is not None:
            raise ValueError(
                "session must be None: the variables of target are not part of a graph."
            )
        with tf.init_scope():
            for variable, value in assignments:
                variable.assign(value)
        return None
    operations = []
    with graph.as_default(), tf.control_dependencies(None):
        for variable, value in assignments:
            assigned = variable.assign(value, read_value=False)
            strategy = getattr(variable, "distribute_strategy", None)
            local = strategy.experimental_local_results(assigned) if strategy else [assigned]
            operations.extend(local)
        operation = tf.group(*operations)
    if session is None:
        return operation
    session.run(operation)
    return None


# --- The command `tf-lossscale checkpoint`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options to an `argparse` parser."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.required = True
    show = actions.add_parser(
        "show",
        help="show the loss scales in a checkpoint",
        description="Shows the dynamic loss scales in a checkpoint, which is only read. Exit code "
        "1 if there is none or it cannot be read.",
    )
    show.add_argument(
        "path",
        metavar="PATH",
        help="prefix of a TensorFlow checkpoint, folder of checkpoints (the latest), SavedModel, "
        ".keras, .weights.h5 or .h5 file",
    )
    show.add_argument("--json", action="store_true", help="write JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    try:
        states = find(args.path) or [read(args.path)]  # Raises, and says what there is instead.
    except CheckpointError as error:
        print(f"tf-lossscale checkpoint: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([state._asdict() for state in states], indent=2))
        return 0
    width = max(len("key"), *[len(state.key) for state in states])
    print(f"{'key':{width}}  {'loss scale':>22}  good steps  bad steps  layout")
    for key, scale, good, bad, layout in [(state.key, *state[:4]) for state in states]:
        counts = f"{good:>10}  {'-' if bad is None else bad:>9}"
        print(f"{key:{width}}  {_shown(scale):>22}  {counts}  {layout}")
    return 0
