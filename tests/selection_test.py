"""What the matrix leaves out is run elsewhere."""

import ast
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

import packaging.specifiers
from absl.testing import absltest, parameterized

from tests import selection

NOXFILE = selection.TESTS.parent / "noxfile.py"


def item(path, cls, function=None, slow=False, parameters=None, name="test"):
    """As pytest makes them, as far as they are looked at."""

    def method():
        pass

    method.__x_params_repr__ = parameters
    return types.SimpleNamespace(
        path=pathlib.Path(path),
        cls=cls and type(cls, (), {}),
        name=name,
        originalname=function,
        function=method,
        get_closest_marker=lambda name: name if slow and name == "slow" else None,
    )


class ToolsTest(parameterized.TestCase):
    @parameterized.parameters(*selection.TOOLS)
    def test_tensorflow_has_no_part_in_it(self, name):
        tree = ast.parse((selection.TESTS / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", "")]
                self.assertNotIn("tensorflow", [(each or "").split(".")[0] for each in modules])

    def test_only_tools_are_left_out_as_such(self):
        for path in selection.TESTS.rglob("*_test.py"):
            self.assertEqual(
                selection.left_out(item(path, "Test"), "tools"), path.name in selection.TOOLS
            )
            self.assertFalse(selection.left_out(item(path, "Test"), ""))

    @parameterized.parameters(("programs", selection.PROGRAMS), ("pictures", selection.PICTURES))
    def test_they_are_left_out_as_such_alone(self, word, files):
        out = []
        for path in selection.TESTS.rglob("*_test.py"):
            if selection.left_out(item(path, "Test"), word):
                out.append(path.name)
        self.assertEqual(sorted(out), sorted(files))

    def test_what_is_not_thinned_is_there(self):
        names = {path.name for path in selection.TESTS.rglob("*_test.py")}
        self.assertLessEqual(set(selection.WHOLE), names)


def leave_out(ran=None):
    """What each environment leaves out, in their order.

    Args:
      ran: str, the TensorFlow on whose Python 3.0 README's command has run.

    Returns:
      dict of lists of words, by TensorFlow.
    """
    tree = ast.parse(NOXFILE.read_text(encoding="utf-8"))
    wanted = ("ENVIRONMENTS", "OF_KERAS", "OLD_PINS", "ORDER", "SLOW")
    module = ast.parse("")
    for node in tree.body:
        names = [getattr(target, "id", "") for target in getattr(node, "targets", [])]
        if getattr(node, "name", "") == "leave_out" or set(names) & set(wanted):
            module.body.append(node)
    variables = {} if ran is None else {"TF_LOSSSCALE_RAN": f"3.0 {ran}"}
    namespace = {"os": types.SimpleNamespace(environ=variables)}
    exec(compile(module, str(NOXFILE), "exec"), namespace)
    names = list(namespace["ENVIRONMENTS"])
    if namespace["SLOW"] != (names[0], names[-1]):
        raise AssertionError("slow tests are not for the oldest TensorFlow and the newest")
    if sorted(namespace["ORDER"]) != sorted(names):
        raise AssertionError("the order in which environments start is not that of all of them")
    return {
        row[1]: [word for word in namespace["leave_out"](name, "3.0").split(",") if word]
        for name, row in namespace["ENVIRONMENTS"].items()
        if name not in namespace["OF_KERAS"]  # Which are chosen by their files.
    }


class EnvironmentsTest(parameterized.TestCase):
    def test_the_oldest_and_the_newest_run_all(self):
        words = leave_out()
        self.assertEqual([words["1.15.5"], words["2.21.0"]], [[], []])
        self.assertEqual([*words][:: len(words) - 1], ["1.15.5", "2.21.0"])

    def test_what_readmes_command_ran_is_not_run_again(self):
        self.assertEqual(leave_out("2.21.0")["2.21.0"], ["ran"])
        self.assertEqual(leave_out("2.20.0")["2.21.0"], [])
        self.assertEqual(leave_out("2.16.2")["2.16.2"], ["ran"])

    def test_those_between_leave_out_what_others_run(self):
        words = leave_out()
        self.assertEqual(
            {tensorflow: set(words[tensorflow]) for tensorflow in list(words)[1:-1]},
            {
                "2.0.4": {"tools", "pictures", "turns"},
                "2.4.4": {"tools", "pictures", "programs", "turns"},
                "2.10.1": {"tools", "pictures", "turns"},
                "2.15.1": {"tools", "pictures", "programs", "turns"},
                # Between 2.15 and 2.21, which have the same legacy optimizers.
                "2.16.2": {"tools", "pictures", "programs", "turns", "legacy"},
            },
        )

    def test_every_block_of_the_documents_is_for_a_version_that_runs_it(self):
        versions = [name for name, words in leave_out().items() if "programs" not in words]
        root = NOXFILE.parent
        documents = [*root.glob("*.md"), *root.glob("docs/**/*.md")]
        found = set()
        for document in documents:
            text = document.read_text(encoding="utf-8")
            found.update(re.findall(r"^\s*<!-- test:(?:.*;)? *tf([^;]*?) *(?:;.*)?-->", text, re.M))
        self.assertNotEmpty(found)
        for each in found:
            admitted = packaging.specifiers.SpecifierSet(each.replace(" ", "")).contains
            self.assertTrue(any(map(admitted, versions)), each)


class Item:
    """pytest's of a test, as far as rows are chosen by it."""

    def __init__(self, cls, name, path):
        self.cls, self.name, self.path = cls, name, pathlib.Path(path)
        self.function = getattr(cls, name)


def modes_and_cases():
    class Modes(parameterized.TestCase):
        @parameterized.product(mode=["graph", "eager", "jit"], case=["a", "b", "c"])
        def test_pairs(self, mode, case): ...

        @parameterized.parameters("graph", "jit", "eager")
        def test_one(self, mode): ...

        @parameterized.named_parameters(("_x", "graph", 1), ("_y", "eager", 1), ("_z", "eager", 2))
        def test_named(self, mode, number): ...

        def test_alone(self): ...

    return Modes


def keras(*names):
    class Home:
        def __init__(self, name):
            self.name = name

        def __repr__(self):
            return self.name

    homes = [Home(name) for name in names]

    class Keras(parameterized.TestCase):
        @parameterized.parameters(*[(home,) for home in homes])
        def test_first(self, home): ...

        @parameterized.parameters(*[(home,) for home in homes])
        def test_second(self, home): ...

        @parameterized.parameters("current", "legacy")
        def test_of_a_file(self, name): ...

        @parameterized.product(home=homes, mode=["graph", "eager"], case=["a", "b"])
        def test_crossed(self, home, mode, case): ...

    return Keras


def items_of(cls, path):
    return [Item(cls, name, path) for name in vars(cls) if name.startswith("test")]


class RowsTest(parameterized.TestCase):
    def kept(self, cls, what, path="x_test.py"):
        items = items_of(cls, path)
        spare = selection.spare_rows(items, what)
        self.assertLess(spare, set(items))
        return [each.name for each in items if each not in spare]

    def test_values_of_a_row(self):
        def values(name):
            return selection.values(getattr(modes_and_cases(), name))

        self.assertEqual(values("test_pairs1"), {"mode": "'graph'", "case": "'b'"})
        self.assertEqual(values("test_one1"), {0: "'jit'"})
        self.assertEqual(values("test_named_z"), {0: "'eager'", 1: "2"})
        self.assertIsNone(values("test_alone"))

    def test_each_value_of_each_parameter(self):
        self.assertEqual(
            self.kept(modes_and_cases(), "tools,values"),
            [
                "test_alone",
                # Each mode, each case, and no row more; under XLA comes last.
                *("test_pairs0", "test_pairs2", "test_pairs4", "test_pairs6"),
                *("test_one0", "test_one1", "test_one2"),
                *("test_named_x", "test_named_z"),
            ],
        )

    def test_in_turn(self):
        self.assertEqual(
            self.kept(modes_and_cases(), "turns"),
            [
                "test_alone",
                *("test_pairs0", "test_pairs2", "test_pairs4", "test_pairs6"),
                "test_one2",  # The turn, but for XLA; its other values are in `test_pairs`.
                *("test_named_x", "test_named_z"),  # The other number; the turn.
            ],
        )

    def test_each_family_of_keras_optimizers_has_its_turn_in_each_test(self):
        kept = self.kept(keras("current", "legacy"), "turns")
        self.assertEqual(
            kept,
            [
                *("test_first0", "test_first1", "test_second0", "test_second1"),
                *("test_of_a_file0", "test_of_a_file1"),
                *("test_crossed3", "test_crossed4"),
            ],
        )

    @parameterized.parameters("", "tools,legacy", "ran")
    def test_other_words_leave_rows_as_they_are(self, what):
        self.assertLen(self.kept(modes_and_cases(), what), 16)

    @parameterized.parameters(*selection.WHOLE)
    def test_rows_that_are_whole_runs_are_not_thinned(self, name):
        for what in ("values", "turns"):
            self.assertLen(self.kept(modes_and_cases(), what, name), 16)

    @parameterized.parameters(*selection.CROSSED)
    def test_of_crossed_rows_those_with_no_value_of_their_own_are_slow(self, name):
        for path, count in ((name, 10), ("x_test.py", 16)):
            items = items_of(modes_and_cases(), path)
            self.assertLen(set(items) - selection.slow_rows(items), count)
            self.assertLen(items, 16)

    def test_crossed_rows_of_a_family_are_the_same_beside_others(self):
        found = []
        for names in (["keras3"], ["keras3", "current", "legacy"]):
            items = items_of(keras(*names), selection.CROSSED[0])
            slow = {each.name for each in selection.slow_rows(items)}
            # The first family's rows are the first four of them.
            rows = {f"test_crossed{index}" for index in range(4)}
            found.append(slow & rows)
        self.assertEqual(found, [{"test_crossed1", "test_crossed2"}] * 2)

    def test_crossed_files_are_there(self):
        names = {path.name for path in selection.TESTS.rglob("*_test.py")}
        self.assertLessEqual(set(selection.CROSSED), names)

    def test_the_choice_is_the_same_in_each_process(self):
        first, second = (self.kept(modes_and_cases(), "turns") for _ in range(2))
        self.assertEqual(first, second)


SOURCE = """\
from tests import keras_homes
CASES = [1]
HOMES = keras_homes.available()
def family():
    return HOMES
class Alone:
    cases = CASES
class Direct:
    @keras_homes.each()
    def test(self, home): pass
class Through:
    def test(self): return family()
class Sub(Through): pass
class Program:
    program = "training_workers.py"
"""


@absltest.skipIf(sys.version_info < (3, 8), "for the newest Python alone")
class RanTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.path = folder / "x_test.py"
        self.path.write_text(SOURCE, encoding="utf-8")

    def test_what_leads_to_tf_keras_is_run(self):
        names = {"HOMES", "family", "Direct", "Through", "Sub", "Program"}
        self.assertEqual(selection.needing_tf_keras(self.path), names)
        for name in names:
            self.assertFalse(selection.left_out(item(self.path, name), "ran"), name)
            self.assertFalse(selection.left_out(item(self.path, None, name), "ran"), name)
        self.assertTrue(selection.left_out(item(self.path, "Alone"), "ran"))
        self.assertTrue(selection.left_out(item(self.path, None, "test"), "ran"))

    def test_what_is_slow_is_run(self):
        self.assertFalse(selection.left_out(item(self.path, "Alone", slow=True), "ran"))

    @parameterized.parameters(
        ("(keras3, 1)", True),
        ("(home=keras3)", True),
        ("(current, 1)", False),
        ("(case='keras3')", False),
        ("('data/keras3/model.h5')", False),
    )
    def test_rows_of_keras_3_ran(self, parameters, ran):
        row = item(self.path, "Direct", parameters=parameters)
        self.assertEqual(selection.left_out(row, "ran"), ran)

    @parameterized.parameters(
        ("test_x_keras3", True), ("test_x_keras3_jit", True), ("test_x_current_jit", False)
    )
    def test_rows_of_keras_3_by_name(self, name, ran):
        row = item(self.path, "Direct", name=name)
        self.assertEqual(selection.left_out(row, "ran"), ran)

    @parameterized.parameters(
        ("(legacy, 1)", "test", True),
        (None, "test_x_legacy", True),
        ("(current, 1)", "test", False),
        ("('legacy',)", "test", False),
    )
    def test_legacy_rows(self, parameters, name, out):
        row = item(self.path, "Direct", parameters=parameters, name=name)
        self.assertEqual(selection.left_out(row, "tools,legacy"), out)
        self.assertFalse(selection.left_out(row, "tools"))

    def test_no_test_is_called_as_a_row_is(self):
        for path in selection.TESTS.rglob("*_test.py"):
            text = path.read_text(encoding="utf-8")
            self.assertNotRegex(text, r"def test_\w*(keras3|_legacy(_|\())")

    def test_no_file_of_keras_is_left_out_as_a_whole(self):
        for name in ("keras_fit_test.py", "keras_saving_test.py", "multi_worker_test.py"):
            self.assertNotEmpty(selection.needing_tf_keras(selection.TESTS / name))


class WorkersTest(absltest.TestCase):
    @absltest.skipIf(importlib.util.find_spec("xdist") is None, "needs pytest-xdist")
    def test_a_crash_is_a_failure_and_the_end(self):
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        for name in ("a_test.py", "b_test.py"):
            text = "import os\ndef test_before(): pass\ndef test_crash(): os._exit(0)\n"
            (folder / name).write_text(text, encoding="utf-8")
        root = NOXFILE.parent
        options = ["-c", str(root / "pyproject.toml"), "-p", "tests.conftest", "-n", "2", "-q"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "-p", "no:cacheprovider", str(folder)],
            cwd=str(root),
            env={k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TF_LOSS"))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            universal_newlines=True,
            timeout=100,
            check=False,
        )
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, "2 failed, 2 passed|1 failed, [12] passed")


if __name__ == "__main__":
    absltest.main()
