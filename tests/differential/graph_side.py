"""Interprets programs of v1 optimizers and loss scales in a graph with a Session."""

import contextlib
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.variables import PartitionedVariable

from tests import modes
from tests.differential import history
from tests.differential.v1_side import Side, coefficients, elements, shape_of

tf1 = tf.compat.v1


class Graph(Side):
    """A graph with a Session."""

    def __init__(self, program, library):
        super().__init__(program, library)
        self.session = tf1.Session()
        self.initializing = modes.Session(self.session)
        self.trains, self.placeholders = {}, {}
        self.events = []  # What was built, for a graph of the same.

    def in_session(self):
        return True

    def do(self, action):
        graph = tf1.get_default_graph()
        before = len(graph.get_operations())
        seen = super().do(action)
        if not self.slow.wanted:
            seen = {"operations": len(graph.get_operations()) - before, **seen}
        if self.program["family"] == "modelled":  # A model has other operations.
            seen = {k: v for k, v in seen.items() if k not in ("operations", "name", "grad_names")}
        if action[0] in ("threads", "both"):
            return seen
        seen["names"] = [f"{v.name} {history.kind(v)}" for v in tf1.global_variables()]
        ops = tf1.get_collection(tf1.GraphKeys.TRAIN_OP)
        seen["train_op"] = [history.kind(op) for op in ops]
        seen.update(self.run({v.name: v for v in tf1.global_variables()}))
        return seen

    def run(self, fetches, feeds=None):
        if isinstance(fetches, (list, dict)) and not fetches:  # Which a new graph refuses.
            return type(fetches)()
        return self.initializing.run(fetches, feeds)

    def value(self, variable):
        return self.run(variable)

    def assign(self, variable, value):
        self.run([variable])
        variable.load(value, self.session)

    def make_global_step(self):
        return tf1.train.get_or_create_global_step()

    def loss_as_given(self, loss):
        return loss()

    def variable(self, name, spec, random):
        shape, dtype = shape_of(spec), tf.as_dtype(spec["dtype"])
        value = random.uniform(-1, 1, shape).astype(dtype.as_numpy_dtype)
        options = {"trainable": spec["kind"] != "frozen"}
        if spec["partitions"] > 1 and len(shape) and shape[0] > 1 and spec["kind"] == "dense":
            options["partitioner"] = tf1.fixed_size_partitioner(spec["partitions"])
            options["initializer"] = tf1.constant_initializer(0.5)
        elif self.program["noise"]:  # Seeded by how many operations there are.
            options["initializer"] = tf1.random_uniform_initializer(-1, 1)
        else:
            options["initializer"] = tf1.constant_initializer(value)
        return tf1.get_variable(name, shape, dtype, **options)

    def trained(self, index):
        return [
            each
            for var in super().trained(index)
            for each in (var if isinstance(var, PartitionedVariable) else [var])
        ]

    def network(self):
        if self.variables is None:
            self.placeholders = [
                [tf1.placeholder(tf.float32, shape_of(spec)) for spec in specs]
                + [tf1.placeholder(tf.int32, [3])]
                for specs in self.program["variables"]
            ]
            self.chosen = tf1.placeholder(tf.bool, [])
            self.events.append(["network"])
        return super().network()

    def train(self, index):
        """The train op of an optimizer, built at the first call; returns what was returned, too."""
        if index not in self.trains:
            self.network()
            self.optimizer(index) if self.wrapped else self.scale(index)
            self.events.append(["build", index])
            ops, returned = self.step_inside(index, self.placeholders[index])
            self.trains[index] = ops, history.kind(returned)
        return self.trains[index]

    def feeds(self, index, fault):
        self.steps += 1
        arrays = coefficients(self.program, index, self.steps, fault)
        return {**dict(zip(self.placeholders[index], arrays)), self.chosen: True}

    def feeds_of_step(self, index, fault):
        """Faulty with the original, too, where one over the scale is zero to processors."""
        scale = self.scale(index)
        variable = getattr(scale, "_loss_scale", getattr(scale, "_current_loss_scale", None))
        own = self.library == "original" and self.wrapped and isinstance(variable, tf.Variable)
        if own and self.value(variable) > 2.0**126:
            sizes = [elements(spec) for spec in self.program["variables"][index]]
            fault = ["nan", int(np.argmax(sizes)), 0, 0]
        return self.feeds(index, fault)

    def call(self, index, fault):
        self.run(self.train(index)[0], self.feeds_of_step(index, fault))

    def do_network(self):
        self.network()

    def do_build(self, index):
        self.train(index)

    def do_draw(self):
        self.events.append(["draw"])
        return {"value": self.run(tf.random.uniform([2]))}

    def do_read(self, index=0):
        self.events.append(["read"])
        scale = self.read(index)
        return {"returned": history.kind(scale), "value": self.run(scale), "name": name_of(scale)}

    def do_scale(self):
        self.events.append(["scale"])
        return super().do_scale()

    def do_take(self):
        self.events.append(["read"])
        self.taken.append(self.read())

    def do_look(self):
        return {"values": self.run(self.taken)}

    def do_fetch(self, index):
        """The scale beside a step; which of the two comes first is not known."""
        ops, _ = self.train(index)
        self.run([*ops, self.read(index)], self.feeds_of_step(index, None))

    def do_gradients(self, index):
        self.events.append(["gradients", index])
        self.network()
        grads, _ = self.gradients(index, self.loss(index, self.placeholders[index]))
        fetches = [grad for grad in grads if grad is not None]
        return {
            "returned": [history.kind(grad) for grad in grads],
            "grad_names": [name_of(grad) for grad in grads],
            "values": [
                list(value) if isinstance(value, tuple) else value
                for value in self.run(fetches, self.feeds(index, None))
            ],
        }

    def do_step(self, index, fault):
        ops, returned = self.train(index)
        feeds = self.feeds_of_step(index, fault)
        feeds[self.chosen] = self.steps % 5 != 4  # Where there is a choice, not all are taken.
        self.run(ops, feeds)
        return {"returned": returned}

    def do_both(self, finite):
        """Two train ops in one run, some times; not both are to be faulty, which is a race."""
        ops = [self.train(0)[0], self.train(1)[0]]
        self.do_count(0)
        self.slow.seconds = 0.003
        for _ in range(4):
            fault = None if finite else ["nan", 0, 0, 0]
            self.run(ops, {**self.feeds(0, fault), **self.feeds(1, None)})
        self.slow.seconds = 0.0
        return self.counted(finite)

    def do_finalize(self):
        """Finalizes the graph, once there is all that a step needs."""
        for index in range(len(self.program["optimizers"])):
            self.train(index)
        tf1.get_default_graph().finalize()

    def do_cross(self):
        """Saved, restored into the other class, trained, saved and restored into this one again.

        On the side of the original that other class is itself: what it does is what is to be seen.
        """
        before = self.run({v.name: v for v in tf1.global_variables()})
        if not before:
            return {}
        folder = tempfile.mkdtemp()
        paths = [os.path.join(folder, name) for name in "ab"]
        tf1.train.Saver().save(self.session, paths[0])
        with self.again("original") as side:
            tf1.train.Saver().restore(side.session, paths[0])
            side.initializing.initialized.update(map(id, tf1.global_variables()))
            after = side.run({v.name: v for v in tf1.global_variables()})
            kept = [name for name in before if not history.same(before[name], after.get(name))]
            side.steps = self.steps
            if side.trains:
                side.call(min(side.trains), None)
            tf1.train.Saver().save(side.session, paths[1])
            self.steps = side.steps
        tf1.train.Saver().restore(self.session, paths[1])
        return {"kept": kept}

    @contextlib.contextmanager
    def again(self, library):
        """A graph in which a library builds the same."""
        with graph(self.program, library) as side:
            for event in self.events:
                Side.do(side, event)
            yield side


def name_of(value):
    if value is None:
        return None
    value = value.values if isinstance(value, tf.IndexedSlices) else value
    return value.op.name


@contextlib.contextmanager
def graph(program, library):
    version = 1 if program["place"] == "graph_v1" else 2
    resource = program["resource"]
    with modes.control_flow(version), tf.Graph().as_default(), tf1.variable_scope(
        "", use_resource=resource
    ):
        tf1.set_random_seed(3)
        side = Graph(program, library)
        with side.session:
            yield side
