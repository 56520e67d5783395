"""`tf.keras.mixed_precision.LossScaleOptimizer`: TensorFlow 2.4's to 2.15's, and not Keras 3's."""

from absl.testing import absltest, parameterized

from tests import rewriting

OURS = "tf_lossscale_compat.keras.mixed_precision"
# What a file says besides making the optimizer.
OLDER = ("opt.get_scaled_loss(loss)", "opt.get_unscaled_gradients(grads)", "opt.dynamic_counter")
NEWER = ("opt.scale_loss(loss)",)


def program(statement, name, arguments="inner", more=()):
    return "\n".join([statement, f"opt = {name}.LossScaleOptimizer({arguments})", *more, ""])


# By what a case shows: lines with "-" before and with "+" after.
DIFFS = {
    "isinstance and subclass": """
 import tensorflow as tf
+import tf_lossscale_compat.keras.mixed_precision

-class Own(tf.keras.mixed_precision.LossScaleOptimizer):
+class Own(tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer):
     pass

-isinstance(opt, tf.keras.mixed_precision.LossScaleOptimizer) or tf.nn
+isinstance(opt, tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer) or tf.nn
""",
    "other members keep the import": """
 from tensorflow.keras import layers, mixed_precision
+import tf_lossscale_compat.keras.mixed_precision

 mixed_precision.set_global_policy("mixed_float16")
-opt = mixed_precision.LossScaleOptimizer(opt)
+opt = tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer(opt)
""",
    "both generations": """
-from tensorflow.keras import mixed_precision
+from tf_lossscale_compat.keras import mixed_precision

 mixed_precision.experimental.LossScaleOptimizer(opt, "dynamic")
 mixed_precision.LossScaleOptimizer(opt)
""",
}


class TfKerasTest(rewriting.RewriteTestCase):
    @parameterized.parameters(*DIFFS)
    def test_diff(self, name):
        self.check_diff(DIFFS[name])

    @parameterized.parameters(
        "inner",
        "inner, True",
        "inner, False, 1024",
        "inner, dynamic=False, initial_scale=1024",
        "inner, dynamic_growth_steps=100",
        "inner_optimizer=inner",
        "*args, **kwargs",
    )
    def test_arguments_of_the_older_class(self, arguments):
        self.check_transformed(
            program("import tensorflow as tf", "tf.keras.mixed_precision", arguments),
            program(f"import {OURS}", OURS, arguments),
        )

    @parameterized.parameters(*OLDER)
    def test_methods_of_the_older_class(self, line):
        statement = "from tensorflow.keras import mixed_precision"
        self.check_transformed(
            program(statement, "mixed_precision", more=[line]),
            program(
                "from tf_lossscale_compat.keras import mixed_precision",
                "mixed_precision",
                more=[line],
            ),
        )

    @parameterized.parameters(
        ("inner, 1024", ""),
        ("inner, name='scaled'", ""),
        ("inner, loss_scale_factor=2", ""),
        ("inner", NEWER[0]),
    )
    def test_keras_3_is_left_alone(self, arguments, line):
        self.check_noop(
            program("import tensorflow as tf", "tf.keras.mixed_precision", arguments, [line])
        )
        self.check_noop(
            "from tensorflow.keras.mixed_precision import LossScaleOptimizer\n"
            f"opt = LossScaleOptimizer({arguments})\n{line}\n"
        )

    def test_both_apis_are_left_to_a_person(self):
        self.check_noop(
            program(
                "import tensorflow as tf",
                "tf.keras.mixed_precision",
                more=["opt.get_scaled_loss(loss)", "opt.scale_loss(loss)"],
            ),
            [(2, 7, "as in TensorFlow 2.4 to 2.15 and as in Keras 3")],
        )


class SignTest(rewriting.RewriteTestCase):
    """Signs that a file is written for Keras 3's class, and what only looks like one."""

    @parameterized.parameters(
        "if FLAGS.scale_loss: pass",
        "self.scale_loss = True",
        "parser.add_argument('--scale_loss', type=float)",
        "scale_loss(loss)",
    )
    def test_other_things_of_that_name_are_none(self, line):
        statement, name = "import tensorflow as tf", "tf.keras.mixed_precision"
        self.check_transformed(
            program(statement, name, more=[line]), program(f"import {OURS}", OURS, more=[line])
        )


class KerasTest(rewriting.RewriteTestCase):
    """`keras` alone has this class today, so the older one has to show."""

    @parameterized.parameters(
        ("inner, True", ""), ("inner, dynamic=False", ""), ("inner", OLDER[0])
    )
    def test_clearly_the_older_one(self, arguments, line):
        self.check_transformed(
            program("import keras", "keras.mixed_precision", arguments, [line]),
            program(f"import {OURS}", OURS, arguments, [line]),
        )
        self.check_transformed(
            "from keras.mixed_precision import LossScaleOptimizer as LSO\n"
            f"opt = LSO({arguments})\n{line}\n",
            f"from {OURS} import LossScaleOptimizer as LSO\nopt = LSO({arguments})\n{line}\n",
        )

    @parameterized.parameters(
        ("inner", ""), ("inner, 1024", ""), ("inner, name='x'", ""), ("inner", NEWER[0])
    )
    def test_otherwise_left_alone(self, arguments, line):
        self.check_noop(program("import keras", "keras.mixed_precision", arguments, [line]))
        self.check_noop(program("import keras", "keras.optimizers", arguments, [line]))

    def test_both_apis_are_left_to_a_person(self):
        self.check_noop(
            "from keras.mixed_precision import LossScaleOptimizer\n"
            "LossScaleOptimizer(x, True).scale_loss(y)\n",
            [(1, 35, "as in TensorFlow 2.4 to 2.15 and as in Keras 3")],
        )


class TfKerasPackageTest(rewriting.RewriteTestCase):
    """`tf_keras`, and the packages behind `tf.keras` up to 2.15: the older one alone."""

    @parameterized.parameters(
        ("import tf_keras", "tf_keras.mixed_precision"),
        ("import tf_keras as keras", "keras.mixed_precision"),
        ("from tf_keras import mixed_precision", "mixed_precision"),
        ("from keras.api._v2 import keras", "keras.mixed_precision"),
        ("from keras.api._v1.keras import mixed_precision", "mixed_precision"),
        ("from tf_keras.api._v2.keras import mixed_precision", "mixed_precision"),
    )
    def test_rewritten_without_a_sign(self, statement, name):
        for beyond in ("", ".experimental"):
            before = program(statement, name + beyond)
            after = program(f"import {OURS}{beyond}", OURS + beyond)
            if statement.endswith(" mixed_precision"):
                moved = "from tf_lossscale_compat.keras import mixed_precision"
                after = program(moved, name + beyond)
            self.check_transformed(before, after)

    def test_the_api_package_of_keras_3_is_keras(self):
        statement = "from keras.api.mixed_precision import LossScaleOptimizer"
        self.check_noop(f"{statement}\nLossScaleOptimizer(x)\n")
        self.check_transformed(
            f"{statement}\nLossScaleOptimizer(x, dynamic=True)\n",
            f"from {OURS} import LossScaleOptimizer\nLossScaleOptimizer(x, dynamic=True)\n",
        )


if __name__ == "__main__":
    absltest.main()
