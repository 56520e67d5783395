"""Weights files load into a model whose optimizer has not been built: its state stays as it is."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer


def compiled(home, optimizer):
    model = home.dense_model()
    model.compile(optimizer, loss="mse")
    return model


class UnbuiltTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(home=keras_homes.available(), saved=("ours", "own", "plain"))
    def test_weights_load(self, home, saved):
        if keras_homes.VERSION < (2, 4):
            self.skipTest("there weights files hold no optimizer, and own is another class")
        make = {
            "ours": lambda: LossScaleOptimizer(home.Adam(0.25)),
            "own": lambda: home.own()(home.Adam(0.25)),
            "plain": lambda: home.Adam(0.25),
        }[saved]
        trained = compiled(home, make())
        trained.fit(np.eye(3), np.zeros([3, 2]), verbose=0)
        path = os.path.join(self.get_temp_dir(), "model.weights.h5")
        trained.save_weights(path)
        loaded = compiled(home, LossScaleOptimizer(home.Adam(0.25), initial_scale=8))
        loaded.load_weights(path)
        self.assertAllEqual(loaded.get_weights()[0], trained.get_weights()[0])
        self.assertEqual(float(loaded.optimizer.loss_scale), 8.0)
        self.assertEqual(int(loaded.optimizer.iterations.numpy()), 0)


if __name__ == "__main__":
    tf.test.main()
