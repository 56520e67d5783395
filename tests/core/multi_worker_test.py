"""Several worker processes under MultiWorkerMirroredStrategy act as one process would.

The program's arithmetic is exact, so the states after each step are compared for equality.
"""

import json
import os
import pathlib
import tempfile

import pytest
from absl.testing import parameterized

from tests import forks, keras_homes, processes

# Keras 3.0 to 3.4 sum no gradients over replicas, with a loss-scale optimizer or without.
HOMES = [home.name for home in keras_homes.available() if not home.before(3, 5)]
CASES = ("dynamic", "contrib", *HOMES)
# Far above what it takes: workers that disagree wait for each other without end.
LIMIT_SECONDS = 300


def histories(count):
    """Trains with so many workers, with one without a strategy; returns {case: states} of each."""
    workers = [f"127.0.0.1:{port}" for port in processes.free_ports(count)]
    with tempfile.TemporaryDirectory() as folder:
        calls = []
        for index in range(count):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            variables = {"TF_CONFIG": json.dumps(config)} if count > 1 else {}
            arguments = [processes.PROGRAMS / "training_workers.py", folder, *CASES]
            calls.append((arguments, processes.environment(**variables)))
        for status, _, err in forks.run_together(calls, os.getcwd(), LIMIT_SECONDS):
            if status:
                raise RuntimeError(err[-4000:])
        files = sorted(pathlib.Path(folder).iterdir())
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.mark.skipif(not forks.FORKS, reason="starts no processes at once on this system")
class MultiWorkerTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.alone,), cls.workers = histories(1), histories(2)

    @parameterized.parameters(*CASES)
    @keras_homes.slow_on_the_newest
    def test_workers_act_as_one_process(self, case):
        scales = [step["policy"][0] for step in self.alone[case]]
        changes = {after > before for before, after in zip(scales, scales[1:]) if after != before}
        self.assertLen(changes, 2)  # It grows and shrinks.
        for index, history in enumerate(self.workers):
            with self.subTest(worker=index):
                self.assertEqual(history[case], self.alone[case])
