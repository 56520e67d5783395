"""Find the loss scale in a checkpoint, whatever wrote it, and put it into any other kind.

state = checkpoint.read("model.ckpt-1000")
checkpoint.assign(state, optimizer)
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

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


class LossScaleState(
    NamedTuple(
        "LossScaleState",
        [
            ("scale", float),
            ("good_steps", int),
            ("bad_steps", Optional[int]),
            ("layout", str),
            ("key", str),
        ],
    )
):
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

    __slots__ = ()


# --- Reading


def _is_remote(path):
    return "://" in path


def _open(path):
    return tf.io.gfile.GFile(path, "rb") if _is_remote(path) else open(path, "rb")


def _is_file(path):
    # Locally no pipes or devices, which have no end.
    if not _is_remote(path):
        return os.path.isfile(path)
    return tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)


def _is_folder(path):
    return tf.io.gfile.isdir(path) if _is_remote(path) else os.path.isdir(path)


def _list(folder):
    names = tf.io.gfile.listdir(folder) if _is_remote(folder) else os.listdir(folder)
    return sorted(name.rstrip("/") for name in names)


@contextlib.contextmanager
def _own_errors(path):
    """Turns whatever reading a file of unknown contents raises into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"Cannot read {path!r} as a checkpoint: {error or type(error).__name__}."
        ) from error


_DATA_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_MAX_BYTES = 1 << 28  # Of an index or an object graph; of a list of checkpoints 1 << 20.
_MAX_KEY = 1 << 14


def _check_size(path, most):
    size = tf.io.gfile.stat(path).length
    if size > most:
        raise CheckpointError(f"{path!r} is {size} bytes large, more than is read of it, {most}.")


def _in_folder(folder):
    """Returns the one checkpoint of a folder: the latest, or the only one."""
    state_file = os.path.join(folder, "checkpoint")
    if _is_file(state_file):
        _check_size(state_file, 1 << 20)
        told = tf.train.get_checkpoint_state(folder)
        latest = told and told.model_checkpoint_path
        if not latest:
            raise CheckpointError(f"{state_file!r} does not say which checkpoint is the latest.")
        # The folder may have been moved since.
        for name in (latest, os.path.basename(latest)):
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
    found = [
        os.path.join(folder, name)
        for name in _list(folder)
        if name.endswith((".index", ".keras", ".h5"))
    ]
    if len(found) != 1:
        listed = ": " + ", ".join(found[:20]) if found else ""
        raise CheckpointError(
            f"{folder!r} holds {len(found) or 'no'} checkpoints and no file `checkpoint` that says "
            f"which is the latest{listed}. Give the path of one."
        )
    return found[0]


def _look_into(path):
    """Returns (states, with None among them; names of what else is there) of a path."""
    if _is_folder(path) and not _is_file(path + ".index"):
        path = _in_folder(path)
    prefix = _DATA_FILE.sub("", path)
    if _is_file(prefix + ".index"):
        _check_size(prefix + ".index", _MAX_BYTES)
        return _from_bundle(_Bundle(prefix))
    if not _is_file(path):
        what = "is neither a file nor a folder nor the prefix of a checkpoint"
        raise CheckpointError(f"{path!r} {what}.")
    with _open(path) as file:
        start = file.read(8)
        file.seek(0)
        if start[:4] == b"PK\x03\x04":
            return _from_hdf5(*_keras_files.read_keras(file))
        if start == b"\x89HDF\r\n\x1a\n":
            if _is_remote(path):
                return _from_hdf5(*_keras_files.read_copy(file))
            return _from_hdf5(*_keras_files.read_hdf5(path))
    raise CheckpointError(
        f"{path!r} is no checkpoint of TensorFlow or Keras. (One of TensorFlow 0.x, which Saver "
        "calls version V1: restore it with tf.compat.v1.train.Saver and save it again.)"
    )


class _Bundle:
    """A checkpoint of TensorFlow, `prefix.index` and `prefix.data-00000-of-00001`."""

    _KINDS = {tf.float32: "f", tf.float64: "f", tf.int32: "i", tf.int64: "q"}

    def __init__(self, prefix):
        # Not load_checkpoint, which looks into a folder of this name if there is one.
        self._reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        self._shapes = self._reader.get_variable_to_shape_map()
        self._dtypes = self._reader.get_variable_to_dtype_map()

    @property
    def names(self):
        return sorted(self._shapes)

    def kind(self, name):
        """Returns "f" for a float scalar, "i" or "q" for an int32 or int64 one, else None."""
        return None if self._shapes.get(name, [0]) else self._KINDS.get(self._dtypes[name])

    def scalar(self, name):
        """Returns the value of a scalar, for which `kind` is not None."""
        return self._reader.get_tensor(name).item()

    def graph(self):
        """Returns a `_Node` for each tracked object, the root first, or None without a graph."""
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        if self._shapes.get(_OBJECT_GRAPH, [0]) or self._dtypes[_OBJECT_GRAPH] != tf.string:
            return None
        message = self._reader.get_tensor(_OBJECT_GRAPH)
        if len(message) > _MAX_BYTES:
            raise ValueError(f"{_OBJECT_GRAPH} is too large to be one")
        graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(message)
        nodes = [
            _Node(
                {child.local_name: child.node_id for child in node.children},
                {attribute.name: attribute.checkpoint_key for attribute in node.attributes},
            )
            for node in graph.nodes
        ]
        for node in nodes:
            if not all(0 <= child < len(nodes) for child in node.children.values()):
                raise ValueError(f"{_OBJECT_GRAPH} names objects that are not there")
        return nodes


_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_Node = collections.namedtuple("_Node", ["children", "keys"])  # {name: index}, {attribute: name}


def _state(kind_of, value_of, scale, good, bad, layout, key):
    """Returns a state if these names are scalars of the right types, else None."""
    wanted = [(scale, "f"), (good, "iq")] + ([(bad, "iq")] if bad else [])
    for name, kinds in wanted:
        if name is None or (kind_of(name) or "-") not in kinds:
            return None
    return LossScaleState(
        value_of(scale), value_of(good), value_of(bad) if bad else None, layout, key
    )


def _from_bundle(bundle):
    graph = bundle.graph()
    if graph is None:
        return _by_name(bundle), bundle.names
    return _by_object(bundle, graph), bundle.names


_NUMBERED = re.compile(r"^(?P<scope>(?:.*/)?)(?P<base>[a-z_]+?)(?:_(?P<number>[1-9]\d*))?$")


def _by_name(bundle):
    """Finds what `tf.compat.v1.train.Saver` wrote, under whatever scopes."""
    # {scope: {(base name, type): [(number, name)]}}; the graph numbers names that are taken.
    scopes: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for name in bundle.names:
        match, kind = _NUMBERED.match(name), bundle.kind(name)
        if match and kind:
            found = scopes[match.group("scope")][match.group("base"), kind]
            found.append((int(match.group("number") or 0), name))
    states = []
    for _, found in sorted(scopes.items()):
        # contrib's counters are int32 and r2.0's are int64: they share a name.
        contrib = [found["loss_scale", "f"], found["good_steps", "i"], found["bad_steps", "i"]]
        dynamic = [found["current_loss_scale", "f"], found["good_steps", "q"]]
        for columns, layout in ((contrib, "contrib by name"), (dynamic, "dynamic by name")):
            for scale, good, *bad in _rows(*columns):
                states.append(
                    _state(
                        bundle.kind,
                        bundle.scalar,
                        scale,
                        good,
                        bad[0] if bad else None,
                        layout,
                        scale,
                    )
                )
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
    ("contrib by object", "loss_scale", "good_steps", "bad_steps"),
    ("dynamic by object", "current_loss_scale", "good_steps", None),
    ("keras3 by object", "dynamic_scale", "step_counter", None),
)


def _by_object(bundle, graph):
    """Finds what `tf.train.Checkpoint` wrote, wherever it hangs."""
    states = []
    for index, path in _paths(graph).items():
        node = graph[index]

        def key_of(name, node=node):
            child = node.children.get(name)
            return None if child is None else graph[child].keys.get("VARIABLE_VALUE")

        for layout, scale, good, bad in _BY_OBJECT:
            bad_key = key_of(bad) if bad else None
            if bad and bad_key is None:
                continue
            if scale == "dynamic_scale" and "loss_scale" in node.children:
                continue  # This package's Keras 3 optimizer, which has them under both names.
            states.append(
                _state(
                    bundle.kind,
                    bundle.scalar,
                    key_of(scale),
                    key_of(good),
                    bad_key,
                    layout,
                    path or ".",
                )
            )
    return states


def _paths(graph):
    """Returns {index of a node: its shortest path from the root}, in order."""
    paths = {0: ""} if graph else {}
    waiting = collections.deque(paths)
    while waiting:
        index = waiting.popleft()
        for name, child in sorted(graph[index].children.items()):
            if child not in paths:
                paths[child] = f"{paths[index]}/{name}" if paths[index] else name
                if len(paths[child]) > _MAX_KEY:  # Chains of objects make squares of their names.
                    raise ValueError("its objects are nested too deeply")
                waiting.append(child)
    return paths


def _from_hdf5(groups, scalars):
    """Finds what Keras 3's LossScaleOptimizer left in an HDF5 file."""

    def kind_of(name):
        return scalars[name][0] if name in scalars else None

    def value_of(name):
        return scalars[name][1]

    def own_of(group):
        """Returns the number of variables before those of the optimizer inside, or None."""
        inner = group + "/inner_optimizer/vars"
        count = groups.get(group + "/vars", 0)
        if kind_of(inner + "/0") != "q":
            return None
        # Its first two, iteration and mostly learning rate, stand there by themselves, too.
        begin = [scalars.get(f"{inner}/{number}") for number in range(2)]
        places = [
            place
            for place in range(2, count)
            if [scalars.get(f"{group}/vars/{place + number}") for number in range(2)] == begin
        ]
        told = count - groups[inner]
        if told in places:
            return told
        return places[0] if len(places) == 1 else None

    states = []
    for group in sorted(groups):
        # In .keras and .weights.h5 variables are numbered: iteration, learning rate, step counter,
        # scale, others that subclasses have, and what the optimizer inside has. With a manager,
        # this package's has the manager's variables in the scale's place; with a fixed scale none.
        if group + "/inner_optimizer" in groups:
            own = own_of(group)
            variables = [f"{group}/vars/{number}" for number in range(6 if own is None else own)]
            kinds = "".join(kind_of(name) or "-" for name in variables)
            # Where it is not known what is whose, a counter has to follow: that of the one inside.
            end = "q" if own is None else ""
            if kinds.startswith("qfqf" + end):
                found = (variables[3], variables[2], None, "keras3 HDF5")
                states.append(_state(kind_of, value_of, *found, group))
            elif kinds.startswith("qffqq" + end):
                scale, good, bad = variables[2:5]
                states.append(_state(kind_of, value_of, scale, good, bad, "contrib HDF5", group))
        # In Keras' older .h5 they go by their names, and so in files of this package's tf_keras
        # optimizers.
        key = group[: -len("/vars")] if group.endswith("/vars") else group
        for layout, names in (
            ("keras3 HDF5", ("dynamic_scale", "step_counter", None)),
            ("dynamic HDF5", ("current_loss_scale", "good_steps", None)),
            ("contrib HDF5", ("loss_scale", "good_steps", "bad_steps")),
        ):
            paths = [name and f"{group}/{name}" for name in names]
            states.append(_state(kind_of, value_of, paths[0], paths[1], paths[2], layout, key))
    return states, sorted(scalars)


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
    with _own_errors(path):
        states, names = _look_into(path)
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
    ("_current_loss_scale", "_num_good_steps", None),
    ("current_loss_scale", "counter", None),
)
_KERAS_3 = ("dynamic_scale", "step_counter", None)
# What an optimizer or an adapter keeps its loss scale or manager under.
_INNER = ("_loss_scale_manager", "_loss_scale", "manager", "loss_scale")


def _variable(owner, name):
    value = getattr(owner, name, None)
    return value if callable(getattr(value, "assign", None)) else None


def _variables_of(owner, names):
    found = [None if name is None else _variable(owner, name) for name in names]
    missing = [name for name, variable in zip(names, found) if name and variable is None]
    return None if missing else found


def _is_fixed(owner):
    fixed = (loss_scale_lib.FixedLossScale, lsm.FixedLossScaleManager)
    return isinstance(owner, fixed) or type(owner).__name__.startswith("FixedLossScale")


def _target_of(owner, depth=0):
    """Returns where a loss scale's state is kept, or None; raises a ValueError if it is fixed."""
    if _is_fixed(owner) or (depth == 0 and getattr(owner, "dynamic", None) is False):
        raise ValueError(
            f"target has a fixed loss scale, which has no state: {owner!r}. Make a new one with "
            "the scale that was read, or take a dynamic one."
        )
    for names in _VARIABLES:
        variables = _variables_of(owner, names)
        if variables:
            scale, good, bad = variables
            lowest = getattr(owner, "min_loss_scale", 1.0)
            return _Target(scale, good, bad, lowest, getattr(owner, "max_loss_scale", None))
    for name in _INNER if depth < 4 else ():
        inner = getattr(owner, name, None)
        if hasattr(inner, "__dict__") and not callable(getattr(inner, "assign", None)):
            target = _target_of(inner, depth + 1)
            if target is not None:
                return target
    variables = _variables_of(owner, _KERAS_3)
    if not variables:
        return None
    scale, good, _ = variables
    return _Target(scale, good, None, None, None)


def _checked(state, target):
    """Returns [(variable, value)], after all that may be wrong with them has been looked at."""
    scale = _checked_scale(state.scale, target)
    good, bad = state.good_steps, state.bad_steps
    for name, steps in (("good_steps", good), ("bad_steps", bad)):
        if not isinstance(steps, int) and not (steps is None and name == "bad_steps"):
            raise ValueError(f"state.{name} must be an int, got {steps!r}.")
        if steps is not None and steps < 0:
            raise ValueError(f"state.{name} must not be negative, got {steps!r}.")
    assignments = [(target.scale, scale), (target.good, _fitting(good, target.good))]
    if target.bad is not None:
        assignments.append((target.bad, _fitting(bad or 0, target.bad)))
    elif bad:
        _arguments.warn_odd("state.bad_steps={!r} is dropped: the target does not count them.", bad)
    return assignments


def _checked_scale(scale, target):
    """Returns a scale that the target may have, a float."""
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
    return scale


def _fitting(steps, variable):
    # Any count that no period reaches stands for the same. One less than the largest, for the rule
    # adds one.
    return min(steps, tf.as_dtype(variable.dtype).base_dtype.max - 1)


def _local(result, variable):
    strategy = getattr(variable, "distribute_strategy", None)
    return [result] if strategy is None else strategy.experimental_local_results(result)


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
    with graph.as_default(), tf.control_dependencies(None):
        operation = tf.group(
            *[
                result
                for variable, value in assignments
                for result in _local(variable.assign(value, read_value=False), variable)
            ]
        )
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
        states, _ = _find(args.path)
        if not states:
            read(args.path)  # Raises, and says what there is instead.
    except CheckpointError as error:
        print(f"tf-lossscale checkpoint: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([dict(state._asdict()) for state in states], indent=2))
        return 0
    rows = [("key", "loss scale", "good steps", "bad steps", "layout")]
    for state in states:
        bad = "-" if state.bad_steps is None else str(state.bad_steps)
        rows.append((state.key, _shown(state.scale), str(state.good_steps), bad, state.layout))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for key, *numbers, layout in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:])]
        print("  ".join([key.ljust(widths[0]), *cells, layout]))
    return 0
