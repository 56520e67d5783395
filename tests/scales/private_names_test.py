"""docs/architecture.md has every private name of TensorFlow and Keras that the package uses.

Its tables say what happens when one is gone, and which must be there.
"""

import importlib
import pathlib
import re

import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes
from tests.v1_optimizers import BOTH, OPTIMIZERS, fixed_for, sgd
from tf_lossscale_compat import loss_scale
from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import mixed_precision as loss_scale_manager
from tf_lossscale_compat.keras import mixed_precision

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(mixed_precision.__file__).resolve().parent.parent.parent


def _table(title):
    """Returns {name: (words of the second column, what happens)} of the table below a heading."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^### {title}\n(.*?)(?=^#|\Z)", text).group(1)
    rows = re.findall(r"(?m)^\| (`.*?`) \| (.*?) \| (.*?) \|$", section)
    return {name: rest for names, *rest in rows for name in re.findall(r"`(.*?)`", names)}


NEEDED = _table("Without a fallback")
WITH_FALLBACK = _table("With a fallback")
BY_NAME = _table("Found by their names")
# What has the names of the first table, by a word of its second column.
IN_TENSORFLOW = {
    "`tf.Graph`": tf.Graph,
    "`Trackable`": _tf.Trackable,
    "`tf.compat.v1.train.Optimizer`": sgd(),
}
IN_KERAS = {"`OptimizerV2`": "v2", "Keras 3 optimizer": "keras3"}
# Of the standard library: named tuples, the stack (in one place), imports.
OF_PYTHON = {"_asdict", "_getframe", "_handle_fromlist", "_replace"}
# What users derive classes of their own from: class -> private names that it has of the original or
# that public code reaches into. The package's own begin so that nobody takes them.
OF_SUBCLASSED = {
    # The last is TensorFlow's word for what a Session fetches in an object's place.
    loss_scale.LossScale: {"_add_weight", "_weights", "_as_graph_element"},
    loss_scale.FixedLossScale: {"_loss_scale_value"},
    loss_scale.DynamicLossScale: {
        *("_current_loss_scale", "_num_good_steps"),
        *("_increment_period", "_initial_loss_scale", "_multiplier"),
    },
    loss_scale_manager.LossScaleManager: set(),
    loss_scale_manager.FixedLossScaleManager: {"_loss_scale"},
    loss_scale_manager.ExponentialUpdateLossScaleManager: {
        *("_loss_scale", "_num_good_steps", "_num_bad_steps", "_reset_stats"),
        *("_incr_every_n_steps", "_incr_ratio", "_decr_every_n_nan_or_inf", "_decr_ratio"),
    },
    OPTIMIZERS["contrib"]: {"_loss_scale_manager", "_opt"},
    OPTIMIZERS["mixed"]: {"_loss_scale", "_optimizer"},
}
# What Keras of some versions has in its optimizers, and this package has in all.
OF_KERAS = {
    name
    for name, (of, _) in {**NEEDED, **WITH_FALLBACK}.items()
    if re.search("OptimizerV2|Keras 3 optimizer|loss-scale optimizer", of)
}
INSTANCES = (
    lambda: loss_scale.FixedLossScale(8.0),
    lambda: loss_scale.DynamicLossScale(8.0),
    lambda: loss_scale_manager.FixedLossScaleManager(8.0),
    lambda: loss_scale_manager.ExponentialUpdateLossScaleManager(8.0, 2),
    *(lambda which=which: OPTIMIZERS[which](sgd(), fixed_for(which, 8.0)) for which in BOTH),
)


def _code():
    # What checkers alone read defines some of TensorFlow's names.
    files = [path for path in PACKAGE.rglob("*.py") if not path.match("_types*")]
    code = "\n".join(path.read_text("utf-8") for path in files if "migrate" not in path.parts)
    return re.sub(r'"""(?s:.*?)"""|#.*', "", code)


def _asked_for(code):
    """Private names that are asked of something that the package did not make."""
    # A function, class, argument or import; a module; an attribute of its own.
    defined = set(re.findall(r'(?<![.\w"])_[a-z]\w+', code))
    defined.update(path.stem for path in PACKAGE.rglob("*"))
    defined.update(re.findall(r"self\.(_\w+)(?=[^=()\n]* = )", code))
    for classes in OF_SUBCLASSED.values():
        defined.update(classes)
    asked = re.findall(r"\.(_(?!tflsc_)[a-z]\w+)", code)
    asked += re.findall(r'"(_(?!tflsc)[a-z]\w+)"', code)
    imported = re.findall(r"\bfrom (tensorflow\.(?:python|core)[\w.]*) import (\w+)", code)
    return (set(asked) - defined).union(
        re.findall(r'(?:inner_property\("|optimizer\.)(_(?!tflsc)[a-z]\w+)', code),
        map(".".join, imported),
    )


class PrivateNamesTest(parameterized.TestCase):
    def test_the_tables_have_all_and_no_others(self):
        code = _code()
        known = {**NEEDED, **WITH_FALLBACK, **BY_NAME}
        asked = _asked_for(code) - OF_PYTHON
        self.assertEqual(asked - set(known), set(), "say in architecture.md what happens without")
        others = set(known) - asked
        unused = {name for name in others if not re.search(rf"\b{re.escape(name)}\b", code)}
        self.assertEqual(unused, set(), "architecture.md has names that the package does not use")

    @parameterized.parameters(*INSTANCES)
    def test_subclasses_may_take_any_name(self, make):
        plain = sgd()
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
        expected = ("__", "_abc_", "_self_", "_tflsc")
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
        for name, (of, happens) in NEEDED.items():
            if of == "module":
                importlib.import_module(name)
                continue
            kinds = of.split(", ")
            self.assertContainsSubset(kinds, {*IN_TENSORFLOW, *IN_KERAS})
            for kind in set(kinds).intersection(IN_TENSORFLOW):
                self.assertTrue(hasattr(IN_TENSORFLOW[kind], name), f"{name}: {happens}")

    @keras_homes.each()
    def test_keras_has_them(self, home):
        for name, (of, happens) in NEEDED.items():
            if home.kind in [IN_KERAS.get(kind) for kind in of.split(", ")]:
                self.assertTrue(hasattr(home.SGD(0.1), name), f"{name}: {happens}")
