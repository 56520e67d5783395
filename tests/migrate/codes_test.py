"""docs/migrate-command.md has each code, with a line that the tool reports."""

import pathlib
import re

import pytest
from absl.testing import parameterized

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tf_lossscale_compat import migrate
from tf_lossscale_compat.migrate import _source

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/migrate-command.md"
ROWS = re.findall(r"(?m)^\| (LSC\d+) \| `(.*?)` \|", PAGE.read_text(encoding="utf-8"))
HEAD = "import tensorflow as tf\nfrom tf_lossscale_compat.keras import mixed_precision\n"


class CodesTest(parameterized.TestCase):
    def test_every_code_has_a_row(self):
        folder = pathlib.Path(migrate.__file__).parent
        sources = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
        said = set(re.findall(r"[\"'(](LSC\d+) ", "".join(sources)))
        self.assertEqual([code for code, _ in ROWS], sorted(said))

    @parameterized.parameters(*ROWS)
    def test_the_line_is_reported(self, code, line):
        found = {finding.code for finding in _source.migrate(HEAD + line).findings}
        self.assertEqual(found - {code}, set())
        self.assertIn(code, found)
