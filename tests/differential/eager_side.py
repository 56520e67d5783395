"""Interprets programs of v1 optimizers and loss scales in eager mode, functions and on replicas."""

import contextlib
import os
import re
import tempfile

import numpy as np
import tensorflow as tf

from tests import modes, replicas
from tests.differential import history
from tests.differential.v1_side import Side, coefficients, shape_of

tf1 = tf.compat.v1


class Eager(Side):
    """Eager mode, or functions with one step each, maybe on two replicas."""

    def __init__(self, program, library):
        super().__init__(program, library)
        self.functions, self.kinds = {}, {}
        self.operations = None
        self.strategy = None
        if program["place"] == "mirrored":
            self.strategy = replicas.strategy("mirrored_2")
        if program["noise"] or any(action[0] == "draw" for action in program["actions"]):
            tf1.set_random_seed(3)

    def in_session(self):
        return False

    def do(self, action):
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            seen = super().do(action)
            if action[0] != "threads":
                seen.update(self.state())
        return seen

    def state(self):
        """Everything that steps change: {name: value}, or the values of all copies."""
        state = {}
        for i, variables in enumerate(self.variables or []):
            state.update({f"v{i}_{j}": self.value(v) for j, v in enumerate(variables)})
            if i in self.inner:
                inner = self.inner[i]
                for j, variable in enumerate(variables):
                    for name in inner.get_slot_names():
                        slot = inner.get_slot(variable, name)
                        if slot is not None:
                            state[f"v{i}_{j}/{name}"] = self.value(slot)
                # In eager mode names are made unique in the process.
                state.setdefault("names", []).extend(
                    re.sub(r"(_\d+)?:0$", "", v.name) for v in inner.variables()
                )
        if self.global_step is not None:
            state["global_step"] = self.value(self.global_step)
        state.update({n: self.value(v) for n, v in self.state_variables().items()})
        return state

    def value(self, variable):
        if self.strategy:
            return [copy.numpy() for copy in replicas.copies(self.strategy, variable)]
        return variable.numpy()

    def assign(self, variable, value):
        variable.assign(value)

    def make_global_step(self):
        return tf1.Variable(0, trainable=False, dtype=tf.int64, use_resource=True)

    def loss_as_given(self, loss):
        return loss

    def variable(self, name, spec, random):
        dtype = tf.as_dtype(spec["dtype"])
        value = random.uniform(-1, 1, shape_of(spec)).astype(dtype.as_numpy_dtype)
        return tf.Variable(value, trainable=spec["kind"] != "frozen", name=name)

    def call(self, index, fault, padding=0):
        self.steps += 1
        arrays = [coefficients(self.program, index, self.steps, fault)]
        if self.strategy:  # The fault is of one replica alone.
            arrays.append(coefficients(self.program, index, -self.steps % 997, None))
            if fault and fault[3]:
                arrays.reverse()
        values = [tf.constant(np.stack(each)) for each in zip(*arrays)]
        step = self.functions.get(index)
        if step is None:
            self.network()
            self.optimizer(index) if self.wrapped else self.scale(index)
            step = self.functions[index] = self.compiled(index)
        return step(tf.zeros([padding]), *values)

    def compiled(self, index):
        def step(padding, *coefs):
            coefs = [self.own(coef) for coef in coefs]
            if self.program["inside"]:
                self.chosen = tf.constant(True)
                self.kinds[index] = history.kind(self.step_inside(index, coefs)[1])
                return tf.zeros([])
            result = self.step(index, coefs)
            if self.program["place"] in ("function", "jit"):  # What they return they do not.
                kept = result[1] if isinstance(result, tuple) else None
                self.kinds[index] = history.kind(result)
                return kept if isinstance(kept, tf.Tensor) else tf.zeros([])
            return result

        if self.program["place"] == "function":
            return tf.function(step, autograph=False)
        if self.program["place"] == "jit":
            return modes.compiled(step)
        if self.strategy:
            return lambda *args: replicas.run(self.strategy, step, args)
        return step

    def own(self, coef):
        if not self.strategy:
            return coef[0]
        return tf.gather(coef, replicas.replica_id())

    def count_operations(self):
        graph = tf1.get_default_graph()
        self.operations = len(graph.get_operations()) if graph.building_function else None

    def do_step(self, index, fault, padding=0):
        result = self.call(index, fault, padding)
        seen = {"operations": self.operations}
        if not self.strategy:
            seen["returned"] = self.kinds.get(index) or history.kind(result)
        flag = result[1] if isinstance(result, tuple) else result
        if not self.wrapped and isinstance(flag, tf.Tensor):
            seen["value"] = flag.numpy()
        return seen

    def do_retrace(self, index):
        return self.do_step(index, None, padding=self.steps % 3)

    def do_draw(self):
        return {"value": tf.random.uniform([2]).numpy()}

    def do_read(self):
        scale = self.read()
        value = scale.numpy() if hasattr(scale, "numpy") else self.value(scale)
        return {"returned": history.kind(scale), "value": value}

    def do_take(self):
        self.taken.append(self.read())

    def do_look(self):
        return {"values": [np.asarray(taken.numpy()) for taken in self.taken]}

    def do_gradients(self, index):
        self.network()
        self.steps += 1
        arrays = coefficients(self.program, index, self.steps, None)
        coefs = [tf.constant(array) for array in arrays]
        grads, _ = self.gradients(index, lambda: self.loss(index, coefs))
        return {
            "returned": [history.kind(grad) for grad in grads],
            "values": [None if g is None else tf.convert_to_tensor(g).numpy() for g in grads],
        }

    def do_fail(self, index):
        """A step in which the wrapped optimizer fails."""
        self.call(index, None)
        pairs = [(tf.ones([7], var.dtype), var) for var in self.trained(index)]
        try:
            self.optimizer(index).apply_gradients(pairs)
        except Exception as error:
            return {"returned": type(error).__name__}

    def do_branching(self):
        """A loss with a branch that autograph is to convert."""
        self.network()
        branching(self.optimizer(0), self.trained(0)[0], self.library)

    def checkpoint(self):
        self.network()
        parts = {f"o{i}": self.optimizer(i) for i in range(len(self.program["optimizers"]))}
        parts.update(
            {f"v{i}_{j}": v for i, vs in enumerate(self.variables) for j, v in enumerate(vs)}
        )
        return tf.train.Checkpoint(**parts)

    def do_cross(self):
        """As in a graph, through a `tf.train.Checkpoint`."""
        folder = tempfile.mkdtemp()
        before = self.state()
        path = self.checkpoint().save(os.path.join(folder, "a"))
        other = Eager(self.program, "original")
        status = other.checkpoint().restore(path)
        status.assert_existing_objects_matched()
        other.steps = self.steps
        other.call(0, None)
        path = other.checkpoint().save(os.path.join(folder, "b"))
        again = Eager(self.program, self.library)
        again.checkpoint().restore(path).assert_existing_objects_matched()
        again.steps = other.steps
        again.taken = self.taken
        self.__dict__.update(again.__dict__)
        return {"kept": sorted(before)}


def branching(optimizer, variable, library):
    """Minimizes in a function a loss with a branch; the original is given its graph."""

    def loss():
        value = tf.reduce_sum(tf.cast(variable, tf.float32))
        if library == "original":
            return tf.cond(value > 0.0, lambda: value, lambda: -value)
        if value > 0.0:
            return value
        return -value

    def step():
        optimizer.minimize(loss, var_list=[variable])
        optimizer.minimize(loss=loss, var_list=[variable])

    tf.function(step, autograph=library == "package")()


@contextlib.contextmanager
def eager(program, library):
    with modes.eager_mode():
        yield Eager(program, library)
