"""Every private name of TensorFlow and Keras that the package needs, and what breaks without it.

Others are asked for with a fallback, by `getattr` or `hasattr`.
"""

import pathlib
import re

import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes
from tf_lossscale_compat import loss_scale
from tf_lossscale_compat._core import _tf
from tf_lossscale_compat._v1 import _optimizers
from tf_lossscale_compat.contrib import mixed_precision as loss_scale_manager
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
    "_raise_if_strategy_unsupported",  # This package's own, for subclasses.
}
# Of the standard library: named tuples, the stack (in one place).
OF_PYTHON = {"_asdict", "_getframe", "_replace"}
WITH_FALLBACK = {
    "_value",  # Of a Keras variable, assigned: where it goes by another name nothing reads it.
    "_datatype_enum",
    "_is_wrapped_by_loss_scale_optimizer",
    "_shape_tuple",
    "_variable_creator_stack",
}
# What users derive classes of their own from: class -> private names that it has of the original or
# that public code reaches into. The package's own begin so that nobody takes them.
OF_SUBCLASSED = {
    # The last is TensorFlow's word for what a Session fetches in an object's place.
    loss_scale.LossScale: {"_add_weight", "_weights", "_as_graph_element"},
    loss_scale.FixedLossScale: {"_loss_scale_value"},
    loss_scale.DynamicLossScale: {
        "_current_loss_scale",
        "_increment_period",
        "_initial_loss_scale",
        "_multiplier",
        "_num_good_steps",
    },
    loss_scale_manager.LossScaleManager: set(),
    loss_scale_manager.FixedLossScaleManager: {"_loss_scale"},
    loss_scale_manager.ExponentialUpdateLossScaleManager: {
        "_decr_every_n_nan_or_inf",
        "_decr_ratio",
        "_incr_every_n_steps",
        "_incr_ratio",
        "_loss_scale",
        "_num_bad_steps",
        "_num_good_steps",
        "_reset_stats",
    },
    _optimizers.LossScaleOptimizer: {"_loss_scale_manager", "_opt"},
    _optimizers.MixedPrecisionLossScaleOptimizer: {"_loss_scale", "_optimizer"},
}
# What Keras of some versions has in its optimizers, and this package has in all.
OF_KERAS = PASSED_ON.union(
    OF_OPTIMIZER_V2, ["_hyper", "_lookup_dependency", "_trackable", "_trackable_children"]
)
INSTANCES = (
    lambda: loss_scale.FixedLossScale(8.0),
    lambda: loss_scale.DynamicLossScale(8.0, hysteresis=2),
    lambda: loss_scale_manager.FixedLossScaleManager(8.0),
    lambda: loss_scale_manager.ExponentialUpdateLossScaleManager(8.0, 2),
    lambda: _optimizers.LossScaleOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0),
        loss_scale_manager.FixedLossScaleManager(8.0),
    ),
    lambda: _optimizers.MixedPrecisionLossScaleOptimizer(
        tf.compat.v1.train.GradientDescentOptimizer(1.0), 8.0
    ),
)


def _asked_for():
    """Private names that are asked of something that the package did not make."""
    # What checkers alone read defines some of TensorFlow's names.
    files = [path for path in PACKAGE.rglob("*.py") if not path.match("_types*")]
    code = "\n".join(path.read_text("utf-8") for path in files if "migrate" not in path.parts)
    code = re.sub(r'"""(?s:.*?)"""|#.*', "", code)
    # A function, class, argument or import; a module; an attribute of its own.
    defined = set(re.findall(r'(?<![.\w"])_[a-z]\w+', code))
    defined.update(path.stem for path in PACKAGE.rglob("*"))
    defined.update(re.findall(r"self\.(_\w+)(?=[^=()\n]* = )", code))
    asked = set(re.findall(r"\.(_(?!tflsc_)[a-z]\w+)", code)) - defined
    return asked.union(re.findall(r'(?:of_inner\("|optimizer\.)(_[a-z]\w+)', code))


class PrivateNamesTest(parameterized.TestCase):
    def test_these_are_all(self):
        known = {*OF_GRAPHS, *OF_TRACKABLES, *OF_KERAS_3, *OF_OPTIMIZER_V2}
        known.update(PASSED_ON, OF_PYTHON, WITH_FALLBACK)
        self.assertEqual(_asked_for() - known, set(), "say here what breaks without them")
        self.assertEqual(known - _asked_for(), set(), "these are no longer asked for")

    @parameterized.parameters(*INSTANCES)
    def test_subclasses_may_take_any_name(self, make):
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        plain._track_trackable(tf.train.Checkpoint(), "child")
        self._check_names(make(), vars(plain))

    def _check_names(self, instance, allowed):
        bases = type(instance).__mro__
        of_package = [base for base in bases if base.__module__.startswith("tf_lossscale_compat.")]
        taken = set(vars(instance)).union(*map(vars, of_package)).difference(
            allowed,
            # Names of TensorFlow's base classes are the original's, too.
            *(vars(base) for base in bases if base not in of_package),
            *(OF_SUBCLASSED.get(base, ()) for base in of_package),
        )  # fmt: skip
        # The others are Python's, TensorFlow's or Keras' bookkeeping.
        expected = ("__", "_abc_", "_self_", "_tflsc_")
        names = [each for each in taken if each[0] == "_" and not each.startswith(expected)]
        self.assertEqual(names, [])

    @keras_homes.each(
        (mixed_precision.LossScaleOptimizer, mixed_precision.experimental.LossScaleOptimizer)
    )
    def test_subclasses_of_kerass_may_take_any_name(self, home, cls):
        plain = home.SGD(0.1)
        instance = cls(plain, *([8.0] if "experimental" in cls.__module__ else []))
        # Keras' own class has the first two in most versions.
        self._check_names(instance, {"_optimizer", "_loss_scale", *OF_KERAS, *vars(plain)})

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
        elif keras_homes.VERSION >= (2, 3):
            self.assertTrue(delegates, "the class that hands checkpoints on has another name")
