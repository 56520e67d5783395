"""`tf.train.experimental` of TensorFlow 1.14 to 2.3, and where imports are put."""

import sys
from unittest import mock

from absl.testing import absltest, parameterized

from tests import rewriting

MEMBERS = (
    "LossScale",
    "FixedLossScale",
    "DynamicLossScale",
    "MixedPrecisionLossScaleOptimizer",
    "enable_mixed_precision_graph_rewrite",
    "disable_mixed_precision_graph_rewrite",
)


# By what a case shows: lines with "-" before and with "+" after.
DIFFS = {
    "module alias moves when it is used for loss scaling only": """
-from tensorflow.compat.v1.train import experimental
+from tf_lossscale_compat.train import experimental

 scale = experimental.DynamicLossScale.from_config({})
""",
    "module alias stays for other members": """
 from tensorflow.train import experimental
+import tf_lossscale_compat

-scale = experimental.DynamicLossScale()
+scale = tf_lossscale_compat.train.experimental.DynamicLossScale()
 state = experimental.PythonState
""",
    "graph rewrite with a loss scale": """
 import tensorflow as tf
+import tf_lossscale_compat

-loss_scale = tf.train.experimental.DynamicLossScale(
+loss_scale = tf_lossscale_compat.train.experimental.DynamicLossScale(
     initial_loss_scale=2 ** 15, increment_period=1000, multiplier=2.0
 )
-opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt, loss_scale)
+opt = tf_lossscale_compat.train.experimental.enable_mixed_precision_graph_rewrite(opt, loss_scale)
 tf.identity(loss_scale(), name='loss_scale')
""",
    "after docstring and future imports": '''
 """Docs."""
 from __future__ import print_function
 import tensorflow as tf  # The one.
+import tf_lossscale_compat
 from absl import flags

-tf.train.experimental.FixedLossScale(tf.float16)
+tf_lossscale_compat.train.experimental.FixedLossScale(tf.float16)
''',
    "inside a function": """
 def make():
     import tensorflow as tf
+    import tf_lossscale_compat

-    return tf.train.experimental.FixedLossScale(tf.float16)
+    return tf_lossscale_compat.train.experimental.FixedLossScale(tf.float16)


 class Holder:
     import tensorflow as tf
-    scale = tf.train.experimental.FixedLossScale(tf.float16)
+    import tf_lossscale_compat
+    scale = tf_lossscale_compat.train.experimental.FixedLossScale(tf.float16)
""",
    "in a function that imports for others": """
 tf = None

 def load():
     global tf
     import tensorflow as tf
+    global tf_lossscale_compat
+    import tf_lossscale_compat

-def load_on_one_line(): global tf; import tensorflow as tf
+def load_on_one_line(): global tf; import tensorflow as tf; global tf_lossscale_compat; import tf_lossscale_compat

 def load_what_there_is():
     global tf
     try:
         import tensorflow.compat.v1 as tf
+        global tf_lossscale_compat
+        import tf_lossscale_compat
     except ImportError:
         import tensorflow as tf
+        global tf_lossscale_compat
+        import tf_lossscale_compat

 def make():
-    return tf.train.experimental.FixedLossScale(tf.float16)
+    return tf_lossscale_compat.train.experimental.FixedLossScale(tf.float16)
""",  # noqa: E501
    "one at the top is enough": """
 import tensorflow as tf
+import tf_lossscale_compat

-scale = tf.train.experimental.FixedLossScale(tf.float16)
+scale = tf_lossscale_compat.train.experimental.FixedLossScale(tf.float16)


 def make():
     import tensorflow as tf

-    return tf.train.experimental.FixedLossScale(tf.float16)
+    return tf_lossscale_compat.train.experimental.FixedLossScale(tf.float16)
""",
    "one branch of try": """
 try:
     import tensorflow as tf
+    import tf_lossscale_compat
 except ImportError:
     tf = None

-scale = tf and tf.train.experimental.FixedLossScale(8)
+scale = tf and tf_lossscale_compat.train.experimental.FixedLossScale(8)
""",
    "one line blocks and semicolons": """
-try: import tensorflow as tf
+try: import tensorflow as tf; import tf_lossscale_compat
 except ImportError: raise
-def f(): import tensorflow as tf; return tf.train.experimental.LossScale, tf.x
-import os; import tensorflow as tf; x = tf.train.experimental.LossScale, tf.x
+def f(): import tensorflow as tf; import tf_lossscale_compat; return tf_lossscale_compat.train.experimental.LossScale, tf.x
+import os; import tensorflow as tf; import tf_lossscale_compat; x = tf_lossscale_compat.train.experimental.LossScale, tf.x
""",  # noqa: E501
    "no second one": """
 import tensorflow as tf
 import tf_lossscale_compat

-x = tf.train.experimental.LossScale, tf.float16
+x = tf_lossscale_compat.train.experimental.LossScale, tf.float16
""",
}


class TrainExperimentalTest(rewriting.RewriteTestCase):
    @parameterized.parameters(*DIFFS)
    def test_diff(self, name):
        self.check_diff(DIFFS[name])

    @parameterized.product(
        name=MEMBERS, prefix=("tf", "tf.compat.v1", "tf.compat.v2", "tf.compat.v1.compat.v1")
    )
    def test_attribute(self, name, prefix):
        self.check_diff(
            f"""
             import tensorflow as tf
            +import tf_lossscale_compat

            -x = {prefix}.train.experimental.{name}
            +x = tf_lossscale_compat.train.experimental.{name}
             y = tf.constant(1)
            """,
        )

    @parameterized.parameters(
        (
            "from tensorflow.train.experimental import DynamicLossScale as D, LossScale",
            "from tf_lossscale_compat.train.experimental import DynamicLossScale as D, LossScale",
        ),
        (
            "from tensorflow.compat.v1.train.experimental import MixedPrecisionLossScaleOptimizer",
            "from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer",
        ),
        (
            "from tensorflow.train.experimental import DynamicLossScale, PythonState",
            "from tensorflow.train.experimental import PythonState\n"
            "from tf_lossscale_compat.train.experimental import DynamicLossScale",
        ),
        (
            "from tensorflow.train.experimental import (\n    LossScale,\n    PythonState,\n)",
            "from tensorflow.train.experimental import (\n    PythonState,\n)\n"
            "from tf_lossscale_compat.train.experimental import LossScale",
        ),
        (
            "from tensorflow.train.experimental import (\n    PythonState,\n    LossScale,\n)",
            "from tensorflow.train.experimental import (\n    PythonState,\n)\n"
            "from tf_lossscale_compat.train.experimental import LossScale",
        ),
    )
    def test_import(self, before, after):
        self.check_transformed(f"{before}\n", f"{after}\n")

    def test_nothing_to_do(self):
        self.check_noop(
            """
            import tensorflow as tf
            from tensorflow.train import experimental

            tf.train.experimental.PythonState()
            experimental.PythonState()
            getattr(tf.train.experimental, "PythonState")
            """
        )


class PlaceOfImportsTest(rewriting.RewriteTestCase):
    """An import is added where the one that the name depended on is executed."""

    def test_what_a_lazy_import_brings_is_there_when_it_runs(self):
        before = rewriting.text_of(
            """
            def load():
                global tf
                import tensorflow as tf
            def make():
                return tf.train.experimental.FixedLossScale
            """
        )
        namespace = {}
        with mock.patch.dict(sys.modules, tensorflow=mock.Mock(), tf_lossscale_compat=mock.Mock()):
            exec(self.migrate(before).text, namespace)
            namespace["load"]()
            made = namespace["make"]()
            self.assertIs(
                made, sys.modules["tf_lossscale_compat"].train.experimental.FixedLossScale
            )

    @parameterized.parameters(
        "def f():\n  tf = None\n  def g():\n    nonlocal tf\n    import tensorflow as tf\n"
        "  g()\n  tf.train.experimental.FixedLossScale(8)\n",
        "def f():\n  global contrib\n  from tensorflow import contrib\n\n"
        "def g():\n\n  contrib.mixed_precision.FixedLossScaleManager(8)\n",
    )
    def test_other_imports_for_others_are_reported(self, before):
        result = self.migrate(before)
        self.assertEqual(result.text, before)
        self.assertIn("is imported by a function for others", result.findings[-1].message)
        self.assertEqual(result.findings[-1].line, 7)

    def test_several_branches(self):
        for before in (
            "try:\n  import tensorflow.compat.v1 as tf\nexcept Error:\n  import tensorflow as tf\n",
            "if old:\n  import tensorflow as tf\nelif new:\n  import tensorflow.compat.v1 as tf\n",
            "if old:\n  import tensorflow as tf\nelse: import tensorflow.compat.v1 as tf # two\n",
            "try: import tensorflow as tf\nexcept E:\n  import tensorflow as tf\nfinally:\n  f()\n",
        ):
            with self.subTest(before):
                after = before + "import tf_lossscale_compat\n"
                use = "\nx = {}.train.experimental.LossScale, tf.float16\n"
                self.check_transformed(
                    before + use.format("tf"), after + use.format("tf_lossscale_compat")
                )

    def test_at_the_end_of_a_file_without_line_end(self):
        self.check_transformed(
            "x = lambda: tf.train.experimental.LossScale, tf.a\nimport tensorflow as tf",
            "x = lambda: tf_lossscale_compat.train.experimental.LossScale, tf.a\n"
            "import tensorflow as tf\nimport tf_lossscale_compat",
        )

    def test_tensorflow_goes_if_nothing_else_is_taken_from_it(self):
        self.check_transformed(
            "import tensorflow as tf\nx = tf.train.experimental.LossScale\n",
            "import tf_lossscale_compat\nx = tf_lossscale_compat.train.experimental.LossScale\n",
        )

    @parameterized.parameters(
        "# tf: see above", "exec('tf.float16')", "__all__ = ['tf']", "y: 'tf.DType' = None"
    )
    def test_tensorflow_stays_if_its_name_is_still_said(self, line):
        self.check_transformed(
            f"import tensorflow as tf\nx = tf.train.experimental.LossScale\n{line}\n",
            "import tensorflow as tf\nimport tf_lossscale_compat\n"
            f"x = tf_lossscale_compat.train.experimental.LossScale\n{line}\n",
        )

    def test_the_package_name_is_taken(self):
        self.check_noop(
            """
            import tensorflow as tf
            def f(tf_lossscale_compat):
                return tf.train.experimental.LossScale, tf.float16
            """,
            [(3, 12, "`tf_lossscale_compat` is another object's name here")],
        )


if __name__ == "__main__":
    absltest.main()
