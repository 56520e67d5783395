"""ARCHITECTURE.md is true: its folders, files and functions are there."""

import pathlib
import re

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_lossscale_compat"


PATHS = {path.stem: path for path in PACKAGE.rglob("*.py")}


class ArchitectureTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

    def test_every_folder_is_in_the_table(self):
        table = self.text.partition("| folder | holds |\n")[2].partition("\n\n")[0]
        named = re.findall(r"`(\w+)[/`.]", table)
        folders = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
        self.assertContainsSubset(folders, named)

    def test_functions_that_are_named_are_there(self):
        found = re.findall(r"\b(_[a-z_]+)\.([a-z_]\w*)", self.text.replace(".py", ""))
        self.assertGreater(len(set(found)), 8)
        for module, name in found:
            with self.subTest(f"{module}.{name}"):
                source = PATHS[module].read_text(encoding="utf-8")
                self.assertRegex(source, rf"(?m)^def {name}\(")

    def test_files_that_are_named_are_there(self):
        names = re.findall(r"`([\w/]+\.py)`", self.text)
        self.assertGreater(len(names), 8)
        files = [path.as_posix() for path in PACKAGE.rglob("*.py")] + [
            (ROOT / "noxfile.py").as_posix()
        ]
        for name in names:
            self.assertTrue([path for path in files if path.endswith(f"/{name}")], name)
