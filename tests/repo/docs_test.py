"""Python blocks of all documents run, and their local links lead somewhere.

A block stands alone unless a comment on the line before its fence says otherwise:

    <!-- test: continues -->       runs after the block before it, in the same namespace
    <!-- test: tf<2 -->            runs on these TensorFlow versions only (`tf>=1.15,<2` too)

Without a version, a block runs wherever execution is eager from the start: on every TensorFlow 2.
Where Horovod is not installed, what is in tests/programs/stand_ins stands in for it.
Blocks switch eager execution off and set policies, so each runs in a fork; plugins of pytest that
execute Markdown run all in pytest's own process.
"""

import ast
import collections
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from itertools import zip_longest

import packaging.specifiers
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_lossscale_compat as package
from tests import forks, keras_homes, processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_lossscale_compat"
DATA = ROOT / "tests" / "data"  # Checkpoints of the originals.
SECONDS_PER_BLOCK = 300
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
    if "_build" not in path.parts
}
BLOCK = re.compile(
    r"^( *<!-- *test: *(?P<directive>.*?) *-->\n)?"
    r"(?P<indent> *)(?P<fence>```+)(?P<language>\w*).*\n(?P<code>(?s:.*?))^ *(?P=fence) *$",
    re.MULTILINE,
)


def programs():
    """Returns [(name, versions of TensorFlow, source)] of all Python blocks.

    Those that continue one are joined with it. Lines have the numbers that the document gives them.
    """
    found = []
    for document, text in TEXTS.items():
        for block in BLOCK.finditer(text):
            # Blocks of a translation are the original's.
            if block["language"] != "python" or document.startswith("docs/zh/"):
                continue
            line = text.count("\n", 0, block.start("code"))
            code = re.sub(f"(?m)^{block['indent']}", "", block["code"])
            directive = block["directive"] or "tf>=2.0"
            if directive == "continues":
                name, versions, before = found.pop()
                code = before + "\n" * (line - before.count("\n")) + code
            elif directive.startswith("tf"):
                name, versions = f"{document}_{line + 1}", directive[2:].replace(" ", "")
                code = "\n" * line + code
            else:
                raise ValueError(f"{document}:{line}: no such directive: {directive}")
            found.append((name, versions, code))
    return found


def headings(text):
    """Returns the anchors of a document's headings, made as code hosts make them."""
    counts = collections.Counter()
    for title in re.findall(r"(?m)^#{1,6}\s+(.*?)\s*#*$", BLOCK.sub("", text)):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        yield f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor
        counts[anchor] += 1


def named(of_docs):
    """Returns the programs of docs/, or those of the other documents, with names of tests."""
    return [
        (re.sub(r"\W", "_", name), *rest)
        for name, *rest in programs()
        if name.startswith("docs/") == of_docs
    ]


# Two inputs and a smaller last batch on two replicas: what `fit` shows needs both counts.
STEPS_SHOW_WHAT_KERAS_SHOWS = """
import numpy as np, tensorflow as tf
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer
devices = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
class Model(tf.keras.Model):
{}
x, y, shown = [0.1 * np.eye(6)] * 2, 0.1 * np.ones([6, 1]), []
for cls in (Model, tf.keras.Model):
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        inputs = [tf.keras.Input((6,)) for _ in x]
        model = cls(inputs, tf.keras.layers.Dense(1, kernel_initializer="ones")(sum(inputs)))
        model.compile(LossScaleOptimizer(tf.keras.optimizers.SGD()), "mse", metrics=["mae"])
    shown.append(model.fit(x, y, 4, validation_data=(x, y), verbose=0).history)
assert all(np.allclose(shown[0][name], shown[1][name]) for name in shown[1]), shown
"""


class BlocksTest(parameterized.TestCase):
    @parameterized.named_parameters(named(of_docs=False))
    def test_python(self, versions, source):
        self.run_program(versions, source)

    @parameterized.named_parameters(named(of_docs=True))
    @keras_homes.slow_on_the_newest
    def test_python_of(self, versions, source):
        self.run_program(versions, source)

    def run_program(self, versions, source):
        if not packaging.specifiers.SpecifierSet(versions).contains(tf.__version__, True):
            self.skipTest(f"the page says: for TensorFlow {versions}")
        environment = processes.environment(MPLBACKEND="Agg")
        # It has no __init__.py, so Python takes an installed package of the same name before it.
        environment["PYTHONPATH"] += os.pathsep + str(processes.PROGRAMS / "stand_ins")
        with tempfile.TemporaryDirectory() as folder:
            # From a file, since AutoGraph reads functions' source.
            program = processes.write(folder, "block.py", source)
            if "recorded/" in source:
                shutil.copytree(DATA, os.path.join(folder, "recorded"))
            status, _, errors = forks.run([program], environment, folder, SECONDS_PER_BLOCK)
        self.assertEqual(status, 0, errors)

    def test_steps_of_the_diff_for_keras(self):
        diff = TEXTS["docs/keras.md"].partition("```diff\n")[2].partition("\n-optimizer")[0]
        steps = [line[1:] for line in diff.split("\n")[3:] if not line.startswith("-")]
        self.run_program(">=2.18", STEPS_SHOW_WHAT_KERAS_SHOWS.format("\n".join(steps)))

    def test_every_fence_is_read(self):
        for document, text in TEXTS.items():
            fences = re.findall(r"(?m)^ *```", text)
            self.assertLen(fences, 2 * len(list(BLOCK.finditer(text))), document)

    def test_syntax_of_shell_blocks(self):
        for document, text in TEXTS.items():
            for block in BLOCK.finditer(text):
                if block["language"] in ("bash", "sh"):
                    with self.subTest(document, code=block["code"]):
                        subprocess.run(["bash", "-n", "-c", block["code"]], check=True)


class LinksTest(absltest.TestCase):
    def test_local_links_lead_somewhere(self):
        for document, text in TEXTS.items():
            text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))
            for target in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", text):
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue
                with self.subTest(document, target=target):
                    name, _, anchor = target.partition("#")
                    path = ((ROOT / document).parent / name if name else ROOT / document).resolve()
                    self.assertTrue(path.exists())
                    if anchor:
                        self.assertIn(anchor, headings(TEXTS[path.relative_to(ROOT).as_posix()]))


class PagesTest(absltest.TestCase):
    def test_every_example_is_on_the_page(self):
        files = [path.name for path in (ROOT / "examples").glob("*.py")]
        page = TEXTS["docs/examples.md"]
        found = re.findall(r"\{literalinclude\} \.\./examples/(\w+\.py)", page)
        self.assertCountEqual(found, files)

    def test_examples_that_pages_name_are_there(self):
        named = re.findall(r"\bexamples/\w+\.py", "".join(TEXTS.values()))
        self.assertIn("examples/demo.py", named)
        self.assertEqual([name for name in named if not (ROOT / name).is_file()], [])


class DefaultsTest(absltest.TestCase):
    def test_defaults_in_tables_are_those_of_the_signatures(self):
        defaults = {}
        for cls in (package.ExponentialUpdateLossScaleManager, package.DynamicLossScale):
            parameters = inspect.signature(cls).parameters.values()
            defaults.update({each.name: each.default for each in parameters})
        # Those of Keras' class are None in its signature.
        sgd = tf.keras.optimizers.SGD()
        optimizer = package.keras.mixed_precision.LossScaleOptimizer(sgd)
        for name in ("initial_scale", "dynamic_growth_steps"):
            defaults[name] = getattr(optimizer, name)
        rows = re.findall(r"(?m)^\|.*", "\n".join(TEXTS.values()))
        stated = re.findall(r"`(\w+)` \((\d[\d.*]*)\)", "\n".join(rows))
        self.assertGreater(len(stated), 8)
        for name, value in stated:
            self.assertEqual(eval(value), defaults[name], name)


class TranslationsTest(parameterized.TestCase):
    @parameterized.parameters("README", "migration_guide")
    def test_blocks_and_headings_are_the_originals(self, name):
        original, translation = TEXTS[f"{name}.md"], TEXTS[f"docs/zh/{name}.md"]
        self.assertEqual(original.split("\n")[0], f"[简体中文](docs/zh/{name}.md)")

        for of_page in (
            lambda text: [block.group() for block in BLOCK.finditer(text)],
            lambda text: re.findall(r"(?m)^#{1,6}(?= )", BLOCK.sub("", text)),
            lambda text: re.findall(r"<!-- .* -->", text),
        ):
            self.assertEqual(of_page(translation), of_page(original))


class TroubleshootingTest(absltest.TestCase):
    def test_the_messages_are_the_packages(self):
        _, _, rest = TEXTS["docs/troubleshooting.md"].partition("<!-- messages of this package -->")
        table = rest.split("\n\n")[1].splitlines()[2:]
        self.assertGreater(len(table), 5)
        said = []
        for path in PACKAGE.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                # Python 3.7 calls them Str and what they hold s.
                text = getattr(node, "s" if sys.version_info < (3, 8) else "value", None)
                if isinstance(text, str):
                    said.append(text)
        for row in table:
            message = re.match(r"\| `([^`]+)` \|", row).group(1)
            with self.subTest(message):
                self.assertTrue(any(message in text for text in said), "no such message")


class CheckpointsTest(absltest.TestCase):
    def test_the_layouts_are_those_of_the_originals(self):
        _, _, rest = TEXTS["docs/checkpoints.md"].partition("| layout |")
        rows = rest.split("\n\n")[0].splitlines()[2:]
        files = ("contrib_two_optimizers/saved", "mixed_precision_optimizers/saved")
        for row, file in zip_longest(rows, (*files, "object_optimizer/saved-1", "keras3/saved-1")):
            found = [name for name, _ in tf.train.list_variables(str(DATA / file))]
            names = re.findall("`([^`]*)`", row.partition(" | ")[2])
            self.assertGreater(len(names), 1)
            for name in names:
                self.assertRegex("\n".join(found), rf"(?m)(^|/){name}(/.ATTRIBUTES|$)")


class ArchitectureTest(absltest.TestCase):
    """docs/architecture.md is true: its folders, files and functions are there."""

    TEXT = TEXTS["docs/architecture.md"]

    def test_every_folder_is_in_the_table(self):
        table = self.TEXT.partition("| folder | holds |\n")[2].partition("\n\n")[0]
        folders = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
        self.assertContainsSubset(folders, re.findall(r"`(\w+)[/`.]", table))

    def test_functions_that_are_named_and_chains_of_calls_are_there(self):
        named = re.findall(r"\b(_[a-z_]+)\.([a-z_]\w*)", self.TEXT.replace(".py", ""))
        self.assertGreater(len(set(named)), 5)
        rows = re.findall(r"(?m)^ *(\w[\w., ]*?) {2,}([\w/]+)\.py", self.TEXT)
        self.assertGreater(len(rows), 12)
        for names, path in rows:
            named += [(path, name) for name in names.replace(" ...", "").split(", ")]
        for module, name in named:
            (path,) = PACKAGE.rglob(f"{module}.py")
            source = path.read_text(encoding="utf-8")
            self.assertRegex(source, rf"(?m)^ *def {name.split('.')[-1]}\(", module)

    def test_files_that_are_named_are_there(self):
        names = re.findall(r"`([\w/]+\.py)`", self.TEXT)
        self.assertGreater(len(names), 8)
        for name in names:
            self.assertTrue(name == "noxfile.py" or list(PACKAGE.rglob(name)), name)
