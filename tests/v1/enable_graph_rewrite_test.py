"""The pair that turns the graph rewrite on and off."""

import tensorflow as tf

from tests import keras_homes, modes, originals
from tests.v1_optimizers import sgd
from tf_lossscale_compat.keras.mixed_precision import experimental as keras_experimental
from tf_lossscale_compat.loss_scale import DynamicLossScale
from tf_lossscale_compat.train import experimental
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1


def _functions_are_rewritten():
    return bool(tf.config.optimizer.get_experimental_options().get("auto_mixed_precision", False))


def _sessions_are_rewritten(config=None):
    """Returns whether sessions made now ask the graph optimizer for mixed precision."""
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        if session._config is None:
            return False
        return session._config.graph_options.rewrite_options.auto_mixed_precision == 1


class GraphRewriteTest(modes.EagerTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(experimental.disable_mixed_precision_graph_rewrite)
        self._expect(False)

    def _expect(self, enabled):
        self.assertEqual(_functions_are_rewritten(), enabled)
        self.assertEqual(_sessions_are_rewritten(), enabled)

    def test_enable_wraps_and_turns_the_rewrite_on(self):
        with modes.entered("graph_v2"):
            opt = sgd()
            wrapped = experimental.enable_mixed_precision_graph_rewrite(opt, 16.0)
            self.assertIs(type(wrapped), MixedPrecisionLossScaleOptimizer)
            self.assertIs(wrapped._optimizer, opt)
            self.assertEqual(wrapped._loss_scale.get_config(), {"loss_scale_value": 16.0})
        self._expect(True)

    def test_enable_is_seen_by_sessions_with_a_config_of_their_own(self):
        experimental.enable_mixed_precision_graph_rewrite(sgd(), 16.0)
        config = tf1.ConfigProto(allow_soft_placement=True)
        self.assertTrue(_sessions_are_rewritten(config))
        experimental.disable_mixed_precision_graph_rewrite()
        self.assertFalse(_sessions_are_rewritten(config))

    def test_warns_where_a_session_is_there_that_is_not_rewritten(self):
        with tf.Graph().as_default(), tf1.Session(), self.assertLogs("tensorflow") as logs:
            experimental.enable_mixed_precision_graph_rewrite(sgd(), 16.0)
        self.assertIn("existing Sessions", "".join(logs.output))

    def test_both_may_be_called_again(self):
        for _ in range(2):
            for switch, enabled in (("enable", True), ("disable", False)):
                for _ in range(2):
                    arguments = (sgd(), 16.0) if enabled else ()
                    getattr(experimental, switch + "_mixed_precision_graph_rewrite")(*arguments)
                    self._expect(enabled)

    @keras_homes.each()
    def test_wraps_a_keras_optimizer(self, home):
        opt = home.SGD(0.5)
        wrapped = experimental.enable_mixed_precision_graph_rewrite(opt, 16.0)
        self.assertIsInstance(wrapped, keras_experimental.LossScaleOptimizer)
        self.assertIs(wrapped.inner_optimizer, opt)
        self.assertEqual(wrapped.loss_scale.get_config(), {"loss_scale_value": 16.0})
        self._expect(True)
        weight = tf.Variable(1.0)
        wrapped.minimize(lambda: 3.0 * weight, [weight])
        self.assertEqual(weight.numpy(), -0.5)
        dynamic = experimental.enable_mixed_precision_graph_rewrite(home.SGD(0.5))
        self.assertIs(type(dynamic.loss_scale), DynamicLossScale)

    @keras_homes.each(
        ("none", "small", "twice", "theirs", "text", "class")
        + ("Keras none", "Keras small", "Keras twice", "Keras own"),
        (False, True),
    )
    def test_after_an_error_the_rewrite_is_as_before(self, home, bad, before):
        theirs = originals.experimental()
        if (bad == "theirs" and theirs is None) or (
            bad == "Keras own" and keras_homes.VERSION < (2, 4)
        ):
            self.skipTest("there is no such loss-scale optimizer")
        opt, loss_scale = {
            "none": lambda: (sgd(), None),
            "small": lambda: (sgd(), 0.5),
            "twice": lambda: (MixedPrecisionLossScaleOptimizer(sgd(), 16.0), 16.0),
            "theirs": lambda: (theirs.MixedPrecisionLossScaleOptimizer(sgd(), 16.0), 16.0),
            "text": lambda: ("sgd", 16.0),
            "class": lambda: (home.SGD, 16.0),
            "Keras none": lambda: (home.SGD(1.0), None),
            "Keras small": lambda: (home.SGD(1.0), 0.5),
            "Keras twice": lambda: (keras_experimental.LossScaleOptimizer(home.SGD(1.0), 8), 16.0),
            "Keras own": lambda: (home.own()(home.SGD(1.0)), 16.0),
        }[bad]()
        if before:
            experimental.enable_mixed_precision_graph_rewrite(sgd(), 16.0)
        message = "loss scale already" if bad == "twice" else ""
        with modes.creations() as created, self.assertRaisesRegex(ValueError, message):
            experimental.enable_mixed_precision_graph_rewrite(opt, loss_scale)
        self.assertEmpty(created)
        self._expect(before)
