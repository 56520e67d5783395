"""docs/versions.md's table of TensorFlow versions says what is so on this one."""

import json
import os
import pathlib
import re
import subprocess
import sys

import tensorflow as tf
from absl.testing import absltest

TESTS = pathlib.Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "versions.md"
SECONDS = 400


def table():
    """Returns the page's table: version -> row -> cell."""
    lines = iter(PAGE.read_text(encoding="utf-8").split("<!-- version table -->")[1].split("\n"))
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip(" `") for cell in line.strip("|").split("|")])
        elif rows:
            break
    (_, *versions), _, *body = rows
    return {
        version: {row[0]: row[place] for row in body} for place, version in enumerate(versions, 1)
    }


class KerasTableTest(absltest.TestCase):
    def test_the_table_has_every_environment_of_the_matrix(self):
        page = PAGE.read_text(encoding="utf-8").split("<!-- matrix table -->")[1]
        rows = {
            row.split("|")[1].split(",")[0].strip(): row
            for row in page.split("\n\n")[1].split("\n")[2:]
        }
        noxfile = (TESTS.parent / "noxfile.py").read_text(encoding="utf-8")
        row = r'^    "\w+": \(\("([\d.]+)".*?\), "([\d.]+)", (.*)\),$'
        environments = re.findall(row, noxfile, re.MULTILINE)
        self.assertGreater(len(environments), 8)
        self.assertEqual(list(rows), list(dict.fromkeys(name for _, name, _ in environments)))
        for python, tensorflow, requirements in environments:
            for version in [python, *re.findall(r'"(?:tf-)?keras==([\d.]+)"', requirements)]:
                self.assertIn(f" {version} ", rows[tensorflow].replace(",", " "))


class VersionTableTest(absltest.TestCase):
    def test_the_table_has_every_tensorflow_of_the_matrix(self):
        self.assertEqual(list(table()), ["1.15", "2.0", "2.4", "2.10", "2.15", "2.16", "2.21"])

    def test_the_column_of_this_tensorflow_is_true(self):
        version = ".".join(tf.__version__.split(".")[:2])
        if version not in table():
            self.skipTest(f"the table has no column for TensorFlow {version}")
        paths = [str(TESTS.parent)] if os.environ.get("TF_LOSSSCALE_TEST_INSTALLED") != "1" else []
        child = subprocess.run(
            [sys.executable, str(TESTS / "programs" / "version_probe.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(paths)),
            timeout=SECONDS,
            universal_newlines=True,
            check=False,
        )
        self.assertEqual(child.returncode, 0, child.stderr[-3000:])
        self.assertEqual(json.loads(child.stdout.strip().split("\n")[-1]), table()[version])


if __name__ == "__main__":
    absltest.main()
