"""A cluster of TensorFlow 1: a parameter server and two workers, one of which is killed.

The workers take their steps in an order that is given, and the arithmetic is exact, so the states
that both see after each step are compared for equality with a model in NumPy.
"""

import contextlib
import json
import time

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import forks, modes, numpy_model, originals
from tests.keras_homes import slow_on_the_newest
from tests.v1_optimizers import Around, exponential, sgd
from tf_lossscale_compat import apply_if_finite
from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

# The first test waits for the cluster, each of whose answers has a limit of its own.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("processes")]

tf1 = tf.compat.v1

NAN = float("nan")
# Far above what an answer takes: workers that wait for each other do so without end.
LIMIT_SECONDS = 60
ALONE = ("alone contrib", "alone mixed", "alone contrib v2")
INSIDE = ("inside contrib", "inside mixed", "inside mixed sparse", "inside contrib v2")
FIXED = ("outside mixed fixed",)
ORIGINAL = ("alone contrib original",) if originals.contrib() else ()
ALL = (*ALONE, *INSIDE, *FIXED, *ORIGINAL)
# TensorFlow 2.4 and 2.10 raise an error: an optimizer in a conditional that is a graph of its own
# cannot be placed on two jobs.
V2 = originals.IS_TF1 or _tf.at_least(2, 16)
CASES = tuple(case for case in ALL if V2 or "v2" not in case)
# Those that a worker is killed in.
KILLED = ("alone contrib", "alone mixed", "inside contrib", "inside mixed", *ORIGINAL)

# Gradients: NaN is a fault, and 16 is too large for float16 when it is scaled.
# Without SyncReplicasOptimizer: which worker takes a step, and its gradient.
IN_TURN = [(0, 1), (1, 1), (0, 1), (1, NAN), (0, 1), (1, NAN), (0, 16), (1, 2), (0, 1), (1, 1)]
# With it: the gradients of both.
AT_ONCE = [(1, 3), (1, 1), (1, NAN), (1, 2), (NAN, 1), (2, 2), (2, 2), (2, 2), (16, 1), (1, 1)]
# With a loss scale that lets all steps through.
FINITE = [(1, 3), (2, 2), (1, 1)]


class Cluster:
    """The processes, and the answers of workers by case.

    Raises:
      PortTakenError: a port was no longer free.
    """

    def __init__(self, stack, ports):
        self._stack = stack
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self._spec = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
        starting = [self._start("ps", 0), self._start("worker", 0), self._start("worker", 1)]
        processes.first_lines(starting, time.monotonic() + LIMIT_SECONDS)
        self._workers = starting[1:]
        self._heard = [{}, {}]

    def _start(self, job, index):
        child = forks.Child("tf1_cluster.py", self._spec, job, str(index))
        return self._stack.enter_context(child)

    def restart(self, index):
        """Kills a worker and starts another in its place."""
        self._workers[index].kill()
        self._workers[index] = self._start("worker", index)
        processes.first_lines([self._workers[index]], time.monotonic() + LIMIT_SECONDS)
        self._heard[index] = {}

    def tell(self, index, case, do, **more):
        self._workers[index].say(json.dumps({"case": case, "do": do, **more}))

    def step(self, index, case, gradient, hold=False):
        self.tell(index, case, "step", gradient=gradient, hold=hold)

    def hear(self, index, case):
        """Returns a worker's next answer about a case: a state, or True for a step that is held."""
        heard = self._heard[index]
        while not heard.get(case):
            line = self._workers[index].line(time.monotonic() + LIMIT_SECONDS)
            if line is None:
                raise AssertionError(f"worker {index} ended:\n{self._workers[index].errors()}")
            answer = json.loads(line)
            if "error" in answer:
                raise AssertionError(f"worker {index}, {answer['case']}: {answer['error']}")
            heard.setdefault(answer["case"], []).append(answer.get("state", True))
        return heard[case].pop(0)

    def ask(self, index, case, do, **more):
        self.tell(index, case, do, **more)
        return self.hear(index, case)

    def open(self, case):
        """Returns the states at the start; the first worker is the chief and has to come first."""
        return [self.ask(index, case, "open") for index in (0, 1)]

    def take_step(self, case, index, gradient):
        """Returns the states after a step of one worker."""
        self.step(index, case, gradient)
        views = [self.hear(index, case), self.ask(1 - index, case, "read")]
        return views if index == 0 else views[::-1]

    def hold(self, case, index, gradient):
        """Starts a step that ends before its gradient is divided by the scale."""
        self.step(index, case, gradient, hold=True)
        assert self.hear(index, case) is True


def take_turns(cluster, case):
    for worker, gradient in IN_TURN:
        yield cluster.take_step(case, worker, gradient)


def alone_until_kill(cluster, case):
    yield from take_turns(cluster, case)
    cluster.hold(case, 0, 3)
    for _ in range(2):  # The loss scale moves meanwhile.
        yield cluster.take_step(case, 1, NAN)
    yield [cluster.ask(0, case, "go on"), cluster.ask(1, case, "read")]
    if case in KILLED:
        cluster.hold(case, 1, 1)


def alone_after_kill(cluster, case):
    yield [cluster.ask(0, case, "read"), cluster.ask(1, case, "open")]
    yield from take_turns(cluster, case)


def together(cluster, case):
    for gradients in FINITE if case in FIXED else AT_ONCE:
        for worker in (0, 1):
            cluster.step(worker, case, gradients[worker])
        yield [cluster.hear(worker, case) for worker in (0, 1)]


def together_until_kill(cluster, case):
    yield from together(cluster, case)
    if case in KILLED:
        cluster.step(0, case, 1)
        cluster.hold(case, 1, 2)


def together_after_kill(cluster, case):
    yield [cluster.ask(1, case, "open")] * 2  # The other worker is still waiting.
    cluster.step(1, case, 3)
    yield [cluster.hear(worker, case) for worker in (0, 1)]
    yield from together(cluster, case)


def run_cluster(ports):
    seen = {}
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack, ports)
        for case in CASES:
            run = alone_until_kill if case.startswith("alone") else together_until_kill
            seen[case] = [cluster.open(case), *run(cluster, case)]
        cluster.restart(1)
        for case in KILLED:
            run = alone_after_kill if case.startswith("alone") else together_after_kill
            seen[case] += run(cluster, case)
    return seen


@processes.remembered
def histories():
    """Returns for each case a list of the states, each as the workers see it."""
    return processes.with_free_ports(3, run_cluster)


class Model:
    """The result of training: momentum 0.5, learning rate 0.25, and a loss scale."""

    def __init__(self, case):
        self.weight = self.momentum = 0.0
        self.count = 0
        if "contrib" in case:
            self.policy = numpy_model.ExponentialModel(2.0**13, 3, 2, 2.0, 0.5)
        else:
            self.policy = numpy_model.DynamicModel(2.0**13, 3, 2.0)
        self.fixed = "fixed" in case
        self.states = [self.state()]

    def state(self):
        policy = [] if self.fixed else [float(part) for part in self.policy.state]
        return [[self.weight] * 2, [self.momentum] * 2, self.count, *policy]

    def step(self, *gradients, scale=None):
        scale = self.policy.state[0] if scale is None else scale
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.float16(scale) * np.float16(gradients)
        finite = bool(np.isfinite(scaled).all())
        if finite:
            self.momentum = self.momentum / 2 + sum(gradients) / len(gradients)
            self.weight -= self.momentum / 4
            self.count += 1
        self.policy.step(finite)
        self.same()

    def same(self):
        self.states.append(self.state())


def expected(case):
    model = Model(case)
    if case.startswith("alone"):
        steps = [[gradient] for _, gradient in IN_TURN]
    else:
        steps = FINITE if case in FIXED else AT_ONCE
    for gradients in steps:
        model.step(*gradients)
    if case.startswith("alone"):
        scale = model.policy.state[0]
        model.step(NAN)
        model.step(NAN)
        assert model.policy.state[0] < scale
        model.step(3, scale=scale)
    if case in KILLED:
        model.same()
        if not case.startswith("alone"):
            model.step(1, 3)
        for gradients in steps:
            model.step(*gradients)
    return model.states


class ClusterTest(parameterized.TestCase):
    @parameterized.parameters(*ALL)
    @slow_on_the_newest
    def test_workers_see_what_one_process_would(self, case):
        if case not in CASES:
            self.skipTest("this TensorFlow cannot place conditionals of TensorFlow 2 on two jobs")
        states = expected(case)
        history = histories()[case]
        self.assertLen(history, len(states))
        for step, (views, state) in enumerate(zip(history, states)):
            for worker, view in enumerate(views):
                self.assertEqual(view, state, f"step {step}, worker {worker}")

    def test_as_contribs_own(self):
        if not ORIGINAL:
            self.skipTest("contrib is TensorFlow 1.15's")
        self.assertEqual(histories()["alone contrib"], histories()["alone contrib original"])


def sync_replicas(opt):
    return tf1.train.SyncReplicasOptimizer(opt, 2)


class Changing(Around):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(grad * 1.0, weight) for grad, weight in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


class OrderTest(modes.EagerTestCase):
    REFUSED = {
        "contrib": lambda opt: contrib.LossScaleOptimizer(opt, exponential()),
        "contrib fixed": lambda opt: contrib.LossScaleOptimizer(
            opt, contrib.FixedLossScaleManager(8.0)
        ),
        "mixed": lambda opt: experimental.MixedPrecisionLossScaleOptimizer(opt, "dynamic"),
        "mixed skipping": lambda opt: experimental.MixedPrecisionLossScaleOptimizer(
            opt, experimental.FixedLossScale(8.0, skip_nonfinite=True)
        ),
        "rewrite": experimental.enable_mixed_precision_graph_rewrite,
        "apply_if_finite": lambda opt: apply_if_finite(
            experimental.DynamicLossScale(), [(opt, [(tf.constant(1.0), tf1.Variable(1.0))])]
        ),
    }

    @parameterized.product(case=sorted(REFUSED), nested=(False, True))
    def test_loss_scale_that_skips_around_sync_replicas(self, case, nested):
        with tf.Graph().as_default():
            opt = sync_replicas(sgd())
            opt = Around(opt) if nested else opt
            message = r"SyncReplicasOptimizer .*Write .*SyncReplicasOptimizer\(LossScaleOptimizer\("
            with self.assertRaisesRegex(ValueError, message):
                self.REFUSED[case](opt)

    def test_loss_scale_that_skips_nothing_around_sync_replicas(self):
        with tf.Graph().as_default():
            opt = experimental.MixedPrecisionLossScaleOptimizer(sync_replicas(sgd()), 8.0)
            opt._loss_scale = experimental.FixedLossScale(4.0)
            with self.assertRaisesRegex(ValueError, "SyncReplicasOptimizer"):
                opt._loss_scale = experimental.DynamicLossScale(4.0)
            self.assertEqual(opt._loss_scale.get_config()["loss_scale_value"], 4.0)
            contrib.LossScaleOptimizer(sync_replicas(sgd()), exponential(), enabled=False)
            experimental.MixedPrecisionLossScaleOptimizer(
                sync_replicas(sgd()), "dynamic", enabled=False
            )


class AccumulatorTest(absltest.TestCase):
    def test_other_accumulators_are_left_alone(self):
        # One that adds up gradients and counts its own steps, which are ahead of the global step.
        with tf.Graph().as_default():
            weight = tf1.get_variable("weight", [], tf.float32, tf1.zeros_initializer())
            count = tf1.train.get_or_create_global_step()
            own = tf1.ConditionalAccumulator(tf.float32, [], shared_name="own")
            gradient = tf1.placeholder(tf.float32, [])
            put = own.apply_grad(gradient, local_step=10)
            opt = contrib.LossScaleOptimizer(sgd(), exponential())
            step = opt.apply_gradients([(own.take_grad(1), weight)], global_step=count)
            with tf1.Session() as session:
                session.run([own.set_global_step(10), tf1.global_variables_initializer()])
                for _ in range(2):
                    session.run(put, {gradient: 1.0})
                    self.assertEqual(session.run(own.num_accumulated()), 1)
                    session.run(step)
                    session.run(own.set_global_step(10))
                self.assertEqual(session.run([weight, count]), [-2.0, 2])
                operations = tf1.get_default_graph().get_operations()
                puts = [op for op in operations if op.type.endswith("SetGlobalStep")]
                self.assertLen(puts, 3)  # Those of this test.

    def test_those_of_another_optimizer_are_left_alone(self):
        # It trains the same weight, and counts other steps.
        def puts():
            operations = tf1.get_default_graph().get_operations()
            return sum(op.type.endswith("AccumulatorSetGlobalStep") for op in operations)

        with tf.Graph().as_default():
            weight = tf1.get_variable("weight", [], tf.float32, tf1.zeros_initializer())
            steps, others = (
                tf1.get_variable(name, [], tf.int64, tf1.zeros_initializer(), trainable=False)
                for name in ("steps", "others")
            )
            loss = weight * 1.0
            sync_replicas(sgd()).minimize(loss, global_step=steps)
            before = puts()
            contrib.LossScaleOptimizer(sgd(), exponential()).minimize(loss, global_step=others)
            self.assertEqual(puts(), before)
            # Its own are, also where an optimizer in between has changed the gradients.
            inner = Changing(contrib.LossScaleOptimizer(sgd(), exponential()))
            sync_replicas(inner).minimize(loss, global_step=steps)
            self.assertGreater(puts(), 2 * before)
