"""A `LossScale` stands where a number or a scalar float32 tensor is expected."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import modes
from tf_lossscale_compat.train import experimental

CASES = {
    "le": (lambda x: x <= 7.5, False),
    "gt": (lambda x: x > 7.5, True),
    "cast": (lambda x: tf.cast(x, tf.float16), 8.0),
    "convert": (tf.convert_to_tensor, 8.0),
    "tensor_first": (lambda x: tf.constant([1.0, 2.0]) * x, [8.0, 16.0]),
    "two": (lambda x: x * x, 64.0),
    "array_last": (lambda x: x / np.array([1.0, 2.0], np.float32), [8.0, 4.0]),
}


class ReturnsAFloat(experimental.LossScale):
    """A user's own, whose `__call__` returns no tensor."""

    def __call__(self):
        return 8.0

    def update(self, grads):
        return None, True

    def get_config(self):
        return {}


MAKERS = {
    "fixed": lambda: experimental.FixedLossScale(8),
    "dynamic": lambda: experimental.DynamicLossScale(8),
    "own": ReturnsAFloat,
}


class AsTensorTest(modes.EagerTestCase):
    @parameterized.parameters("graph_v1", "function")
    def test_operations(self, mode_name):
        with modes.entered(mode_name) as mode:
            for make in MAKERS.values():
                loss_scale = make()
                step = mode.compile(lambda s=loss_scale: [f(s) for f, _ in CASES.values()])
                for name, value in zip(CASES, step()):
                    np.testing.assert_array_equal(value, CASES[name][1], name)

    @parameterized.parameters(*MAKERS)
    def test_numpys_arrays_leave_operators_to_it(self, maker):
        array, loss_scale = np.array([1.0, 9.0], np.float32), MAKERS[maker]()
        self.assertIsInstance(array * loss_scale, tf.Tensor)
        self.assertAllEqual([array * loss_scale, loss_scale * array], [[8.0, 72.0]] * 2)

    def test_other_dtypes_are_refused(self):
        with self.assertRaises((TypeError, ValueError, tf.errors.OpError)):
            tf.constant(1.0, tf.float16) * experimental.FixedLossScale(8)


class AsNumberTest(modes.EagerTestCase):
    @parameterized.parameters(*MAKERS)
    def test_conversions(self, maker):
        loss_scale = MAKERS[maker]()
        self.assertEqual(float(loss_scale), 8.0)
        self.assertEqual(int(loss_scale), 8)
        self.assertEqual("%g" % loss_scale, "8")
        self.assertEqual(f"{loss_scale:.1f}", "8.0")
        self.assertEqual(f"{loss_scale}", str(loss_scale))
        self.assertEqual(np.float32(loss_scale), 8.0)
        self.assertEqual(loss_scale.numpy(), 8.0)
        self.assertEqual(loss_scale.numpy().dtype, np.float32)
        returned = tf.function(lambda: {"loss_scale": loss_scale}, autograph=False)()
        self.assertEqual(returned["loss_scale"].numpy(), 8.0)

    def test_equal_only_to_itself(self):
        one, other = experimental.FixedLossScale(8), experimental.FixedLossScale(8)
        self.assertEqual({one: 1, other: 2}[one], 1)
        self.assertNotEqual(one, other)
        self.assertNotEqual(one, 8.0)
        self.assertTrue(one)
