"""`tf.keras.mixed_precision.experimental` of TensorFlow 2.0 to 2.5."""

from absl.testing import absltest, parameterized

from tests import rewriting

OURS = "tf_lossscale_compat.keras.mixed_precision.experimental"


# By what a case shows: lines with "-" before and with "+" after.
DIFFS = {
    "with a loss scale of tensorflow": """
 import tensorflow as tf
+import tf_lossscale_compat
+import tf_lossscale_compat.keras.mixed_precision.experimental

-opt = tf.keras.mixed_precision.experimental.LossScaleOptimizer(
+opt = tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(
     tf.keras.optimizers.SGD(),
-    loss_scale=tf.mixed_precision.experimental.DynamicLossScale(2**15, increment_period=1000),
+    loss_scale=tf_lossscale_compat.mixed_precision.experimental.DynamicLossScale(2**15, increment_period=1000),
 )
 with tf.GradientTape() as tape:
     loss = opt.get_scaled_loss(model(x))
 grads = opt.get_unscaled_gradients(tape.gradient(loss, variables))
""",  # noqa: E501
    "alias for loss scaling only": """
-from tensorflow.keras.mixed_precision import experimental as mixed_precision
+from tf_lossscale_compat.keras.mixed_precision import experimental as mixed_precision

 opt = mixed_precision.LossScaleOptimizer(opt, 'dynamic')
""",
    "name": """
-from tensorflow.keras.mixed_precision.experimental import LossScaleOptimizer, Policy
+from tensorflow.keras.mixed_precision.experimental import Policy
+from tf_lossscale_compat.keras.mixed_precision.experimental import LossScaleOptimizer
""",
    "a module imported in two ways": """
 try:
-    from tensorflow.keras import mixed_precision as mp
+    from tf_lossscale_compat.keras import mixed_precision as mp
 except ImportError:
-    from tensorflow.keras.mixed_precision import experimental as mp
+    from tf_lossscale_compat.keras.mixed_precision import experimental as mp

 opt = mp.LossScaleOptimizer(opt)
""",
    "a module that 2 0 to 2 3 go on to need": """
 import tensorflow as tf
 from tensorflow.keras.mixed_precision import experimental as prec
+import tf_lossscale_compat.keras.mixed_precision.experimental

 prec.set_policy(prec.Policy("mixed_float16"))
-opt = prec.LossScaleOptimizer(opt, "dynamic")
+opt = tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(opt, "dynamic")
 layer(prec.global_policy().compute_dtype)
""",
}
FINDINGS = {
    "name": [(1, 79, "leave them for TensorFlow 2.0 to 2.3")],
    "a module that 2 0 to 2 3 go on to need": [
        (4, 1, "leave them for TensorFlow 2.0 to 2.3, and from 2.4 on take")
    ],
}


class KerasExperimentalTest(rewriting.RewriteTestCase):
    @parameterized.parameters(*DIFFS)
    def test_diff(self, name):
        self.check_diff(DIFFS[name], FINDINGS.get(name, ()))

    @parameterized.parameters(
        ("import tensorflow as tf", "tf.keras"),
        ("import tensorflow as tf", "tf.compat.v1.keras"),
        ("import tensorflow.compat.v2 as tf", "tf.keras"),
        ("from tensorflow import keras", "keras"),
        ("import tensorflow.keras as keras", "keras"),
        ("import keras", "keras"),
    )
    def test_attribute(self, statement, prefix):
        use = """
            opt = {name}(opt, 'dynamic')
            opt = {name}(opt, loss_scale='dynamic')
            if isinstance(opt, {name}): {prefix}.backend.clear_session()
            """
        before = prefix + ".mixed_precision.experimental.LossScaleOptimizer"
        self.check_transformed(
            rewriting.text_of(
                f"\n            {statement}" + use.format(name=before, prefix=prefix)
            ),
            rewriting.text_of(
                f"\n            {statement}\n            import {OURS}"
                + use.format(name=OURS + ".LossScaleOptimizer", prefix=prefix)
            ),
        )


class PolicyNamesTest(rewriting.RewriteTestCase):
    """A file does not show its TensorFlow, and 2.0 to 2.3 have no other names."""

    @parameterized.parameters(
        ("import tensorflow as tf", "tf.keras.mixed_precision.experimental"),
        ("import tensorflow as tf", "tf.compat.v1.keras.mixed_precision.experimental"),
        ("from tensorflow import keras", "keras.mixed_precision.experimental"),
        ("import keras", "keras.mixed_precision.experimental"),
        ("import tensorflow.keras.mixed_precision.experimental as mp", "mp"),
    )
    def test_attribute(self, statement, prefix):
        for name, advice in (
            ("set_policy", "take `tf.keras.mixed_precision.set_global_policy`"),
            ("global_policy", "take `tf.keras.mixed_precision.global_policy`"),
            ("Policy.from_config", "take `tf.keras.mixed_precision.Policy`"),
            ("get_layer_policy", "take the layer's `dtype_policy`"),
        ):
            self.check_noop(f"{statement}\nx = {prefix}.{name}(y)\n", [(2, 5, advice)])

    def test_an_import_of_names(self):
        self.check_noop(
            """
            from tensorflow.keras.mixed_precision.experimental import Policy, set_policy as s

            s(Policy("mixed_float16"))
            """,
            [(1, 59, "`Policy` and `set_policy` of Keras' `experimental`: leave them")],
        )

    def test_names_that_begin_so(self):
        self.check_noop(
            """
            import tensorflow as tf

            tf.keras.mixed_precision.experimental.global_policy_of_mine()
            tf.keras.mixed_precision.set_global_policy("mixed_float16")
            """
        )


class PolicyTest(rewriting.RewriteTestCase):
    @parameterized.parameters(
        ("tf.keras.mixed_precision.experimental.Policy('mixed_float16', loss_scale='dynamic')", 1),
        ("tf.keras.mixed_precision.experimental.Policy('mixed_float16', 1024)", 1),
        ("tf.keras.mixed_precision.Policy('mixed_float16', loss_scale=None)", 0),
    )
    def test_with_a_loss_scale(self, call, older_names):
        findings = [(2, 5, "from 2.4 on take `tf.keras.mixed_precision.Policy`")] * older_names
        findings += [(2, 5, "wrap the optimizer in `tf_lossscale_compat.keras")]
        self.check_noop(f"import tensorflow as tf\nx = {call}\n", findings)

    def test_without(self):
        self.check_noop(
            """
            import tensorflow as tf
            from mylib.mixed_precision import Policy

            tf.keras.mixed_precision.Policy('mixed_float16')
            Policy('mixed_float16', loss_scale='dynamic')
            """
        )


if __name__ == "__main__":
    absltest.main()
