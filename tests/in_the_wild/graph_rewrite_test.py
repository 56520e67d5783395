"""`enable_mixed_precision_graph_rewrite` called for what it turns on, its result dropped."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
GRADIENTS = [1.0, 3.0, 1e-3, np.inf]


def original():
    """That of the installed TensorFlow, or None."""
    train = getattr(tf1.train, "experimental", None)
    return train if hasattr(train, "enable_mixed_precision_graph_rewrite") else None


class SideEffectTest(parameterized.TestCase):
    @crossed.product(
        mode_name=("graph_v1", "eager", "function"), loss_scale=("dynamic", 128.0, None)
    )
    def test_the_plain_optimizer_trains_as_it_is(self, mode_name, loss_scale):
        given = () if loss_scale is None else (loss_scale,)

        def train(module):
            self.addCleanup(module.disable_mixed_precision_graph_rewrite)
            with modes.entered(mode_name) as mode:
                opt = tf1.train.MomentumOptimizer(0.5, 0.5)
                module.enable_mixed_precision_graph_rewrite(opt, *given)
                self.assertTrue(
                    tf.config.optimizer.get_experimental_options()["auto_mixed_precision"]
                )
                weight = tf1.Variable(1.0)
                step = mode.compile(
                    lambda grad: opt.apply_gradients([(grad, weight)]), modes.scalar()
                )
                history = []
                for gradient in GRADIENTS:
                    step(np.float32(gradient))
                    history.append(float(mode.value(weight)))
            module.disable_mixed_precision_graph_rewrite()
            return history

        history = train(experimental)
        # Nothing is scaled and nothing is skipped.
        np.testing.assert_allclose(history, [0.5, -1.25, -2.1255, -np.inf], rtol=1e-6)
        if original() is not None:
            self.assertEqual(history, train(original()))
