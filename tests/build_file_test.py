"""BUILD has a target for each test file, and its list of those that start processes is true."""

import collections
import pathlib
import re

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "tf_lossscale_compat"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def glob(patterns, exclude=()):
    """Bazel's, here without what Python leaves beside its sources."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    found -= {path for pattern in exclude for path in ROOT.glob(pattern)}
    paths = (path.relative_to(ROOT) for path in found if path.is_file())
    return sorted(path.as_posix() for path in paths if "__pycache__" not in path.parts)


def evaluated(name):
    """Returns {function: [(arguments, keywords) of a call]} and the variables of a file.

    BUILD and MODULE.bazel are Starlark, whose syntax here is Python's.
    """
    calls = collections.defaultdict(list)

    def recorder(function):
        return lambda *args, **kwargs: calls[function].append((args, kwargs))

    variables = {"glob": glob}
    for function in ("load", "package", "py_library", "py_test", "module", "bazel_dep"):
        variables[function] = recorder(function)
    exec(compile(read(name), name, "exec"), variables)
    return calls, variables


class BuildFileTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.calls, cls.variables = evaluated("BUILD")
        cls.tests = [keywords for _, keywords in cls.calls["py_test"]]
        cls.libraries = {keywords["name"]: keywords for _, keywords in cls.calls["py_library"]}

    def test_loads_the_python_rules_from_rules_python(self):
        rules = ("@rules_python//python:defs.bzl", "py_library", "py_test")
        self.assertEqual(self.calls["load"], [(rules, {})])
        _, module = evaluated("MODULE.bazel")[0]["bazel_dep"][0]
        self.assertEqual(module["name"], "rules_python")

    def test_module_file_holds_the_packages_version(self):
        ((_, module),) = evaluated("MODULE.bazel")[0]["module"]
        expected = re.search(r'__version__ = "(.+)"', read(f"{PACKAGE}/_version.py")).group(1)
        self.assertEqual(module["version"], expected)

    def test_names_are_unique(self):
        names = [rule["name"] for rule in self.tests] + list(self.libraries)
        self.assertCountEqual(names, set(names))

    def test_every_test_file_is_the_source_and_main_of_one_test(self):
        files = glob(["tests/**/*_test.py"])
        self.assertIn("tests/build_file_test.py", files)
        self.assertEqual([rule["srcs"] for rule in self.tests], [[file] for file in files])
        self.assertEqual([rule["main"] for rule in self.tests], files)

    def test_every_test_depends_on_the_package(self):
        self.assertEqual(self.libraries["test_support"]["deps"], [f":{PACKAGE}"])
        for rule in self.tests:
            self.assertEqual(rule["deps"], [":test_support"])

    def test_the_libraries_have_all_modules(self):
        modules = glob([f"{PACKAGE}/**/*.py"])
        self.assertIn(f"{PACKAGE}/__init__.py", modules)
        self.assertEqual(self.libraries[PACKAGE]["srcs"], modules)
        support = set(glob(["tests/**/*.py"])) - {rule["main"] for rule in self.tests}
        self.assertIn("tests/conftest.py", support)
        self.assertCountEqual(self.libraries["test_support"]["srcs"], support)

    def test_tests_that_start_processes_are_tagged(self):
        imports = r"^(import|from) .*\b(subprocess|processes|forks)\b"
        signs = rf"(?m){imports}|\boriginals\.(child|fork|call_\w+)\b"
        starting = [rule["main"] for rule in self.tests if re.search(signs, read(rule["main"]))]
        self.assertEqual(self.variables["STARTS_PROCESSES"], starting)
        for rule in self.tests:
            expected = ["starts-processes"] if rule["main"] in starting else []
            self.assertEqual(rule["tags"], expected)


if __name__ == "__main__":
    absltest.main()
