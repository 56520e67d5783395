"""The package without TensorFlow: what works, and what the rest says."""

import os
import pathlib
import re
import tempfile

import pytest
from absl.testing import parameterized

from tests import crossed, forks, processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXTRAS = ("tf_lossscale_compat[tensorflow]", "tf_lossscale_compat[tensorflow-cpu]")
BEFORE = "import tensorflow as tf\nx = tf.contrib.mixed_precision.LossScaleManager, tf.nn\n"
# What the console script holds.
COMMAND = ("-c", "import sys; from tf_lossscale_compat.__main__ import main; sys.exit(main())")
MODULE = ("-m", "tf_lossscale_compat")


class WithoutTensorFlowTestCase(parameterized.TestCase):
    """A module `tensorflow` stands before the real one, if there is one, and cannot be imported."""

    def setUp(self):
        super().setUp()
        self.folder = self.enter_context(tempfile.TemporaryDirectory())
        for name in ("tensorflow", "numpy"):  # The one brings the other.
            self.write(f"{name}.py", f'raise ModuleNotFoundError("No module named {name!r}")\n')

    def write(self, name, text):
        return processes.write(self.folder, name, text)

    def python(self, *arguments):
        """Runs Python; returns exit code, standard output and standard error."""
        environment = processes.environment()
        environment["PYTHONPATH"] = os.pathsep.join([self.folder, environment["PYTHONPATH"]])
        return forks.alone(arguments, environment, self.folder, 300)


class WithoutTensorFlowTest(WithoutTensorFlowTestCase):
    @crossed.product(
        way=(COMMAND, MODULE),
        call=(
            ("--version", r"\d+\.\d+\.\d+"),
            ("--help", r"(?s)usage: tf-lossscale .*\n  +migrate "),
            ("migrate --help", r"(?s)usage: tf-lossscale migrate .*exit codes:"),
        ),
    )
    def test_works(self, way, call):
        arguments, wanted = call
        code, out, err = self.python(*way, *arguments.split())
        self.assertEqual((code, err), (0, ""))
        self.assertRegex(out, wanted)

    def test_migrate_works(self):
        pytest.importorskip("libcst", reason="migrating needs LibCST (Python 3.9 or newer)")
        self.write("code/a.py", BEFORE)
        code, out, err = self.python(*COMMAND, "migrate", "--write", "code")
        self.assertEqual((code, out), (0, f"rewrote {os.path.join('code', 'a.py')}\n"), err)
        self.assertIn("1 rewritten", err)

    @parameterized.parameters(
        ("-c", "from tf_lossscale_compat import LossScale"),
        ("-c", "import tf_lossscale_compat; tf_lossscale_compat.train"),
        ("-c", "import tf_lossscale_compat.contrib.mixed_precision"),
        ("-c", "from tf_lossscale_compat import *"),
        ("-c", "import tf_lossscale_compat.keras.mixed_precision"),
        ("-c", "import tf_lossscale_compat.loss_scale"),
        ("-c", "import tf_lossscale_compat.mixed_precision"),
        ("-c", "from tf_lossscale_compat import StepRecord"),
        ("-m", "training"),
    )
    def test_the_first_use_is_an_error_that_says_what_to_install(self, *arguments):
        self.write("training/__init__.py", "")
        self.write("training/__main__.py", "from training import more")
        self.write("training/more.py", "from tf_lossscale_compat import DynamicLossScale")
        code, out, err = self.python(*arguments)
        self.assertEqual((code, out), (1, ""))
        *_, last = err.splitlines()
        self.assertStartsWith(last, "ImportError: tf_lossscale_compat needs TensorFlow 1.15")
        for part in (*EXTRAS, "with the path of a checkout or wheel in place of the name"):
            self.assertIn(part, last)

    @parameterized.parameters(
        "import tf_lossscale_compat; dir(tf_lossscale_compat)",
        "from tf_lossscale_compat.__main__ import main; main(['--help'])",
        "from tf_lossscale_compat.__main__ import main; main(['--version'])",
        "from tf_lossscale_compat.__main__ import main; main(['migrate', '--help'])",
    )
    def test_imports_nothing_that_takes_long(self, what):
        # Where they are installed.
        for name in ("tensorflow", "numpy", "keras"):
            self.write(f"{name}.py", "")
        then = "import sys; print('imported', *{name.split('.')[0] for name in sys.modules})"
        _, out, _ = self.python("-c", f"{what}; {then}")
        imported = re.search("(?m)^imported (.*)$", out).group(1).split()
        self.assertIn("tf_lossscale_compat", imported)
        for name in ("absl", "keras", "libcst", "numpy", "sklearn", "tensorflow", "tf_keras"):
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
        self.assertIn(f'"{program} = tf_lossscale_compat.__main__:main"', setup)
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
