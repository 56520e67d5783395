"""The benchmark runs on something small, beside a copy of itself; its figures are not tested."""

import os

import pytest
from absl.testing import absltest

from tests import forks, keras_homes, originals, processes

PROGRAM = os.path.join(originals.ROOT, "benchmarks", "benchmark.py")
OPTIONS = ["--workloads", "ten", "--rounds", "6", "--against", originals.ROOT]


class BenchmarkTest(absltest.TestCase):
    @pytest.mark.slow
    def test_rows(self):
        modes = ["graph", "eager", "session"]
        modes += ["jit"] if keras_homes.VERSION >= (2, 5) else []
        arguments = [PROGRAM, *OPTIONS, "--modes", *modes]
        status, out, err = forks.run(arguments, processes.environment(), os.getcwd(), 240)
        self.assertEqual(status, 0, err[-3000:])
        _, *tables = out.split("\n\n")
        for mode, table in zip(modes, tables):
            header, _, *rows = table.splitlines()
            self.assertStartsWith(header, f"| ten, {mode} | ms | overhead |")
            for generation in ("v1", "contrib"):
                for who in ("theirs", "against"):
                    (row,) = [row for row in rows if row.startswith(f"| {generation}, {who} |")]
                    self.assertRegex(row, r"\| -?\d+\.\d\d \| \d+\.\d\d \[.+, .+\] \|")
