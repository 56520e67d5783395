"""The package's imports, its exports, and files that have to fit together."""

import importlib
import json
import os
import pathlib
import re

from absl.testing import parameterized

import tf_lossscale_compat
from tests import forks, processes

try:
    from importlib import metadata
except ImportError:  # Python 3.7
    import importlib_metadata as metadata

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "tf_lossscale_compat"
INSTALLED = pathlib.Path(tf_lossscale_compat.__file__).resolve().parent

# The tools and what they need; the library works without any of it.
TOOLS = ["__main__", "migrate"]
TOOLS_NEED = ["sklearn", "scipy", "libcst", "pytest"]


class ImportTest(parameterized.TestCase):
    def test_import_brings_in_no_keras_no_tool_and_nothing_that_only_tools_need(self):
        code = (
            "import json, sys, tensorflow\n"
            "before = set(sys.modules)\n"
            "import tf_lossscale_compat\n"
            "alone = sorted(set(sys.modules) - before)\n"
            "from tf_lossscale_compat import *\n"
            "print(json.dumps([alone, sorted(set(sys.modules) - before)]))\n"
            "tf_lossscale_compat.keras\n"
        )
        status, out, err = forks.run(["-c", code], processes.environment(), os.getcwd(), 200)
        self.assertEqual(status, 0, err)
        alone, added = json.loads(out.splitlines()[-1])
        self.assertEqual(alone, [PACKAGE])
        for name in ("loss_scale", "contrib.mixed_precision"):
            self.assertIn(f"{PACKAGE}.{name}", added)
        own = {name.split(".")[1] for name in added if name.startswith(f"{PACKAGE}.")}
        others = [name for name in added if not name.startswith(f"{PACKAGE}.")]
        self.assertEmpty([name for name in others if re.search(r"(^|[._])keras($|\.)", name)])
        self.assertNoCommonElements(own, TOOLS)
        self.assertNoCommonElements({name.split(".")[0] for name in others}, TOOLS_NEED)

    def test_names_are_listed_without_importing_them(self):
        self.assertEqual(
            dir(tf_lossscale_compat),
            sorted([*tf_lossscale_compat.__all__, "keras"]),
        )


class NamesTest(parameterized.TestCase):
    @parameterized.parameters(
        "contrib.mixed_precision",
        "keras.mixed_precision",
        "keras.mixed_precision.experimental",
        "mixed_precision.experimental",
        "train.experimental",
    )
    def test_namespace_has_no_other_public_name_than_it_exports(self, name):
        module = importlib.import_module(f"{PACKAGE}.{name}")
        self.assertCountEqual([found for found in dir(module) if found[0] != "_"], module.__all__)


class FilesTest(parameterized.TestCase):
    def test_the_package_under_test_has_all_files(self):
        # Where a wheel is installed this finds what setup.py forgot.
        def files(folder):
            return [
                path.relative_to(folder).as_posix()
                for path in folder.rglob("*")
                if path.is_file() and "__pycache__" not in path.parts
            ]

        expected = files(ROOT / PACKAGE)
        self.assertIn("py.typed", expected)
        self.assertCountEqual(files(INSTALLED), expected)

    def test_the_wheel_has_the_package_alone(self):
        if os.environ.get("TF_LOSSSCALE_TEST_INSTALLED") != "1":
            self.skipTest("no wheel is installed here")
        files = metadata.distribution(PACKAGE).files
        tops = {file.parts[0] for file in files if file.parts[0] != ".."}  # The command's script.
        own = {top for top in tops if not top.endswith(".dist-info") and top != "__pycache__"}
        self.assertEqual(own, {PACKAGE})

    def test_version_is_the_changelogs_latest_and_bazels(self):
        names = ("CHANGELOG.md", "MODULE.bazel")
        changelog, bazel = ((ROOT / name).read_text(encoding="utf-8") for name in names)
        version, date = re.search(r"(?m)^## (\S+) \((.+)\)", changelog).groups()
        self.assertEqual(re.search(r'(?m)^ +version = "(.+)"', bazel).group(1), version)
        version += ".dev0" if date == "unreleased" else ""
        self.assertEqual(tf_lossscale_compat.__version__, version)
