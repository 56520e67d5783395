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
            from tensorflow.keras.mixed_precision import experimental as mixed_precision
            import tf_lossscale_compat.keras.mixed_precision.experimental

            mixed_precision.set_policy(mixed_precision.Policy('mixed_float16'))
            opt = tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(opt, 'dynamic')
            """,  # noqa: E501
        )

    def test_name(self):
        self.check_transformed(
            """
            from tensorflow.keras.mixed_precision.experimental import LossScaleOptimizer, Policy
            """,
            """
            from tensorflow.keras.mixed_precision.experimental import Policy
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

    def test_nothing_to_do(self):
        self.check_noop(
            """
            import tensorflow as tf
            from tensorflow.keras.mixed_precision import experimental as mixed_precision

            mixed_precision.set_policy("mixed_float16")
            tf.keras.mixed_precision.experimental.Policy("mixed_float16")
            """
        )


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

            tf.keras.mixed_precision.experimental.Policy('mixed_float16')
            Policy('mixed_float16', loss_scale='dynamic')
            """
        )


if __name__ == "__main__":
    absltest.main()
