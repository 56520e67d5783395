"""UPSTREAM.md names tests that there are, and each test of Keras or TensorFlow once."""

import pathlib
import re

from absl.testing import absltest

TESTS = pathlib.Path(__file__).resolve().parent.parent
PAGE = (TESTS / "keras" / "UPSTREAM.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE, re.MULTILINE)


class UpstreamTest(absltest.TestCase):
    def test_what_it_names_is_there(self):
        sources = {path.stem: path.read_text("utf-8") for path in TESTS.glob("**/*_test.py")}
        names = [name for _, here in ROWS for name in re.findall(r"`(\w+_test)\.(\w+)`", here)]
        self.assertNotEmpty(names)
        for file, test in names:
            found = re.search(rf"    def {test}\(\s*self", sources.get(file, ""))
            self.assertIsNotNone(found, f"{file}.{test}")

    def test_each_row_names_a_test_or_says_how_it_differs(self):
        for theirs, here in ROWS:
            self.assertRegex(here, r"_test\.test_|^Differs: ", theirs)

    def test_no_name_stands_twice_in_a_section(self):
        for section in PAGE.split("\n## ")[1:]:
            rows = re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE)
            names = re.findall(r"`(\w+)`", " ".join(rows))
            self.assertLen(names, len(set(names)), section[:60])
