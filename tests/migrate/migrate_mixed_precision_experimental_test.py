"""`tf.mixed_precision.experimental` of TensorFlow 2.1 to 2.4."""

from absl.testing import absltest, parameterized

from tests import rewriting


class MixedPrecisionExperimentalTest(rewriting.RewriteTestCase):
    @parameterized.product(
        name=("LossScale", "FixedLossScale", "DynamicLossScale"),
        prefix=("tf", "tf.compat.v1", "tf.compat.v2"),
    )
    def test_attribute(self, name, prefix):
        self.check_diff(
            f"""
             import tensorflow as tf
            +import tf_lossscale_compat

            -x = tf.float16, {prefix}.mixed_precision.experimental.{name}(2**15, increment_period=9)
            +x = tf.float16, tf_lossscale_compat.mixed_precision.experimental.{name}(2**15, increment_period=9)
            """,  # noqa: E501
        )

    @parameterized.parameters(
        (
            "from tensorflow.mixed_precision.experimental import DynamicLossScale",
            "from tf_lossscale_compat.mixed_precision.experimental import DynamicLossScale",
        ),
        (
            "from tensorflow.mixed_precision import experimental as mpe",
            "from tf_lossscale_compat.mixed_precision import experimental as mpe",
        ),
        (
            "import tensorflow.mixed_precision.experimental as mpe",
            "import tf_lossscale_compat.mixed_precision.experimental as mpe",
        ),
    )
    def test_import(self, before, after):
        self.check_transformed(f"{before}\n", f"{after}\n")

    def test_the_same_name_from_one_of_two_places(self):
        self.check_diff(
            """
             try:
            -    from tensorflow.train.experimental import DynamicLossScale
            +    from tf_lossscale_compat.train.experimental import DynamicLossScale
             except ImportError:
            -    from tensorflow.mixed_precision.experimental import DynamicLossScale
            +    from tf_lossscale_compat.mixed_precision.experimental import DynamicLossScale

             DynamicLossScale()
            """,
        )

    def test_nothing_to_do(self):
        self.check_noop(
            """
            from tf_lossscale_compat.mixed_precision.experimental import DynamicLossScale
            from mylib.mixed_precision import experimental

            experimental.DynamicLossScale(DynamicLossScale)
            """
        )


if __name__ == "__main__":
    absltest.main()
