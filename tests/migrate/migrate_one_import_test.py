"""The new import stands once where one is enough, whatever was imported of TensorFlow and Keras."""

from absl.testing import absltest, parameterized

from tests import rewriting

KERAS = "tf_lossscale_compat.keras.mixed_precision.experimental"


# By what a case shows: lines with "-" before and with "+" after.
DIFFS = {
    "keras and tensorflow": f"""
 import keras
+import {KERAS}
 import os
 import tensorflow as tf

-a = keras.mixed_precision.experimental.LossScaleOptimizer(keras.optimizers.SGD(), 8)
-b = tf.keras.mixed_precision.experimental.LossScaleOptimizer(tf.nn, 8)
+a = {KERAS}.LossScaleOptimizer(keras.optimizers.SGD(), 8)
+b = {KERAS}.LossScaleOptimizer(tf.nn, 8)
""",
    "both replaced": f"""
-import tensorflow as tf
-import keras as own  # The line stays for what it says.
-from tensorflow import keras as k
+import {KERAS}
+import {KERAS}  # The line stays for what it says.

-tf.keras.mixed_precision.experimental.LossScaleOptimizer(a, 8)
-own.mixed_precision.experimental.LossScaleOptimizer(b, 8)
-k.mixed_precision.experimental.LossScaleOptimizer(c, 8)
+{KERAS}.LossScaleOptimizer(a, 8)
+{KERAS}.LossScaleOptimizer(b, 8)
+{KERAS}.LossScaleOptimizer(c, 8)
""",
    "one kept and one replaced": """
 import tensorflow as tf
-from tensorflow import contrib
+import tf_lossscale_compat

-tf.contrib.mixed_precision.LossScaleOptimizer(tf.nn, m)
-contrib.mixed_precision.FixedLossScaleManager(8)
+tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer(tf.nn, m)
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(8)
""",
    "not before it is needed": """
 import tensorflow as tf
+import tf_lossscale_compat

-tf.contrib.mixed_precision.LossScaleOptimizer(tf.nn, m)
+tf_lossscale_compat.contrib.mixed_precision.LossScaleOptimizer(tf.nn, m)

-from tensorflow import contrib
-contrib.mixed_precision.FixedLossScaleManager(8)
+import tf_lossscale_compat
+tf_lossscale_compat.contrib.mixed_precision.FixedLossScaleManager(8)
""",
    "branches and functions below one at the top": f"""
 import tensorflow as tf
+import {KERAS}

 if condition:
     import keras

 def f():
     import tf_keras
-    return tf_keras.mixed_precision.experimental.LossScaleOptimizer(tf_keras.x, 8)
+    return {KERAS}.LossScaleOptimizer(tf_keras.x, 8)

-tf.keras.mixed_precision.experimental.LossScaleOptimizer(tf.nn, 8)
-keras.mixed_precision.experimental.LossScaleOptimizer(keras.x, 8)
+{KERAS}.LossScaleOptimizer(tf.nn, 8)
+{KERAS}.LossScaleOptimizer(keras.x, 8)
""",
    "each of two branches": f"""
 if condition:
     import keras
 else:
     from tensorflow import keras
+import {KERAS}

-keras.mixed_precision.experimental.LossScaleOptimizer(keras.x, 8)
+{KERAS}.LossScaleOptimizer(keras.x, 8)
""",
}


class OneImportTest(rewriting.RewriteTestCase):
    @parameterized.parameters(*DIFFS)
    def test_diff(self, name):
        self.check_diff(DIFFS[name])


if __name__ == "__main__":
    absltest.main()
