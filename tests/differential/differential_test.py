"""Random programs beside the originals, a fixed number with fixed seeds; fuzz.py looks for more."""

import contextlib
import io
import logging
import pathlib
import types
import unittest
import warnings
from unittest import mock

import pytest
from absl import logging as absl_logging
from absl.testing import parameterized

from tests import keras_homes
from tests.differential import differences, fuzz, run, v1_side

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Programs of a group for each point of its weight, so many that an environment takes some two
# minutes. Of v1's optimizers and loss scales the later TensorFlows draw the first half: the same
# programs run on 2.4.4.
EACH = 2
V1 = ("mixed", "scales", "modelled")
# One TensorFlow of each generation of optimizers: 1.15.5, 2.4.4, 2.15.1 and 2.21.
CHOSEN = ((1, 15), (2, 4), (2, 15), (2, 21))
GROUPS = fuzz.groups() if keras_homes.VERSION in CHOSEN else {}
SCALE = ["dynamic", [8.0, 2, 2.0]]
SIMPLE = {
    "family": "scales",
    "place": "eager",
    "resource": True,
    "inside": None,
    "scale": SCALE,
    "shared": False,
    "optimizers": [{"kind": "sgd"}],
    "variables": [[{"shape": [2], "dtype": "float32", "kind": "dense", "partitions": 1}]],
    "noise": False,
    "actions": [["step", 0, None], ["step", 0, ["nan", 0, 0, 0]], ["read"]],
}


@pytest.mark.fuzz
class DifferentialTest(parameterized.TestCase):
    def enter_quiet(self):
        """`fuzz.quiet` until this test ends: others look for warnings."""
        verbosity, disabled = absl_logging.get_verbosity(), logging.root.manager.disable
        self.addCleanup(absl_logging.set_verbosity, verbosity)
        self.addCleanup(logging.disable, disabled)
        filters = warnings.catch_warnings()
        filters.__enter__()
        self.addCleanup(filters.__exit__, None, None, None)
        fuzz.quiet()

    @parameterized.parameters(*((group,) for group in GROUPS or ["all"]))
    def test_nothing_differs_but_on_purpose(self, group):
        if group not in GROUPS:
            self.skipTest(f"run on {CHOSEN}, as it takes long")
        self.enter_quiet()
        weight, make = GROUPS[group]
        finds = fuzz.Finds()
        again = keras_homes.VERSION > (2, 4) and group.startswith(V1)
        fuzz.search(make, 0, weight if again else EACH * weight, finds)
        print(f"{group}: {finds.count} programs")
        if finds.first:
            scripts = [fuzz.script(finds, signature, 0) for signature in finds.first]
            self.fail("\n\n".join(scripts))


class MachineryTest(parameterized.TestCase):
    @parameterized.parameters(*differences.ENTRIES)
    def test_a_difference_on_purpose_is_in_the_pages(self, name):
        entry = differences.ENTRIES[name]
        text = (ROOT / "docs" / entry.page).read_text(encoding="utf-8")
        self.assertIn(entry.says, " ".join(text.split()))

    def test_a_fault_is_found_and_its_script_stands_alone(self):
        contrib, original = v1_side.LIBRARIES["original"]
        if original is None:
            raise unittest.SkipTest("this TensorFlow has no loss scales of its own")

        class Faulty(original.DynamicLossScale):
            def __init__(self, initial, period, multiplier):
                super().__init__(initial, period, 2 * multiplier)

        self.assertEqual([], run.compare(dict(SIMPLE, actions=[["read"]]))[0])
        faulty = types.SimpleNamespace(DynamicLossScale=Faulty)
        with mock.patch.dict(v1_side.LIBRARIES, package=(contrib, faulty)):
            finds = fuzz.Finds()
            signature = "scales", "eager", "step", "state"
            self.assertEqual({signature}, finds.look(SIMPLE))
            text, shown = fuzz.script(finds, signature, 0), io.StringIO()
            with contextlib.redirect_stdout(shown):
                exec(compile(text, "script", "exec"), {})
        self.assertIn("First difference: action 1 ['step', 0, ['nan', 0, 0, 0]]", shown.getvalue())
