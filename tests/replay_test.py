"""A replay names where a planted fault is, in which pass, and leaves everything as it was."""

import contextlib
import io
import random
import sys

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes, modes
from tf_lossscale_compat import _tf
from tf_lossscale_compat.loss_scale import DynamicLossScale
from tf_lossscale_compat.monitoring import replay

tf1 = tf.compat.v1


def kerases():
    """One home for each Keras that there is, whatever optimizers it has."""
    return list({id(home.keras): home for home in keras_homes.available()}.values())


def each_keras(test):
    homes = [{"testcase_name": repr(home), "home": home} for home in kerases()]
    return parameterized.named_parameters(homes)(test)


@tf.custom_gradient
def overflowing_gradient(x):
    """The identity, whose gradient is 2**14 times too large, in float16."""

    def gradient(dy):
        return tf.cast(tf.cast(dy, tf.float16) * 2.0**14, dy.dtype)

    return tf.identity(x), gradient


def faulty_layer(home, fault):
    """A class of layers that calls `fault` on its input."""

    class Faulty(home.keras.layers.Layer):
        def call(self, x):
            return fault(x)

        def compute_output_shape(self, input_shape):
            return input_shape

    return Faulty


def names_of(result, kind):
    return [row.name for row in result if row.kind == kind]


def row_named(result, kind, name):
    found = [row for row in result if (row.kind, row.name) == (kind, name)]
    assert len(found) == 1, (kind, name, [(row.kind, row.name) for row in result])
    return found[0]


class FunctionTest(modes.EagerTestCase):
    def test_rows_hold_magnitudes_and_counts(self):
        values = np.array([[0.0, -3.0, 2.0**-15], [np.nan, np.inf, -np.inf]], np.float16)
        result = replay(tf.reduce_sum, values, show=False)
        row = result[0]
        self.assertEqual(
            ("forward", "inputs", "float16", (2, 3), 2.0**-15, 3.0, 1, 1, 1, 1, 1, 6, 3),
            (*row, row.nonfinite),
        )
        self.assertIs(row, result.first_nonfinite)
        self.assertEqual((None, None), replay(tf.reduce_sum, [np.nan], show=False)[0][4:6])
        self.assertEqual((None, 0.0), replay(tf.reduce_sum, np.zeros(2, "f"), show=False)[0][4:6])

    @parameterized.parameters("float16", "bfloat16", "float32", "float64", "complex64")
    def test_dtypes(self, dtype):
        values = tf.cast([1.0, 2.0, 0.0], dtype)
        result = replay(lambda x: tf.abs(tf.reduce_sum(x)), values, show=False)
        row = result[0]
        parts = 2 if dtype == "complex64" else 1
        self.assertEqual((dtype, (3,), 2.0), (row.dtype, row.shape, row.abs_max))
        self.assertEqual((3 * parts, 1 + 3 * (parts - 1)), (row.size, row.zeros))

    def test_forward_fault(self):
        w = tf.Variable([2.0, 3.0], name="w")

        def forward(x):
            hidden = tf.multiply(tf.cast(w, tf.float16), x, name="before")
            hidden = tf.multiply(hidden, 3e4, name="fault")
            return tf.reduce_mean(tf.tanh(hidden, name="after") * hidden)

        result = replay(forward, np.float16([1.0, 2.0]), loss_scale=128.0, show=False)
        self.assertEqual(("forward", "fault"), result.first_nonfinite[:2])
        self.assertEqual("forward", result.cause)
        self.assertIsNone(result.finite_scale)
        self.assertEqual(6.0, row_named(result, "forward", "before").abs_max)
        self.assertIn("Forward pass", result.summary())
        self.assertIn("no loss scale helps", result.summary())
        # Both passes in the order of execution, then gradients.
        kinds = [row.kind for row in result]
        self.assertEqual(sorted(kinds, key=["forward", "backward", "gradient"].index), kinds)
        forwards = names_of(result, "forward")
        self.assertLess(forwards.index("before"), forwards.index("fault"))
        self.assertLess(forwards.index("fault"), forwards.index("after"))
        self.assertEqual(["w"], names_of(result, "gradient"))

    def test_backward_fault(self):
        w = tf.Variable([1.0, 1.0], name="w")

        def forward(x):
            with tf1.name_scope("before"):
                hidden = tf.cast(w, tf.float16) * x
            with tf1.name_scope("planted"):
                hidden = overflowing_gradient(hidden)
            with tf1.name_scope("after"):
                return tf.reduce_sum(tf.cast(hidden, tf.float32))

        result = replay(forward, np.float16([1.0, 0.5]), loss_scale=256.0, show=False)
        self.assertEqual("backward", result.first_nonfinite.kind)
        self.assertIn("planted", result.first_nonfinite.name)
        self.assertEqual("backward", result.cause)
        # 2**14 times 2 is finite in float16, times 4 it is not.
        self.assertEqual(2.0, result.finite_scale)
        self.assertIn("Backward pass", result.summary())
        self.assertIn("Loss scale 256 is too large for this batch: with 2,", result.summary())
        self.assertEqual(256.0, row_named(result, "backward", "loss_scale").abs_max)
        fine = replay(forward, np.float16([1.0, 0.5]), loss_scale=2.0, show=False)
        self.assertIsNone(fine.cause)
        self.assertIsNone(fine.first_nonfinite)
        self.assertEqual(2.0**15, row_named(fine, "gradient", "w").abs_max)

    def test_backward_fault_that_no_scale_helps(self):
        w = tf.Variable([0.0, 1.0], name="w")
        result = replay(lambda: tf.reduce_sum(tf.sqrt(w)), loss_scale=8.0, show=False)
        self.assertEqual("backward", result.cause)
        self.assertIn("Sqrt", result.first_nonfinite.name)
        self.assertIsNone(result.finite_scale)
        self.assertIn("Loss scale 1 gives non-finite gradients too", result.summary())

    def test_forward_fault_behind_a_finite_loss(self):
        w = tf.Variable([0.0, 1.0], name="w")

        def forward():
            return tf.reduce_sum(tf.compat.v2.where(w > 0.0, tf.math.log(w), tf.zeros_like(w)))

        result = replay(forward, loss_scale=8.0, show=False)
        self.assertEqual(("forward", "Log"), (result.cause, result.first_nonfinite.name))
        self.assertIn("The loss is finite, but gradients are not", result.summary())

    def test_a_mask_is_not_blamed_for_the_backward_pass(self):
        weight = tf.Variable([1.0, 1.0], name="weight")

        def forward(x):
            mask = tf.concat([tf1.where(x > 100.0, x, tf.fill(x.shape, -np.inf)), [0.0]], 0)
            return tf.reduce_sum(tf.nn.softmax(mask)) + tf.reduce_sum(tf.sqrt(weight - 1.0))

        result = replay(forward, tf.constant([1.0, 2.0]), show=False)
        self.assertEqual("backward", result.cause)
        self.assertNotEqual("forward", result.first_nonfinite.kind)

    def test_infinite_values_that_come_to_nothing(self):
        w = tf.Variable([1.0, 2.0], name="w")
        mask = tf.constant([0.0, -np.inf])
        result = replay(lambda: tf.reduce_max(tf.nn.softmax(w + mask)), show=False)
        self.assertIsNone(result.cause)
        self.assertIsNone(result.first_nonfinite)
        self.assertIn("which come to nothing", result.summary())

    def test_overflow_of_the_scale_itself(self):
        """A float16 loss cannot be scaled by 2**16."""
        w = tf.Variable(1.0, name="w")
        result = replay(lambda: tf.cast(w, tf.float16) * 0.5, loss_scale=2.0**16, show=False)
        self.assertEqual(("backward", "loss_scale"), result.first_nonfinite[:2])
        self.assertEqual(2.0**15, result.finite_scale)

    def test_scaled_value_that_nothing_depends_on(self):
        """The value of the scaled loss overflows, its gradients do not."""
        w = tf.Variable(600.0, name="w")
        result = replay(lambda: tf.cast(w, tf.float16), loss_scale=1024.0, show=False)
        self.assertIsNone(result.cause)

    def test_variable_that_was_not_finite(self):
        w = tf.Variable([1.0, np.nan], name="broken")
        result = replay(lambda x: tf.reduce_sum(w * x), np.ones(2, "f"), show=False)
        self.assertEqual(("variable", "broken"), result.first_nonfinite[:2])
        self.assertIn("before anything ran", result.summary())

    def test_functions_in_functions(self):
        w = tf.Variable([1.0], name="w")
        inner = tf.function(lambda x: tf.exp(w * x, name="planted"))
        outer = tf.function(lambda x: tf.reduce_sum(inner(x) * 2.0))
        result = replay(outer, np.float32([1000.0]), show=False)
        self.assertEqual("planted", result.first_nonfinite.name)
        self.assertEqual([], result.notes)
        self.assertFalse(getattr(tf.config, "functions_run_eagerly", lambda: False)())

    def test_python_control_flow(self):
        w = tf.Variable(2.0, name="w")

        @tf.function
        def forward(x):
            if x > 0.0:
                return x * w
            return x

        result = replay(forward, np.float32(3.0), loss_scale=2.0, show=False)
        self.assertEqual(6.0, result[-1].abs_max)
        self.assertIn("Not looked into: ", result.notes[0])

        def calls(x):  # Which is inlined only where it is converted.
            return forward(x) * 2.0

        result = replay(calls, np.float32(3.0), loss_scale=2.0, show=False)
        self.assertEqual(12.0, row_named(result, "gradient", "w").abs_max)
        self.assertIn("PartitionedCall", result.notes[0])

    def test_compiled_function(self):
        w = tf.Variable([1.0], name="w")
        inner = modes.compiled(lambda x: tf.exp(w * x, name="planted"))
        result = replay(lambda x: tf.reduce_sum(inner(x)), np.float32([1000.0]), show=False)
        self.assertEqual("planted", result.first_nonfinite.name)

    def test_nothing_changes(self):
        """No variable, no random number and nothing printed; assignments count within the run."""
        w, steps = tf.Variable(2.0, name="w"), tf.Variable(1.0, name="steps")
        ran = []

        def forward(x):
            steps.assign_add(1.0)
            tf.numpy_function(lambda: ran.append(1), [], [])
            tf.print("not to be seen", output_stream=sys.stderr)
            noise = tf.random.uniform([]) + random.random() + np.random.rand()
            return steps * w * x + 0.0 * noise

        seed = getattr(tf.random, "set_seed", None) or tf1.set_random_seed
        seed(1)
        expected = [float(tf.random.uniform([])) for _ in range(2)]
        seed(1)
        drawn = [float(tf.random.uniform([]))]
        python, numpy = random.getstate(), np.random.get_state()[1].tolist()
        for _ in range(2):
            result = replay(forward, np.float32(3.0), loss_scale=4.0, show=False)
            # The steps are 2 in each run, and the scale is 4.
            self.assertEqual(24.0, row_named(result, "gradient", "w").abs_max)
        drawn.append(float(tf.random.uniform([])))
        self.assertEqual(expected, drawn)
        self.assertEqual((python, numpy), (random.getstate(), np.random.get_state()[1].tolist()))
        self.assertEqual([2.0, 1.0], [float(w.numpy()), float(steps.numpy())])
        self.assertEqual([], ran)

    def test_trials_start_from_the_same_state(self):
        """Every loss scale is tried with the state that the first had."""
        w, steps = tf.Variable(1.0, name="w"), tf.Variable(0.0, name="steps")

        def forward():
            count = steps.assign_add(1.0)
            return overflowing_gradient(w) * count

        self.assertEqual(2.0, replay(forward, loss_scale=2.0**10, show=False).finite_scale)

    def test_checks_do_not_stop_it(self):
        w = tf.Variable([1.0, 3e38], name="w")

        def forward():
            tf.debugging.assert_less(tf.reduce_sum(w), 0.0)
            value = tf.multiply(w, 10.0, name="planted")
            return tf.reduce_sum(tf.debugging.check_numerics(value, "is bad"))

        result = replay(forward, show=False)
        self.assertEqual("planted", result.first_nonfinite.name)
        if not hasattr(tf.debugging, "enable_check_numerics"):
            self.skipTest("no enable_check_numerics to be under")
        tf.debugging.enable_check_numerics()
        try:
            result = replay(forward, show=False)
            self.assertEqual("planted", result.first_nonfinite.name)
            self.assertTrue(_tf.operations_are_watched())
        finally:
            tf.debugging.disable_check_numerics()

    def test_structures(self):
        """Nested, ragged and integer arguments, sparse gradients, and variables without one."""
        table = tf.Variable(tf.ones([3, 2]) * 4e4, name="table")
        unused = tf.Variable(1.0, name="unused")
        ragged = tf.RaggedTensor.from_row_splits(tf.constant([1.0, np.inf]), [0, 2, 2])

        def forward(batch, ids):
            rows = tf.gather(tf.cast(table, tf.float16), ids)
            embedded = tf.gather(table, ids)
            kept = tf.reduce_sum(embedded)
            if batch is not None:
                kept += tf.reduce_sum(batch["ragged"].flat_values)
            return kept + 0.0 * tf.cast(tf.reduce_sum(rows[:, 0] * 0), tf.float32)

        result = replay(forward, {"ragged": ragged, "none": None}, np.array([2, 2]), show=False)
        self.assertEqual("inputs", result.first_nonfinite.name)
        result = replay(
            forward, None, np.array([2, 2]), variables=[table, unused], loss_scale=4.0, show=False
        )
        # The index comes twice, and its row adds up.
        self.assertEqual(8.0, row_named(result, "gradient", "table").abs_max)
        self.assertEqual(["No gradient: unused"], result.notes)

    def test_gradients_are_in_the_order_of_use(self):
        variables = [tf.Variable(1.0, name=f"w{i}") for i in range(9)]

        def forward():
            return tf.add_n([variables[i] * 2.0 for i in (5, 8, 0, 4, 1, 7, 3, 2, 6)])

        self.assertEqual(
            [f"w{i}" for i in (5, 8, 0, 4, 1, 7, 3, 2, 6)],
            names_of(replay(forward, show=False), "gradient"),
        )

    def test_loss_scales(self):
        w = tf.Variable(1.0, name="w")
        for scale in (64, np.float32(64), tf.constant(64.0), DynamicLossScale(64)):
            self.assertEqual(
                64.0, replay(lambda: w * 1.0, loss_scale=scale, show=False)[-1].abs_max
            )

    def test_print(self):
        w = tf.Variable([1.0, 0.0], name="w")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            result = replay(lambda: tf.reduce_sum(tf.math.log(w)), loss_scale=2.0)
        lines = output.getvalue().splitlines()
        self.assertEqual(str(result), output.getvalue()[:-1])
        self.assertEqual(result.summary(), lines[-1])
        arrows = [line for line in lines if line.startswith("->")]
        self.assertEqual(1, len(arrows))
        self.assertRegex(arrows[0], r"^-> forward +Log +float32 +2 ")
        self.assertEqual(len(result) + 2, len(lines))
        # Columns of numbers are aligned at their right.
        self.assertEqual(1, len({len(line) for line in lines[:-1]}))
        self.assertIn("first non-finite: forward Log", repr(result))

    def test_long_tables_are_cut(self):
        def forward(x):
            for i in range(110):
                x = x * (1e38 if i == 70 else 1.0)
            return tf.reduce_sum(x)

        result = replay(forward, np.float32([10.0]), show=False)
        self.assertGreater(len(result), 110)
        lines = str(result).splitlines()
        self.assertLess(len(lines), 100)
        self.assertEqual(1, sum(line.startswith("->") for line in lines))
        self.assertTrue(any("rows left out" in line for line in lines))
        self.assertEqual(len(result) + 1, len(result.table().splitlines()))

    def test_iterators_are_not_moved(self):
        numbers = iter(tf.data.Dataset.from_tensor_slices([1.0, 2.0]))
        with self.assertRaisesRegex(ValueError, "from an iterator"):
            replay(lambda: next(numbers) * 2.0, show=False)
        self.assertEqual(1.0, float(next(numbers)))

    def test_bad_arguments(self):
        w = tf.Variable(1.0)
        ran = []

        def forward():
            ran.append(1)
            return w * 1.0

        for error, words, arguments in (
            (TypeError, "forward must be .* got 3", {"forward": 3}),
            (ValueError, "loss_scale must be above zero .*, got 0", {"loss_scale": 0}),
            (ValueError, "loss_scale must be finite .* got nan", {"loss_scale": np.nan}),
            (ValueError, "loss_scale must be a real number .* got 'x'", {"loss_scale": "x"}),
            (ValueError, "detail must be .* got 'rows'", {"detail": "rows"}),
            (TypeError, "variables must be .* got 1", {"variables": [1]}),
            (TypeError, "show must be a bool, got 1", {"show": 1}),
            (TypeError, "training must be a bool, got None", {"training": None}),
            (ValueError, "session does not go with .* got 1", {"session": 1}),
            (ValueError, "feed_dict does not go with .* got {}", {"feed_dict": {}}),
            (ValueError, "loss does not go with .* got <", {"loss": tf.reduce_sum}),
            (ValueError, "targets does not go with .* got 1", {"targets": 1}),
        ):
            with self.assertRaisesRegex(error, words):
                replay(**{"forward": forward, "show": False, **arguments})
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            with self.assertRaisesRegex(ValueError, "under a distribution strategy"):
                replay(forward, show=False)
        with self.assertRaisesRegex(ValueError, "outside of tf.function"):
            tf.function(lambda: replay(forward, show=False), autograph=False)()
        self.assertEqual([], ran)
        for result, words in (
            (tf.ones([2]), r"a scalar, got shape \(2,\)"),
            (tf.ones([], tf.int32), "a float, got dtype int32"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                replay(lambda result=result: result, show=False)

    def test_function_that_creates_variables(self):
        made = []

        @tf.function
        def forward():
            if not made:
                made.append(tf.Variable(1.0, name="late"))
            return made[0] * 1.0

        with self.assertRaisesRegex(ValueError, "forward creates a variable"):
            replay(forward, show=False)

    def test_mirrored_variables(self):
        if keras_homes.VERSION < (2, 0):
            self.skipTest("1.15 mirrors variables in graphs")
        strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
        with strategy.scope():
            w = tf.Variable(3.0, name="w")
            steps = tf.Variable(
                1.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )

        def forward(x):
            steps.assign_add(1.0)
            return w * x * steps

        result = replay(forward, np.float32(5.0), loss_scale=2.0, show=False)
        self.assertEqual(20.0, row_named(result, "gradient", "w").abs_max)
        self.assertEqual(1.0, float(steps.numpy()))


class KerasTest(modes.EagerTestCase):
    def model(self, home, fault):
        """A model with a named fault in a model within it, and a dense layer used twice."""
        keras = home.keras
        layers = keras.layers
        inner = home.model(
            layers.Dense(4, kernel_initializer="ones", name="inner_first"),
            faulty_layer(home, fault)(name="planted"),
            layers.Dense(4, kernel_initializer="ones", name="inner_last"),
            inputs=(4,),
        )
        given = layers.Input((4,))
        shared = layers.Dense(4, kernel_initializer="ones", name="shared")
        hidden = inner(shared(given))
        outputs = layers.Add(name="sum")([shared(hidden), hidden])
        return keras.Model(given, outputs), inner.name

    @each_keras
    def test_backward_fault(self, home):
        model, inner = self.model(home, overflowing_gradient)
        # What comes back to the planted layer is 1 + 4 from each of four units, times the scale.
        result = replay(
            model, np.ones([2, 4], "f"), loss=tf.reduce_sum, loss_scale=64.0, show=False
        )
        self.assertEqual("backward", result.cause)
        self.assertEqual(("backward", f"{model.name}/{inner}/planted"), result.first_nonfinite[:2])
        after = row_named(result, "backward", f"{model.name}/{inner}/inner_last")
        self.assertEqual((0, 20.0 * 64.0), (after.nonfinite, after.abs_max))
        self.assertIsNone(result.finite_scale)  # 20 times 2**14 is too much.
        small = replay(
            model,
            np.ones([2, 4], "f"),
            loss=lambda outputs: tf.reduce_sum(outputs) / 16.0,
            loss_scale=64.0,
            show=False,
        )
        self.assertEqual(2.0, small.finite_scale)

    @each_keras
    def test_layers_that_do_not_train(self, home):
        model, inner = self.model(home, overflowing_gradient)
        # What comes back to the frozen layer overflows, which no step looks at.
        model.get_layer("shared").trainable = False
        model.get_layer(inner).get_layer("inner_first").trainable = False
        result = replay(
            model, np.ones([2, 4], "f"), loss=tf.reduce_sum, loss_scale=64.0, show=False
        )
        self.assertIsNone(result.cause)
        names = [row.name for row in result if row.kind == "gradient"]
        self.assertLen(names, 2, names)

    @each_keras
    def test_forward_fault(self, home):
        model, inner = self.model(home, lambda x: x * np.inf)
        result = replay(model, np.ones([2, 4], "f"), loss=tf.reduce_sum, show=False)
        self.assertEqual("forward", result.cause)
        self.assertEqual(("forward", f"{model.name}/{inner}/planted"), result.first_nonfinite[:2])
        top = model.name + "/"
        self.assertEqual(
            ["inputs[0]"]
            + [top + "shared"]
            + [f"{top}{inner}/{name}" for name in ("inner_first", "planted", "inner_last")]
            + [top + "shared (call 2)", top + "sum", "loss"],
            names_of(result, "forward"),
        )
        self.assertEqual(
            ["loss"]
            + [top + "shared (call 2)"]
            + [f"{top}{inner}/{name}" for name in ("inner_last", "planted", "inner_first")]
            + [top + "shared"],
            [name for name in names_of(result, "backward") if name != top + "sum[0]"],
        )
        self.assertLen(names_of(result, "gradient"), 6)
        self.assertTrue(all("/" in name for name in names_of(result, "gradient")))

    @each_keras
    def test_detail(self, home):
        model, inner = self.model(home, lambda x: tf.math.log(x * 0.0))
        batch = np.ones([2, 4], "f")
        result = replay(model, batch, loss=tf.reduce_sum, detail="tensors", show=False)
        self.assertIn("planted", result.first_nonfinite.name)
        self.assertIn("Log", result.first_nonfinite.name)

        def forward(x):
            return tf.reduce_sum(model(x))

        result = replay(forward, batch, detail="layers", show=False)
        self.assertEqual(f"{model.name}/{inner}/planted", result.first_nonfinite.name)

    @each_keras
    def test_structures_and_state(self, home):
        """A subclass with dicts, batch normalization and dropout, of which nothing changes."""
        keras = home.keras

        class Block(keras.layers.Layer):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                self.dense = keras.layers.Dense(3, name="dense")
                self.norm = keras.layers.BatchNormalization(name="norm")
                self.drop = keras.layers.Dropout(0.5, seed=1, name="drop")

            def call(self, inputs, training=None):
                hidden = self.norm(self.dense(inputs["x"]), training=training)
                self.last = hidden
                return {"out": self.drop(hidden, training=training), "rest": inputs["x"] * 2.0}

        class Model(keras.Model):
            def __init__(self):
                super().__init__(name="model")
                self.block = Block(name="block")
                self.scale = keras.layers.Dense(1, name="head", kernel_regularizer="l2")

            def call(self, inputs, training=None):
                outputs = self.block(inputs, training=training)
                return self.scale(outputs["out"]), outputs["rest"]

        model = Model()
        batch = {"x": tf.constant(np.arange(12.0).reshape([4, 3]), tf.float32)}
        model(batch)
        last, losses = model.block.last, list(model.losses)
        before = [np.array(value) for value in model.get_weights()]
        call = type(model).__call__

        result = replay(model, batch, loss=lambda outputs: tf.reduce_sum(outputs[0]), show=False)

        for value, now in zip(before, model.get_weights()):
            np.testing.assert_array_equal(value, now)
        self.assertEqual(len(before), len(model.get_weights()))
        self.assertIs(last, model.block.last)
        self.assertEqual(len(losses), len(model.losses))
        self.assertIs(call, type(model).__call__)
        rows = names_of(result, "forward")
        self.assertEqual("inputs[0]['x']", rows[0])
        for name in ("dense", "norm", "drop"):
            self.assertIn("model/block/" + name, rows)
        self.assertNotIn("model/block['rest']", rows)  # The loss does not depend on it.
        # Trained on the batch's own mean, and thinned out.
        normal = row_named(result, "forward", "model/block/norm")
        self.assertLess(normal.abs_max, 2.0)
        dropped = replay(
            model, batch, loss=lambda outputs: tf.reduce_sum(outputs[0]), training=False, show=False
        )
        self.assertGreater(row_named(dropped, "forward", "model/block/norm").abs_max, 0.0)
        self.assertGreater(row_named(result, "forward", "model/block/drop").zeros, 0)
        self.assertEqual(0, row_named(dropped, "forward", "model/block/drop").zeros)
        head = model.scale.kernel
        one = replay(
            model, batch, loss=lambda out: tf.reduce_sum(out[0]), variables=[head], show=False
        )
        self.assertLen(names_of(one, "gradient"), 1)
        self.assertIn("head/kernel", names_of(one, "gradient")[0])

    @each_keras
    def test_masks(self, home):
        """What the model returns is what it returns otherwise, masks included."""
        layers = home.keras.layers
        model = home.model(
            layers.Embedding(5, 3, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
            inputs=(3,),
        )
        batch = np.array([[1, 2, 0], [3, 0, 0]])
        expected = np.asarray(model(batch)).sum()
        result = replay(model, batch, loss=tf.reduce_sum, training=False, show=False)
        loss = row_named(result, "forward", "loss")
        self.assertAllClose(abs(expected), loss.abs_max)

    @each_keras
    def test_python_control_flow(self, home):
        """Converted by autograph, as in `fit`, where that Keras does so."""
        if home.kind == "keras3":
            self.skipTest("Keras 3 converts no code")

        class Model(home.keras.Model):
            def __init__(self):
                super().__init__(name="model")
                self.dense = home.keras.layers.Dense(1, kernel_initializer="ones", name="dense")

            def call(self, inputs):
                outputs = self.dense(inputs)
                if tf.reduce_sum(outputs) > 0.0:
                    outputs *= 2.0
                return outputs

        model = Model()
        batch = tf.ones([1, 3])
        model(batch)
        result = replay(model, batch, loss=tf.reduce_sum, show=False)
        self.assertEqual(6.0, row_named(result, "forward", "loss").abs_max)
        self.assertTrue(result.notes[0].startswith("Not looked into: "), result.notes)

    @each_keras
    def test_losses(self, home):
        """With targets, compiled, and with the losses that layers add."""
        layers = home.keras.layers
        model = home.model(
            layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2"), inputs=(2,)
        )
        x, y = np.ones([2, 2], "f"), np.ones([2, 1], "f")
        square = home.keras.losses.MeanSquaredError()
        result = replay(model, x, targets=y, loss=square, show=False)
        self.assertAllClose(1.0 + 0.02, row_named(result, "forward", "loss").abs_max)
        with self.assertRaisesRegex(ValueError, "loss must be given with targets"):
            replay(model, x, targets=y, show=False)
        with self.assertRaisesRegex(TypeError, "loss must be a function, got 'mse'"):
            replay(model, x, targets=y, loss="mse", show=False)
        result = replay(model, x, show=False)
        self.assertAllClose(0.02, row_named(result, "forward", "loss").abs_max)
        model.compile(home.SGD(0.1), "mse")
        if keras_homes.VERSION < (2, 2):
            self.skipTest("this Keras does not tell what it was compiled with")
        result = replay(model, x, targets=y, show=False)
        self.assertAllClose(1.0 + 0.02, row_named(result, "forward", "loss").abs_max)

    @each_keras
    def test_float16_policy(self, home):
        if keras_homes.VERSION < (2, 0):
            self.skipTest("1.15 sets no policy in eager mode that was turned on late")
        layers = home.keras.layers
        with home.policy("mixed_float16"):
            model = home.model(
                layers.Dense(2, kernel_initializer="ones", name="large"),
                layers.Dense(2, kernel_initializer="ones", name="overflows"),
                layers.Dense(1, kernel_initializer="ones", name="last"),
                inputs=(2,),
            )
        result = replay(
            model,
            np.full([1, 2], 1.7e4, "f"),
            loss=lambda y: tf.cast(y[0, 0], "float32"),
            show=False,
        )
        self.assertEqual(model.name + "/overflows", result.first_nonfinite.name)
        self.assertEqual("float16", result.first_nonfinite.dtype)
        self.assertEqual("forward", result.cause)
        result = replay(
            model,
            np.full([1, 2], 0.125, "f"),
            loss=lambda y: tf.cast(y[0, 0], tf.float32),
            loss_scale=2.0**15,
            show=False,
        )
        self.assertEqual("backward", result.cause)
        # 2**15 each from two units, in float16.
        self.assertEqual(model.name + "/overflows", result.first_nonfinite.name)

    @each_keras
    def test_model_that_is_not_built(self, home):
        model = home.keras.Sequential([home.keras.layers.Dense(1)])
        with self.assertRaisesRegex(ValueError, "is not built"):
            replay(model, np.ones([1, 2], "f"), loss=tf.reduce_sum, show=False)
        self.assertFalse(model.built)


class GraphTest(parameterized.TestCase, tf.test.TestCase):
    def graph(self, resource):
        """A graph with two variables and a session that has moved them; yields what is needed."""
        x = tf1.placeholder(tf.float16, [None, 2], name="x")
        w = tf1.get_variable("w", [2, 2], tf.float32, tf1.ones_initializer(), use_resource=resource)
        hidden = tf.matmul(x, tf.cast(w, tf.float16), name="hidden")
        return x, w, tf.reduce_mean(tf.cast(tf.exp(hidden, name="exp"), tf.float32))

    @parameterized.parameters(False, True)
    def test_faults(self, resource):
        with tf.Graph().as_default() as graph:
            x, w, loss = self.graph(resource)
            halve = tf1.assign(w, w * 0.5)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(halve)
                graph.finalize()
                version = graph.version
                batch = {x: [[5.0, 5.0]]}
                fine = replay(loss, session=session, feed_dict=batch, loss_scale=8.0, show=False)
                self.assertIsNone(fine.cause)
                self.assertEqual(5.0, row_named(fine, "forward", "hidden").abs_max)
                self.assertEqual(["w"], names_of(fine, "gradient"))
                # exp(5) is 148, and times 5 / 2 for w it is 371.
                high = replay(loss, feed_dict=batch, loss_scale=1024.0, show=False)
                self.assertEqual("backward", high.cause)
                self.assertEqual("gradients/exp_grad/mul", high.first_nonfinite.name)
                self.assertEqual(128.0, high.finite_scale)
                bad = replay(loss, feed_dict={"x:0": [[24.0, 0.0], [5.0, 0.0]]}, show=False)
                self.assertEqual(("forward", "exp"), bad.first_nonfinite[:2])
                self.assertEqual("forward", bad.cause)
                self.assertAllEqual(np.full([2, 2], 0.5), session.run(w))
                self.assertEqual(version, graph.version)

    def test_control_flow_and_hooks(self):
        """Loops and conditionals of TensorFlow 1 in a MonitoredSession, whose hooks see nothing."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(modes.control_flow(1))
            stack.enter_context(tf.Graph().as_default())
            x, w, _ = self.graph(False)
            values = tf.cast(x, tf.float32)
            _, looped = tf1.while_loop(
                lambda i, h: i < 3, lambda i, h: (i + 1, tf.matmul(h, w)), [0, values], name="loop"
            )
            chosen = tf1.cond(
                tf.reduce_sum(looped) > 0.0, lambda: looped * 2.0, lambda: tf.matmul(looped, w)
            )
            loss = tf.reduce_sum(tf.multiply(chosen, 1e37, name="planted"))
            calls = []

            class Hook(tf1.train.SessionRunHook):
                def before_run(self, run_context):
                    calls.append(run_context)

            session = stack.enter_context(tf1.train.MonitoredSession(hooks=[Hook()]))
            result = replay(loss, session=session, feed_dict={x: [[1.0, 1.0]]}, show=False)
            self.assertEqual([], calls)
            self.assertIsNone(result.cause)
            # The loss is 3.2e38 and of degree 3 in the four elements of w, all alike.
            self.assertAllClose(3 * 0.8, result[-1].abs_max / 1e38)
            self.assertIn("loop", result.notes[0])
            result = replay(loss, session=session, feed_dict={x: [[9.0, 9.0]]}, show=False)
            self.assertEqual("planted", result.first_nonfinite.name)

    def test_tables(self):
        if not hasattr(tf.lookup, "KeyValueTensorInitializer"):
            self.skipTest("no tables of this kind")
        with tf.Graph().as_default(), tf1.Session() as session:
            table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(["a", "b"], [2.0, 3.0]), 0.0
            )
            words = tf1.placeholder(tf.string, [None])
            loss = tf.reduce_sum(table.lookup(words)) * tf1.get_variable("w", initializer=1.0)
            session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
            result = replay(loss, feed_dict={words: ["a", "b"]}, show=False)
            self.assertEqual(5.0, row_named(result, "gradient", "w").abs_max)

    def test_variable_that_was_not_finite(self):
        with tf.Graph().as_default(), tf1.Session() as session:
            w = tf1.get_variable("broken", initializer=[1.0, np.inf])
            loss = tf.reduce_sum(w)
            session.run(tf1.global_variables_initializer())
            result = replay(loss, show=False)
            self.assertEqual(("variable", "broken"), result.first_nonfinite[:2])

    def test_bad_arguments(self):
        with tf.Graph().as_default():
            _, w, loss = self.graph(False)
            element = tf1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
            element = tf.cast(element, tf.float32)
            with self.assertRaisesRegex(ValueError, "session must be given"):
                replay(loss, show=False)
            with self.assertRaisesRegex(ValueError, "forward must be the loss, a tensor"):
                replay(lambda: loss, show=False)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                with self.assertRaisesRegex(ValueError, "feed_dict must hold the batch"):
                    replay(tf.reduce_sum(w) * element, show=False)
                result = replay(tf.reduce_sum(w) * element, feed_dict={element: 2.0}, show=False)
                self.assertEqual(8.0, row_named(result, "forward", "mul_1").abs_max)
                with self.assertRaisesRegex(ValueError, "feed_dict holds 'y'"):
                    replay(loss, feed_dict={"y": 1}, show=False)
                with self.assertRaisesRegex(ValueError, "inputs .1,. does not go with"):
                    replay(loss, 1, show=False)
                with self.assertRaisesRegex(
                    ValueError, "loss_scale must be a number in graph mode"
                ):
                    replay(loss, loss_scale=DynamicLossScale(), show=False)
            with tf.Graph().as_default(), tf1.Session() as other:
                with self.assertRaisesRegex(ValueError, "session must have the graph"):
                    replay(loss, session=other, show=False)


if __name__ == "__main__":
    tf.test.main()
