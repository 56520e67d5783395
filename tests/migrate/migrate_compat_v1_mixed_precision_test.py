"""`tf.compat.v1.mixed_precision`, the name that TensorFlow 2.4 gave to the v1 API."""

from absl.testing import absltest, parameterized

from tests import rewriting


class CompatV1MixedPrecisionTest(rewriting.RewriteTestCase):
    @parameterized.product(
        name=(
            "LossScale",
            "FixedLossScale",
            "DynamicLossScale",
            "MixedPrecisionLossScaleOptimizer",
            "enable_mixed_precision_graph_rewrite",
            "disable_mixed_precision_graph_rewrite",
        ),
        start=(
            ("import tensorflow as tf", "tf.compat.v1"),
            ("import tensorflow.compat.v1 as tf", "tf"),
            ("import tensorflow.compat.v1 as tf1", "tf1"),
        ),
    )
    def test_attribute(self, name, start):
        statement, prefix = start
        self.check_diff(
            f"""
             {statement}
            +import tf_lossscale_compat

            -x = {prefix}.mixed_precision.{name}
            +x = tf_lossscale_compat.train.experimental.{name}
             y = {prefix}.float16
            """,
        )

    def test_experimental(self):
        self.check_diff(
            """
             import tensorflow.compat.v1 as tf
            +import tf_lossscale_compat

            -x = tf.mixed_precision.experimental.FixedLossScale(tf.float16)
            +x = tf_lossscale_compat.mixed_precision.experimental.FixedLossScale(tf.float16)
            """,
        )

    @parameterized.parameters(
        (
            "from tensorflow.compat.v1.mixed_precision import MixedPrecisionLossScaleOptimizer",
            "from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer",
        ),
        (
            "from tensorflow.compat.v1.mixed_precision import experimental",
            "from tf_lossscale_compat.mixed_precision import experimental",
        ),
        (
            "from tensorflow.compat.v1 import mixed_precision\nx = mixed_precision.LossScale",
            "from tf_lossscale_compat.train import experimental as mixed_precision\n"
            "x = mixed_precision.LossScale",
        ),
    )
    def test_import(self, before, after):
        self.check_transformed(f"{before}\n", f"{after}\n")

    def test_one_import_for_what_is_in_two_places_here(self):
        self.check_diff(
            """
            -from tensorflow.compat.v1 import mixed_precision
            +import tf_lossscale_compat

            -mixed_precision.MixedPrecisionLossScaleOptimizer(
            -    opt, mixed_precision.experimental.DynamicLossScale()
            +tf_lossscale_compat.train.experimental.MixedPrecisionLossScaleOptimizer(
            +    opt, tf_lossscale_compat.mixed_precision.experimental.DynamicLossScale()
             )
            """,
        )

    def test_nothing_to_do(self):
        self.check_noop(
            """
            import tensorflow.compat.v1 as tf

            tf.keras.mixed_precision.set_global_policy("mixed_float16")
            tf.mixed_precision.other
            """
        )


if __name__ == "__main__":
    absltest.main()
