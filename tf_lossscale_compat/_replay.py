"""A step that went wrong, run again and looked at layer by layer or tensor by tensor."""

from __future__ import annotations

import inspect
import math
import threading
from typing import TYPE_CHECKING, Any, Iterable

from tf_lossscale_compat import _arguments, _policy, _replay_graphs, _replay_layers, _tf
from tf_lossscale_compat._replay_graphs import Point
from tf_lossscale_compat._replay_table import Replay, number

if TYPE_CHECKING:
    from typing import Literal

    from tf_lossscale_compat import _types

tf = _tf.tf
tf1 = _tf.tf1

# Keras' classes are hooked, and functions inlined, for the whole process.
_lock = threading.RLock()


def _is_graph_tensor(value):
    # Eager tensors refuse to tell of a graph.
    return isinstance(value, tf.Tensor) and not hasattr(value, "numpy")


def _scale_of(loss_scale):
    """The value of `loss_scale`, a float."""
    if _policy.is_manager(loss_scale) or _policy.has_methods(loss_scale, "update"):
        if not tf.executing_eagerly():
            raise ValueError(
                f"loss_scale must be a number in graph mode, got {loss_scale!r}. "
                "session.run(...) of its value is one."
            )
        loss_scale = _policy.scale(loss_scale)
    if isinstance(loss_scale, (tf.Tensor, tf.Variable)) and hasattr(loss_scale, "numpy"):
        loss_scale = loss_scale.numpy()
        loss_scale = loss_scale.item() if loss_scale.size == 1 else loss_scale
    return _arguments.positive("loss_scale", loss_scale)


def _is_variable(value):
    return isinstance(value, tf.Variable) or _of_keras(value) is not None


def _of_keras(variable):
    """The `tf.Variable` in a variable of Keras 3, or None if it is none."""
    if isinstance(variable, tf.Variable) or not hasattr(variable, "path"):
        return None
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else None


def _variable_names(owners):
    """The paths of Keras 3's variables, whose `tf.Variable` bears a part of it: {id: path}."""
    names = {}
    for owner in owners:
        for variable in getattr(owner, "variables", None) or ():
            value = _of_keras(variable)
            if value is not None:
                names[id(value)] = variable.path
    return names


def _check_place(forward):
    if tf.distribute.has_strategy():
        raise ValueError(
            "replay was called under a distribution strategy. Call it outside of strategy.scope() "
            "and strategy.run, with the batch of one replica."
        )
    if _is_graph_tensor(forward):
        if getattr(forward.graph, "building_function", False):
            raise ValueError(
                f"forward is {forward!r}, a tensor inside of a function. Pass the function."
            )
    elif not tf.executing_eagerly():
        raise ValueError(
            f"forward must be the loss, a tensor, in graph mode, got {forward!r}. Pass it with "
            "session= and feed_dict=, or call replay in eager mode and outside of tf.function."
        )


def _model_loss(model, loss, targets, training):
    """The function of a model's inputs that returns the loss that `fit` makes smaller."""
    if not getattr(model, "built", True):
        raise ValueError(f"forward is {model!r}, which is not built. Call it once before.")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function, got {loss!r}.")
    compiled: Any = getattr(model, "compiled_loss", None)
    if loss is None and targets is not None:
        is_compiled = getattr(model, "compiled", getattr(model, "_is_compiled", compiled))
        if not is_compiled or not (compiled or hasattr(model, "compute_loss")):
            raise ValueError(
                "loss must be given with targets, as the model was not compiled with one, or its "
                "Keras has no way to ask for it."
            )
    # Before TensorFlow 2.2 a model is not given an argument that it does not take.
    takes_training = _tf.at_least(2, 2) or "training" in inspect.signature(model.call).parameters

    def forward(*arguments):
        *inputs, wanted = arguments
        outputs = model(*inputs, **({"training": training} if takes_training else {}))
        if loss is None and wanted is not None:
            if hasattr(model, "compute_loss"):
                return model.compute_loss(inputs[0], wanted, outputs, None)
            return compiled(wanted, outputs, regularization_losses=model.losses)
        terms = list(model.losses)
        if loss is not None:
            value = tf.convert_to_tensor(loss(outputs) if wanted is None else loss(wanted, outputs))
            terms = [value] + [tf.cast(term, value.dtype) for term in terms]
        if not terms:
            raise ValueError("loss must be given, as the model adds none by itself.")
        return terms[0] if len(terms) == 1 else tf.add_n(terms)

    return forward


def _function_of(forward):
    """The Python function to trace for a function or `tf.function`, and whether by autograph."""
    return getattr(forward, "python_function", forward), getattr(forward, "_autograph", True)


def _check_loss(loss):
    if not _replay_layers.is_float(loss.dtype) or loss.dtype.is_complex:
        raise ValueError(f"forward must return the loss, a float, got dtype {loss.dtype.name}.")
    if loss.shape.rank not in (None, 0):
        raise ValueError(
            f"forward must return the loss, a scalar, got shape {loss.shape}. Take the mean or "
            "the sum that training takes."
        )


def _gradient_points(grads, names, order):
    points = []
    for grad, name in zip(grads, names):
        if grad is not None:
            points.append(Point("gradient", name, grad, order[grad.op.name]))
    return points


def _by_layer(traced, used, start, input_grads, order):
    """Points for arguments, layers' outputs and the loss, and for the gradients handed back."""
    points: list[Any] = []
    seen = set()

    def add(kind, name, tensor):
        # A tensor that several layers hand on unchanged is the one's that made it.
        if (kind, tensor.name) not in seen:
            seen.add((kind, tensor.name))
            points.append(Point(kind, name, tensor, order[tensor.op.name]))

    for suffix, tensor in traced.inputs:
        if tensor.name in used:
            add("forward", "inputs" + suffix, tensor)
    for call in traced.calls.returned:
        for suffix, tensor in call.outputs:
            if tensor.name in used:
                add("forward", call.name + suffix, tensor)
    add("forward", "loss", traced.loss)
    add("backward", "loss", start)
    handed_back = [each for each in input_grads if each[-1] is not None]
    # Of layers within each other the inner one, which was entered later, comes first.
    handed_back.sort(key=lambda each: (order[each[-1].op.name], -each[0].number))
    for call, suffix, _, grad in handed_back:
        add("backward", call.name + suffix, grad)
    return points


def _explain(forward_bad, first, scale, loss_finite, finite_scale, tried):
    """The summary of a replay, a str."""
    if first is None:
        text = f"Loss and gradients are finite with loss scale {number(scale)}."
        if forward_bad:
            text += (
                f" In the forward pass {forward_bad} tensors hold non-finite values, which come "
            )
            text += "to nothing."
        return text
    where = f"{first.name} ({first.what()})"
    if first.kind == "variable":
        return f"Variable {where} was not finite before anything ran: no loss scale helps."
    if first.kind == "forward":
        text = f"Forward pass: non-finite values come up first in {where}. "
        text += (
            f"The loss is finite, but gradients are not, with loss scale {number(tried)} either: "
            if loss_finite
            else "The loss is not finite before it is scaled: "
        )
        return text + "no loss scale helps."
    text = f"Backward pass: the loss is finite; non-finite values come up first in {where}. "
    if finite_scale is not None:
        return text + (
            f"Loss scale {number(scale)} is too large for this batch: with "
            f"{number(finite_scale)}, which was tried, all gradients are finite."
        )
    return text + f"Loss scale {number(tried)} gives non-finite gradients too: no loss scale helps."


def _largest_finite(is_finite, scale):
    """The largest of scale/2, scale/4, … from 1 on that is finite or None, and the smallest."""
    halvings = max(math.floor(math.log2(scale)), 0)
    if halvings == 0:
        return None, scale
    low, high = 0, halvings  # Not finite with `low` halvings; finite with `high`.
    if not is_finite(scale / 2.0**high):
        return None, scale / 2.0**high
    while high - low > 1:
        middle = (low + high) // 2
        if is_finite(scale / 2.0**middle):
            high = middle
        else:
            low = middle
    return scale / 2.0**high, scale / 2.0**halvings


@_tf.do_not_convert
def replay(
    forward: Any,
    *inputs: Any,
    loss_scale: _types.Real | _types.HasManagerMethods = 1.0,
    loss: Any = None,
    targets: Any = None,
    training: bool = True,
    variables: Iterable[Any] | None = None,
    detail: Literal["layers", "tensors"] | None = None,
    session: Any = None,
    feed_dict: dict[Any, Any] | None = None,
    show: bool = True,
) -> Replay:
    """Runs a step again, forward and backward, and says where values stop being finite.

    Hand it what computes the loss and the batch that overflowed, right after the step that was
    skipped, and the loss scale that step had. It prints a table of all tensors in between, with
    their smallest and largest magnitudes and how many elements are NaN, infinite or zero, first the
    forward pass, then the backward pass of the loss times the loss scale, each in the order of
    execution, and last the gradients (still scaled) of the variables. The row where non-finite
    values come up first is marked. It tells the forward pass, where no loss scale helps, from the
    backward pass; there it tries smaller loss scales and says which is small enough.

    Nothing of the user's changes. The graph that is run is traced anew, and is a copy; variables
    that it writes, such as the moving averages of batch normalization and the states of random
    generators, are copies too; what the loss does not depend on (metrics, `print`) is not run, nor
    are the checks of `tf.debugging`. Python code of `forward` runs once while it is traced, or
    twice; what it puts into lists and dicts that Keras or TensorFlow tracks, or into attributes of
    a `tf.Module`, stays there. Random numbers, such as those of dropout, are drawn anew, not as
    they were in the step. XLA and TensorFlow's graph optimizer may keep more digits between
    operations than the replay.

    Args:
      forward: one of

        - a function or `tf.function` of `inputs` that returns the loss, unscaled: a float scalar,
        - a Keras model that is built, of Keras 3, `tf_keras` or `tf.keras`, called with `inputs`,
        - in graph mode the loss itself, a tensor of the graph that `session` has.
      *inputs: nested structures of tensors, arrays and Python values.
      loss_scale: positive number, `LossScale` or `LossScaleManager`.
      loss: for a model, a function that returns the loss, a float scalar: of `targets` and the
        model's output, or if there are no targets of its output. By default the one it was
        compiled with. The losses that layers add, such as regularization, are added to it.
      targets: nested structure of tensors, or None.
      training: bool, for a model: what it is called with.
      variables: list of variables to show the gradients of; by default all trainable ones on which
        the loss depends.
      detail: `'layers'`: what each Keras layer returns, and the gradients that it hands back with
        respect to what it was given. `'tensors'`: every float tensor. By default layers for a model
        and tensors otherwise. Loops, conditionals and functions that are not traced again are rows
        by what they return, and are named below the table.
      session: a session with the values of the variables, by default the default one.
      feed_dict: as for `session.run`, with the whole batch in it.
      show: bool, whether the table is printed with `print`; of more than 100 rows those around the
        marked one and further non-finite ones.

    Returns:
      A `Replay`: a sequence of rows with `first_nonfinite`, `cause`, `finite_scale`, `summary()`.

    Raises:
      TypeError: `forward` is none of these, or `loss`, `variables`, `training` or `show` is not
        what it should be.
      ValueError: another argument is not what it should be; the model is not built or `forward`
        creates variables; the loss is no float scalar; or this is called in a `tf.function`, or
        under a distribution strategy.
    """
    scale = _scale_of(loss_scale)
    _arguments.flag("training", training)
    _arguments.flag("show", show)
    if detail not in (None, "layers", "tensors"):
        raise ValueError(f"detail must be 'layers', 'tensors' or None, got {detail!r}.")
    if variables is not None:
        variables = list(variables)
        for variable in variables:
            if not _is_variable(variable):
                raise TypeError(f"variables must be a list of variables, got {variable!r} in it.")
    of_graph, is_model = _is_graph_tensor(forward), _replay_layers.is_model(forward)
    if not (of_graph or is_model or callable(forward)):
        raise TypeError(
            f"forward must be a function, a Keras model or a tensor of a graph, got {forward!r}."
        )
    for name, value, fits in (
        ("session", session, of_graph),
        ("feed_dict", feed_dict, of_graph),
        ("loss", loss, is_model),
        ("targets", targets, is_model),
    ):
        if value is not None and not fits:
            raise ValueError(f"{name} does not go with forward {forward!r}, got {value!r}.")
    if of_graph and (inputs or detail == "layers"):
        what = f"inputs {inputs!r}" if inputs else "detail 'layers'"
        raise ValueError(f"{what} does not go with a tensor of a graph for forward.")
    _check_place(forward)
    with _lock, _tf.operations_unwatched():
        if of_graph:
            result = _replay_graph(forward, session, feed_dict, scale, variables)
        else:
            result = _replay_function(
                forward, inputs, scale, loss, targets, training, variables, detail, is_model
            )
    if show:
        print(result)
    return result


def _replay_function(forward, inputs, scale, loss, targets, training, variables, detail, is_model):
    if is_model:
        function = _model_loss(forward, loss, targets, training)
        autograph = _replay_layers.converts_calls(forward)
        inputs = (*inputs, targets)
        model = forward
    else:
        (function, autograph), model = _function_of(forward), None
    traced = _replay_graphs.Function(function, inputs, autograph, model)
    _check_loss(traced.loss)
    names = _variable_names([*traced.calls.layers, model])
    held = []
    if variables is None:
        frozen = {
            id(variable if _of_keras(variable) is None else _of_keras(variable))
            for layer in traced.calls.layers
            for variable in getattr(layer, "non_trainable_variables", ())
        }
        # A layer that does not train leaves its variables trainable.
        variables = [each for each in traced.variables() if id(each) not in frozen]
    for variable in variables:
        value = _of_keras(variable)
        if value is not None:
            names[id(value)] = variable.path
        held.append(variable if value is None else value)
    held_names = [names.get(id(v), v.name.split(":")[0]) for v in held]
    layers = detail == "layers" or (detail is None and is_model)
    return _look(traced, scale, held, held_names, names, layers)


def _replay_graph(tensor, session, feed_dict, scale, variables):
    _check_loss(tensor)
    session = tf1.get_default_session() if session is None else session
    if session is None:
        raise ValueError("session must be given, as there is no default session, got None.")
    if getattr(session, "graph", tensor.graph) is not tensor.graph:
        raise ValueError(f"session must have the graph of forward, {tensor!r}, got {session!r}.")
    if variables is None:
        variables = tensor.graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)
    copied = _replay_graphs.Graph(tensor, session, dict(feed_dict or {}))
    names = [variable.op.name for variable in variables]
    return _look(copied, scale, variables, names, {}, layers=False)


def _look(traced, scale, variables, names, all_names, layers):
    """Makes the backward pass of `traced`, runs both, and judges what came out."""
    graph, loss = traced.graph, traced.loss
    handles = traced.handles(variables)
    pairs = [(name, handle) for name, handle in zip(names, handles) if handle is not None]
    calls = traced.calls.returned if layers else []
    given = [(call, suffix, tensor) for call in calls for suffix, tensor in call.inputs]
    xs = [handle for _, handle in pairs] + [tensor for _, _, tensor in given]
    scale_tensor, start, grads = _replay_graphs.differentiate(graph, loss, xs)
    with graph.as_default(), graph.control_dependencies(None):
        grads = [_replay_graphs.dense(grad) for grad in grads]
    order = {op.name: i for i, op in enumerate(graph.get_operations())}
    forward = _replay_graphs.ancestors([loss])
    gradients = _gradient_points(grads[: len(pairs)], [name for name, _ in pairs], order)
    ends = [point.tensor for point in gradients]
    if layers:
        input_grads = [(*each, grad) for each, grad in zip(given, grads[len(pairs) :])]
        points = _by_layer(traced, forward, start, input_grads, order)
        ends += [grad for _, _, _, grad in input_grads if grad is not None]
    else:
        points = _replay_graphs.by_tensor(
            graph,
            forward,
            _replay_graphs.ancestors(ends),
            order,
            without={scale_tensor.name} - {start.name},
        )
    points += gradients
    watched = Point("forward", "loss", loss, 0)
    traced.prepare([watched, *points], scale_tensor)

    def measured(scale):
        watched_row, *rows = _replay_graphs.rows([watched, *points], traced.measure(scale))
        good = not watched_row.nonfinite and not any(
            row.nonfinite for row in rows if row.kind == "gradient"
        )
        return watched_row, rows, good

    watched_row, rows, good = measured(scale)
    finite_scale, tried = None, scale
    loss_finite = not watched_row.nonfinite
    if loss_finite and not good:
        finite_scale, tried = _largest_finite(lambda scale: measured(scale)[2], scale)
    bad = [(point.order, i) for i, point in enumerate(points) if rows[i].nonfinite]
    bad_forward = [each for each in bad if rows[each[1]].kind == "forward"]
    bad_backward = [each for each in bad if rows[each[1]].kind != "forward"]
    variable_rows, tensors_of_rows = [], []
    for variable, row in traced.variable_rows():
        handle = None if variable is None else traced.handles([variable])[0]
        tensors_of_rows.append(f"{row.name}:0" if handle is None else handle.name)
        variable_rows.append(row._replace(name=all_names.get(id(variable), row.name)))
    bad_variables = variable_rows
    first, cause = None, None
    if not good:
        cause = "backward"
        if loss_finite and finite_scale is None:
            # What does not lead to the first non-finite gradient is not to blame, such as a mask;
            # but an operation is that was not finite itself, and whose gradient this is.
            faulty = points[min(bad_backward)[1]].tensor
            behind = _replay_graphs.ancestors([faulty])
            taken = {tensor.name for tensor in faulty.op.inputs}
            bad_forward = [
                (place, i)
                for place, i in bad_forward
                if points[i].tensor.name in behind
                or any(tensor.name in taken for tensor in points[i].tensor.op.inputs)
            ]
            bad_variables = [
                row for row, tensor in zip(variable_rows, tensors_of_rows) if tensor in behind
            ]
        if not loss_finite or (finite_scale is None and (bad_forward or bad_variables)):
            cause = "forward"
            first = bad_variables[0] if bad_variables else None
        if first is None:
            first = rows[min(bad_forward if cause == "forward" else bad_backward)[1]]
    closed = _replay_graphs.closed(_replay_graphs.ancestors([loss, *ends]).values())
    notes = ["Not looked into: " + ", ".join(closed)] if closed else []
    connected = {point.name for point in gradients}
    left_out = [name for name in names if name not in connected]
    if left_out:
        notes.append("No gradient: " + ", ".join(left_out))
    return Replay(
        variable_rows + rows,
        first,
        cause,
        scale,
        finite_scale,
        notes,
        _explain(len(bad_forward), first, scale, loss_finite, finite_scale, tried),
    )
