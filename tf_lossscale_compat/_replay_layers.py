"""Which Keras layers a function calls while it is traced, with what, and what they return."""

import contextlib
import functools
import importlib
import sys
from typing import Any, Dict, List

from tf_lossscale_compat import _gradients, _tf

tf = _tf.tf
tf1 = _tf.tf1


def _layer_class(cls):
    """The class named Layer, of whichever Keras, that `cls` is derived from and called by; or None.

    There are two in tf.keras, for TensorFlow 1 and 2, and one in each other Keras.
    """
    for base in cls.__mro__:
        of_keras = base.__name__ == "Layer" and base.__module__.split(".")[0] in _tf.KERAS_ROOTS
        if of_keras and "__call__" in vars(base):
            return base
    return None


def is_model(value):
    """Whether `value` is a Keras model or layer; found without importing Keras."""
    return _layer_class(type(value)) is not None


def converts_calls(model):
    """Whether the Keras of `model` has autograph convert the code of models, as Keras 3 has not."""
    return all(base.__name__ != "Operation" for base in type(model).__mro__)


def _classes():
    """The layer classes of each Keras that is imported."""
    names = [name for name in ("keras", "tf_keras") if name in sys.modules]
    modules = [importlib.import_module(name) for name in names]
    if not _tf.at_least(2, 6):  # From there on tf.keras is a Keras that is imported by its name.
        modules.append(tf.keras)
    publics = [getattr(getattr(module, "layers", None), "Dense", None) for module in modules]
    return [_layer_class(public) for public in publics if public is not None]


class Call:
    """One call of a layer: its path, and its float inputs and outputs as (suffix, tensor)."""

    def __init__(self, path, number):
        self.name = path if number == 1 else f"{path} (call {number})"
        self.number = number  # Of those that were entered.
        self.inputs: List[Any] = []
        self.outputs: List[Any] = []


def is_float(dtype):
    """Whether elements of a dtype may overflow."""
    return _gradients.may_be_nonfinite(tf.as_dtype(dtype).base_dtype)


def leaves(structure, suffix=""):
    """Yields (suffix, tensor) of the float tensors in a nested structure."""
    if isinstance(structure, dict):
        for key in structure:
            yield from leaves(structure[key], f"{suffix}[{key!r}]")
    elif isinstance(structure, (list, tuple)):
        for i, part in enumerate(structure):
            yield from leaves(part, f"{suffix}[{i}]")
    elif isinstance(structure, tf.RaggedTensor):
        yield from leaves(structure.flat_values, suffix)
    elif isinstance(structure, (tf.SparseTensor, tf.IndexedSlices)):
        yield from leaves(structure.values, suffix)
    elif isinstance(structure, tf.Tensor) and is_float(structure.dtype):
        yield suffix, structure


class Calls:
    """Records the layers that are called in one graph, in whatever depth."""

    def __init__(self):
        self.graph: Any = None  # None records nothing.
        self.returned: List[Call] = []  # In the order in which they returned.
        self.layers: List[Any] = []
        self._paths: List[str] = []
        self._count: Dict[str, int] = {}
        self._entered = 0
        self._before: Dict[int, Any] = {}  # id of a layer -> what its attributes were.

    def _apart(self, structure):
        """The same arguments with float tensors that no other layer is given.

        So that the gradient with respect to them is what this layer hands back, and not a sum.
        """

        def apart(leaf):
            if not isinstance(leaf, tf.Tensor) or not is_float(leaf.dtype):
                return leaf
            if getattr(leaf, "graph", None) is not self.graph:
                return leaf
            copy = tf.identity(leaf)
            mask = getattr(leaf, "_keras_mask", None)
            if mask is not None:
                copy._keras_mask = mask
            return copy

        try:
            return tf.nest.map_structure(apart, structure)
        except (TypeError, ValueError):  # What cannot be put together again is passed as it is.
            return structure

    def _call(self, original, layer, args, kwargs):
        self._remember(layer)
        name = str(getattr(layer, "name", type(layer).__name__))
        path = "/".join([*self._paths, name])
        self._count[path] = self._count.get(path, 0) + 1
        self._entered += 1
        call = Call(path, self._count[path])
        call.number = self._entered
        args, kwargs = self._apart((list(args), dict(kwargs)))
        positional = args[0] if len(args) == 1 else args
        call.inputs = list(leaves(positional)) + list(leaves(kwargs))
        self._paths.append(name)
        try:
            outputs = original(layer, *args, **kwargs)
        finally:
            self._paths.pop()
        call.outputs = [each for each in leaves(outputs) if each[1].graph is self.graph]
        self.returned.append(call)
        return outputs

    def _remember(self, layer):
        if id(layer) not in self._before:
            self.layers.append(layer)
            self._before[id(layer)] = {
                name: (value, value.copy() if type(value) in (list, set, dict) else None)
                for name, value in vars(layer).items()
            }

    def put_back(self):
        """Gives the layers the attributes that they had, as tensors of the graph are in some."""
        for layer in self.layers:
            before, now = self._before[id(layer)], vars(layer)
            for name in set(now) - set(before):
                del now[name]
            for name, (value, content) in before.items():
                now[name] = value
                if type(value) is list:
                    value[:] = content
                elif content is not None:
                    value.clear()
                    value.update(content)

    @contextlib.contextmanager
    def recorded(self, model=None):
        """Context in which calls are recorded, of the Keras of `model` or of each that there is."""
        classes = _classes() if model is None else [_layer_class(type(model)), *_classes()]
        classes = [cls for cls in dict.fromkeys(classes) if cls is not None]
        originals = [(cls, vars(cls)["__call__"]) for cls in classes]

        def hook(original):
            @functools.wraps(original)
            def call(layer, *args, **kwargs):
                # Other threads, and bodies of loops, have other graphs.
                if self.graph is None or tf1.get_default_graph() is not self.graph:
                    return original(layer, *args, **kwargs)
                return self._call(original, layer, args, kwargs)

            return call

        for cls, original in originals:
            cls.__call__ = hook(original)
        try:
            yield self
        finally:
            for cls, original in originals:
                cls.__call__ = original
