"""Under Horovod all ranks skip the same steps and hold the same weights, scale and counters.

CONTRIBUTING.md says how to build Horovod, which takes minutes, and to run this. agreement_test.py
has what can be tested without it.
"""

import functools
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import processes

PROGRAM = processes.PROGRAMS / "horovod_ranks.py"
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
LIMIT_SECONDS = 900
# Of these the gradients of several steps are added up that were scaled differently.
REFUSED = "backward_passes_per_step=2 steps, and a dynamic loss scale"


def run(ranks, *arguments):
    """Runs a program in so many processes of Horovod; fails with what they wrote."""
    environment = processes.environment(
        PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    )
    command = ["horovodrun", "-np", str(ranks), "-H", f"localhost:{ranks}", "--gloo"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        log.seek(0)
        if code != 0:
            raise AssertionError(log.read().decode(errors="replace")[-5000:])


@functools.lru_cache(maxsize=None)
def outcomes(ranks):
    """Returns what each rank wrote, a list of {case: result}."""
    with tempfile.TemporaryDirectory() as folder:
        run(ranks, str(PROGRAM), folder)
        paths = [pathlib.Path(folder) / f"{rank}.json" for rank in range(ranks)]
        return [json.loads(each.read_text(encoding="utf-8")) for each in paths]


@absltest.skipIf(importlib.util.find_spec("horovod") is None, "needs Horovod, see CONTRIBUTING.md")
@pytest.mark.timeout(LIMIT_SECONDS + 60)
class RanksTest(parameterized.TestCase):
    @parameterized.parameters(2, 3)
    def test_every_cell(self, ranks):
        results = outcomes(ranks)
        enough = 48 if tf.__version__.startswith("1.") else 180
        self.assertLen(results[0], enough)
        states = {"right": 0, "refused": 0}
        for case, first in results[0].items():
            with self.subTest(case):
                for other in results[1:]:
                    self.assertEqual(other[case], first)
                loop, _, order, _, passes, _ = case.split("; ")
                expected = first.pop("expected")
                if order == "Horovod inside" and passes == "2":
                    self.assertIn(REFUSED, first.get("error", "nothing was raised"))
                    states["refused"] += 1
                    continue
                self.assertNotIn("error", first)
                np.testing.assert_allclose(
                    first.pop("embedding"), expected.pop("embedding"), rtol=1e-3
                )
                # Keras has iterations, which count all.
                if loop not in ("graph", "function"):
                    del expected["counted"], first["counted"]
                self.assertEqual(first, expected)
                states["right"] += 1
        print(f"{ranks} ranks: {states}")
        self.assertGreater(states["right"], 0.7 * enough)

    @parameterized.parameters(1, 2)
    def test_the_page_on_accumulation(self, ranks):
        text = (DOCS / "accumulation.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"```python\n(import horovod.*?)```", text, re.DOTALL)
        with tempfile.TemporaryDirectory() as folder:
            run(ranks, processes.write(folder, "block.py", block))
