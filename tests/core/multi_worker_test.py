"""Several worker processes under MultiWorkerMirroredStrategy act as one process would.

The program's arithmetic is exact, so the states after each step are compared for equality.
"""

import contextlib
import json
import time

import keras_homes
import processes
import pytest
from absl.testing import parameterized

from tests import forks

# The first test waits for many starts of TensorFlow, each of which has a limit of its own.
pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("processes")]

CASES = ("dynamic", "contrib", *[home.name for home in keras_homes.available()])
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


@processes.remembered
def histories(count):
    """Returns what `count` workers print; with one, that is a process without a strategy."""
    if count > 1:
        return processes.with_free_ports(count, run_cluster)
    with forks.Child("training_workers.py", *CASES) as child:
        lines = processes.first_lines([child], time.monotonic() + LIMIT_SECONDS)
        return [json.loads(line) for line in lines]


class MultiWorkerTest(parameterized.TestCase):
    @parameterized.parameters(*CASES)
    def test_workers_act_as_one_process(self, case):
        (expected,) = histories(1)
        for index, history in enumerate(histories(2)):
            with self.subTest(worker=index):
                self.assertEqual(history[case], expected[case])

    @keras_homes.slow_on_the_newest
    def test_loss_scale_grows_and_shrinks(self):
        for history in histories(2):
            for case in CASES:
                scales = [step["policy"][0] for step in history[case]]
                changes = [after - before for before, after in zip(scales, scales[1:])]
                self.assertGreater(max(changes), 0)
                self.assertLess(min(changes), 0)
