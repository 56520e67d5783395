"""A cluster of TensorFlow 1: a parameter server and two workers, all servers of this process.

The workers take their steps in an order that is given, and the arithmetic is exact, so the states
that both see after each step are compared for equality with a model in NumPy.
"""

import functools
import threading

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, originals, processes
from tests.keras_homes import slow_on_the_newest
from tests.v1_optimizers import OPTIMIZERS, dynamic, exponential, moved, state_of
from tf_lossscale_compat._core import _tf

tf1 = tf.compat.v1

NAN = float("nan")
LARGE = 2.0**14  # Too large for float16 when it is scaled.
# Far above what a step takes: workers that wait for each other do so without end.
LIMIT_SECONDS = 240
# An optimizer and maybe an option: `original`, contrib's own classes; `sparse`; `v2`, with the
# variables and conditionals of TensorFlow 2.
CASES = ("contrib", "mixed sparse", "contrib v2")
ORIGINAL = ("contrib original",) if originals.contrib() else ()
# TensorFlow 2.4 and 2.10 raise an error: an optimizer in a conditional that is a graph of its own
# cannot be placed on two jobs.
V2 = originals.IS_TF1 or _tf.at_least(2, 16)

# Which worker takes a step, and its gradient.
IN_TURN = [(0, 1), (1, 1), (0, 1), (1, NAN), (0, 1), (1, NAN), (0, LARGE), (1, 2), (0, 1), (1, 1)]


@functools.lru_cache(maxsize=None)
def cluster():
    """Starts the servers; returns their specification and the workers' targets."""
    addresses = [f"127.0.0.1:{port}" for port in processes.free_ports(3)]
    spec = tf1.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    # A step that is held takes one of these threads.
    config = tf1.ConfigProto(inter_op_parallelism_threads=32)
    tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
    servers = [tf1.train.Server(spec, job, index, config=config) for job, index in tasks]
    return spec, servers


def wrapped(opt, which, options):
    """Returns a loss-scale optimizer and the variables of its loss scale."""
    if "original" in options:
        home = originals.contrib()
        manager = home.ExponentialUpdateLossScaleManager(8.0, 2, 1, 2.0, 0.5)
        return home.LossScaleOptimizer(opt, manager), [manager._loss_scale, manager._num_good_steps]
    policy = exponential() if which == "contrib" else dynamic()
    return OPTIMIZERS[which](opt, policy), state_of(policy)


class Worker:
    """A worker's graph and session of a job, which has a container on the parameter server."""

    def __init__(self, case, index):
        optimizer, *options = case.split()
        self.hold, self.held, self.go_on = False, threading.Event(), threading.Event()
        spec, servers = cluster()
        task = f"/job:worker/task:{index}"
        place = tf1.train.replica_device_setter(cluster=spec, worker_device=task)
        v2 = "v2" in options
        with modes.control_flow(2 if v2 else 1), tf.Graph().as_default() as graph:
            with graph.container(case.replace(" ", ".")), tf1.device(place):
                with tf1.variable_scope("", use_resource=v2):
                    self._build(optimizer, options)
            self._session = tf1.train.MonitoredTrainingSession(
                servers[1 + index].target,
                is_chief=index == 0,
                config=tf1.ConfigProto(device_filters=["/job:ps", task]),
            )

    def _build(self, optimizer, options):
        count = tf1.train.get_or_create_global_step()
        weights = tf1.get_variable("weights", [2], initializer=tf1.zeros_initializer())
        inner = tf1.train.MomentumOptimizer(0.25, 0.5)
        opt, policy = wrapped(inner, optimizer, options)

        self._gradient = tf1.placeholder(tf.float32, [])
        used = tf.gather(weights, [0, 1]) if "sparse" in options else weights
        half = tf.cast(self._held(used), tf.float16)
        loss = tf.reduce_sum(half * tf.cast(self._gradient, tf.float16))
        self._train = opt.minimize(loss, global_step=count, var_list=[weights])
        self._state = [weights, inner.get_slot(weights, "momentum"), count, *policy]

    def _held(self, tensor):
        @tf.custom_gradient
        def held(tensor):
            def gradient(scaled):
                waited = tf1.py_func(self._wait, [scaled], scaled.dtype)
                waited.set_shape(scaled.shape)
                return waited

            return tf.identity(tensor), gradient

        return held(tensor)

    def _wait(self, scaled):
        if self.hold:
            self.held.set()
            self.go_on.wait()
        return scaled

    def read(self):
        return [np.asarray(value).tolist() for value in self._session.run(self._state)]

    def step(self, gradient):
        self._session.run(self._train, {self._gradient: gradient})


@functools.lru_cache(maxsize=None)
def history(case):
    """Returns the states at the start and after each step, each as both workers see it."""
    workers = [Worker(case, index) for index in (0, 1)]  # The first is the chief.
    seen = []

    def look():
        seen.append([worker.read() for worker in workers])

    look()
    for index, gradient in IN_TURN:
        workers[index].step(gradient)
        look()
    # A step that ends before its gradient is divided, while the loss scale moves.
    workers[0].hold = True
    step = threading.Thread(target=workers[0].step, args=(3,), daemon=True)
    step.start()
    assert workers[0].held.wait(LIMIT_SECONDS)
    for _ in range(2):
        workers[1].step(NAN)
        seen.append([workers[1].read()])
    workers[0].go_on.set()
    step.join(LIMIT_SECONDS)
    look()
    return seen


class Model:
    """The result of training: momentum 0.5, learning rate 0.25, and a loss scale."""

    def __init__(self):
        self.weight, self.momentum, self.count, self.policy = 0.0, 0.0, 0, (8.0, 0)
        self.states = [self.state()]

    def state(self):
        return [[self.weight] * 2, [self.momentum] * 2, self.count, *self.policy]

    def step(self, gradient, scale=None):
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.float16(scale or self.policy[0]) * np.float16(gradient)
        finite = bool(np.isfinite(scaled))
        if finite:
            self.momentum = self.momentum / 2 + gradient
            self.weight -= self.momentum / 4
            self.count += 1
        self.policy = moved(self.policy, finite)
        self.states.append(self.state())


def expected():
    model = Model()
    for _, gradient in IN_TURN:
        model.step(gradient)
    scale = model.policy[0]
    model.step(NAN)
    model.step(NAN)
    assert model.policy[0] < scale
    model.step(3, scale=scale)
    return model.states


class ClusterTest(parameterized.TestCase):
    @parameterized.parameters(*CASES, *ORIGINAL)
    @slow_on_the_newest
    def test_workers_see_what_one_process_would(self, case):
        if "v2" in case and not V2:
            self.skipTest("this TensorFlow cannot place conditionals of TensorFlow 2 on two jobs")
        states, seen = expected(), history(case)
        self.assertLen(seen, len(states))
        for step, (views, state) in enumerate(zip(seen, states)):
            for worker, view in enumerate(views):
                self.assertEqual(view, state, f"step {step}, worker {worker}")

    def test_as_contribs_own(self):
        if not ORIGINAL:
            self.skipTest("contrib is TensorFlow 1.15's")
        self.assertEqual(history("contrib"), history("contrib original"))
