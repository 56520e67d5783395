"""Notebooks: code cells change, and not a byte of the JSON around them."""

import json
import time

import pytest
from absl.testing import parameterized

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tf_lossscale_compat.migrate import _command, _notebook

MANAGER = "tf.contrib.mixed_precision.FixedLossScaleManager"
OURS = "tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager"

LAYOUTS = (
    {"indent": 1, "ensure_ascii": False},
    {"indent": 4, "ensure_ascii": True},
    {"indent": "\t"},
    {"separators": (",", ":")},
)


def code(source):
    return {
        "outputs": [{"text": "tf.contrib.mixed_precision", "data": {"z": 1.0, "a": 1e-7}}],
        "cell_type": "code",
        "source": source.splitlines(keepends=True),
        "metadata": {"tags": ["tf.contrib.mixed_precision"], "b": {}, "a": []},
        "execution_count": None,
    }


def notebook(*cells, **others):
    return {
        "nbformat_minor": 2,
        "cells": list(cells),
        "metadata": {"kernelspec": {"name": "python3", "language": "python"}},
        "nbformat": 4,
        **others,
    }


class NotebookTest(parameterized.TestCase):
    def migrate(self, text):
        outcome = _command.migrate_bytes(text.encode("utf-8"), True)
        again = _command.migrate_bytes(outcome.new, True)
        self.assertEqual(again.new, outcome.new, "a second run changed it again")
        return outcome, outcome.new.decode("utf-8")

    def check_cells(self, before, after, failures=0, layouts=LAYOUTS[:1]):
        """Cells become others; JSON is otherwise as it was."""
        for layout in layouts:
            for end in ("\n", ""):
                wanted = json.dumps(notebook(*after), **layout) + end
                outcome, text = self.migrate(json.dumps(notebook(*before), **layout) + end)
                self.assertEqual(text, wanted)
                self.assertLen(outcome.result.failures, failures)
        return outcome

    def test_names_are_known_in_later_cells(self):
        markdown = {"cell_type": "markdown", "metadata": {}, "source": ["tf.contrib ", MANAGER]}
        self.check_cells(
            [
                code("import os\nimport tensorflow as tf"),
                markdown,
                code(""),
                code(f"m = {MANAGER}(8)  # é\nprint(m)\n"),
            ],
            [
                code("import os\nimport tensorflow as tf\nimport tf_lossscale_compat"),
                markdown,
                code(""),
                code(f"m = {OURS}(8)  # é\nprint(m)\n"),
            ],
            layouts=LAYOUTS,
        )

    def test_source_as_one_string(self):
        before = code(f"import tensorflow as tf\n\nx = [{MANAGER}]\n")
        after = code(f"import tensorflow as tf\nimport tf_lossscale_compat\n\nx = [{OURS}]\n")
        before["source"], after["source"] = "".join(before["source"]), "".join(after["source"])
        self.check_cells([before], [after], layouts=LAYOUTS)

    def test_an_import_of_several_lines(self):
        self.check_cells(
            [
                code(
                    "from tensorflow.train.experimental import (\n    LossScale,\n"
                    "    PythonState,\n    DynamicLossScale as D,\n)\nprint(D)"
                )
            ],
            [
                code(
                    "from tensorflow.train.experimental import (\n"
                    "    PythonState,\n)\n"
                    "from tf_lossscale_compat.train.experimental import LossScale,"
                    " DynamicLossScale as D\nprint(D)"
                )
            ],
        )

    @parameterized.parameters(
        "!pip install 'x[tf]' \\\n  y \\\n      z",
        "%matplotlib inline",
        "files = !ls *.py",
        "t, u = %time f()",
        "tf?",
        "?tf.contrib",
        "tf.contrib??",
        "if True:\n    !ls\n    %time f()\nelse:\n  %pwd",
        "x = (1\n  % 2)",
        "y = 3 \\\n  % 2",
        'z = """\n%s !\n!no \'\'\' magic\n""" % 1',
        "s = '\"' + '#'\n%pwd",
        "async def f():\n    pass\nawait f()",
        "%",
    )
    def test_magics_stay(self, lines):
        self.check_cells(
            [code("import tensorflow as tf"), code(f"{lines}\na = {MANAGER}\n{lines}")],
            [
                code("import tensorflow as tf\nimport tf_lossscale_compat"),
                code(f"{lines}\na = {OURS}\n{lines}"),
            ],
        )

    @parameterized.parameters(" ", "    ", "\t", "\n  ", "  \n\n   ")
    def test_a_cell_that_begins_with_a_blank(self, blank):
        # IPython takes the blanks of the first line away from all that begin with them.
        indent = blank.rpartition("\n")[2]
        before = f"{blank}import tensorflow as tf\n{indent}if tf:\n{indent}  x = {MANAGER}\ny = 1"
        after = before.replace("as tf\n", f"as tf\n{indent}import tf_lossscale_compat\n")
        self.check_cells([code(before)], [code(after.replace(MANAGER, OURS))])

    @parameterized.parameters("%%bash", "%%html", "\n%%writefile x.py", "%%javascript -x")
    def test_cells_in_another_language_stay(self, magic):
        cells = [code(f"{magic}\nimport tensorflow as tf\n<a href='{MANAGER}'>")]
        self.check_cells(cells, cells)

    @parameterized.parameters("%%time", "%%capture out --no-stderr")
    def test_cells_that_are_python_behind_their_magic(self, magic):
        self.check_cells(
            [code(f"{magic}\nimport tensorflow as tf\nx = {MANAGER}")],
            [code(f"{magic}\nimport tensorflow as tf\nimport tf_lossscale_compat\nx = {OURS}")],
        )

    def test_a_cell_that_does_not_parse_is_reported_and_the_others_are_done(self):
        before = [code("print 'x'"), code("import tensorflow as tf"), code(f"{MANAGER}, tf.nn")]
        after = [
            before[0],
            code("import tensorflow as tf\nimport tf_lossscale_compat"),
            code(f"{OURS}, tf.nn"),
        ]
        outcome = self.check_cells(before, after, failures=1)
        self.assertRegex(outcome.result.failures[0].message, r"does not parse.*\(cell 1, line 1\)")

    @parameterized.parameters(
        "import tensorflow as tf\n\n'é', tf.contrib.mixed_precision.y\n",
        "  import tensorflow as tf\n\n  x, tf.contrib.mixed_precision.y",
    )
    def test_places_are_those_in_the_json(self, cell):
        text = json.dumps(notebook(code("x = 1\n"), code(cell)), indent=1)
        outcome, _ = self.migrate(text)
        ((line, column, message, number),) = outcome.result.findings
        self.assertStartsWith(
            text.splitlines()[line - 1][column - 1 :], "tf.contrib.mixed_precision.y"
        )
        self.assertEndsWith(message, "(cell 2, line 3)")
        self.assertEqual(number, "LSC212")

    def test_format_3(self):
        def document(*sources):
            cells = [
                {"cell_type": "code", "language": "python", "input": [source]} for source in sources
            ]
            return json.dumps(
                {"nbformat": 3, "metadata": {"name": "x"}, "worksheets": [{"cells": cells}]}
            )

        _, text = self.migrate(document("import tensorflow as tf", f"{MANAGER}, tf.nn"))
        cells = json.loads(text)["worksheets"][0]["cells"]
        self.assertEqual(
            [cell["input"] for cell in cells],
            [["import tensorflow as tf\n", "import tf_lossscale_compat"], [f"{OURS}, tf.nn"]],
        )

    def test_other_languages_are_left_alone(self):
        for metadata in ({"language_info": {"name": "R"}}, {"kernelspec": {"language": "julia"}}):
            text = json.dumps(notebook(code("tf.contrib.mixed_precision <- 1"), metadata=metadata))
            outcome, after = self.migrate(text)
            self.assertEqual(after, text)
            self.assertEqual((outcome.result.findings, outcome.result.failures), ([], []))

    @parameterized.parameters(
        '{"cells": ' * 5000 + '"LossScale"' + "}" * 5000,
        '{"cells": [{"source": "mixed_precision"',
        '["mixed_precision"]',
        "mixed_precision",
        '{"cells": "mixed_precision", "a": NaN}',
        '{"cells": [1, {"cell_type": "code"}, {"source": []}, {"cell_type": "code", "source": 3},'
        ' {"cell_type": "code", "source": ["mixed_precision", 3]}, {"cell_type": ["code"]}, []]}',
        '{"cells": {"cell_type": "code"}, "worksheets": ["mixed_precision"], "metadata": 1}',
        '{"metadata": {"language_info": {"name": 3}}, "cells": ["loss_scale"]}',
        '{"metadata": {"mixed_precision": []}}',
        '{"cells": [{"cell_type": "code", "source": "mixed_precision = \'\\ud800\'"}]}',
    )
    def test_damaged_files_are_left_alone(self, text):
        outcome, after = self.migrate(text)
        self.assertEqual((after, outcome.result.findings), (text, []))
        self.assertNotIn("fault of this tool", str(outcome.result.failures))

    def test_a_long_line_costs_no_more_than_its_length(self):
        text = json.dumps(notebook(code("mixed_precision\n" + " " * 60000 + "(\n")))
        before = time.process_time()
        outcome = _command.migrate_bytes(text.encode(), True)
        self.assertLess(time.process_time() - before, 4)
        self.assertLen(outcome.result.failures, 1)

    def test_a_notebook_is_told_from_python(self):
        self.assertTrue(_notebook.is_notebook(json.dumps(notebook())))
        for text in ("{}", "{'cells': 1}", "import os", "", '{"a": 1}', "{1, 2}"):
            self.assertFalse(_notebook.is_notebook(text), text)
