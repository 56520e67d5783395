"""Steps of docs/hints.md: what they show on Keras 3 is what they showed on Keras 2.

tests/programs/hint_steps.py trains them, and says how the numbers of Keras 2 were recorded.
"""

import json
import pathlib

import tensorflow as tf
from absl.testing import absltest

from tests import forks, processes
from tests.keras_homes import slow_on_the_newest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 300
RELATIVE = 1e-6


class HintStepsTest(absltest.TestCase):
    @slow_on_the_newest
    def test_numbers_of_steps(self):
        version = tuple(int(part) for part in tf.__version__.split(".")[:2])
        if version < (2, 10):
            self.skipTest("numbers were recorded on TensorFlow 2.10.1")
        keras = tuple(map(int, tf.keras.__version__.split(".")[:2])) if version >= (2, 16) else ()
        which = "before" if version < (2, 16) else "after"
        program = str(ROOT / "tests/programs/hint_steps.py")
        arguments = [program, which, str(ROOT / "docs/hints.md")]
        status, out, errors = forks.run(arguments, processes.environment(), str(ROOT), SECONDS)
        self.assertEqual(status, 0, errors[-3000:])
        found = json.loads(out.splitlines()[-1])
        recorded = json.loads((ROOT / "tests/data/hint_steps.json").read_text(encoding="utf-8"))
        if keras:
            found["own"] = {k: v for k, v in found["own"].items() if "norm" not in k}
            self.check(found["replicas_at_rest"], found["own"], "replicas_at_rest")
        for way, shown in recorded.items():
            if way.startswith("replicas") and (3,) <= keras < (3, 8):
                continue  # Its `fit` sums no gradients.
            if way.startswith("replicas") and (3, 8) <= keras < (3, 15):
                shown = {"weights": shown["weights"]}  # It doubles totals of metrics.
            self.check(found[way], shown, way)

    def check(self, found, wanted, way):
        for name, values in wanted.items():
            # Keras 3.3 shows no loss of each output.
            for value, each in zip(values, found.get(name, values)):
                self.assertAlmostEqual(each, value, delta=RELATIVE * max(1, abs(value)), msg=way)


if __name__ == "__main__":
    absltest.main()
