"""`tf.contrib.mixed_precision` of TensorFlow 1: each form in which code reaches it."""

from absl.testing import absltest, parameterized

from tests import rewriting

MEMBERS = (
    "LossScaleManager",
    "FixedLossScaleManager",
    "ExponentialUpdateLossScaleManager",
    "LossScaleOptimizer",
)


# By what a case shows: lines with "-" before and with "+" after.
DIFFS = {
    "code that uses the imported names stays": """
-from tensorflow.contrib.mixed_precision.python import loss_scale_manager as lsm_lib
-from tensorflow.contrib.mixed_precision import LossScaleOptimizer
+from tf_lossscale_compat.contrib import mixed_precision as lsm_lib
+from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer


 class Manager(lsm_lib.ExponentialUpdateLossScaleManager):
     def variables(self):
         return [self._loss_scale, self._num_good_steps, self._num_bad_steps]


 def wrap(opt, manager=lsm_lib.FixedLossScaleManager(128)) -> LossScaleOptimizer:
     return LossScaleOptimizer(opt, manager)
""",
    "every place of a name": """
 import functools
 import tensorflow as tf
+import tf_lossscale_compat


 @functools.singledispatch
-def scale(x: tf.contrib.mixed_precision.LossScaleManager, y=tf.float16):
-    assert isinstance(x, (int, tf.contrib.mixed_precision.FixedLossScaleManager))
-    return f"{tf.contrib.mixed_precision.LossScaleOptimizer!r}"
+def scale(x: tf_lossscale_compat.contrib.mixed_precision.LossScaleManager, y=tf.float16):
+    assert isinstance(x, (int, tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager))
+    return f"{tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer!r}"


-@scale.register(tf.contrib.mixed_precision.FixedLossScaleManager)
-class Own(tf.contrib.mixed_precision.LossScaleManager):
-    made_by = lambda self: [tf.contrib.mixed_precision for _ in range(3)]
+@scale.register(tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager)
+class Own(tf_lossscale_compat.contrib.mixed_precision.LossScaleManager):
+    made_by = lambda self: [tf_lossscale_compat.contrib.mixed_precision for _ in range(3)]
""",
    "horovod inside and outside": """
 import horovod.tensorflow as hvd
 import tensorflow as tf
+import tf_lossscale_compat

-lso = tf.contrib.mixed_precision.LossScaleOptimizer
+lso = tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer
 inside = lso(hvd.DistributedOptimizer(tf.train.AdamOptimizer()), manager)
 hvd.DistributedOptimizer(
-    tf.contrib.mixed_precision.LossScaleOptimizer(opt, manager)
+    tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer(opt, manager)
 ).minimize(loss, global_step=step)
""",
    "new name of the namespace": """
 import tensorflow as tf
+import tf_lossscale_compat

-mp = tf.contrib.mixed_precision
+mp = tf_lossscale_compat.contrib.mixed_precision
 mp.FixedLossScaleManager(tf.constant(8.0))
""",
    "private modules by attribute": """
-from tensorflow.contrib.mixed_precision import python as private
+import tf_lossscale_compat

-private.loss_scale_manager.FixedLossScaleManager(2)
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(2)
""",
    "stays for another member": """
 from tensorflow import contrib
+import tf_lossscale_compat

-contrib.mixed_precision.FixedLossScaleManager(8)
-contrib.slim.flatten(contrib.mixed_precision)
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(8)
+contrib.slim.flatten(tf_lossscale_compat.contrib.mixed_precision)
""",
    "goes out of a longer import": """
 from tensorflow import (
-    contrib,
     keras,  # this one stays
     nn,
 )
+import tf_lossscale_compat

-contrib.mixed_precision.FixedLossScaleManager(8)
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(8)
""",
    "of several names only ours move": """
-from tensorflow.contrib import layers, mixed_precision, slim
+from tensorflow.contrib import layers, slim
+from tf_lossscale_compat.contrib import mixed_precision
""",
    "the name tensorflow stays bound": """
-import tensorflow.contrib.mixed_precision
+import tensorflow, tf_lossscale_compat.contrib.mixed_precision

-tensorflow.contrib.mixed_precision.FixedLossScaleManager(tensorflow.constant(8.0))
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(tensorflow.constant(8.0))
""",
    "tensorflow is imported besides": """
 import tensorflow
-import tensorflow.contrib.mixed_precision
+import tf_lossscale_compat.contrib.mixed_precision

-tensorflow.contrib.mixed_precision.FixedLossScaleManager(tensorflow.constant(8.0))
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(tensorflow.constant(8.0))
""",
    "exported names stay": """
 from tensorflow import contrib
+import tf_lossscale_compat

 __all__ = ["contrib"]
-contrib.mixed_precision.FixedLossScaleManager(8)
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(8)
""",
}
FINDINGS = {
    "stays for another member": [(4, 1, "tf_slim")],
    "of several names only ours move": [
        (1, 32, "write `tf_slim`"),
        (1, 57, "import tf_slim as slim"),
    ],
    "exported names stay": [(1, 24, "remove this import")],
}


class ContribTest(rewriting.RewriteTestCase):
    @parameterized.parameters(*DIFFS)
    def test_diff(self, name):
        self.check_diff(DIFFS[name], FINDINGS.get(name, ()))

    @parameterized.parameters(*MEMBERS)
    def test_attribute(self, name):
        self.check_diff(
            f"""
             import tensorflow as tf
            +import tf_lossscale_compat

            -x = tf.constant(tf.contrib.mixed_precision.{name})
            +x = tf.constant(tf_lossscale_compat.contrib.mixed_precision.{name})
            """,
        )

    @parameterized.parameters(
        ("import tensorflow as tf", "tf"),
        ("import tensorflow", "tensorflow"),
        ("import tensorflow.compat.v1 as tf", "tf"),
        ("from tensorflow.compat import v1 as tf1", "tf1"),
        ("import tensorflow", "tensorflow.compat.v1"),
    )
    def test_whatever_tensorflow_is_called(self, statement, name):
        self.check_diff(
            f"""
             {statement}
            +import tf_lossscale_compat

            -manager = {name}.contrib.mixed_precision.FixedLossScaleManager(5000)
            +manager = tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(5000)
             {name}.reset_default_graph()
            """,
        )

    @parameterized.parameters(
        (
            "from tensorflow.contrib.mixed_precision"
            " import FixedLossScaleManager, LossScaleOptimizer",
            "from tf_lossscale_compat.contrib.mixed_precision"
            " import FixedLossScaleManager, LossScaleOptimizer",
        ),
        (
            "from tensorflow.contrib.mixed_precision import LossScaleOptimizer as LSO",
            "from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer as LSO",
        ),
        (
            "from tensorflow.contrib.mixed_precision.python import loss_scale_manager as lsm_lib",
            "from tf_lossscale_compat.contrib import mixed_precision as lsm_lib",
        ),
        (
            "from tensorflow.contrib.mixed_precision.python import loss_scale_manager",
            "from tf_lossscale_compat.contrib import mixed_precision as loss_scale_manager",
        ),
        (
            "from tensorflow.contrib.mixed_precision.python"
            " import loss_scale_manager as m, loss_scale_optimizer as o",
            "from tf_lossscale_compat.contrib import mixed_precision as m, mixed_precision as o",
        ),
        (
            "from tensorflow.contrib.mixed_precision.python.loss_scale_manager"
            " import ExponentialUpdateLossScaleManager",
            "from tf_lossscale_compat.contrib.mixed_precision"
            " import ExponentialUpdateLossScaleManager",
        ),
        (
            "from tensorflow.contrib.mixed_precision.python.loss_scale_optimizer"
            " import LossScaleOptimizer",
            "from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer",
        ),
        (
            "from tensorflow.contrib import mixed_precision as contrib_mixed_precision",
            "from tf_lossscale_compat.contrib import mixed_precision as contrib_mixed_precision",
        ),
        (
            "from tensorflow.contrib import mixed_precision",
            "from tf_lossscale_compat.contrib import mixed_precision",
        ),
        (
            "import tensorflow.contrib.mixed_precision as mp",
            "import tf_lossscale_compat.contrib.mixed_precision as mp",
        ),
        (
            "import os, tensorflow.contrib.mixed_precision as mp, sys",
            "import os, tf_lossscale_compat.contrib.mixed_precision as mp, sys",
        ),
        (
            "import tensorflow.contrib.mixed_precision",
            "import tf_lossscale_compat.contrib.mixed_precision",
        ),
    )
    def test_import(self, before, after):
        self.check_transformed(f"{before}\n", f"{after}\n")
        # And where it is not alone: what comes before and after it stays.
        around = "import os\n{}  # why\nprint(os)\n"
        self.check_transformed(around.format(before), around.format(after))

    def test_nothing_to_do(self):
        self.check_noop(
            """
            from tf_lossscale_compat.contrib.mixed_precision import FixedLossScaleManager
            from os import contrib, mixed_precision

            contrib.mixed_precision.LossScaleOptimizer(mixed_precision.FixedLossScaleManager)
            self.contrib.mixed_precision.LossScaleOptimizer()
            # tf.contrib.mixed_precision
            """
        )


class AboveTest(rewriting.RewriteTestCase):
    """Imports of `tf.contrib` itself go when nothing else uses them: they fail on TensorFlow 2."""

    @parameterized.parameters(
        ("from tensorflow import contrib", "contrib"),
        ("import tensorflow.contrib as tfc", "tfc"),
        ("from tensorflow import contrib as tfc", "tfc"),
    )
    def test_goes(self, statement, name):
        self.check_diff(
            f"""
            -{statement}
            +import tf_lossscale_compat

            -{name}.mixed_precision.FixedLossScaleManager(8)
            +tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(8)
            """,
        )


if __name__ == "__main__":
    absltest.main()
