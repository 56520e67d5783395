"""Each file of examples/ runs and ends with a sensible summary."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
from absl.testing import parameterized

from tests import forks, processes
from tests.keras_homes import VERSION, slow_on_the_newest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SECONDS = 300
SUMMARY = re.compile(
    r"^accuracy (?P<accuracy>\S+), (?P<steps>\d+) steps( on \d+ replicas)?,"
    r" (?P<skipped>\d+) skipped, final loss scale (?P<scale>\S+)$"
)

# One line for each example: the file, its arguments, the accuracy that it reaches at least, the
# least and most steps that it skips, the least and greatest final loss scale. The scale has to
# come down by skipping until it is finite in float16; how far it goes on is up to the kernels.
TABLE = (
    ("tf1_contrib_graph.py", ["--steps", "150"], 0.90, (34, 50), (2.0**8, 2.0**15)),
    ("multi_gpu.py", ["--steps", "80"], 0.85, (9, 12), (2.0**12, 2.0**15)),
    ("keras_train_step.py", ["--steps", "150"], 0.90, (4, 9), (2.0**15, 2.0**20)),
)


def run(path, *arguments, **variables):
    """Runs a Python file, with these environment variables added; returns its last line."""
    # Variables that are given are for the import of TensorFlow.
    start = forks.alone if variables else forks.run
    environment = processes.environment(**variables)
    status, out, err = start([str(path), *arguments], environment, os.getcwd(), SECONDS)
    if status:
        raise AssertionError(f"{path} ended with {status}\n{err[-3000:]}")
    return (out.strip().split("\n") or [""])[-1]


class ExamplesTest(parameterized.TestCase):
    def check(self, summary, arguments, accuracy, skipped, scale):
        self.assertRegex(summary, SUMMARY)
        found = SUMMARY.match(summary).groupdict()
        self.assertBetween(float(found["accuracy"]), accuracy, 1)
        self.assertEqual(int(found["steps"]), int(arguments[1]))
        self.assertBetween(int(found["skipped"]), *skipped)
        # Six digits of it are printed.
        self.assertBetween(float(found["scale"]), scale[0] * (1 - 1e-5), scale[1] * (1 + 1e-5))

    def test_every_example_has_a_line_in_the_table(self):
        self.assertEqual(
            {path.name for path in EXAMPLES.glob("*.py")},
            {row[0] for row in TABLE} | {"demo.py"},
        )

    @parameterized.parameters(*TABLE)
    @slow_on_the_newest
    def test_example(self, name, arguments, accuracy, skipped, scale):
        if name.startswith("keras_") and VERSION < (2, 4):
            with self.assertRaisesRegex(AssertionError, r"needs .* TensorFlow 2\.4, this is \d"):
                run(EXAMPLES / name)
            self.skipTest("this TensorFlow has no stable mixed_float16 policy")
        self.check(run(EXAMPLES / name, *arguments), arguments, accuracy, skipped, scale)

    @slow_on_the_newest
    def test_demo_prints_what_readme_shows(self):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "demo.py")],
            env=processes.environment(TF_CPP_MIN_LOG_LEVEL="0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # No line of TensorFlow's lies within the table.
            universal_newlines=True,
            timeout=SECONDS,
        )
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        table = done.stdout[done.stdout.index("run  ") :]
        head, *rows, _, unscaled, reference, scaled = table.splitlines()
        self.assertLessEqual(max(map(len, [head, *rows, unscaled, reference, scaled])), 80)
        page = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
        shown = page.partition("<!-- demo -->\n```text\n")[2].partition("\n```")[0].splitlines()
        self.assertEqual(shown.pop(0), head)
        rows, shown = ({row[:41].strip(): row[41:].split() for row in t} for t in (rows, shown))
        self.assertEqual(*({name: row[2:] for name, row in t.items()} for t in (rows, shown)))
        for name, row in rows.items():
            # Without a loss scale the kernels of older TensorFlows make it another run.
            delta = 15 if name == "float16" and VERSION < (2, 21) else 1
            for found, said in zip(row[:2], shown[name]):
                self.assertAlmostEqual(float(found[:-1]), float(said[:-1]), delta=delta, msg=name)
        self.assertIn(f"{rows['float16'][1]} of the float16 gradients are zero", unscaled)
        self.assertIn(f"{rows['float16'][0]}, where float32 has {rows['float32'][0]}.", reference)
        self.assertStartsWith(scaled, "With one it is at most ")

    def test_demo_draws_or_says_what_it_needs(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = EXAMPLES / "demo.py", "--steps", "2", "--plot", f"{folder}/demo.svg"
            if importlib.util.find_spec("matplotlib"):
                run(*arguments)
                self.assertEqual(os.listdir(folder), ["demo.svg"])
            else:
                with self.assertRaisesRegex(AssertionError, "--plot needs matplotlib: pip install"):
                    run(*arguments)

    @pytest.mark.slow
    def test_keras_example_on_tf_keras(self):
        if VERSION < (2, 16):
            self.skipTest("before TensorFlow 2.16 tf.keras is no other Keras than tf_keras")
        if not importlib.util.find_spec("tf_keras"):
            self.skipTest("tf_keras is not installed")
        (row,) = [row for row in TABLE if row[0] == "keras_train_step.py"]
        self.check(run(EXAMPLES / row[0], *row[1], TF_USE_LEGACY_KERAS="1"), *row[1:])
