"""Rewrites that yet need a look before training: said, and nothing else."""

import textwrap

from absl.testing import absltest, parameterized

from tests import rewriting

CONTRIB = "tf.contrib.mixed_precision"
HEAD = "import tensorflow as tf\n"


class WarningsTest(rewriting.RewriteTestCase):
    def findings(self, source):
        result = self.migrate(HEAD + textwrap.dedent(source) + "tf.nn\n")
        self.assertIn("tf_lossscale_compat", result.text)
        return [(finding.line, finding.message) for finding in result.findings]

    def check_one(self, source, line, part):
        ((found, message),) = self.findings(source)
        self.assertEqual(found, line)
        self.assertIn(part, message)

    @parameterized.parameters(
        (f"{CONTRIB}.LossScaleOptimizer(o, m)", "tf.gradients(loss, v)"),
        ("tf.train.experimental.MixedPrecisionLossScaleOptimizer(o, 8)", "tf.gradients(loss, v)"),
        ("tf.keras.mixed_precision.LossScaleOptimizer(o)", "tape.gradient(loss, v)"),
    )
    def test_nothing_is_scaled(self, made, gradients):
        source = f"opt = {made}\ngrads = {gradients}\nopt.apply_gradients(zip(grads, v))\n"
        self.check_one(source, 2, "nothing in this file scales a loss")

    @parameterized.parameters(
        "opt.compute_gradients(loss)",
        "opt.minimize(loss)",
        "opt.get_scaled_loss(loss)",
        "m.get_loss_scale() * loss",
        "opt.loss_scale * loss",
        "loss_scale() * loss",
    )
    def test_something_is_scaled(self, line):
        source = f"opt = {CONTRIB}.LossScaleOptimizer(o, m)\ngrads = tf.gradients(loss, v)\n"
        self.assertEmpty(self.findings(f"{source}opt.apply_gradients(grads)\n{line}\n"))
        # Who makes the optimizer need not be who uses it.
        self.assertEmpty(self.findings(source))

    @parameterized.parameters(
        (f"{CONTRIB}.ExponentialUpdateLossScaleManager(2**32, 1000)", "4294967296"),
        (f"{CONTRIB}.ExponentialUpdateLossScaleManager(init_loss_scale=2.0 ** 17)", "131072"),
        (f"{CONTRIB}.FixedLossScaleManager(1 << 16)", "65536"),
        ("tf.train.experimental.DynamicLossScale(65505)", "65505"),
        ("tf.keras.mixed_precision.LossScaleOptimizer(o, True, 1e5)", "100000"),
        ("tf.keras.mixed_precision.LossScaleOptimizer(o, initial_scale=4 * 65504)", "262016"),
    )
    def test_scale_above_float16(self, made, scale):
        self.check_one(f"x = tf.float16\n{made}\n", 3, f"begins at {scale}, above 65504")
        self.assertEmpty(self.findings(f"x = tf.float32\n{made}\n"))

    @parameterized.parameters(
        f"{CONTRIB}.ExponentialUpdateLossScaleManager(2**15, 1000)",
        f"{CONTRIB}.ExponentialUpdateLossScaleManager(FLAGS.scale, 2**32)",
        f"{CONTRIB}.FixedLossScaleManager(*a, 2**32)",
        f"{CONTRIB}.FixedLossScaleManager(10**10**10)",
        "tf.train.experimental.DynamicLossScale(increment_period=100000)",
        "tf.keras.mixed_precision.LossScaleOptimizer(o)",
    )
    def test_scales_that_float16_holds_or_nobody_knows(self, made):
        self.assertEmpty(self.findings(f"x = tf.float16\n{made}\n"))

    @parameterized.parameters(
        "if tf2:\n    raise RuntimeError('no')\n",
        "if not IS_TF_2: print()\nelse: raise RuntimeError('no')\n",
        "if tf.__version__ >= '2': raise ImportError\n",
        "if tf.VERSION.startswith('2'):\n    print(1)\n    sys.exit(1)\n",
        "if not hasattr(tf, 'contrib'): raise ImportError\n",
        "assert not is_tf2(), 'no'\n",
        "assert tf.__version__.startswith('1.')\n",
    )
    def test_guards(self, guard):
        made = f"x = {CONTRIB}.FixedLossScaleManager(8)\n"
        self.check_one(f"{made}{guard}", 3, "let the version pass that you go to")

    @parameterized.parameters(
        "if tf2:\n    x = 1\n",
        "if steps < 0: raise ValueError\n",
        "if tf2:\n    def f(): raise ValueError\n",
    )
    def test_no_guards(self, lines):
        self.assertEmpty(self.findings(f"x = {CONTRIB}.FixedLossScaleManager(8)\n{lines}"))

    def test_estimator(self):
        made = f"x = {CONTRIB}.FixedLossScaleManager(8)\n"
        self.check_one(
            f"{made}tf.estimator.Estimator(f)\ntf.compat.v1.estimator.TrainSpec\n",
            3,
            "`tf.estimator` (2 in this file) is gone since TensorFlow 2.16",
        )

    def test_estimator_without_loss_scaling_is_none_of_this_tools_business(self):
        self.check_noop(f"{HEAD}tf.estimator.Estimator(f)\nif tf2: raise ValueError\n")


if __name__ == "__main__":
    absltest.main()
