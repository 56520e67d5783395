"""Several worker processes under MultiWorkerMirroredStrategy act as one process would.

The program's arithmetic is exact, so the states after each step are compared for equality.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import keras_homes
import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import forks

# The first test waits for many starts of TensorFlow, each of which has a limit of its own.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("processes")]

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
CASES = ("dynamic", "contrib", *[home.name for home in keras_homes.available()])
# The cluster that is offered a taken port first.
TAKEN_FOR = 3
# Far above what it takes: workers that disagree wait for each other without end.
LIMIT_SECONDS = 120


def run_cluster(ports):
    """Returns what workers at these ports print: for each a dict of histories by case."""
    workers = [f"127.0.0.1:{port}" for port in ports]
    with contextlib.ExitStack() as stack:
        children = []
        for index in range(len(workers)):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            child = forks.Child("training_workers.py", *CASES, TF_CONFIG=json.dumps(config))
            children.append(stack.enter_context(child))
        lines = processes.first_lines(children, time.monotonic() + LIMIT_SECONDS)
        return [json.loads(line) for line in lines]


def run_with_free_ports(count, ports=processes.free_ports):
    """As `run_cluster`, with other ports if one is taken meanwhile."""
    for _ in range(2):
        with contextlib.suppress(processes.PortTakenError):
            return run_cluster(ports(count))
    return run_cluster(ports(count))


def run_offered_a_taken_port(count):
    """As `run_with_free_ports`, but the first ports that it tries are not all free."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        offers = [processes.free_ports(count - 1), processes.free_ports(count)]
        offers[0].insert(0, taken.getsockname()[1])
        results = run_with_free_ports(count, lambda _: offers.pop(0))
    if offers:
        raise AssertionError("workers ran where one of their ports was taken")
    return results


@processes.remembered
def histories(count):
    """Returns what `count` workers print; with one, that is a process without a strategy."""
    if count > 1:
        return (run_offered_a_taken_port if count == TAKEN_FOR else run_with_free_ports)(count)
    with forks.Child("training_workers.py", *CASES) as child:
        lines = processes.first_lines([child], time.monotonic() + LIMIT_SECONDS)
        return [json.loads(line) for line in lines]


class MultiWorkerTest(parameterized.TestCase):
    count = 2

    @parameterized.parameters(*CASES)
    def test_workers_act_as_one_process(self, case):
        (expected,) = histories(1)
        for index, history in enumerate(histories(self.count)):
            with self.subTest(worker=index):
                self.assertEqual(history[case], expected[case])

    @parameterized.parameters(*CASES)
    def test_nan_on_the_last_worker_is_a_step_that_all_skip(self, case):
        for index, history in enumerate(histories(self.count)):
            steps = history[case]
            for before, after in zip(steps, steps[1:]):
                with self.subTest(worker=index, step=after["step"]):
                    if after["nan"]:
                        self.assertEqual(after["trained"], before["trained"])
                        self.assertNotEqual(after["policy"], before["policy"])
                    else:
                        self.assertNotEqual(after["trained"], before["trained"])

    def test_loss_scale_grows_and_shrinks(self):
        for history in histories(self.count):
            for case in CASES:
                scales = [step["policy"][0] for step in history[case]]
                changes = [after - before for before, after in zip(scales, scales[1:])]
                self.assertGreater(max(changes), 0)
                self.assertLess(min(changes), 0)


@pytest.mark.slow
class ThreeWorkersTest(MultiWorkerTest):
    """A start of TensorFlow per worker, and again as a port is taken: on the newest only."""

    count = TAKEN_FOR

    def setUp(self):
        super().setUp()
        if VERSION < (2, 20):
            self.skipTest("two workers are enough on older versions")

    def test_taken_port_is_replaced(self):
        self.assertEqual(histories(TAKEN_FOR), histories(1) * TAKEN_FOR)


class ProcessesTest(parameterized.TestCase):
    def test_outcome_is_remembered_also_when_it_is_a_failure(self):
        calls = []

        @processes.remembered
        def run(count):
            calls.append(count)
            if count > 1:
                raise TimeoutError(f"{count} workers")
            return [count]

        for _ in range(2):
            self.assertEqual(run(1), [1])
            with self.assertRaisesRegex(TimeoutError, "2 workers"):
                run(2)
        self.assertEqual(calls, [1, 2])

    @parameterized.parameters(processes, forks)
    def test_child_ends_when_a_test_fails(self, home):
        with self.assertRaisesRegex(RuntimeError, "the test's own"):
            with home.Child("lifeline.py") as child:
                self.assertEqual(child.line(time.monotonic() + LIMIT_SECONDS), "waiting")
                raise RuntimeError("the test's own")
        with self.assertRaises(ProcessLookupError):
            os.kill(child.pid, 0)

    @parameterized.parameters(0, 3)
    def test_exit_status_and_last_words_of_a_fork(self, status):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:
                file.write(
                    "import sys; print(sys.stdin.readline().upper(), flush=True);"
                    f" sys.stderr.write('no more'); sys.exit({status})"
                )
            with forks.Child(path) as child:
                deadline = time.monotonic() + LIMIT_SECONDS
                child.say("heard")
                self.assertEqual(child.line(deadline), "HEARD")
                self.assertEqual(child.wait(deadline), (status, [""]))
                self.assertEqual(child.errors(), "no more")

    @parameterized.parameters("processes", "forks")
    def test_child_ends_when_its_parent_is_killed(self, home):
        code = (
            "import os, signal, time; "
            f"from tests.{home} import Child; "
            "child = Child('lifeline.py'); "
            "print(child.line(time.monotonic() + 60), child.pid, flush=True); "
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        output = subprocess.run(
            [sys.executable, "-c", code],
            cwd=os.path.dirname(processes.__file__),
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            stdout=subprocess.PIPE,
            universal_newlines=True,
            timeout=LIMIT_SECONDS,
            check=False,
        ).stdout
        word, pid = output.split()
        self.assertEqual(word, "waiting")
        deadline = time.monotonic() + LIMIT_SECONDS
        with self.assertRaises(ProcessLookupError):
            while time.monotonic() < deadline:
                os.kill(int(pid), 0)
                time.sleep(0.05)


if __name__ == "__main__":
    tf.test.main()
