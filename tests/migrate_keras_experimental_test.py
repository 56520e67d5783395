"""`tf.keras.mixed_precision.experimental` of TensorFlow 2.0 to 2.5."""

from absl.testing import absltest, parameterized

from tests import rewriting

OURS = "tf_lossscale_compat.keras.mixed_precision.experimental"


class KerasExperimentalTest(rewriting.RewriteTestCase):
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

    def test_with_a_loss_scale_of_tensorflow(self):
        self.check_transformed(
            """
            import tensorflow as tf

            opt = tf.keras.mixed_precision.experimental.LossScaleOptimizer(
                tf.keras.optimizers.SGD(),
                loss_scale=tf.mixed_precision.experimental.DynamicLossScale(2**15, increment_period=1000),
            )
            with tf.GradientTape() as tape:
                loss = opt.get_scaled_loss(model(x))
            grads = opt.get_unscaled_gradients(tape.gradient(loss, variables))
            """,  # noqa: E501
            """
            import tensorflow as tf
            import tf_lossscale_compat
            import tf_lossscale_compat.keras.mixed_precision.experimental

            opt = tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(
                tf.keras.optimizers.SGD(),
                loss_scale=tf_lossscale_compat.mixed_precision.experimental.DynamicLossScale(2**15, increment_period=1000),
            )
            with tf.GradientTape() as tape:
                loss = opt.get_scaled_loss(model(x))
            grads = opt.get_unscaled_gradients(tape.gradient(loss, variables))
            """,  # noqa: E501
        )

    def test_alias_for_loss_scaling_only(self):
        self.check_transformed(
            """
            from tensorflow.keras.mixed_precision import experimental as mixed_precision

            opt = mixed_precision.LossScaleOptimizer(opt, 'dynamic')
            """,
            """
            from tf_lossscale_compat.keras.mixed_precision import experimental as mixed_precision

            opt = mixed_precision.LossScaleOptimizer(opt, 'dynamic')
            """,
        )

    def test_alias_for_policies_too(self):
        self.check_transformed(
            """
            from tensorflow.keras.mixed_precision import experimental as mixed_precision

            mixed_precision.set_policy(mixed_precision.Policy('mixed_float16'))
            opt = mixed_precision.LossScaleOptimizer(opt, 'dynamic')
            """,
            """
            from tensorflow.keras import mixed_precision
            import tf_lossscale_compat.keras.mixed_precision.experimental

            mixed_precision.set_global_policy(mixed_precision.Policy('mixed_float16'))
            opt = tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(opt, 'dynamic')
            """,  # noqa: E501
        )

    def test_name(self):
        self.check_transformed(
            """
            from tensorflow.keras.mixed_precision.experimental import LossScaleOptimizer, Policy
            """,
            """
            from tensorflow.keras.mixed_precision import Policy
            from tf_lossscale_compat.keras.mixed_precision.experimental import LossScaleOptimizer
            """,
        )

    def test_a_module_imported_in_two_ways(self):
        self.check_transformed(
            """
            try:
                from tensorflow.keras import mixed_precision as mp
            except ImportError:
                from tensorflow.keras.mixed_precision import experimental as mp

            opt = mp.LossScaleOptimizer(opt)
            """,
            """
            try:
                from tf_lossscale_compat.keras import mixed_precision as mp
            except ImportError:
                from tf_lossscale_compat.keras.mixed_precision import experimental as mp

            opt = mp.LossScaleOptimizer(opt)
            """,
        )


class StableNamesTest(rewriting.RewriteTestCase):
    """Policies: `experimental` goes out of their names."""

    @parameterized.parameters(
        ("import tensorflow as tf", "tf.keras"),
        ("import tensorflow as tf", "tf.compat.v1.keras"),
        ("from tensorflow import keras", "keras"),
        ("import keras", "keras"),
    )
    def test_attribute(self, statement, prefix):
        use = """
            {p}.mixed_precision{e}.{set}("mixed_float16")
            policy = {p}.mixed_precision{e}.Policy("mixed_float16")
            {p}.mixed_precision{e}.{set}(policy)
            layer({p}.mixed_precision{e}.global_policy().compute_dtype)
            """
        before = use.format(p=prefix, e=".experimental", set="set_policy")
        after = use.format(p=prefix, e="", set="set_global_policy")
        self.check_transformed(
            f"\n            {statement}" + before, f"\n            {statement}" + after
        )

    @parameterized.parameters(
        (
            "from tensorflow.keras.mixed_precision import experimental as mixed_precision",
            "from tensorflow.keras import mixed_precision",
            "mixed_precision",
        ),
        (
            "from tensorflow.keras.mixed_precision import experimental",
            "from tensorflow.keras import mixed_precision as experimental",
            "experimental",
        ),
        (
            "import tensorflow.keras.mixed_precision.experimental as mp",
            "import tensorflow.keras.mixed_precision as mp",
            "mp",
        ),
        (
            "from tensorflow.compat.v1.keras.mixed_precision import experimental as mp  # x",
            "from tensorflow.compat.v1.keras import mixed_precision as mp  # x",
            "mp",
        ),
    )
    def test_alias(self, before, after, name):
        self.check_transformed(
            f"{before}\n{name}.set_policy({name}.Policy('mixed_float16'))\n",
            f"{after}\n{name}.set_global_policy({name}.Policy('mixed_float16'))\n",
        )

    @parameterized.parameters(
        (
            "from tensorflow.keras.mixed_precision.experimental import Policy, set_policy",
            "from tensorflow.keras.mixed_precision import Policy, set_global_policy as set_policy",
        ),
        (
            "from tensorflow.keras.mixed_precision.experimental import (\n set_policy as s)",
            "from tensorflow.keras.mixed_precision import (\n set_global_policy as s)",
        ),
    )
    def test_names(self, before, after):
        self.check_transformed(f"{before}\nPolicy('float16')\n", f"{after}\nPolicy('float16')\n")

    @parameterized.parameters(
        ("tf.keras.mixed_precision.experimental.get_layer_policy(x)", "`dtype_policy`"),
        ("tf.keras.mixed_precision.experimental.set_policy('infer')", "know no 'infer'"),
        (
            "policy = tf.keras.mixed_precision.experimental.global_policy(); policy.loss_scale()",
            "once no loss scale is kept in a policy",
        ),
        (
            "tf.keras.mixed_precision.experimental.global_policy().loss_scale",
            "once no loss scale is kept in a policy",
        ),
        ("tf.keras.mixed_precision.experimental  \\\n.Policy", None),
        ("(tf.keras.mixed_precision  # why\n.experimental.Policy)", "write `tf.keras.mixed_pre"),
    )
    def test_left_to_a_person(self, line, message):
        result = self.migrate(f"import tensorflow as tf\n{line}\n")
        if message is None:
            self.assertIn("tf.keras.mixed_precision.Policy\n", result.text)
            self.assertEmpty(result.findings)
        else:
            self.assertEqual(result.text, f"import tensorflow as tf\n{line}\n")
            self.assertLen(result.findings, 1)
            self.assertIn(message, result.findings[0].message)

    @parameterized.parameters(
        (
            "from tensorflow.keras.mixed_precision import experimental as mp\n"
            "mp.Policy('mixed_float16', loss_scale=8)\n"
            "mp.set_policy(x)\n",
            [2, 3],
        ),
        (
            "from tensorflow.keras.mixed_precision.experimental import set_policy, other\n"
            "set_policy(x)\n",
            [1],
        ),
        (
            "from tensorflow.keras.mixed_precision import experimental as mp\n"
            "mp.set_policy(x), mp.other, mp.get_layer_policy(y)\n",
            [2, 2],
        ),
    )
    def test_what_goes_together_stays_together(self, before, lines):
        result = self.migrate(before)
        self.assertEqual(result.text, before)
        self.assertEqual([finding.line for finding in result.findings], lines)


class PolicyTest(rewriting.RewriteTestCase):
    @parameterized.parameters(
        "tf.keras.mixed_precision.experimental.Policy('mixed_float16', loss_scale='dynamic')",
        "tf.keras.mixed_precision.experimental.Policy('mixed_float16', 1024)",
        "tf.keras.mixed_precision.Policy('mixed_float16', loss_scale=None)",
    )
    def test_with_a_loss_scale(self, call):
        self.check_noop(
            f"import tensorflow as tf\nx = {call}\n",
            [(2, 5, "wrap the optimizer in `tf_lossscale_compat.keras")],
        )

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
