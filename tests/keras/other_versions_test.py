"""What loss-scale optimizers of other versions wrote is read.

`tests/data/write_keras.py` wrote it: configs, and the files of TensorFlow 2.2's experimental class.
"""

import json
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests import keras_homes, modes
from tests.keras_homes import Older, Stable, number

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
CONFIGS = json.loads((DATA / "keras_configs.json").read_text(encoding="utf-8"))
FOLDER = DATA / "keras_experimental"
STATE = json.loads((FOLDER / "state.json").read_text(encoding="utf-8"))
WRAPPERS = {"stable": Stable, "experimental": lambda inner: Older(inner, "dynamic")}
VERSION = keras_homes.VERSION
# By the kind of optimizer.
HOMES = {home.kind: home for home in keras_homes.available()}


class ConfigsTest(modes.EagerTestCase):
    @parameterized.parameters(*sorted(CONFIGS))
    def test_is_read(self, name):
        version, kind, scale = name.split()
        written = tuple(int(part) for part in version.split(".")[:2])
        if kind == "keras3" and kind not in HOMES:
            self.skipTest("Keras 3 is not installed")
        if kind != "keras3" and not set(HOMES) - {"keras3"}:
            self.skipTest("tf_keras is not installed")
        too_new = written > max(VERSION, (2, 10)) or (kind == "current" and VERSION < (2, 11))
        if kind != "keras3" and too_new:
            self.skipTest("a newer version's")
        for public in (Stable, Older):
            opt = public.from_config(CONFIGS[name])
            self.assertIsInstance(opt, public)
            if kind == "keras3":
                self.assertEqual(opt.name, CONFIGS[name]["name"])
                self.assertIs(type(opt.inner_optimizer), HOMES[kind].keras.optimizers.SGD)
            growth_steps = 3 if scale == "dynamic" else None
            self.assertEqual(opt.dynamic, scale == "dynamic")
            self.assertEqual((opt.initial_scale, opt.dynamic_growth_steps), (16.0, growth_steps))
            self.assertEqual(float(opt.inner_optimizer.learning_rate.numpy()), 0.5)
            self.assertEqual(float(opt.inner_optimizer.get_config()["momentum"]), 0.25)
            variable = tf.Variable(1.0)
            if hasattr(opt, "build"):
                opt.build([variable])
            opt.apply_gradients([(tf.constant(1.0), variable)], scaled=False)
            self.assertEqual(variable.numpy(), 0.5)


def read(home, opt, file, made):
    """Returns what an optimizer and its model have after they have read a file."""
    model = home.keras.Sequential([home.keras.layers.Dense(2)])
    model.compile(opt, "mse")
    if made:
        model.fit(np.ones([1, 2]), np.ones([1, 2]), verbose=0)
    model.load_weights(str(FOLDER / file))
    if not made:  # A step that is skipped makes them and moves no weight.
        model.fit(np.full([1, 2], np.inf), np.ones([1, 2]), verbose=0)
    kernel = model.weights[0]
    inner = getattr(opt, "inner_optimizer", None) or opt._optimizer
    # Later optimizers keep their slots elsewhere, whatever is around.
    slot = inner.get_slot(kernel, "momentum").numpy() if home.kind == "v2" else None
    numbers = opt.loss_scale, opt.dynamic_counter, opt.iterations
    return [*map(number, numbers), kernel.numpy(), slot]


@absltest.skipIf(VERSION < (2, 0), "TensorFlow 1 has no such class")
class ExperimentalFilesTest(modes.EagerTestCase):
    """As Keras' own class reads them."""

    @keras_homes.each(
        (
            ("weights", "stable", False),
            ("weights", "experimental", True),
            ("saved_model/variables/variables", "experimental", False),
            ("saved_model/variables/variables", "stable", True),
        ),
        kind=keras_homes.BEFORE_3,  # Keras 3 reads no weights of that format.
    )
    def test_read_before_and_after_the_variables_are_made(self, home, case):
        file, wrapper, made = case
        found = read(home, WRAPPERS[wrapper](home.SGD(0.125, momentum=0.5)), file, made)
        self.assertEqual(
            found[:2], [STATE["scale"], STATE["good_steps"]] if made else [STATE["scale"] / 2, 0]
        )
        self.assertAllEqual(found[3], STATE["kernel"])
        if home.kind != "v2":
            return
        self.assertAllEqual(found[4], STATE["momentum"])
        if VERSION >= (2, 4):  # Since when its own class has such a counter.
            own = read(home, home.wrapped_in_own(home.SGD(0.125, momentum=0.5)), file, made)
            self.assertEqual(found[:3], own[:3])
            self.assertAllEqual(found[4], own[4])

    @keras_homes.each(kind="v2", since=(2, 2))
    def test_saved_model_loads(self, home):
        model = home.keras.models.load_model(str(FOLDER / "saved_model"))
        opt = Stable.from_config(model.optimizer.get_config())
        self.assertEqual((opt.initial_scale, opt.dynamic_growth_steps), (256.0, 4))
