"""What the matrix leaves out is run elsewhere."""

import ast
import pathlib
import sys
import tempfile
import types

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

    def test_the_oldest_and_the_newest_run_them(self):
        tree = ast.parse(NOXFILE.read_text(encoding="utf-8"))
        values = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        names = [ast.literal_eval(key) for key in values["ENVIRONMENTS"].keys]
        self.assertEqual(ast.literal_eval(values["SLOW"]), (names[0], names[-1]))
        (function,) = [n for n in tree.body if getattr(n, "name", "") == "leave_out"]
        namespace = {"os": types.SimpleNamespace(environ={}), "SLOW": (names[0], names[-1])}
        namespace["ENVIRONMENTS"] = {name: ((), name, (), ()) for name in names}
        module = ast.parse("")
        module.body = [function]
        exec(compile(module, str(NOXFILE), "exec"), namespace)
        for name in names:
            wanted = "" if name in (names[0], names[-1]) else "tools"
            if name == "tf216":  # Between 2.15 and 2.21, which have the same legacy optimizers.
                wanted = "tools,legacy"
            self.assertEqual(namespace["leave_out"](name, "3.0"), wanted)
        namespace["os"].environ["TF_LOSSSCALE_RAN"] = f"3.0 {names[-1]}"
        self.assertEqual(namespace["leave_out"](names[-1], "3.0"), "ran")
        self.assertEqual(namespace["leave_out"](names[-1], "3.1"), "")


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


if __name__ == "__main__":
    absltest.main()
