"""Configs of loss-scale optimizers of other versions; see tests/data/write_keras_configs.py."""

import json
import pathlib

import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes, modes
from tf_lossscale_compat.keras import mixed_precision

Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer
FILE = pathlib.Path(__file__).resolve().parent.parent / "data" / "keras_configs.json"
CONFIGS = json.loads(FILE.read_text(encoding="utf-8"))
VERSION = keras_homes.VERSION


def homes():
    """Those of this environment by the kind of optimizer."""
    return {home.kind: home for home in keras_homes.available()}


class ConfigsTest(modes.EagerTestCase):
    def check(self, opt, name):
        dynamic = name.endswith("dynamic")
        self.assertEqual(opt.dynamic, dynamic)
        self.assertEqual(
            (opt.initial_scale, opt.dynamic_growth_steps), (16.0, 3 if dynamic else None)
        )
        self.assertEqual(float(opt.inner_optimizer.learning_rate.numpy()), 0.5)
        self.assertEqual(float(opt.inner_optimizer.get_config()["momentum"]), 0.25)
        variable = tf.Variable(1.0)
        if hasattr(opt, "build"):
            opt.build([variable])
        opt.apply_gradients([(tf.constant(1.0), variable)], scaled=False)
        self.assertEqual(variable.numpy(), 0.5)

    @parameterized.parameters(*sorted(name for name in CONFIGS if " keras3 " in name))
    def test_of_keras_3_is_read(self, name):
        if "keras3" not in homes():
            self.skipTest("Keras 3 is not installed")
        for public in (Stable, Older):
            opt = public.from_config(CONFIGS[name])
            self.assertIsInstance(opt, public)
            self.assertEqual(opt.name, CONFIGS[name]["name"])
            self.assertIs(type(opt.inner_optimizer), homes()["keras3"].keras.optimizers.SGD)
            self.check(opt, name)

    @parameterized.parameters(*sorted(name for name in CONFIGS if " keras3 " not in name))
    def test_is_read(self, name):
        version, kind, _ = name.split()
        written = tuple(int(part) for part in version.split(".")[:2])
        if not set(homes()) - {"keras3"}:
            self.skipTest("tf_keras is not installed")
        if written > max(VERSION, (2, 10)) or (kind == "current" and VERSION < (2, 11)):
            self.skipTest("a newer version's")
        for public in (Stable, Older):
            opt = public.from_config(CONFIGS[name])
            self.assertIsInstance(opt, public)
            self.check(opt, name)
