"""The wrapper's class is the public one, or a user's, and no other."""

import os
import sys
import tempfile
import types
from unittest import mock

import tensorflow as tf

from tests import keras_homes, modes
from tests.keras_homes import number
from tf_lossscale_compat.keras import _families, mixed_precision

Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer


class Recursing(Stable):
    """As neurst's, which names no class."""

    def __init__(self, *args, **kwargs):
        self.noted = "before"
        super(self.__class__, self).__init__(*args, **kwargs)

    def get_config(self):
        return {**super(self.__class__, self).get_config(), "noted": self.noted}


def default():
    """The home whose optimizers are tf.keras' own."""
    return keras_homes.available()[0]


class ClassesTest(modes.EagerTestCase):
    def test_type_is_the_public_class(self):
        home = default()
        self.assertIs(type(Stable(home.SGD(1.0))), Stable)
        self.assertIs(type(Older(home.SGD(1.0), 8.0)), Older)
        self.assertTrue(issubclass(Stable, home.own().__mro__[1]))
        model = home.dense_model()
        model.compile(Stable(home.SGD(1.0)), "mse")
        if home.kind == "keras3" or keras_homes.VERSION >= (2, 4):
            self.assertIs(type(model.optimizer), Stable)

    def test_a_subclass_is_no_other_class(self):
        opt = Recursing(default().SGD(1.0))
        self.assertIs(type(opt), Recursing)
        self.assertEqual(opt.get_config()["noted"], "before")

    @keras_homes.each()
    def test_of_each_family_by_a_config_of_the_inner_optimizer(self, home):
        opt = Stable(home.keras.optimizers.serialize(home.SGD(0.25)))
        self.assertIsInstance(opt.inner_optimizer, home.SGD)
        self.assertEqual(number(opt.learning_rate), 0.25)

    @keras_homes.each()
    def test_of_each_family(self, home):
        opt = Stable(home.SGD(1.0))
        for cls in (Stable, home.SGD.__mro__[-2 if home.kind == "keras3" else 1]):
            self.assertIsInstance(opt, cls)
        self.assertEqual(type(opt).__module__, "tf_lossscale_compat.keras.mixed_precision")
        self.assertEqual(type(opt).__qualname__, "LossScaleOptimizer")
        if keras_homes.VERSION >= (2, 1):  # Before, files know a class by this name alone.
            self.assertEqual(type(opt).__name__, "LossScaleOptimizer")
        self.assertIs(type(opt), type(Stable(home.SGD(1.0))))
        self.assertIsNot(Recursing, Stable)
        for other in keras_homes.copies(opt):
            self.assertIs(type(other), type(opt))
        for other in keras_homes.available():
            base = opt._tflsc_family_base
            self.assertEqual(isinstance(other.SGD(1.0), base), other.name == home.name)
            self.assertEqual(
                isinstance(opt, Stable(other.SGD(1.0))._tflsc_family_base), other.name == home.name
            )

    @keras_homes.each()
    def test_nothing_of_another_family_is_seen(self, home):
        opt, weight = Stable(home.SGD(1.0, momentum=0.5)), home.variable(1.0)
        opt.apply_gradients([(tf.constant(1.0), weight)], scaled=False)
        for name in dir(opt):
            if not name.startswith("__") and name not in dir(opt.inner_optimizer):
                self.assertTrue(
                    name in vars(opt) or any(name in vars(cls) for cls in type(opt).__mro__), name
                )
        tf.train.Checkpoint(opt=opt).write(os.path.join(tempfile.mkdtemp(), "c"))
        self.assertIn("learning_rate", dir(opt))

    def test_a_module_that_is_called_keras_and_is_none(self):
        """As a folder of that name is where a program starts and no Keras is installed."""
        with mock.patch.dict(sys.modules, keras=types.ModuleType("keras")):
            _families.register(Stable, Older)
