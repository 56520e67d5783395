"""Every private name of TensorFlow and Keras that the package needs, and what breaks without it.

Others are asked for with a fallback, by `getattr` or `hasattr`.
"""

import ast
import pathlib

import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import keras_homes
from tf_lossscale_compat import _tf
from tf_lossscale_compat.keras import mixed_precision

PACKAGE = pathlib.Path(mixed_precision.__file__).resolve().parent.parent.parent

# Name -> what breaks.
OF_GRAPHS = {
    "_get_control_flow_context": "telling XLA's graphs, and branches and loops of TensorFlow 1",
    "_current_control_dependencies": "get_loss_scale() of a manager in a finalized graph",
}
OF_TRACKABLES = {"_track_trackable": "checkpoints of a loss scale, manager or optimizer"}
OF_KERAS_3 = {
    "_track_variable": "the loss scale's place in Keras 3 files",
    "_tracker": "a loss scale assigned at run time taking that place",
    "_trainable_variables": "apply(grads) without variables",
}
OF_OPTIMIZER_V2 = {
    "_create_hypers": "hyperparameters as variables",
    "_create_or_restore_slot_variable": "checkpoints with slots that are not made yet",
    "_create_slots": "building an optimizer before its first step",
    "_decayed_lr": "learning rates for callbacks",
    "_get_hyper": "hyperparameters read through the wrapper",
    "_set_hyper": "hyperparameters set through the wrapper",
    "_restore_slot_variable": "checkpoints with slots that are not made yet",
}
# They are only passed on, by methods that TensorFlow of some versions calls and others do not have.
PASSED_ON = {
    "_aggregate_gradients",
    "_clip_gradients",
    "_compute_gradients",
    "_create_all_weights",
}
# Of the standard library: named tuples, the stack (in one place).
OF_PYTHON = {"_asdict", "_getframe", "_replace"}
WITH_FALLBACK = {
    "_datatype_enum",
    "_is_wrapped_by_loss_scale_optimizer",
    "_keras_mask",
    "_shape_tuple",
    "_variable_creator_stack",
}


def _trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        # What checkers alone read defines some of TensorFlow's names.
        if "migrate" not in path.parts and not path.name.startswith("_types"):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _is_private(name):
    return name.startswith("_") and not name.startswith("__")


def _defined():
    """Private names that the package itself defines."""
    names = set()
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id == "self":
                    names.add(node.attr)
            elif isinstance(node, ast.alias):
                names.update({node.name.split(".")[-1], node.asname})
            elif isinstance(node, ast.keyword):  # self.__dict__.update(_name=…)
                names.add(node.arg)
            elif isinstance(node, ast.Subscript):  # self.__dict__["_name"] = …
                keys = [getattr(node.slice, "value", node.slice)]
                names.update(getattr(key, "value", getattr(key, "s", key)) for key in keys)
            elif isinstance(node, ast.Dict):
                # Python 3.7 has another kind of node for strings.
                names.update(getattr(key, "value", getattr(key, "s", None)) for key in node.keys)
    return names


def _asked_for():
    """Private names that are asked of something that the package did not make."""
    defined, names = _defined(), set()
    for tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
                continue
            of_inner = isinstance(node.value, ast.Attribute) and node.value.attr in (
                "_optimizer",
                "inner_optimizer",
            )
            if of_inner or node.attr not in defined:
                names.add(node.attr)
    return names


class PrivateNamesTest(parameterized.TestCase):
    def test_these_are_all(self):
        known = set().union(
            OF_GRAPHS,
            OF_TRACKABLES,
            OF_KERAS_3,
            OF_OPTIMIZER_V2,
            PASSED_ON,
            OF_PYTHON,
            WITH_FALLBACK,
        )
        self.assertEqual(_asked_for() - known, set(), "say here what breaks without them")
        self.assertEqual(known - _asked_for(), set(), "these are no longer asked for")

    def test_tensorflow_has_them(self):
        for name, breaks in OF_GRAPHS.items():
            self.assertTrue(hasattr(tf.Graph, name), f"{name}: {breaks}")
        for name, breaks in OF_TRACKABLES.items():
            self.assertTrue(hasattr(_tf.Trackable, name), f"{name}: {breaks}")

    @parameterized.named_parameters(keras_homes.named())
    def test_keras_has_them(self, home):
        wanted = {"keras3": OF_KERAS_3, "v2": OF_OPTIMIZER_V2}.get(home.kind, {})
        for name, breaks in wanted.items():
            self.assertTrue(hasattr(home.SGD(0.1), name), f"{name}: {breaks}")

    @parameterized.named_parameters(keras_homes.named())
    def test_checkpoints_see_the_inner_optimizer(self, home):
        wrapper = mixed_precision.LossScaleOptimizer(home.SGD(0.1))
        names = [base.__name__ for base in type(wrapper).__mro__]
        delegates = any("DelegatingTrackable" in name for name in names)
        if home.kind == "keras3":
            self.assertFalse(delegates)
        elif keras_homes.VERSION >= (2, 4):
            self.assertTrue(delegates, "the class that hands checkpoints on has another name")


if __name__ == "__main__":
    absltest.main()
