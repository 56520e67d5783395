"""Runs the same test in each way that TensorFlow can execute it.

with modes.entered("graph_v1") as mode:
    variable = tf1.Variable(1.0)
    step = mode.compile(lambda x: variable.assign_add(x), tf.TensorSpec([], tf.float32))
    step(2.0)
    mode.value(variable)
"""

import contextlib
import unittest
from concurrent import futures
from unittest import mock

import tensorflow as tf
from absl import logging
from absl.testing import absltest, parameterized
from tensorflow.python.eager import context

tf1 = tf.compat.v1

# graph_v1: a Session, control flow of TensorFlow 1 and reference variables, as 1.15 has by default
# and disable_v2_behavior() brings back; graph_v2: a Session, control flow v2, resource variables.
GRAPH = ("graph_v1", "graph_v2")
IMMEDIATE = ("eager", "function", "jit")
ALL = GRAPH + IMMEDIATE


def eager_mode():
    """Context of eager execution; TensorFlow 1.15 has no public way in that leads back out."""
    return contextlib.nullcontext() if tf.executing_eagerly() else context.eager_mode()


@contextlib.contextmanager
def control_flow(version):
    """Context in which conditionals are of control flow `version` (1 or 2)."""
    switches = {1: tf1.disable_control_flow_v2, 2: tf1.enable_control_flow_v2}
    before = 2 if tf1.control_flow_v2_enabled() else 1
    switches[version]()
    try:
        yield
    finally:
        switches[before]()


def compiled(function):
    """`tf.function` under XLA; raises `SkipTest` where TensorFlow has none that can be used."""
    if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 4):
        raise unittest.SkipTest("XLA before TensorFlow 2.4 has fast math, which knows no NaN")
    for argument in ("jit_compile", "experimental_compile"):
        try:
            return tf.function(function, autograph=False, **{argument: True})
        except TypeError:
            pass
    raise AssertionError("tf.function cannot be told to compile with XLA")


class Session:
    """A session in which variables are initialized when first needed."""

    def __init__(self, session):
        self.session, self.initialized = session, set()

    def run(self, fetches, feeds=None):
        """`Session.run`, once the variables made since the last call are initialized."""
        fresh = [v for v in tf1.global_variables() if id(v) not in self.initialized]
        self.initialized.update(map(id, fresh))
        if fresh:
            self.session.run([variable.initializer for variable in fresh])
        return self.session.run(fetches, feeds)


class Graph(Session):
    """A graph with one session."""

    def __init__(self, name, config=None):
        super().__init__(tf1.Session(config=config))
        self.name = name

    def compile(self, function, *specs):
        placeholders = [tf1.placeholder(spec.dtype, spec.shape) for spec in specs]
        fetches = function(*placeholders)

        def step(*values):
            return None if fetches is None else self.run(fetches, dict(zip(placeholders, values)))

        return step

    def value(self, what):
        """The value of a variable or tensor, or a nested structure of them."""
        return self.run(what)


class _Immediate:
    """Eager mode, maybe with functions compiled."""

    def __init__(self, name):
        self.name = name

    def compile(self, function, *specs):
        def call(*args):
            result = function(*args)
            return None if isinstance(result, tf.Operation) else result

        if self.name == "function":
            call = tf.function(call, autograph=False)
        elif self.name == "jit":
            call = compiled(call)

        def step(*values):
            tensors = [tf.constant(value, spec.dtype) for value, spec in zip(values, specs)]
            return self.value(call(*tensors))

        return step

    def value(self, what):
        """The value of a variable or tensor, or a nested structure of them."""
        return tf.nest.map_structure(lambda leaf: leaf if leaf is None else leaf.numpy(), what)


EAGER = _Immediate("eager")


@contextlib.contextmanager
def entered(name):
    """Enters the mode `name`; yields what compiles and evaluates in it."""
    with contextlib.ExitStack() as stack:
        if name in GRAPH:
            version = 1 if name == "graph_v1" else 2
            stack.enter_context(control_flow(version))
            stack.enter_context(tf.Graph().as_default())
            stack.enter_context(tf1.variable_scope("", use_resource=version == 2))
            mode = Graph(name)
            stack.enter_context(mode.session)
            yield mode
        else:
            if name == "jit":
                compiled(lambda: None)  # Skips the test before it has done anything.
            stack.enter_context(eager_mode())
            yield _Immediate(name)


def at_once(calls, call, often, rarely):
    """Some threads call a function at once with the arguments `often`; this one with `rarely`."""
    mode = eager_mode if tf.executing_eagerly() else contextlib.nullcontext

    def work():
        with mode():
            for _ in range(calls):
                call(*often)

    with futures.ThreadPoolExecutor(4) as threads:
        done = [threads.submit(work) for _ in range(4)]
        for _ in range(calls // 2 if rarely else 0):
            call(*rarely)
    for each in done:
        each.result()


@contextlib.contextmanager
def creations():
    """Yields a list of the names under which variables are asked for in this context."""
    names = []

    def creator(next_creator, **kwargs):
        names.append(kwargs.get("name"))
        return next_creator(**kwargs)

    with tf1.variable_creator_scope(creator):
        yield names


def scalar(dtype=tf.float32):
    return tf.TensorSpec([], dtype)


class EagerTestCase(tf.test.TestCase, parameterized.TestCase):
    """Tests that run in eager mode, and may look at what was warned of."""

    def setUp(self):
        super().setUp()
        absltest.TestCase.setUp(self)  # For `enter_context`; TensorFlow 1.15's does not call it.
        self.enter_context(eager_mode())
        self._warning = self.enter_context(mock.patch.object(logging, "warning"))

    def warnings(self):
        """The warnings through `absl.logging` in this test, a list of str."""
        return [str(call[0][0]) for call in self._warning.call_args_list]
