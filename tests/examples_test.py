"""Each file of examples/ runs and ends with a sensible summary."""

import os
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest, parameterized

import tf_lossscale_compat

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"
SECONDS = 240
SUMMARY = re.compile(
    r"^accuracy (?P<accuracy>\S+), (?P<steps>\d+) steps( on \d+ replicas| in \d+ workers)?,"
    r" (?P<skipped>\d+) skipped, final loss scale (?P<scale>\S+)$"
)

# One line for each example: the file, its arguments, the accuracy that it reaches at least, the
# least and most steps that it skips, the least and greatest final loss scale. The scale has to
# come down by skipping until it is finite in float16; how far it goes on is up to the kernels.
TABLE = (
    ("tf1_contrib_graph.py", ["--steps", "150"], 0.90, (34, 50), (2.0**8, 2.0**15)),
    ("custom_loop.py", ["--steps", "150"], 0.90, (9, 12), (2.0**12, 2.0**15)),
    ("multi_gpu.py", ["--steps", "80"], 0.85, (9, 12), (2.0**12, 2.0**15)),
    ("multi_worker.py", ["--steps", "80"], 0.85, (9, 12), (2.0**12, 2.0**15)),
)


def run(path, *arguments):
    """Runs a Python file in a process of its own.

    Returns:
      The last line of its standard output.

    Raises:
      AssertionError: it failed; with what it wrote to standard error.
    """
    # The child gets the same copy of the package, installed or not, as this process.
    package = pathlib.Path(tf_lossscale_compat.__file__).resolve().parent
    search = [str(package.parent), os.environ.get("PYTHONPATH", "")]
    child = subprocess.run(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, search))),
        universal_newlines=True,
        timeout=SECONDS,
        check=False,
    )
    if child.returncode:
        raise AssertionError(f"{path} ended with {child.returncode}\n{child.stderr[-3000:]}")
    return (child.stdout.strip().split("\n") or [""])[-1]


class ExamplesTest(parameterized.TestCase):
    def test_every_example_has_a_line_in_the_table(self):
        self.assertEqual({path.name for path in EXAMPLES.glob("*.py")}, {row[0] for row in TABLE})

    @parameterized.parameters(*TABLE)
    def test_example(self, name, arguments, accuracy, skipped, scale):
        summary = run(EXAMPLES / name, *arguments)
        self.assertRegex(summary, SUMMARY)
        found = SUMMARY.match(summary).groupdict()
        self.assertBetween(float(found["accuracy"]), accuracy, 1)
        self.assertEqual(int(found["steps"]), int(arguments[1]))
        self.assertBetween(int(found["skipped"]), *skipped)
        # Six digits of it are printed.
        self.assertBetween(float(found["scale"]), scale[0] * (1 - 1e-5), scale[1] * (1 + 1e-5))


if __name__ == "__main__":
    absltest.main()
