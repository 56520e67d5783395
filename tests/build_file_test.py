"""BUILD names every module and every test, each where it belongs, and nothing that is not there."""

import ast
import pathlib
import re

from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "tf_lossscale_compat"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def python_files(folder, pattern="*.py"):
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(pattern))


def calls(text):
    """Returns [(function name, positional nodes, {keyword: node})] of a BUILD file's statements.

    BUILD is Starlark, whose syntax here is Python's.
    """
    found = []
    for statement in ast.parse(text).body:
        call = getattr(statement, "value", None)
        if isinstance(call, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            found.append((call.func.id, call.args, keywords))
    return found


class Rules:
    """The py_library and py_test rules of BUILD by name."""

    def __init__(self):
        self.names = []
        self.libraries = {}
        self.tests = {}
        for function, _, keywords in calls(read("BUILD")):
            if "name" not in keywords:
                continue
            name = ast.literal_eval(keywords["name"])
            self.names.append(name)
            if function in ("py_library", "py_test"):
                rules = self.libraries if function == "py_library" else self.tests
                rules[name] = {
                    key: ast.literal_eval(keywords[key]) if key in keywords else []
                    for key in ("srcs", "deps", "main", "tags")
                }

    def reachable(self, name):
        """Returns the srcs that a rule sees: its own and, through deps, those of others."""
        seen, waiting, srcs = set(), [name], set()
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            rule = self.tests.get(current) or self.libraries[current]
            srcs.update(rule["srcs"])
            waiting.extend(dep.lstrip(":") for dep in rule["deps"])
        return srcs

    def cycle(self, name, path=()):
        """Returns a chain of deps that leads from a library back to itself, or None."""
        if name in path:
            return [*path, name]
        for dep in self.libraries[name]["deps"]:
            found = self.cycle(dep.lstrip(":"), (*path, name))
            if found:
                return found
        return None


def imported_modules(path):
    """Returns the package's modules that a file imports, as paths relative to the root."""
    names = set()
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    paths = set()
    for name in names:
        parts = name.split(".")
        if parts[0] != PACKAGE:
            continue
        stem = pathlib.PurePosixPath(*parts)
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if (ROOT / candidate).exists():
                paths.add(candidate.as_posix())
    return paths


class BuildFileTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rules = Rules()

    def test_loads_the_python_rules_from_rules_python(self):
        loaded = [
            [ast.literal_eval(argument) for argument in arguments]
            for function, arguments, _ in calls(read("BUILD"))
            if function == "load"
        ]
        self.assertEqual(loaded, [["@rules_python//python:defs.bzl", "py_library", "py_test"]])

    def test_module_file_depends_on_rules_python(self):
        dependencies = [
            ast.literal_eval(keywords["name"])
            for function, _, keywords in calls(read("MODULE.bazel"))
            if function == "bazel_dep"
        ]
        self.assertIn("rules_python", dependencies)

    def test_module_file_holds_the_packages_version(self):
        (version,) = [
            ast.literal_eval(keywords["version"])
            for function, _, keywords in calls(read("MODULE.bazel"))
            if function == "module"
        ]
        expected = re.search(r'__version__ = "(.+)"', read(f"{PACKAGE}/_version.py")).group(1)
        self.assertEqual(version, expected)

    def test_names_are_unique(self):
        self.assertCountEqual(self.rules.names, set(self.rules.names))

    def test_every_test_file_has_exactly_one_py_test(self):
        files = python_files("tests", "*_test.py")
        self.assertIn("tests/build_file_test.py", files)
        srcs = [src for rule in self.rules.tests.values() for src in rule["srcs"]]
        self.assertCountEqual(srcs, files)

    def test_every_py_test_has_one_source_which_is_its_main(self):
        for name, rule in self.rules.tests.items():
            with self.subTest(name):
                self.assertEqual(rule["srcs"], [rule["main"]])

    def test_tests_that_start_processes_are_tagged(self):
        signs = r"(?m)^(import|from) .*\b(subprocess|processes)\b|\boriginals\.(child|call_\w+)\("
        for name, rule in self.rules.tests.items():
            with self.subTest(name):
                starts = bool(re.search(signs, read(rule["main"])))
                self.assertEqual(["starts-processes"] if starts else [], rule["tags"])

    def test_every_module_is_in_exactly_one_library(self):
        files = python_files(PACKAGE)
        self.assertIn(f"{PACKAGE}/__init__.py", files)
        srcs = [
            src
            for rule in self.rules.libraries.values()
            for src in rule["srcs"]
            if src.startswith(f"{PACKAGE}/")
        ]
        self.assertCountEqual(srcs, files)

    def test_every_source_is_on_disk(self):
        for rules in (self.rules.libraries, self.rules.tests):
            for name, rule in rules.items():
                for src in rule["srcs"]:
                    with self.subTest(rule=name, src=src):
                        self.assertTrue((ROOT / src).is_file())

    def test_every_dep_is_a_library(self):
        for rules in (self.rules.libraries, self.rules.tests):
            for name, rule in rules.items():
                for dep in rule["deps"]:
                    with self.subTest(rule=name, dep=dep):
                        self.assertIn(dep, [f":{library}" for library in self.rules.libraries])

    def test_deps_reach_everything_that_is_imported(self):
        for rules in (self.rules.libraries, self.rules.tests):
            for name, rule in rules.items():
                reachable = self.rules.reachable(name)
                for src in rule["srcs"]:
                    # The package's __init__ is left out: it depends on the rooms, so they cannot
                    # depend on it.
                    wanted = imported_modules(src) - {f"{PACKAGE}/__init__.py"}
                    with self.subTest(rule=name, src=src):
                        self.assertLessEqual(wanted, reachable)

    def test_libraries_depend_on_each_other_in_one_direction(self):
        for name in self.rules.libraries:
            with self.subTest(name):
                self.assertIsNone(self.rules.cycle(name))


if __name__ == "__main__":
    absltest.main()
