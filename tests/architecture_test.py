"""ARCHITECTURE.md is true: its files and functions are there, and modules import downwards."""

import ast
import pathlib
import re

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tf_lossscale_compat"


def module_of(path):
    """The name of a module within the package, as the table has it; that of the package's own."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts if len(parts) == 1 or parts[-1] != "__init__" else parts[:-1])


# migrate is a program of its own, in the table as a whole.
PATHS = {
    module_of(path): path
    for path in PACKAGE.rglob("*.py")
    if path.parent.relative_to(PACKAGE).parts[:1] != ("migrate",) or path.parent.name == "migrate"
    if path.parent.name != "migrate" or path.name == "__init__.py"
}


def imported(statements):
    """Yields the modules of the package that are imported as a module is, not by its functions."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        for field in ("body", "orelse", "finalbody", "handlers"):
            yield from imported(getattr(node, field, ()))
        if not isinstance(node, ast.ImportFrom) or node.module.split(".")[0] != PACKAGE.name:
            continue
        home = node.module.split(".")[1:]
        for alias in node.names:
            name = ".".join([*home, alias.name])
            yield name if name in PATHS else ".".join(home) or "__init__"


class ArchitectureTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
        modules = self.text.partition("\n## The modules\n")[2]
        table = modules.partition("| --- | --- |\n")[2].partition("\n\n")[0]
        rows = [line.split("|")[2] for line in table.split("\n")]
        self.order = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]

    def test_every_module_is_in_the_table(self):
        self.assertIn("keras._shared", PATHS)
        self.assertCountEqual(self.order, PATHS)

    def test_modules_import_what_stands_below_them(self):
        count = 0
        for name, path in PATHS.items():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for other in imported(tree.body):
                count += 1
                place, below = self.order.index(name), self.order.index(other)
                self.assertLess(place, below, f"{name} imports {other}")
        self.assertGreater(count, 150)

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
        files = {path.name for path in PACKAGE.rglob("*.py")}
        for name in names:
            self.assertIn(name, files)


if __name__ == "__main__":
    absltest.main()
