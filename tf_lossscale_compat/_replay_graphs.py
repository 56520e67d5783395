"""A loss and its gradients as a graph of their own, and what the tensors in it come to.

Whatever is run is run in a copy: of a function's graph, in which the variables that it writes are
copies too, or of a graph of TensorFlow 1, with a session of its own. Only what the loss and its
gradients are made from is in the copy, so nothing is printed, summarized or updated that they do
not depend on. What would stop the run at the values that are looked for (`tf.debugging`'s checks
and assertions) is taken out.
"""

import contextlib
import itertools
import random
from typing import Any, Dict, List, Set

import numpy as np

from tf_lossscale_compat import _gradients, _replay_layers, _tf
from tf_lossscale_compat._replay_table import measure, row_of

tf = _tf.tf
tf1 = _tf.tf1

_OF_NUMPY = (tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128)
_VARIABLES = ("VariableV2", "Variable", "VarHandleOp")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape")
# What runs graphs of their own, which are not looked into.
_CLOSED = (
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
    "Case",
    "StatelessCase",
    "While",
    "StatelessWhile",
    "XlaLaunch",
    "SymbolicGradient",
)
# What hands out something else each time that it runs, and so cannot be run again.
_SOURCES = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
_QUEUES = ("QueueDequeue", "ReaderRead", "StageV2", "Unstage")


class Point:
    """A tensor that is looked at: kind and name of its row, and its place in the order."""

    def __init__(self, kind, name, tensor, order):
        self.kind, self.name, self.order = kind, name, order
        self.tensor = tensor


def _float(tensor):
    return _replay_layers.is_float(tensor.dtype)


def tensor_name(tensor):
    """The operation's name, with the number of the output where there are several."""
    return tensor.op.name if len(tensor.op.outputs) == 1 else tensor.name


def dense(gradient):
    """A gradient as one tensor; of a sparse one what each row that it has adds up to."""
    if isinstance(gradient, tf.IndexedSlices):
        return _gradients._row_sums(gradient.values, gradient.indices, by_xla=False)
    return gradient


def ancestors(tensors, stop=()):
    """The tensors that `tensors` are made from and they themselves: {name: tensor}.

    Args:
      tensors: list of tensors of one graph.
      stop: names of tensors behind which it does not matter what they are made from.
    """
    found: Dict[str, Any] = {}
    left = list(tensors)
    while left:
        tensor = left.pop()
        if tensor.name not in found:
            found[tensor.name] = tensor
            if tensor.name not in stop:
                left.extend(tensor.op.inputs)
    return found


def _enclosing(op):
    """The loop or conditional of TensorFlow 1 that an operation is in, or None."""
    context = op._get_control_flow_context()
    return None if context is None or context.IsXLAContext() else context


def _maybe_without_value(graph):
    """The names of operations that may not run, or more than once, in control flow of TensorFlow 1.

    Those in its loops and conditionals, and what depends on a branch that may not be taken.
    """
    names: Set[str] = set()
    for op in graph.get_operations():
        inside = _enclosing(op) is not None
        if op.type in ("Merge", "RefMerge", "Exit", "RefExit") and not inside:
            continue
        before = [each.op.name for each in op.inputs] + [each.name for each in op.control_inputs]
        if inside or op.type in ("Switch", "RefSwitch") or not names.isdisjoint(before):
            names.add(op.name)
    return names


def closed(tensors):
    """What of what `tensors` are made by is not looked into: a list of names.

    Operations that run graphs of their own, and loops and conditionals of TensorFlow 1; without
    those that are their gradients.
    """
    names: Set[str] = set()
    for op in {each.op.name: each.op for each in tensors}.values():
        if op.type in _CLOSED:
            names.add(op.name)
        elif _enclosing(op) is not None:
            names.add(_enclosing(op).name)
    return sorted(name for name in names if not name.startswith("gradients/"))


def differentiate(graph, loss, xs):
    """Makes the backward pass in `graph`.

    Returns:
      The placeholder of the loss scale, the gradient that the backward pass starts with, which is
      the loss scale in the dtype of the loss, and a list of gradients as long as `xs`. These are
      those of the scaled loss, whose value nothing depends on.
    """
    with graph.as_default(), tf1.name_scope(None), graph.control_dependencies(None):
        if loss.dtype == tf.float32:
            start = scale = tf1.placeholder(tf.float32, [], name="loss_scale")
        else:
            scale = tf1.placeholder(tf.float32, [], name="float32_loss_scale")
            start = tf.cast(scale, loss.dtype, name="loss_scale")
        if loss.shape.rank is None:
            start = tf.broadcast_to(start, tf.shape(loss))
    with graph.as_default(), tf1.name_scope(None):
        grads = tf1.gradients(loss, xs, grad_ys=start) if xs else []
    return scale, start, grads


def by_tensor(graph, forward, backward, order, without):
    """Points for each float tensor of the forward pass, then of the backward pass.

    Args:
      graph: the graph that they are in.
      forward: {name: tensor} that the loss is made from.
      backward: {name: tensor} that the gradients are made from.
      order: {name of an operation: its number}.
      without: set of names of tensors to leave out.
    """
    points, unsure = [], _maybe_without_value(graph)
    for kind, tensors in (("forward", forward), ("backward", backward)):
        for name, tensor in tensors.items():
            if (
                name not in (without if kind == "forward" else without | set(forward))
                and _float(tensor)
                and tensor.op.type != "Const"
                and tensor.op.name not in unsure
            ):
                points.append(Point(kind, tensor_name(tensor), tensor, order[tensor.op.name]))
    return sorted(points, key=lambda point: (point.kind != "forward", point.order))


def _harmless(nodes):
    """Takes what raises on non-finite values out of the nodes of a GraphDef or function."""
    for node in nodes:
        if node.op in ("CheckNumerics", "CheckNumericsV2"):
            node.op = "Identity"
            for name in set(node.attr) - {"T", "_output_shapes"}:
                del node.attr[name]
        elif node.op in ("Assert", "Abort"):
            node.op = "NoOp"
            controls = ["^" + name.lstrip("^").split(":")[0] for name in node.input]
            del node.input[:]
            node.input.extend(sorted(set(controls)))
            node.attr.clear()


def _rename_functions(graph_def, suffix):
    """Gives the functions in a GraphDef other names, as a changed one must not bear its old one."""
    library = graph_def.library
    names = {function.signature.name for function in library.function}

    def rename(holder, field):
        if getattr(holder, field) in names:
            setattr(holder, field, getattr(holder, field) + suffix)

    for function in library.function:
        rename(function.signature, "name")
    for gradient in library.gradient:
        rename(gradient, "function_name")
        rename(gradient, "gradient_func")
    bodies = [function.node_def for function in library.function]
    for node in [node for nodes in [graph_def.node, *bodies] for node in nodes]:
        rename(node, "op")
        for attr in node.attr.values():
            if attr.HasField("func"):
                rename(attr.func, "name")
            for func in attr.list.func:
                rename(func, "name")


_copies = itertools.count()


def without_checks(graph_def):
    """Takes the checks out of a GraphDef and the functions in it."""
    _harmless(graph_def.node)
    before = graph_def.library.SerializeToString(deterministic=True)
    for function in graph_def.library.function:
        _harmless(function.node_def)
    if graph_def.library.SerializeToString(deterministic=True) != before:
        _rename_functions(graph_def, f"_replay_{next(_copies)}")
    return graph_def


def _part(graph_def, names):
    """What of a GraphDef the operations `names` depend on, in place."""
    nodes = {node.name: node for node in graph_def.node}
    wanted, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in wanted:
            wanted.add(name)
            left.extend(each.lstrip("^").split(":")[0] for each in nodes[name].input)
    kept = [node for node in graph_def.node if node.name in wanted]
    for node in kept:
        if "_class" in node.attr:  # What it is to be colocated with may be left out.
            del node.attr["_class"]
    part = type(graph_def)(library=graph_def.library, versions=graph_def.versions)
    part.node.extend(kept)
    return part


def _measured(tensors):
    """For each tensor what `measure` returns, by NumPy: one operation, quickly made."""
    results = []
    for tensor in tensors:
        if tensor.dtype.base_dtype not in _OF_NUMPY:
            tensor = tf.cast(tensor, tf.float32)  # Exact.
        results.append(tf.numpy_function(measure, [tensor], tf.float64))
    return results


def rows(points, results):
    """The rows of `points`, from what `_measured` came to."""
    return [
        row_of(point.kind, point.name, point.tensor.dtype.base_dtype.name, result)
        for point, result in zip(points, results)
    ]


def _variable_row(name, value):
    return row_of("variable", name, value.dtype.name, measure(value))


@contextlib.contextmanager
def _kept_random_state():
    """Puts Python's and NumPy's random numbers back, from which some Keras layers draw seeds."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _refuse_variable(next_creator, **kwargs):
    raise ValueError(
        f"forward creates a variable ({kwargs.get('name') or 'without a name'}). Call it once "
        "before, or build the model, so that a replay finds the variables that were trained."
    )


class Function:
    """The loss of a function as a graph, and a copy of it to run.

    Attributes:
      graph: the graph that the function was traced into.
      loss: tensor in it.
      calls: the layers that were called, `_replay_layers.Calls`.
      inputs: the (suffix, tensor) pairs of the float tensors among the arguments.
      inlined: bool, whether functions that the function calls are part of the graph.
    """

    def __init__(self, function, inputs, autograph, model):
        self.inlined = True
        with _kept_random_state(), tf1.variable_creator_scope(_refuse_variable):
            try:
                with _tf.functions_inlined():
                    self._trace(function, inputs, autograph, model)
            except Exception:
                # Python control flow on tensors in an inner function, which only that function's
                # own trace converts. If it is something else, it is raised again.
                self.inlined = False
                self._trace(function, inputs, autograph, model)
        self._captured: List[Any] = []
        self._run: Any = None

    def _trace(self, function, inputs, autograph, model):
        calls = _replay_layers.Calls()
        found = []

        def traced():
            calls.graph = tf1.get_default_graph()
            arguments = _symbolic(inputs)
            found.append(arguments)
            found.append(function(*arguments))

        try:
            with calls.recorded(model):
                traced_function = tf.function(traced, autograph=autograph)
                # Else the graph is gone with it.
                self._concrete = traced_function.get_concrete_function()
        finally:
            calls.put_back()
        self.calls, self.graph = calls, calls.graph
        self.inputs = list(_replay_layers.leaves(found[0]))
        with self.graph.as_default():
            self.loss = tf.convert_to_tensor(found[1])

    def handles(self, variables):
        """The tensors in the graph that stand for variables; None for one that it does not use."""
        inside = {id(outside): inside for outside, inside in self._captures()}
        return [inside.get(id(variable.handle)) for variable in variables]

    def variables(self):
        """The trainable float variables that the function used, in the order of use, a list."""
        place = {id(outside): i for i, (outside, _) in enumerate(self._captures())}
        used = [v for v in self.graph.variables if v.trainable and _float(v)]
        return sorted(used, key=lambda variable: place.get(id(variable.handle), len(place)))

    def _captures(self):
        graph = self.graph
        pairs = list(zip(graph.external_captures, graph.internal_captures))
        closures = getattr(graph, "deferred_external_captures", ())
        insides = getattr(graph, "deferred_internal_captures", ())
        return pairs + [(closure(), inside) for closure, inside in zip(closures, insides)]

    def variable_rows(self):
        """Rows of the variables whose values are not finite."""
        made = []
        for variable in self.graph.variables:
            if _float(variable) and not bool(_gradients.all_finite([variable.read_value()])):
                name = variable.name.split(":")[0]
                made.append((variable, _variable_row(name, variable.read_value().numpy())))
        return made

    def prepare(self, points, scale):
        """Makes what `measure` runs."""
        tensors = [point.tensor for point in points]
        graph_def = without_checks(self.graph.as_graph_def())
        part = _part(graph_def, [tensor.op.name for tensor in tensors])
        for node in part.node:
            if node.op in _SOURCES:
                raise ValueError(
                    f"forward takes its batch from an iterator ({node.name}). Pass the batch as an "
                    "argument."
                )
        held = {node.name for node in part.node}
        used = [(out, inside) for out, inside in self._captures() if inside.op.name in held]
        written = {
            name.split(":")[0] for node in part.node if node.op not in _READS for name in node.input
        }
        self._copies = []
        given = []
        for outside, inside in used:
            dtype = _variable_dtype(outside) if inside.op.name in written else None
            if dtype is not None:
                with tf.device(outside.device):
                    value = tf.raw_ops.ReadVariableOp(resource=outside, dtype=dtype)
                    copy = tf.Variable(value, trainable=False)
                self._copies.append((outside, copy))
                outside = copy.handle
            given.append((inside.name, outside))

        def run(loss_scale):
            graph: Any = tf1.get_default_graph()
            inputs = {name: graph.capture(outside) for name, outside in given}
            if scale.op.name in held:
                inputs[scale.name] = loss_scale
            names = [tensor.name for tensor in tensors]
            return _measured(
                tf1.import_graph_def(part, inputs, return_elements=names, name="replay")
            )

        self._run = tf1.wrap_function(run, [tf.TensorSpec([], tf.float32)])

    def measure(self, loss_scale):
        """Runs the graph; returns what `rows` takes."""
        for outside, copy in self._copies:
            copy.assign(tf.raw_ops.ReadVariableOp(resource=outside, dtype=copy.dtype))
        return [result.numpy() for result in self._run(tf.constant(loss_scale, tf.float32))]


def _symbolic(structure):
    """The same structure with each tensor and array as a tensor of the graph."""

    def symbolic(leaf):
        if isinstance(leaf, (tf.Tensor, np.ndarray, np.generic, tf.Variable)):
            return tf.identity(leaf, name="inputs")
        return leaf

    return tf.nest.map_structure(symbolic, structure, expand_composites=True)


def _variable_dtype(handle):
    """The dtype of the variable with an eager handle; None if it is something else's handle."""
    data = getattr(handle, "_handle_data", None)
    if handle.dtype != tf.resource or data is None or not data.is_set:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)


class Graph:
    """A loss in a graph of TensorFlow 1, copied with the values that its session has.

    Attributes:
      graph: the copy.
      loss: tensor in it.
    """

    def __init__(self, loss, session, feed_dict):
        original = loss.graph
        self._session = session
        feeds = {}
        for key, value in feed_dict.items():
            feeds.update(_feeds(original, key, value))
        made = ancestors([loss], feeds).items()
        used = {tensor.op.name: tensor.op for name, tensor in made if name not in feeds}
        for op in used.values():
            if op.type in _SOURCES or op.type.startswith(_QUEUES):
                raise ValueError(
                    f"feed_dict must hold the batch: {op.name}, of type {op.type}, on which the "
                    "loss depends, hands out another one each time. Feed its outputs."
                )
        self.names = {name for name, op in used.items() if op.type in _VARIABLES}
        self._values = _values(original, self.names, session)
        collections = tf1.GraphKeys
        with tf.Graph().as_default() as self.graph:
            meta_graph = tf1.train.export_meta_graph(
                graph=original,
                collection_list=[
                    collections.COND_CONTEXT,
                    collections.WHILE_CONTEXT,
                    collections.TABLE_INITIALIZERS,
                ],
            )
            without_checks(meta_graph.graph_def)
            tf1.train.import_meta_graph(meta_graph, clear_devices=True)
            self.loss = self.graph.as_graph_element(loss.name)
        self._feeds = feeds

    def handles(self, variables):
        """The tensors in the copy that stand for variables; None for one that it does not use."""
        return [
            self.graph.get_operation_by_name(variable.op.name).outputs[0]
            if variable.op.name in self.names
            else None
            for variable in variables
        ]

    def variable_rows(self):
        """Pairs of None and the row of each variable whose value is not finite."""
        floats = {
            name: value
            for name, value in sorted(self._values.items())
            if _replay_layers.is_float(value.dtype)
        }
        made = [_variable_row(name, value) for name, value in floats.items()]
        return [(None, row) for row in made if row.nonfinite]

    def prepare(self, points, scale):
        """Makes what `measure` runs."""
        self._scale = scale
        with self.graph.as_default():
            self._fetches = _measured([point.tensor for point in points])
            self._assignments, self._assigned = [], {}
            for name, value in self._values.items():
                tensor = self.graph.get_operation_by_name(name).outputs[0]
                given = tf1.placeholder(value.dtype)
                self._assigned[given.name] = value
                if tensor.dtype == tf.resource:
                    assign = tf.raw_ops.AssignVariableOp(resource=tensor, value=given)
                else:
                    assign = tf1.assign(tensor, given, validate_shape=False)
                self._assignments.append(getattr(assign, "op", assign))
            self._tables = tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)

    def measure(self, loss_scale):
        """Runs the graph; returns what `rows` takes."""
        config = tf1.ConfigProto(allow_soft_placement=True)
        with tf1.Session(graph=self.graph, config=config) as session:
            session.run(self._assignments, self._assigned)
            session.run(self._tables)
            return session.run(self._fetches, {**self._feeds, self._scale.name: loss_scale})


def _feeds(graph, key, value):
    """Yields (name of a tensor, value) of an entry of a feed_dict."""
    if isinstance(key, (tf.SparseTensor, tf1.SparseTensorValue)):
        yield key.indices.name, value[0] if isinstance(value, tuple) else value.indices
        yield key.values.name, value[1] if isinstance(value, tuple) else value.values
        yield key.dense_shape.name, value[2] if isinstance(value, tuple) else value.dense_shape
        return
    try:
        tensor = graph.as_graph_element(key, allow_operation=False)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"feed_dict holds {key!r}, which is no tensor of the graph: {error}"
        ) from None
    yield tensor.name, value


def _values(graph, names, session):
    """The values that variables have in a session: {name of the operation: array}."""
    reads = {}
    for name in sorted(names):
        op = graph.get_operation_by_name(name)
        reads[name] = op.outputs[0]
        if op.type == "VarHandleOp":
            reads[name] = next(
                (
                    each.outputs[0]
                    for each in op.outputs[0].consumers()
                    if each.type == "ReadVariableOp"
                    and not each.control_inputs
                    and graph.is_fetchable(each)
                ),
                None,
            )
            if reads[name] is None:
                raise ValueError(
                    f"forward depends on variable {name}, which nothing reads by itself."
                )
    if not hasattr(session, "run_step_fn"):
        return session.run(reads)
    # A MonitoredSession, whose hooks are to see nothing of this.
    return session.run_step_fn(lambda step_context: step_context.session.run(reads))
