"""Code that is left to a person: found, said with what to do, and not touched."""

from absl.testing import absltest, parameterized

from tests import rewriting

CONTRIB = "tf_lossscale_compat.contrib.mixed_precision"
TRAIN = "tf_lossscale_compat.train.experimental"


class ChecksTest(rewriting.RewriteTestCase):
    def check_found(self, source, *findings):
        self.check_noop(source, findings)

    def test_other_members_of_contrib(self):
        self.check_found(
            """
            import tensorflow as tf
            import tensorflow.contrib.slim as slim
            import tensorflow.contrib.eager
            from tensorflow.contrib.layers import flatten
            from tensorflow.contrib import rnn, opt as contrib_opt
            from tensorflow.contrib.mixed_precision import Other

            initializer = tf.contrib.layers.xavier_initializer()
            slim.flatten(flatten(rnn(contrib_opt)))
            tf.contrib.mixed_precision.Other, tf.compat.v1.contrib.unheard_of.x
            """,
            (2, 8, "`tf.contrib.slim` is gone since TensorFlow 2.0"),
            (3, 8, "`tf.contrib.eager`"),
            (4, 39, "write `tf_slim.flatten` of the package tf-slim (`import tf_slim`)"),
            (5, 32, "write `tf.compat.v1.nn.rnn_cell`"),
            (5, 37, "tensorflow-addons"),
            (6, 48, f"use one of the classes of `{CONTRIB}`"),
            (8, 15, "`tf.contrib.layers.xavier_initializer`"),
            (10, 1, "`tf.contrib.mixed_precision.Other` is nothing that TensorFlow 1.15 made"),
            (10, 35, "`tf.contrib.unheard_of.x`"),
        )

    def test_what_a_person_has_looked_at(self):
        self.check_found(
            """
            import tensorflow as tf
            from tf_lossscale_compat import DynamicLossScale

            x = tf.float16
            scale = DynamicLossScale(2**32)  # The loss is float32; tf-lossscale: checked
            other = DynamicLossScale(2**33)  # tf-lossscale: unchecked
            text = "tf-lossscale: checked", DynamicLossScale(2**34)
            """,
            (6, 9, "begins at 8589934592"),
            (7, 33, "begins at 17179869184"),
        )
        self.check_diff(
            """
             import tensorflow as tf
            +import tf_lossscale_compat

            -mp = tf.contrib.mixed_precision  # tf-lossscale: checked
            +mp = tf_lossscale_compat.contrib.mixed_precision  # tf-lossscale: checked
            """,
        )

    def test_what_was_looked_at_is_one_line_whatever_ends_it(self):
        lines = [
            "import tensorflow as tf",
            "tf.contrib.eager  # tf-lossscale: checked",
            "tf.contrib.eager",
        ]
        for end in ("\n", "\r\n", "\r"):
            (finding,) = self.migrate(end.join(lines)).findings
            self.assertEqual(finding.line, 3)

    @parameterized.parameters(
        ("slim.arg_scope", "write `tf_slim.arg_scope` of the package tf-slim (`import tf_slim as"),
        (
            "layers.layer_norm",
            "write `tf_slim.layer_norm` of the package tf-slim (`import tf_slim`",
        ),
        ("layers.instance_norm", "write `tf_slim.layers.normalization.instance_norm` of"),
        ("layers.real_valued_column", "write what `tf.feature_column` has for it"),
        ("losses.log_loss", "write `tf_slim.losses.log_loss` of"),
        ("training.HParams", "write a class of your own, such as types.SimpleNamespace"),
        ("rnn.LSTMCell", "write `tf.compat.v1.nn.rnn_cell.LSTMCell`"),
        (
            "image.rotate",
            "write that of the package tensorflow-addons, which ended with TensorFlow 2.15",
        ),
        ("unheard_of.x", "replace it by hand"),
    )
    def test_where_the_parts_of_contrib_went(self, name, advice):
        head = "import tensorflow as tf\ntf.contrib."
        self.check_found(f"{head}{name}(1)\n", (2, 1, f"`tf.contrib.{name}` is gone since"))
        self.check_found(f"{head}{name}(1)\n", (2, 1, f"2.0: {advice}"))

    def test_dynamic_access(self):
        self.check_found(
            """
            import tensorflow as tf

            getattr(tf.contrib, name)
            getattr(tf, "contrib").mixed_precision
            setattr(tf.train.experimental, "DynamicLossScale", None)
            getattr(tf.mixed_precision, name, None)
            contrib = tf.contrib
            hasattr(tf, "contrib"), getattr(tf, "float16"), getattr(tf, name)
            """,
            (3, 9, "`tf.contrib` is looked into with `getattr`"),
            (4, 9, "`tf.contrib` is looked into with `getattr`"),
            (5, 9, f"take `{TRAIN}`"),
            (6, 9, f"take `{TRAIN}`"),
            (7, 11, "`tf.contrib` is used as a value"),
        )

    def test_getattr_of_the_namespace_is_safe(self):
        self.check_transformed(
            "import tensorflow as tf\ngetattr(tf.contrib.mixed_precision, name)(tf.float16)\n",
            "import tensorflow as tf\nimport tf_lossscale_compat\n"
            f"getattr({CONTRIB}, name)(tf.float16)\n",
        )

    def test_new_name_of_a_namespace_with_other_members(self):
        self.check_found(
            """
            import tensorflow as tf

            experimental = tf.train.experimental
            experimental.DynamicLossScale()
            other = tf.keras.mixed_precision
            """,
            (3, 16, f"where that leads to `DynamicLossScale`, take `{TRAIN}`"),
        )

    def test_strings(self):
        self.check_found(
            '''
            """Trains with tf.contrib.mixed_precision.

            And `tensorflow.train.experimental.LossScale`.
            """
            import importlib

            importlib.import_module("tensorflow.contrib.mixed_precision")
            mock.patch("é" f"é tf.keras.mixed_precision.experimental.LossScaleOptimizer {x}")
            def f(x: "tf.compat.v1.mixed_precision.LossScale"): pass
            "tf.contrib.layers", "my.tf.contrib.mixed_precision", "tf.train.experimental"
            "tensorflow/contrib/mixed_precision", "keras.mixed_precision.LossScaleOptimizer"
            ''',
            (1, 16, f"write `{CONTRIB}`"),
            (3, 6, f"write `{TRAIN}.LossScale`"),
            (7, 26, f"write `{CONTRIB}`"),
            (8, 20, "write `tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOpt"),
            (9, 11, f"write `{TRAIN}.LossScale`"),
        )

    def test_star_imports(self):
        self.check_found(
            """
            from tensorflow.contrib.mixed_precision import *
            from tensorflow.contrib.slim import *
            from tensorflow.train.experimental import *
            from tensorflow import *
            from os import *
            from . import *

            train.experimental.DynamicLossScale()
            """,
            (1, 1, f"import the names that are used, from `{CONTRIB}`"),
            (2, 1, "gone since TensorFlow 2.0"),
            (3, 1, f"import the names that are used, from `{TRAIN}`"),
            (8, 1, f"from a star import of `tensorflow`: write `{TRAIN}.DynamicLossScale`"),
        )

    @parameterized.parameters(
        ("tf = load()", "`tf` is assigned in this file"),
        ("from mylib import tf", "`tf` comes from `mylib.tf`"),
        ("from . import tf", "`tf` comes from `.tf`"),
        ("from mylib import *", "`tf` is not imported in this file"),
        ("import tensorflow as tf\ntf = tf.compat.v1", "bound in more than one way"),
        ("import tensorflow as tf\nimport mylib as tf", "bound in more than one way"),
        ("import tensorflow as tf\nfor tf in [tf, tf]: pass", "bound in more than one way"),
    )
    def test_not_surely_tensorflow(self, statement, message):
        lines = statement.count("\n") + 1
        self.check_found(
            f"{statement}\ntf.contrib.mixed_precision.LossScaleOptimizer(o, m)\n"
            "tf.train.experimental.DynamicLossScale(), tf.train.AdamOptimizer()\n",
            (lines + 1, 1, message),
            (lines + 2, 1, message),
        )

    def test_an_attribute_that_may_be_tensorflow(self):
        self.check_found(
            """
            class Model:
                def make(self, config):
                    self.tf.contrib.mixed_precision.FixedLossScaleManager(8)
                    config.lib._tf.train.experimental.DynamicLossScale()
                    self.tf.contrib.layers.layer_norm(self.tf.contrib.unheard_of.x)
                    return self.contrib.mixed_precision, self.tf.train.AdamOptimizer
            """,
            (3, 9, f"`self.tf` is an attribute: if it is TensorFlow, write `{CONTRIB}.Fixed"),
            (4, 9, f"`config.lib._tf` is an attribute: if it is TensorFlow, write `{TRAIN}.Dyn"),
            (5, 9, "write `tf_slim.layer_norm` of the package tf-slim"),
            (5, 43, "`tf.contrib.unheard_of.x` is gone since TensorFlow 2.0"),
        )

    def test_a_parameter_called_tf(self):
        self.check_found(
            """
            import tensorflow as tensorflow_module

            def f(tf, tensorflow):
                tf.train.experimental.LossScale, tensorflow.train.experimental.LossScale
            """,
            (4, 5, "`tf` is assigned in this file"),
            (4, 38, "`tensorflow` is assigned in this file"),
        )

    def test_one_name_for_two_modules_of_which_one_would_move(self):
        self.check_found(
            """
            try:
                from tensorflow.train import experimental
            except ImportError:
                from tensorflow.keras.mixed_precision import experimental

            experimental.DynamicLossScale()
            """,
            (6, 1, "`experimental` is bound in more than one way"),
        )

    def test_other_scopes_are_other_names(self):
        self.check_diff(
            """
             import tensorflow as tf
            +import tf_lossscale_compat

             def f(x=[tf for tf in "ab"]):
                 tf = 1
                 return lambda tf: tf

            -y = tf.train.experimental.LossScale, tf.float16
            +y = tf_lossscale_compat.train.experimental.LossScale, tf.float16
            """,
        )

    def test_private_modules(self):
        self.check_found(
            """
            from tensorflow.python.training.experimental.loss_scale import DynamicLossScale
            from tensorflow.python.training.experimental import loss_scale, loss_scale_optimizer
            from tensorflow.python.keras.mixed_precision.experimental import loss_scale_optimizer
            from tensorflow.python.keras.mixed_precision import policy
            from tensorflow.python.framework import ops
            """,
            (1, 64, f"take the public classes of `{TRAIN}`"),
            (2, 53, f"take the public classes of `{TRAIN}`"),
            (2, 65, f"take the public classes of `{TRAIN}`"),
            (3, 66, "take the public classes of `tf_lossscale_compat.keras.mixed_precision`"),
        )

    @parameterized.parameters(
        (
            "tensorflow.python.training.experimental.loss_scaling_gradient_tape",
            "LossScaleGradientTape",
            "take `tf.GradientTape`, with `tf_lossscale_compat.keras",
        ),
        (
            "tensorflow.mixed_precision.experimental",
            "LossScaleGradientTape",
            "repeats a step until its gradients are finite, which nothing here does",
        ),
        (
            "tensorflow_core.python.training.experimental.mixed_precision_global_state",
            "set_mixed_precision_graph_rewrite_enabled",
            f"take `enable_mixed_precision_graph_rewrite` of `{TRAIN}`",
        ),
        (
            "tensorflow_core.python.training.experimental.loss_scale",
            "LossScale",
            f"take the public classes of `{TRAIN}`",
        ),
        (
            "tf_keras.src.mixed_precision.loss_scale_optimizer",
            "BaseLossScaleOptimizer",
            "take the public classes of `tf_lossscale_compat.keras.mixed_precision`",
        ),
        (
            "keras.src.optimizers.loss_scale_optimizer",
            "LossScaleOptimizer",
            "take `keras.optimizers.LossScaleOptimizer`, or",
        ),
        (
            "npu_bridge.estimator.npu.npu_loss_scale_manager",
            "ExponentialUpdateLossScaleManager",
            f"leave it for them, and elsewhere take the class of that name in `{CONTRIB}`",
        ),
        (
            "npu_device.compat.v1.estimator.npu.npu_loss_scale_optimizer",
            "NPULossScaleOptimizer",
            f"elsewhere take `{CONTRIB}.LossScaleOptimizer`",
        ),
        (
            "npu_device.train.optimizer",
            "NpuLossScaleOptimizer",
            "elsewhere take `tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer`",
        ),
    )
    def test_without_counterpart(self, module, name, advice):
        head = f"from {module} import "
        self.check_found(f"{head}{name}\n{name}(1)\n", (1, len(head) + 1, advice))
        root, _, rest = module.partition(".")
        self.check_found(f"import {root} as m\nm.{rest}.{name}(1)\n", (2, 1, advice))

    def test_classes_for_ascend_from_a_star_import(self):
        self.check_found(
            """
            from npu_bridge.npu_init import *
            from npu_bridge.estimator import npu_ops

            manager = FixedLossScaleManager(loss_scale=2**15)
            opt = NPULossScaleOptimizer(NPUDistributedOptimizer(opt), manager)
            """,
            (4, 11, f"elsewhere take the class of that name in `{CONTRIB}`"),
            (5, 7, f"elsewhere take `{CONTRIB}.LossScaleOptimizer`"),
        )

    def test_tensorflow_core_is_tensorflow(self):
        self.check_transformed(
            "from tensorflow_core.contrib.mixed_precision import LossScaleOptimizer\n",
            f"from {CONTRIB} import LossScaleOptimizer\n",
        )
        self.check_transformed(
            "import tensorflow_core as tf\ntf.contrib.mixed_precision.LossScaleOptimizer, tf.nn\n",
            "import tensorflow_core as tf\nimport tf_lossscale_compat\n"
            f"{CONTRIB}.LossScaleOptimizer, tf.nn\n",
        )
        self.check_transformed(
            "from tensorflow_core._api.v1.train.experimental import LossScale\n",
            f"from {TRAIN} import LossScale\n",
        )
        self.check_found(
            "from tensorflow_core.contrib import slim\n",
            (1, 37, "`tf.contrib.slim` is gone since TensorFlow 2.0"),
        )

    def test_a_comment_inside_a_name(self):
        self.check_found(
            """
            import tensorflow as tf

            x = (tf
                 .contrib  # why
                 .mixed_precision.LossScaleOptimizer, tf.float16)
            """,
            (3, 6, f"write `{CONTRIB}.LossScaleOptimizer` by hand"),
        )

    def test_a_name_on_several_lines(self):
        self.check_diff(
            """
             import tensorflow as tf
            +import tf_lossscale_compat

            -x = ((tf
            -     .contrib)
            -     .mixed_precision \\
            +x = (tf_lossscale_compat.contrib.mixed_precision \\
                  . LossScaleOptimizer, tf.float16)
            """,
        )


if __name__ == "__main__":
    absltest.main()
