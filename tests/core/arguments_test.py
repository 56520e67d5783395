"""Numbers that the constructors take, and those that they refuse before anything is made."""

import fractions
import functools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl import logging
from absl.testing import parameterized

from tests import modes
from tf_lossscale_compat import loss_scale as lib
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
HUGE = 10**400  # More than a float of any kind holds.
FLOAT32_MAX = float(np.finfo(np.float32).max)

FIXED = ("loss_scale", "loss_scale_value")
SCALES = (*FIXED, "init_loss_scale", "initial_loss_scale")
RATIOS = ("incr_ratio", "decr_ratio", "multiplier")
BOUNDS = ("min_loss_scale", "max_loss_scale")
INT32_PERIODS = ("incr_every_n_steps", "decr_every_n_nan_or_inf")
INT64_PERIODS = ("increment_period",)
PERIODS = INT32_PERIODS + INT64_PERIODS

# Each argument by its name, with what takes it.
OF_MANAGERS = dict.fromkeys(
    ("init_loss_scale", *INT32_PERIODS, "incr_ratio", "decr_ratio"),
    functools.partial(
        contrib.ExponentialUpdateLossScaleManager, init_loss_scale=8.0, incr_every_n_steps=2
    ),
)
OF_MANAGERS["loss_scale"] = contrib.FixedLossScaleManager
OF_LOSS_SCALES = dict.fromkeys(
    ("initial_loss_scale", *INT64_PERIODS, "multiplier", *BOUNDS), DynamicLossScale
)
OF_LOSS_SCALES["loss_scale_value"] = FixedLossScale
MAKERS = {**OF_MANAGERS, **OF_LOSS_SCALES}

NOT_REAL = ("8", None, [8.0], (8.0,), {"scale": 8.0}, 8j, np.array([8.0]), object, b"8")
NOT_FINITE = (NAN, INF, -INF, 1e39, -1e39, 2**128, HUGE, np.float32("nan"), np.float64("inf"))
NOT_POSITIVE = (0, 0.0, -0.0, -1, -8.0, np.float32(-1), 1e-60, 1e-38)  # The last is subnormal.
EIGHTS = (8, np.float16(8), np.float32(8), np.float64(8), np.int8(8), np.int64(8), np.uint32(8))


def _cases(*groups):
    return [
        (name, value, *rest)
        for names, values, *rest in groups
        for name in names
        for value in values
        if not (name == "max_loss_scale" and value is None)
    ]


def _make(name, value):
    return MAKERS[name](**{name: value})


class ArgumentsTest(modes.EagerTestCase):
    @parameterized.parameters(
        _cases(
            (SCALES + RATIOS + BOUNDS, NOT_FINITE + NOT_POSITIVE, ValueError),
            (FIXED, (0.999, np.float32(0.5), np.int64(-3), 1 - 2**-50), ValueError),
            (sorted(set(OF_MANAGERS).difference(PERIODS)), NOT_REAL, TypeError),
            (sorted(set(OF_LOSS_SCALES).difference(PERIODS)), NOT_REAL, ValueError),
            (PERIODS, (2.5, "2", None, [2], 2j, np.float32(0.5), NAN, INF, object), ValueError),
            # Beyond the counter.
            (INT32_PERIODS, (2**31, 1e12, -(2**40), HUGE), ValueError),
            (INT64_PERIODS, (2**63, 1e30, -(2**70)), ValueError),
        )
    )
    def test_refused(self, name, value, error):
        with tf.Graph().as_default() as graph:
            with self.assertRaises(error) as raised:
                _make(name, value)
            self.assertIs(type(raised.exception), error)
            words = [name, repr(value)]
            if name in FIXED and error is ValueError:
                words.append("at least 1")
            for word in words:
                self.assertIn(word, str(raised.exception))
            self.assertEmpty(graph.get_operations())
        with modes.creations() as created:
            with self.assertRaises(error):
                _make(name, value)
            self.assertEmpty(created)

    @parameterized.parameters(sorted(MAKERS))
    def test_variables_and_tensors_of_a_graph_are_refused(self, name):
        """They have no number yet, or another one later."""
        dtype = tf.int32 if name in PERIODS else tf.float32
        error = TypeError if name in set(OF_MANAGERS).difference(PERIODS) else ValueError
        makers = [lambda: tf.constant(8, dtype), lambda: tf1.Variable(tf.constant(8, dtype))]
        for entered, make in (("graph_v1", 0), ("graph_v1", 1), ("graph_v2", 1), ("eager", 1)):
            with modes.entered(entered):
                value = makers[make]()
                operations = tf1.get_default_graph().get_operations()
                with modes.creations() as created, self.assertRaises(error) as raised:
                    _make(name, value)
                for word in (f"{name} must be a ", repr(value)):
                    self.assertIn(word, str(raised.exception))
                self.assertEmpty(created)
                self.assertEqual(tf1.get_default_graph().get_operations(), operations)

    @parameterized.parameters(tf.constant, np.array)
    def test_eager_tensors_and_arrays_are_converted(self, make):
        self.assertEqual(contrib.FixedLossScaleManager(make(8.0))._loss_scale, 8.0)
        config = DynamicLossScale(make(8.0), make(2), make(3.0)).get_config()
        self.assertEqual(
            config, {"initial_loss_scale": 8.0, "increment_period": 2, "multiplier": 3.0}
        )
        manager = contrib.ExponentialUpdateLossScaleManager(
            make(8.0), make(2), make(3), make(4.0), make(0.5)
        )
        config = lib.get(manager).get_config()["config"]
        self.assertEqual(list(config.values()), [8.0, 2, 3, 4.0, 0.5])
        with self.assertRaisesRegex(ValueError, "loss_scale must be at least 1, got .*0.5"):
            contrib.FixedLossScaleManager(make(0.5))
        with self.assertRaisesRegex(ValueError, "incr_ratio must be finite"):
            contrib.ExponentialUpdateLossScaleManager(8.0, 1, incr_ratio=make(NAN))

    def test_flags_are_bools(self):
        with self.assertRaisesRegex(TypeError, "skip_nonfinite must be a bool, got 'False'"):
            FixedLossScale(8, skip_nonfinite="False")
        sgd, manager = tf1.train.GradientDescentOptimizer(1.0), contrib.FixedLossScaleManager(8)
        with self.assertRaisesRegex(TypeError, "keep_sparse must be a bool, got 1"):
            contrib.LossScaleOptimizer(sgd, manager, keep_sparse=1)

    @parameterized.parameters(
        {"initial_loss_scale": 8, "max_loss_scale": 7},
        {"initial_loss_scale": 8, "min_loss_scale": 9},
        {"initial_loss_scale": 8, "min_loss_scale": 9, "max_loss_scale": 10},
        {"initial_loss_scale": 8, "min_loss_scale": 4, "max_loss_scale": 2},
        {"initial_loss_scale": 0.5, "max_loss_scale": 0.75},
    )
    def test_bounds_that_leave_no_room_are_refused(self, **arguments):
        with tf.Graph().as_default() as graph:
            with self.assertRaisesRegex(ValueError, "m(ax|in)_loss_scale"):
                DynamicLossScale(**arguments)
            self.assertEmpty(graph.get_operations())

    def _taken(self, name, value):
        """Checks what becomes of an argument; returns the warnings."""
        with mock.patch.object(logging, "warning") as warning:
            with tf.Graph().as_default(), tf1.Session() as session:
                made = _make(name, value)
                config = lib.get(made).get_config()
                held = config.get("config", config).get(name, getattr(made, name, None))
                self.assertEqual(held, value)
                self.assertIs(type(held), int if name in PERIODS else float)
                if name in SCALES:
                    session.run(tf1.global_variables_initializer())
                    scale = session.run(getattr(made, "get_loss_scale", made)())
                    self.assertEqual((scale, scale.dtype), (np.float32(value), np.float32))
        return [str(call[0]) for call in warning.call_args_list]

    @parameterized.parameters(
        _cases(
            (SCALES, (*EIGHTS, 1, 2**32, 1e30, np.uint64(2**63), 2**127, FLOAT32_MAX)),
            (SCALES, (fractions.Fraction(17, 2),)),
            (("incr_ratio", "multiplier"), (1, 1.0, np.float32(1), 1.5, 1e30, np.int64(4))),
            (("decr_ratio",), (1, 1.0, np.float32(1), 0.5, 1e-30)),
            (("min_loss_scale",), EIGHTS),
            (("max_loss_scale",), (2**32, np.float32(2**16), np.uint32(2**16))),
            (PERIODS, (1, 1.0, 2.0, np.int64(2), np.float32(2), np.uint8(2))),
            (INT64_PERIODS, (2**32,)),
        )
    )
    def test_taken_without_a_word(self, name, value):
        self.assertEqual(self._taken(name, value), [])

    @parameterized.parameters(
        _cases(
            ((*INT32_PERIODS, "increment_period"), (0, -1, 0.0)),
            (("incr_ratio", "multiplier", "init_loss_scale", "initial_loss_scale"), (0.5,)),
            (("decr_ratio",), (1.5,)),
            (SCALES + RATIOS, (True,)),  # As a number, 1, they warn of nothing.
        )
    )
    def test_odd_ones_that_the_originals_took_are_taken_with_one_warning(self, name, value):
        (warning,) = self._taken(name, value)
        self.assertIn(name, warning)
        self.assertIn(repr(value), warning)

    def test_a_scale_below_1_with_a_lower_floor_is_not_odd(self):
        with mock.patch.object(logging, "warning") as warning, tf.Graph().as_default():
            DynamicLossScale(0.5, 1, 1.0, min_loss_scale=0.25, max_loss_scale=2)
        warning.assert_not_called()
