"""Custom training steps with the Keras wrappers: each gradient is divided exactly once."""

import functools
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes, replicas
from tests.keras_homes import Older, Stable, arrays, compiled, number, variables_of

tf1 = tf.compat.v1
# Where functions do not compile with XLA, `modes.compiled` skips with the reason.
MODES = ("function", "eager", "jit")


class Step:
    """A training step whose loss has the gradients that it is called with."""

    def __init__(self, opt, variables):
        self.opt = opt
        self.variables = variables

    def loss(self, coefficients):
        pairs = zip(self.variables, coefficients)
        return tf.add_n([tf.reduce_sum(tf.convert_to_tensor(v) * c) for v, c in pairs])

    def scaled_gradients(self, scale, coefficients):
        with tf.GradientTape() as tape:
            loss = scale(self.loss(coefficients))
        return tape.gradient(loss, self.variables)

    def keras_3(self, *coefficients):
        grads = self.scaled_gradients(self.opt.scale_loss, coefficients)
        self.opt.apply_gradients(zip(grads, self.variables))
        return grads[0]

    def keras_3_apply(self, *coefficients):
        grads = self.scaled_gradients(self.opt.scale_loss, coefficients)
        self.opt.apply(grads, self.variables)
        return grads[0]

    def by_hand(self, *coefficients, scale=None):
        grads = self.scaled_gradients(scale or self.opt.get_scaled_loss, coefficients)
        self.opt.apply_gradients(zip(self.opt.get_unscaled_gradients(grads), self.variables))
        return grads[0]

    def by_hand_callable(self, *coefficients):
        return self.by_hand(
            *coefficients, scale=lambda loss: self.opt.get_scaled_loss(lambda: loss)()
        )

    def minimize(self, *coefficients):
        return self._minimize(lambda: self.loss(coefficients))

    def minimize_with_tape(self, *coefficients):
        if keras_homes.VERSION < (2, 4):
            raise unittest.SkipTest("minimize takes no tape before TensorFlow 2.4")
        with tf.GradientTape() as tape:
            loss = self.loss(coefficients)
        return self._minimize(loss, tape=tape)

    def _minimize(self, loss, **options):
        """Takes the step; returns the first of the gradients that the tape had."""
        seen, original = [], tf.GradientTape.gradient

        def gradient(*args, **kwargs):
            grads = original(*args, **kwargs)
            seen.append(tf.nest.flatten(grads)[0])
            return grads

        with mock.patch.object(tf.GradientTape, "gradient", gradient):
            self.opt.minimize(loss, self.variables, **options)
        return seen[0]


WAYS = ("keras_3", "keras_3_apply", "by_hand", "by_hand_callable", "minimize", "minimize_with_tape")


class ExactlyOnceTest(modes.EagerTestCase):
    @keras_homes.each(tuple(zip(WAYS, 2 * MODES)))
    def test_a_step_is_the_inner_optimizers(self, home, case):
        way, mode = case
        variables = variables_of(home, 1.0, [2.0, 3.0])
        opt = Older(home.SGD(0.5), tf_lossscale_compat.DynamicLossScale(2.0**10, 2))
        step = compiled(mode, getattr(Step(opt, variables), way))
        grads = [np.float32(0.25), np.float32([0.5, -1.0])]

        self.assertAllEqual(step(*grads), 0.25 * 2**10)
        self.assertAllEqual(arrays(variables)[0], 1.0 - 0.125)
        self.assertAllEqual(arrays(variables)[1], [1.75, 3.5])
        self.assertEqual(number(opt.iterations), 1)
        self.assertEqual(number(opt.loss_scale()), 2**10)

        before = arrays(variables)
        step(np.float32(1.0), np.float32([np.inf, 0.0]))
        self.assertAllEqual(arrays(variables)[0], before[0])
        self.assertAllEqual(arrays(variables)[1], before[1])
        self.assertEqual(number(opt.iterations), 1 + home.counts_skipped)
        self.assertEqual(number(opt.loss_scale()), 2**9)

        for _ in range(2):
            self.assertAllEqual(step(*grads), 0.25 * 2**9)
        self.assertAllEqual(arrays(variables)[0], 1.0 - 3 * 0.125)
        self.assertEqual(number(opt.iterations), 3 + home.counts_skipped)
        self.assertEqual(number(opt.loss_scale()), 2**10)
        self.assertEmpty(self.warnings())

    @keras_homes.each((("eager", Older), ("function", Stable)))
    def test_the_scale_is_set_by_hand(self, home, case):
        """While a run goes on, by a line that is the same on each Keras."""
        mode, public = case
        (variable,) = variables_of(home, 1.0)
        opt = public(home.SGD(0.5), loss_scale=tf_lossscale_compat.DynamicLossScale(8.0, 3))
        step = compiled(mode, Step(opt, [variable]).by_hand)
        self.assertAllEqual(step(np.float32(0.25)), 2.0)
        opt.dynamic_scale.assign(64.0)
        self.assertAllEqual(step(np.float32(0.25)), 16.0)
        self.assertAllEqual(arrays([variable]), [0.75])
        self.assertEqual(number(opt.dynamic_scale), 64.0)
        for name in ("loss_scale", "dynamic_scale"):
            with self.assertRaisesRegex(AttributeError, rf"{name} of.*dynamic_scale\.assign\(4.0"):
                setattr(opt, name, 4.0)
            with self.assertRaisesRegex(AttributeError, f"{name} of.*is fixed"):
                setattr(public(home.SGD(0.5), loss_scale=8.0), name, 4.0)
        manager = tf_lossscale_compat.ExponentialUpdateLossScaleManager(8.0, 2)
        opt = public(home.SGD(0.5), loss_scale=manager)
        with self.assertRaisesRegex(AttributeError, r"manager.get_loss_scale\(\).assign\(4.0"):
            opt.loss_scale = 4.0
        self.assertEqual(number(opt._loss_scale()), 8.0)

    @keras_homes.each(kind="keras3")
    def test_loss_scale_factor_does_not_scale_twice(self, home):
        variables = variables_of(home, 1.0)
        opt = Stable(home.SGD(1.0, loss_scale_factor=16.0), False, 8.0)
        self.assertAllEqual(Step(opt, variables).keras_3(np.float32(0.5)), 4.0)
        self.assertAllEqual(arrays(variables), [0.5])


class MinimizeTest(modes.EagerTestCase):
    def optimizer(self, home, cls=Stable):
        (variable,) = variables_of(home, 1.0)
        scale = tf_lossscale_compat.DynamicLossScale(8.0)
        return cls(home.SGD(1.0), loss_scale=scale), variable

    @keras_homes.each()
    def test_a_subclass_may_be_callable(self, home):
        def call(self, loss, variables):
            self.minimize(loss, variables)

        opt, variable = self.optimizer(home)
        opt = type("Sub", (type(opt),), {"__call__": call}).from_config(opt.get_config())
        tf.function(lambda: opt(lambda: variable * 0.125, [variable]))()
        self.assertAllEqual(arrays([variable]), [0.875])

    @keras_homes.each(("lambda", "partial"))
    def test_autograph_converts_what_a_loss_calls(self, home, kind):
        opt, variable = self.optimizer(home)

        @tf.function
        def step(x):
            loss = functools.partial(_product_if_larger_than_one, variable, x)
            if kind == "lambda":
                loss = lambda: _product_if_larger_than_one(variable, x)  # noqa: E731
            opt.minimize(loss, [variable])

        step(tf.constant(0.125))
        self.assertAllEqual(arrays([variable]), [1.0])
        step(tf.constant(2.0))
        self.assertAllEqual(arrays([variable]), [-1.0])

    @keras_homes.each()
    def test_minimize_gives_an_own_apply_gradients_unscaled_gradients(self, home):
        """And `scaled` where that Keras' own optimizers do not get it from the override."""
        sibling, seen = keras_homes.sibling(Stable, home), []

        class HandsOn(sibling):
            def apply_gradients(self, grads_and_vars, **kwargs):
                pairs = list(grads_and_vars)
                seen.append((float(pairs[0][0]), kwargs.get("scaled", "not given")))
                return super().apply_gradients(pairs, **kwargs)

        class Plain(sibling):
            def apply_gradients(self, grads_and_vars, name=None):
                pairs = list(grads_and_vars)
                seen.append((float(pairs[0][0]), "not given"))
                return super().apply_gradients(pairs)

        for cls, is_given in ((HandsOn, home.kind == "keras3"), (Plain, False)):
            (variable,) = variables_of(home, 1.0)
            opt = cls(home.SGD(1.0), initial_scale=64.0)
            for _ in range(2):
                opt.minimize(lambda v=variable: tf.convert_to_tensor(v) * 0.125, [variable])
            self.assertAllEqual(arrays([variable]), [0.75])
            expected = 0.125, False if is_given else "not given"
            self.assertEqual(seen[-2:], [expected] * 2)
        self.assertEmpty(self.warnings())


def _product_if_larger_than_one(variable, x):
    product = variable * x
    if product > 1.0:
        return product
    return product * 0.0


class GradientsTest(modes.EagerTestCase):
    @keras_homes.each((True, False))
    def test_unscaling_keeps_dtypes_sparsity_and_none(self, home, dynamic):
        """And divides float16 gradients also by a scale that float16 does not hold."""
        opt = Stable(home.SGD(1.0), dynamic, 2.0**25)
        dense = tf.constant([[2.0**12]], tf.float16)
        sparse = tf.IndexedSlices(dense, tf.constant([1]), tf.constant([3, 1]))
        half, none, new, full = opt.get_unscaled_gradients(
            grad for grad in (dense, None, sparse, tf.constant(2.0**25))
        )
        self.assertIsNone(none)
        for tensor in (half, new):
            self.assertEqual(tensor.dtype, tf.float16)
        self.assertAllEqual(half, [[2.0**-13]])
        # Those before 2.3 make them dense.
        self.assertEqual(isinstance(new, tf.IndexedSlices), keras_homes.VERSION >= (2, 3))
        self.assertAllEqual(tf.convert_to_tensor(new), [[0.0], [2.0**-13], [0.0]])
        self.assertEqual(number(full), 1.0)
        with self.assertRaisesRegex(TypeError, "grads must be a flat list of gradients, got \\("):
            opt.get_unscaled_gradients([(dense, home.variable(1.0))])

    @keras_homes.each()
    def test_a_scaled_loss_keeps_its_dtype(self, home):
        opt = Stable(home.SGD(1.0), False, 4.0)
        for dtype in (tf.float16, tf.float32, tf.float64):
            self.assertEqual(opt.get_scaled_loss(tf.constant(2.0, dtype)).dtype, dtype)
            # Keras 3's own class has it, and makes float16 wider.
            wider = home.kind == "keras3" and dtype == tf.float16
            scaled = opt.scale_loss(tf.constant(2.0, dtype))
            self.assertEqual(scaled.dtype, tf.float32 if wider else dtype)

    @keras_homes.each()
    def test_an_inner_optimizer_that_changes_some_gradients(self, home):
        """Such as a smaller rate for one layer; what it leaves alone is of another graph."""
        if keras_homes.VERSION < (2, 1) or home.before(3, 5):
            self.skipTest("optimizers of this Keras do not sum over replicas there")

        class Slow(home.SGD):
            if home.kind == "keras3":

                def apply(self, grads, variables):
                    first, *others = grads
                    super().apply([0.5 * first, *others], variables)

            else:

                def apply_gradients(self, grads_and_vars, *args, **kwargs):
                    (first, variable), *others = grads_and_vars
                    pairs = [(0.5 * first, variable), *others]
                    return super().apply_gradients(pairs, *args, **kwargs)

        strategy = replicas.strategy("mirrored_2")
        with strategy.scope():
            one, two, table = variables_of(home, 1.0, 1.0, np.ones([2, 1]))
            opt = Stable(Slow(1.0), initial_scale=8.0)
            if home.kind != "v2":
                opt.build([one, two, table])

        @tf.function(autograph=False)
        def step(factor):
            def in_replica():
                grad = tf.identity(factor)
                row = tf.reshape(grad, [1, 1])
                rows = tf.IndexedSlices(row, tf.constant([1]), tf.constant([2, 1]))
                opt.apply_gradients([(grad, one), (grad, two), (rows, table)], scaled=False)

            replicas.run(strategy, in_replica)

        step(tf.constant(np.inf))
        step(tf.constant(0.25))
        self.assertAllEqual(arrays([one, two]), [0.75, 0.5])
        self.assertAllEqual(arrays([table])[0], [[1.0], [0.5]])
        self.assertEqual(number(opt.loss_scale), 4.0)

    @keras_homes.each()
    def test_a_subclass_cannot_override_what_is_not_called(self, home):
        cls = type(Stable(home.SGD(1.0)))
        own = cls._tflsc_family.original
        if home.before(3, 16):  # Which brings it: a stand-in.
            patched = mock.patch.object(own, "_unscale_grads", lambda self: None, create=True)
            patched.start()
            self.addCleanup(patched.stop)
        for name in (
            "_apply_gradients",
            "_apply_gradients_cross_replica",
            "_common_apply",
            "_stateful_handle_finite_grads",
            "_stateful_handle_non_finite_grads",
            "_tf_apply",
            "_unscale_grads",
            "check_finite",
        ):
            namespace = {name: lambda self, *args: None}
            if hasattr(own, name):  # A method of Keras' own class.
                with self.assertRaisesRegex(TypeError, f"Own overrides {name}"):
                    type(cls)("Own", (cls,), namespace)
            else:
                type(cls)("Own", (cls,), namespace)

    @keras_homes.each()
    def test_no_gradient_at_all_is_an_error_and_moves_nothing(self, home):
        (variable,) = variables_of(home, 1.0)
        opt = Older(home.SGD(1.0), "dynamic")
        with self.assertRaisesRegex(ValueError, "(?i)no gradients"):
            opt.apply_gradients([(None, variable)])
        if home.kind != "v2":
            with self.assertRaisesRegex(ValueError, "(?i)no gradients"):
                opt.apply_gradients([])
        with self.assertRaisesRegex(ValueError, "hold 1 gradients, .* got 2"):
            opt.apply([tf.constant(1.0)] * 2, [variable])
        self.assertEqual(number(opt.loss_scale.good_steps), 0)
        self.assertEqual(number(opt.loss_scale()), 2**15)
        # Had it been built for no variables, it would refuse this one.
        opt.apply_gradients([(tf.constant(0.5), variable)], scaled=False)
        self.assertAllEqual(arrays([variable]), [0.5])

    @keras_homes.each()
    def test_graph_for_a_session(self, home):
        with tf.Graph().as_default():
            weight = tf1.get_variable("w", initializer=1.0, use_resource=True)
            opt = Stable(home.SGD(0.1))
            pairs = [(tf.constant(1.0), weight)]
            if home.kind == "v2":
                opt.apply_gradients(pairs)
                return
            with self.assertRaisesRegex(ValueError, "does not work in a tf.Graph"):
                opt.apply_gradients(pairs, scaled=False)

    @keras_homes.each()
    def test_moving_averages_where_a_gradient_is_missing(self, home):
        # Some optimizers pair these with variables by their places.
        if home.kind == "v2":
            self.skipTest("these optimizers have no moving averages")

        def averages(wrapped):
            variables = variables_of(home, 1.0, 10.0, 100.0)
            inner = home.SGD(0.5, use_ema=True, ema_momentum=0.5)
            opt = Stable(inner) if wrapped else None
            for _ in range(3):
                pairs = list(zip((None, tf.constant(1.0), tf.constant(2.0)), variables))
                if opt is not None:
                    opt.apply_gradients(pairs, scaled=False)
                else:
                    inner.apply_gradients(pairs)
            return [home.numpy(v) for v in inner._model_variables_moving_average]

        np.testing.assert_array_equal(averages(True), averages(False))


class ThreadsTest(modes.EagerTestCase):
    @keras_homes.each(("eager", "function"))
    def test_steps_that_run_at_once_are_all_counted(self, home, mode):
        """As actors that share a model's optimizer take them; no lowered scale is put back."""
        weight = tf.Variable(1.0)
        opt = Stable(home.SGD(1e-9), initial_scale=2.0**100, dynamic_growth_steps=10**6)

        def step(gradient):
            opt.apply_gradients([(gradient, weight)], scaled=False)

        if mode == "function":
            step(tf.constant(1.0))  # Which makes the variables.
            step = tf.function(step, autograph=False)
        one, inf = tf.constant(1.0), tf.constant(float("inf"))
        step(one)
        before = int(opt.dynamic_counter)
        modes.at_once(20, step, (one,), None)
        self.assertEqual(int(opt.dynamic_counter), before + 80)
        modes.at_once(20, step, (one,), (inf,))
        self.assertEqual(float(opt.loss_scale), 2.0**90)
