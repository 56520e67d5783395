"""Where TensorFlow is not installed: what works, and what the rest says."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest, parameterized

from tests import processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTRAS = ("tf_lossscale_compat[tensorflow]", "tf_lossscale_compat[tensorflow-cpu]")
BEFORE = "import tensorflow as tf\nx = tf.contrib.mixed_precision.LossScaleManager, tf.nn\n"
# What the console script holds, apart from how it ends.
COMMAND = ("-c", "import tf_lossscale_command; tf_lossscale_command.main()")
MODULE = ("-m", "tf_lossscale_compat")


class WithoutTensorFlowTestCase(parameterized.TestCase):
    """A module `tensorflow` stands before the real one, if there is one, and cannot be imported."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("tensorflow", "numpy"):  # The one brings the other.
            self.write(f"{name}.py", f'raise ModuleNotFoundError("No module named {name!r}")\n')

    def write(self, name, text):
        return processes.write(self.folder, name, text)

    def python(self, *arguments):
        """Runs Python; returns exit code, standard output and standard error."""
        path = [self.folder, processes.package_parent(), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, path))),
            cwd=self.folder,
            universal_newlines=True,
            timeout=100,
        )
        return done.returncode, done.stdout, done.stderr


class WithoutTensorFlowTest(WithoutTensorFlowTestCase):
    @parameterized.product(
        way=(COMMAND, MODULE),
        call=(
            ("--version", r"\d+\.\d+\.\d+"),
            ("--help", r"(?s)usage: tf-lossscale .*\n  +demo .*\n  +migrate "),
            ("migrate --help", r"(?s)usage: tf-lossscale migrate .*exit codes:"),
        ),
    )
    def test_works(self, way, call):
        arguments, wanted = call
        code, out, err = self.python(*way, *arguments.split())
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, wanted)

    @parameterized.parameters(COMMAND, MODULE)
    def test_migrate_works(self, *way):
        pytest.importorskip("libcst", reason="migrating needs LibCST (Python 3.9 or newer)")
        self.write("code/a.py", BEFORE)
        code, out, err = self.python(*way, "migrate", "--write", "code")
        self.assertEqual((code, out), (0, f"rewrote {os.path.join('code', 'a.py')}\n"), err)
        self.assertIn("1 rewritten", err)

    @parameterized.product(
        way=(COMMAND, MODULE),
        call=("demo", "demo --help", "plot logs", "checkpoint show migrate"),
    )
    def test_the_rest_says_what_to_install(self, way, call):
        code, out, err = self.python(*way, *call.split())
        self.assertEqual((code, out), (2, ""))
        self.assertNotIn("Traceback", err)
        for extra in EXTRAS:
            self.assertIn(extra, err)

    @parameterized.parameters(
        ("-c", "import tf_lossscale_compat"),
        ("-c", "from tf_lossscale_compat import cli"),
        ("-c", "import importlib; importlib.import_module('tf_lossscale_compat.keras')"),
        ("-m", "tf_lossscale_compat.run", "script.py"),
        ("-m", "training"),
        # Run and not imported, and then imported from.
        ("-c", "import runpy; runpy.run_module('tf_lossscale_compat'); import training.more"),
    )
    def test_importing_is_an_error_that_says_what_to_install(self, *arguments):
        self.write("training/__init__.py", "")
        self.write("training/__main__.py", "from training import more")
        self.write("training/more.py", "from tf_lossscale_compat import DynamicLossScale")
        code, out, err = self.python(*arguments)
        self.assertEqual((code, out), (1, ""))
        *_, last = err.splitlines()
        self.assertStartsWith(last, "ImportError: tf_lossscale_compat needs TensorFlow 1.15")
        for extra in EXTRAS:
            self.assertIn(extra, last)

    def test_a_package_that_imports_this_one_is_told_as_it_is_run(self):
        # Python imports `training` for `-m`, which imports this package: to tell that from a run of
        # this package takes a look at the stack, so it is told where it first uses something.
        self.write("training/__init__.py", "import tf_lossscale_compat as lsc")
        self.write("training/__main__.py", "from training import lsc; lsc.DynamicLossScale")
        code, _, err = self.python("-m", "training")
        self.assertEqual(code, 1)
        self.assertIn("needs TensorFlow 1.15", err)

    def test_help_imports_nothing_that_takes_long(self):
        code = (
            "import runpy, sys\n"
            "sys.argv[1:] = ['--help']\n"
            "try:\n"
            "    runpy.run_module('tf_lossscale_compat', run_name='__main__')\n"
            "finally:\n"
            "    print('imported', *sorted({name.split('.')[0] for name in sys.modules}))\n"
        )
        _, out, _ = self.python("-c", code)
        imported = re.search("(?m)^imported (.*)$", out).group(1).split()
        self.assertIn("tf_lossscale_compat", imported)
        for name in ("absl", "libcst", "numpy", "tensorflow", "tqdm"):
            self.assertNotIn(name, imported)


class HookTest(WithoutTensorFlowTestCase):
    """.pre-commit-hooks.yaml; pre-commit installs the package without TensorFlow and calls it."""

    def setUp(self):
        super().setUp()
        text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
        # Each value of this file stands on one line.
        self.values = dict(re.findall(r"^[- ] (\w+): (.+)$", text, re.MULTILINE))

    def test_it_calls_the_command_and_brings_what_the_extra_brings(self):
        setup = (ROOT / "setup.py").read_text(encoding="utf-8")
        program, *_ = self.values["entry"].split()
        self.assertIn(f'"{program} = tf_lossscale_command:main"', setup)
        (needed,) = re.findall(r"LIBCST = '([^;]+);", setup)
        self.assertEqual(self.values["additional_dependencies"], f'["{needed}"]')

    def test_its_call_fails_for_a_file_with_something_to_migrate(self):
        pytest.importorskip("libcst", reason="migrating needs LibCST (Python 3.9 or newer)")
        _, *arguments = self.values["entry"].split()
        arguments += self.values["args"].strip("[]").split(", ")
        self.write("a.py", BEFORE)
        self.write("b.py", "import os\n")
        self.assertEqual(self.python(*COMMAND, *arguments, "b.py")[:2], (0, ""))
        code, out, _ = self.python(*COMMAND, *arguments, "a.py", "b.py")
        self.assertEqual((code, out), (1, "would rewrite a.py\n"))


if __name__ == "__main__":
    absltest.main()
