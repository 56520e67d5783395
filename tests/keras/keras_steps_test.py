"""Custom training steps with the Keras wrappers: each gradient is divided exactly once."""

import _thread
import copy
import functools
import importlib
import queue
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes, replicas
from tests.keras_homes import Older, Stable, number

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


def compiled(mode, function):
    if mode == "eager":
        return function
    return modes.compiled(function) if mode == "jit" else tf.function(function, autograph=False)


def variables_of(home, *values):
    return [home.variable(value) for value in values]


def arrays(variables):
    return [np.array(variable.numpy()) for variable in variables]


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

    @keras_homes.each(kind="v2")
    def test_get_gradients_in_a_graph(self, home):
        with tf.Graph().as_default(), tf1.Session() as session:
            variable = tf1.get_variable("w", initializer=1.0, use_resource=True)
            opt = Stable(home.SGD(1.0), initial_scale=2.0**6)
            seen = []
            original = type(opt.inner_optimizer).get_gradients

            def get_gradients(inner, loss, params):
                seen.extend(original(inner, loss, params))
                return list(seen)

            with mock.patch.object(type(opt.inner_optimizer), "get_gradients", get_gradients):
                grads = opt.get_gradients(variable * 0.5, [variable])
                update = opt.get_updates(variable * 0.5, [variable])
            session.run(tf1.global_variables_initializer())
            self.assertEqual(session.run([seen[0], grads[0]]), [32.0, 0.5])
            session.run(update)
            self.assertEqual(session.run(variable), 0.5)
            apply = opt.apply([tf.constant(16.0)], [variable])
            session.run(apply)
            self.assertEqual(session.run(variable), 0.25)


SCALES, LOSS, UNSCALES = "scale_loss", "get_scaled_loss", "get_unscaled_gradients"
# Which methods were called, and the `scaled` of the call; then whether gradients are divided (or a
# piece of the error), and a piece of the only warning. None for what that Keras and class do.
RULE = (
    ((), None, None, None),
    ((), True, True, ""),
    ((), False, False, ""),
    ((SCALES,), None, True, ""),
    ((SCALES,), False, False, ""),
    ((LOSS,), None, False, "but get_unscaled_gradients never was"),
    ((UNSCALES,), None, False, "but get_scaled_loss never was"),
    ((LOSS, UNSCALES), None, False, ""),
    ((SCALES, LOSS), None, "scale_loss of.*get_scaled_loss, after.*scaled=True", ""),
    # As `fit` of Keras 3 and a step that clips do, with one optimizer.
    ((SCALES, UNSCALES), None, "any clipping.*fit of Keras 3: make two optimizers.*train_step", ""),
    ((SCALES, UNSCALES), True, True, ""),
    ((SCALES, UNSCALES), False, False, ""),
    ((SCALES, "compute_gradients"), None, "scale_loss of.*compute_gradients, after", ""),
    ((SCALES, "_compute_gradients"), None, "scale_loss of.*_compute_gradients, after", ""),
)
# What was called before `apply_gradients` is traced, and what is after it; then a piece of the
# error, or None.
TRACED = (
    ((), SCALES, "^scale_loss was called after.*scaled=True"),
    ((), LOSS, None),
    ((LOSS, UNSCALES), SCALES, "^scale_loss was called after.*scaled=True"),
    *[
        ((SCALES,), method, f"^{method} was called after.*scaled=False")
        for method in (LOSS, UNSCALES, "get_gradients", "compute_gradients")
    ],
    ((SCALES,), SCALES, None),
)


class WhoDividesTest(modes.EagerTestCase):
    """Without `scaled=` only what this optimizer was ever asked for counts."""

    def optimizer(self, home, cls=Stable):
        (variable,) = variables_of(home, 1.0)
        scale = tf_lossscale_compat.DynamicLossScale(8.0)
        return cls(home.SGD(1.0), loss_scale=scale), variable

    def ask(self, opt, methods, variable):
        """Calls methods of `opt` with such arguments as they take; False if it lacks one."""
        arguments = {UNSCALES: [[tf.constant(8.0)]]}
        arguments.update({each: [tf.constant(1.0)] for each in (SCALES, LOSS)})
        for method in methods:
            if not hasattr(opt, method):
                return False
            pair = [lambda: tf.convert_to_tensor(variable) * 0.125, [variable]]
            getattr(opt, method)(*arguments.get(method, pair))
        return True

    @keras_homes.each((Stable, Older))
    def test_the_rule(self, home, cls):
        for methods, said, divided, warning in RULE:
            opt, variable = self.optimizer(home, cls)
            if not self.ask(opt, methods, variable):
                continue
            if divided is None and home.kind == "keras3" and cls is Stable:
                cures = "scaled=True.*divides.*scaled=False.*without this class.*build.variables"
                divided, warning = f"none of scale_loss, .* was ever called.*{cures}", ""
            elif divided is None:  # Where Keras' own class warns, too.
                warning = "neither get_scaled_loss" if keras_homes.VERSION >= (2, 4) else ""
            told = len(self.warnings())
            expected = 0.5 if divided is True else -3.0
            with self.subTest(methods=methods, said=said):
                if isinstance(divided, str):
                    with self.assertRaisesRegex(ValueError, divided):
                        opt.apply_gradients([(tf.constant(4.0), variable)])
                    self.assertEqual(number(opt.iterations), 0)
                    expected = 1.0
                else:
                    opt.apply_gradients([(tf.constant(4.0), variable)], scaled=said)
                    opt.apply_gradients([(tf.constant(0.0), variable)], scaled=said)
                self.assertAllEqual(arrays([variable]), [expected])
                self.assertEqual(len(self.warnings()) - told, bool(warning))
                if warning:
                    self.assertRegex(self.warnings()[-1], warning)

    @keras_homes.each()
    def test_gradients_that_it_unscaled_are_known(self, home):
        opt, variable = self.optimizer(home)
        opt.scale_loss(tf.constant(1.0))
        rows = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([0]), tf.constant([1, 1]))
        table = home.variable([[1.0]])
        grads = opt.get_unscaled_gradients([tf.constant(4.0), rows])
        pairs = list(zip(grads, [variable, table]))
        error = "cannot tell.*returned after the first scale_loss are recognized"
        with self.assertRaisesRegex(ValueError, error):
            opt.apply_gradients([*pairs, (tf.constant(0.5), home.variable())])
        opt.apply_gradients(pairs)
        self.assertAllEqual(arrays([variable]), [0.5])
        self.assertAllEqual(arrays([table]), [[[0.5]]])
        with self.assertRaisesRegex(TypeError, "scaled must be True, False or None, got 1"):
            opt.apply_gradients(pairs, scaled=1)

    @keras_homes.each((True, False))
    def test_what_is_called_after_a_trace(self, home, traced):
        for before, after, error in TRACED:
            # The stable class must be asked on Keras 3.
            opt, variable = self.optimizer(home, Stable if before else Older)
            if not (hasattr(opt, after) and self.ask(opt, before, variable)):
                continue
            step = functools.partial(opt.apply_gradients, [(tf.constant(0.0), variable)])
            # Say to make the slot variables.
            compiled("function" if traced else "eager", lambda step=step: [step()][1:])()
            with self.subTest(before=before, after=after):
                if error is None or not traced:
                    if after != "get_gradients":  # Which needs a graph.
                        self.ask(opt, [after], variable)
                    continue
                methods = set(opt._tflsc.scaled_rule.called_methods)
                with self.assertRaisesRegex(ValueError, error):
                    self.ask(opt, [after], variable)
                self.assertEqual(opt._tflsc.scaled_rule.called_methods, methods)
                # These leave no record: whether their gradients are scaled is clear.
                opt.apply([tf.constant(1.0)], [variable])
                opt.minimize(lambda v=variable: tf.convert_to_tensor(v) * 0.125, [variable])
                self.assertAllEqual(arrays([variable]), [0.75])

    @keras_homes.each((False, True))
    def test_apply_after_unscaling_warns(self, home, both_ways):
        """Of any gradients; where it was asked for `scale_loss` too, of unscaled ones alone."""
        opt, variable = self.optimizer(home)
        if both_ways:
            opt.scale_loss(tf.constant(1.0))
        grads = opt.get_unscaled_gradients([tf.constant(8.0)])
        opt.apply([tf.constant(4.0)], [variable])
        self.assertAllEqual(arrays([variable]), [0.5])
        if both_ways:
            self.assertEmpty(self.warnings())
            opt.apply(grads, [variable])
        self.assertEqual(["once more" in warning for warning in self.warnings()], [True])

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

    @keras_homes.each(kind="current")
    def test_a_branch_beside_none(self, home):
        """Accumulation by hand: the step returns nothing, and so does the other branch."""
        inner, variable = home.SGD(1.0), home.variable()
        opt = Stable(inner, initial_scale=8.0)
        inner.build([variable])

        @tf.function
        def step(take):
            grads = opt.get_unscaled_gradients([tf.constant(2.0)])
            tf.cond(take, lambda: opt.apply_gradients(zip(grads, [variable])), lambda: None)

        for take in (False, True):
            step(tf.constant(take))
        self.assertEqual(number(opt.iterations), 1)
        self.assertAllEqual(arrays([variable]), [0.75])

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_minimize_goes_through_what_a_subclass_overrides(self, home):
        base = type(self.optimizer(home)[0])
        name = "compute_gradients" if home.kind == "current" else "_compute_gradients"
        seen = []

        def compute(self, *args, **kwargs):
            seen.append(name)
            pairs = getattr(base, name)(self, *args, **kwargs)
            return [(tf.clip_by_norm(grad, 1.0), each) for grad, each in pairs]

        opt, variable = self.optimizer(home)
        opt = type("Sub", (base,), {name: compute}).from_config(opt.get_config())
        opt.minimize(lambda: tf.convert_to_tensor(variable) * 0.125, [variable])
        self.assertEqual(seen, [name])
        self.assertAllClose(arrays([variable]), [0.875])

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_minimize_gives_overrides_the_arguments_that_the_original_gives(self, home):
        is_v2, has_tape = home.kind == "v2", keras_homes.VERSION >= (2, 4)
        name, seen = "_compute_gradients" if is_v2 else "compute_gradients", []

        def overriding(base, **methods):
            def compute(self, loss, var_list, *args, **kwargs):
                given = {key: type(value) for key, value in kwargs.items()}
                seen.append((callable(loss), list(map(type, args)), given))
                return getattr(base, name)(self, loss, var_list, *args, **kwargs)

            return type("Sub", (base,), {name: compute, **methods})

        def get_scaled_loss(self, loss):
            seen.append(callable(loss))
            return base.get_scaled_loss(self, loss)

        base, nothing, (variable,) = (
            keras_homes.sibling(Stable, home),
            type(None),
            [tf.Variable(1.0)],
        )
        opt = overriding(base, get_scaled_loss=get_scaled_loss)(overriding(home.SGD)(1.0))
        opt.minimize(lambda: tf.convert_to_tensor(variable) * 0.25, [variable])
        outer = (True, [], {"grad_loss": nothing}) if is_v2 else (True, [nothing], {})
        if is_v2 and has_tape:
            outer[2]["tape"] = nothing
        tape = {"tape": tf.GradientTape} if has_tape else {}
        self.assertEqual(seen, [outer, True, (True, [nothing] if is_v2 else [], tape)])
        self.assertEqual(variable.numpy(), 0.75)

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
    @keras_homes.each(kind="v2")
    def test_a_model_with_nothing_to_train(self, home):
        def counts(wrap):
            opt = wrap(home.SGD(1.0))
            opt.apply_gradients([])  # As `fit` does.
            counter = getattr(opt, "dynamic_counter", None)
            return number(opt.iterations), None if counter is None else number(counter)

        ours = counts(lambda inner: Stable(inner, initial_scale=8.0))
        own = counts(home.wrapped_in_own)
        self.assertEqual(ours, own if own[1] is not None else (own[0], ours[1]))

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

    @keras_homes.each(("clipnorm", "clipvalue"), kind="v2")
    def test_an_optimizer_that_clips_scaled_gradients_is_refused(self, home, argument):
        if keras_homes.VERSION >= (2, 4):
            self.skipTest("this Keras clips where it applies gradients")
        named = f"must have no {argument}, got 0.5"
        inner = home.SGD(1.0, **{argument: 0.5})
        with modes.creations() as created, self.assertRaisesRegex(ValueError, named):
            Stable(inner)
        self.assertEmpty(created)
        (variable,) = variables_of(home, 1.0)
        loss_scale = tf_lossscale_compat.DynamicLossScale()
        opt = Stable(home.SGD(1.0), loss_scale=loss_scale)
        setattr(opt.inner_optimizer, argument, 0.5)
        with self.assertRaisesRegex(ValueError, named):
            opt.minimize(lambda: variable * 1.0, [variable])
        with tf.Graph().as_default(), self.assertRaisesRegex(ValueError, named):
            opt.get_gradients(tf.constant(1.0), [])

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

    @keras_homes.each(kind="keras3")
    def test_slots_of_an_optimizer_used_before_stay(self, home):
        class Momentum(home.Optimizer):
            def build(self, variables):
                super().build(variables)
                self.momentums = [home.keras.Variable(tf.zeros(v.shape)) for v in variables]

            def update_step(self, gradient, variable, learning_rate):
                momentum = self.momentums[self._get_variable_index(variable)]
                momentum.assign_add(gradient)
                self.assign_sub(variable, learning_rate * momentum)

        weight = home.keras.Variable(0.0)
        inner = Momentum(1.0)
        inner.apply_gradients([(tf.constant(1.0), weight)])
        opt = Stable(inner)
        opt.apply_gradients([(tf.constant(1.0), weight)], scaled=False)
        self.assertEqual(float(weight.numpy()), -3.0)

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


class FaceTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_what_the_stable_one_shows(self, home):
        inner = home.SGD(0.5)
        opt = Stable(inner)
        self.assertIs(opt.inner_optimizer, inner)
        self.assertIs(opt.dynamic, True)
        self.assertEqual((opt.initial_scale, opt.dynamic_growth_steps), (2**15, 2000))
        self.assertEqual((number(opt.loss_scale), number(opt.dynamic_counter)), (2**15, 0))
        opt = Stable(inner_optimizer=home.SGD(0.5), initial_scale=4, dynamic_growth_steps=3.0)
        self.assertEqual((opt.initial_scale, opt.dynamic_growth_steps), (4, 3))
        self.assertIsInstance(opt.initial_scale, float)
        self.assertIsInstance(opt.dynamic_growth_steps, int)
        opt = Stable(home.SGD(0.5), dynamic=False, initial_scale=8)
        self.assertIs(opt.dynamic, False)
        self.assertEqual((opt.initial_scale, number(opt.loss_scale)), (8, 8))
        self.assertIsInstance(opt.initial_scale, float)
        self.assertIsInstance(opt.loss_scale, tf.Tensor)
        self.assertIsNone(opt.dynamic_growth_steps)
        self.assertIsNone(opt.dynamic_counter)

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

    @keras_homes.each()
    def test_what_the_experimental_one_shows(self, home):
        loss_scale = tf_lossscale_compat.DynamicLossScale(8.0, 5)
        opt = Older(optimizer=home.SGD(0.5), loss_scale=loss_scale)
        self.assertIs(opt.loss_scale, loss_scale)
        # Code reaches into these two.
        self.assertIs(opt._loss_scale, loss_scale)
        self.assertIs(opt._optimizer, opt.inner_optimizer)
        self.assertEqual((opt.initial_scale, opt.dynamic_growth_steps), (8.0, 5))
        self.assertIs(opt.dynamic_counter, loss_scale.good_steps)
        manager = tf_lossscale_compat.ExponentialUpdateLossScaleManager(64.0, 7)
        opt = Older(home.SGD(0.5), manager)
        self.assertEqual((opt.dynamic, opt.initial_scale, opt.dynamic_growth_steps), (True, 64, 7))
        self.assertIs(opt.loss_scale.manager, manager)
        self.assertIs(opt.dynamic_counter, manager._num_good_steps)
        manager = tf_lossscale_compat.FixedLossScaleManager(64.0)
        opt = Older(home.SGD(0.5), manager)
        self.assertEqual((opt.dynamic, opt.initial_scale), (False, 64))
        self.assertIsNone(opt.dynamic_growth_steps)

    @keras_homes.each()
    def test_the_learning_rate_is_the_inner_optimizers(self, home):
        inner = home.SGD(0.5)
        opt = Stable(inner)
        self.assertEqual(number(opt.learning_rate), 0.5)
        opt.learning_rate = 0.25
        self.assertEqual(number(inner.learning_rate), 0.25)
        inner.learning_rate = 0.125
        self.assertEqual(number(opt.learning_rate), 0.125)
        self.assertEqual(number(opt.lr), 0.125)
        opt.lr = 1.0
        self.assertEqual(number(inner.learning_rate), 1.0)
        if home.kind == "current":
            opt.learning_rate = tf.Variable(0.125)
            self.assertIs(opt.learning_rate, inner.learning_rate)
            self.assertEqual(number(inner.learning_rate), 0.125)

    @keras_homes.each(kind="v2")
    def test_a_rate_in_place_of_a_schedule(self, home):
        """Its variables are made when Keras' own class makes them, and functions then follow it."""
        schedule = home.keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
        rows = []
        for wrap in (home.wrapped_in_own, Stable):
            (variable,), opt = variables_of(home, 1.0), wrap(home.SGD(schedule))

            @tf.function
            def step(opt=opt, variable=variable):
                opt.apply_gradients([(tf.ones([]), variable)])

            rows.append([])
            for rate in (0.25, 0.0):
                opt.learning_rate = rate
                step()
                rows[-1].append(number(variable))
        self.assertEqual(*rows)

    @keras_homes.each(kind="keras3")
    def test_loss_scale_factor_does_not_scale_twice(self, home):
        variables = variables_of(home, 1.0)
        opt = Stable(home.SGD(1.0, loss_scale_factor=16.0), False, 8.0)
        self.assertAllEqual(Step(opt, variables).keras_3(np.float32(0.5)), 4.0)
        self.assertAllEqual(arrays(variables), [0.5])

    @keras_homes.each(kind="keras3")
    def test_new_values_in_a_gradients_place_are_not_divided(self, home):
        one, two = variables_of(home, 1.0, 1.0)
        two.overwrite_with_gradient = True
        opt = Stable(home.SGD(1.0), False, 8.0)
        opt.apply([tf.constant(4.0), tf.constant(7.0)], [one, two])
        self.assertAllEqual(arrays([one, two]), [0.5, 7.0])

    @keras_homes.each()
    def test_apply_without_variables(self, home):
        """Takes those that it was built with on Keras 3; before, it is refused."""
        (variable,), keras3 = variables_of(home, 1.0), home.kind == "keras3"
        opt = Stable(home.SGD(1.0), initial_scale=8.0)
        if not keras3:
            opt.apply_gradients([(tf.constant(0.0), variable)])
        error = "build" if keras3 else "trainable_variables must be the list.*got None"
        with self.assertRaisesRegex(ValueError, error):
            opt.apply([tf.constant(4.0)])
        if keras3:
            opt.build([variable])
            opt.apply([tf.constant(4.0)])
        self.assertAllEqual(arrays([variable]), [0.5 if keras3 else 1.0])
        self.assertEqual(number(opt.dynamic_counter), 1)

    @keras_homes.each(kind="keras3")
    def test_another_backend_is_refused(self, home):
        with mock.patch.object(home.keras.backend, "backend", return_value="jax"):
            with self.assertRaisesRegex(ValueError, "TensorFlow backend.*'jax'"):
                Stable(home.SGD(1.0))

    @keras_homes.each(kind="v2")
    def test_slots_are_found_by_name(self, home):
        weight = home.variable([1.0, 2.0])
        opt = Stable(home.SGD(1.0, momentum=0.5), initial_scale=2)
        opt.minimize(lambda: tf.convert_to_tensor(weight), [weight])
        self.assertEqual(opt.get_slot_names(), ["momentum"])
        self.assertAllEqual(home.numpy(opt.get_slot(weight, "momentum")), [-1.0, -1.0])
        added = opt.add_slot(weight, "more", "ones")
        self.assertIs(opt.inner_optimizer.get_slot(weight, "more"), added)

    @keras_homes.each()
    def test_iterations_are_the_inner_optimizers(self, home):
        inner = home.SGD(1.0)
        opt = Stable(inner)
        self.assertIs(opt.iterations, inner.iterations)
        if home.kind == "v2":
            opt = Stable(home.SGD(1.0))
            opt.iterations = 7
            self.assertEqual((opt.iterations, opt.inner_optimizer.iterations), (7, 7))

    @keras_homes.each(kind="v2")
    def test_a_hyperparameter_named_like_an_attribute_stays_inside(self, home):
        class LossScaled(home.SGD):
            def __init__(self):
                super().__init__()
                self._set_hyper("loss_scale", 123.0)

        opt = Stable(LossScaled())
        self.assertEqual(number(opt.loss_scale), 2.0**15)
        with self.assertRaises(AttributeError):
            opt.loss_scale = 2.0

    @keras_homes.each()
    def test_other_attributes_are_not_the_inner_optimizers(self, home):
        opt = Stable(home.SGD(1.0))
        self.assertIs(opt.inner_optimizer.nesterov, False)
        # Others that neither has.
        lacks = {"v2": ["use_ema"], "current": ["beta_1"], "keras3": []}[home.kind]
        for name in ("nesterov", *lacks):
            with self.assertRaisesRegex(AttributeError, f"has no attribute '{name}'"):
                getattr(opt, name)

    @keras_homes.each()
    def test_dir(self, home):
        opt = Stable(home.SGD(1.0))
        names = dir(opt)
        for name in ("learning_rate", "lr", "loss_scale", "get_scaled_loss", "minimize"):
            self.assertIn(name, names)
        self.assertNotIn("nesterov", names)
        # The interpreter asks for "Did you mean" from no frame of Python, as a thread does here.
        asked = queue.SimpleQueue()
        _thread.start_new_thread(list, (map(asked.put, map(dir, [opt])),))
        self.assertEqual(set(asked.get(timeout=20)), set(names))

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_variables_are_the_inner_optimizers(self, home):
        opts = [Stable(home.SGD(1.0, momentum=0.5))]
        # On 1.15 Keras' own class raises an AttributeError, and that of `current` has no variables.
        since = (2, 11) if home.kind == "current" else (2, 0)
        if keras_homes.VERSION >= since:
            opts.append(home.wrapped_in_own(home.SGD(1.0, momentum=0.5)))
        counts = []
        for opt in opts:
            opt.apply_gradients([(tf.constant([3.0, 4.0]), tf.Variable([0.0, 0.0]))])
            found = home.variables(opt)
            inner = home.variables(opt.inner_optimizer if opt is opts[0] else opt._optimizer)
            self.assertEqual([id(each) for each in found], [id(each) for each in inner])
            counts.append(len(found))
            if home.kind == "v2":
                self.assertEqual([id(each) for each in opt.weights], [id(each) for each in inner])
                self.assertAllEqual(opt.get_weights()[1], [3.0 * -1, 4.0 * -1])
        self.assertLen(set(counts), 1)


class BadInputTest(modes.EagerTestCase):
    def test_the_keras_inside_of_tensorflow_is_refused(self):
        if keras_homes.VERSION < (2, 6):
            self.skipTest("it is tf.keras there")
        module = importlib.import_module("tensorflow.python.keras.optimizer_v2.gradient_descent")
        for cls in (Stable, Older):
            with self.assertRaisesRegex(TypeError, "^(inner_)?optimizer must.*SGD.*Write tf.keras"):
                cls(module.SGD(1.0), "dynamic") if cls is Older else cls(module.SGD(1.0))

    @keras_homes.each()
    def test_bad_arguments_name_themselves(self, home):
        stable, old = Stable, Older

        def inner():
            return home.SGD(1.0)

        # Some words of Keras' own messages, which code may look for.
        nested = "LossScaleOptimizer cannot wrap another LossScaleOptimizer.*inner_optimizer"
        no_bool = '"dynamic" argument to LossScaleOptimizer.__init__ must be a bool'
        without_scale = (
            '"initial_scale" must be specified if "dynamic" is False.*`loss_scale_factor`'
        )
        no_steps = '"dynamic_growth_steps" must be None if "dynamic" is False'
        cases = [
            (TypeError, "inner_optimizer.*'sgd'", lambda: stable("sgd")),
            (
                ValueError if home.kind == "keras3" else TypeError,
                "growth_interval.*dynamic_growth_steps, the finite steps",
                lambda: stable(inner(), growth_interval=100),
            ),
            (TypeError, "inner_optimizer", lambda: stable(home.SGD)),
            (TypeError, "^inner_optimizer must be a Keras optimizer, got {}", lambda: stable({})),
            (TypeError, "^optimizer must be a Keras optimizer, got {}", lambda: old({}, 8)),
            (TypeError, "^optimizer.*None", lambda: old(None, 8)),
            (
                TypeError,
                "inner_optimizer.*MixedPrecisionLossScaleOptimizer",
                lambda: stable(tf1.train.GradientDescentOptimizer(1.0)),
            ),
            (TypeError, f"^inner_optimizer.*{nested}", lambda: stable(stable(inner()))),
            (TypeError, f"^optimizer.*{nested}", lambda: old(home.wrapped_in_own(inner()), 8)),
            (TypeError, f"{no_bool}, but got: 'no'.*loss_scale=.$", lambda: stable(inner(), "no")),
            (
                TypeError,
                f"{no_bool}, but got: 1024.*fixed.*dynamic=False, initial_scale=1024"
                ".*for a dynamic one that starts there, initial_scale=1024 alone",
                lambda: stable(inner(), 1024),
            ),
            (TypeError, "2.0.*dynamic=False, initial_scale=2.0", lambda: stable(inner(), 2.0)),
            (ValueError, without_scale, lambda: stable(inner(), False)),
            (ValueError, f"{no_steps}, but got: 7", lambda: stable(inner(), False, 8, 7)),
            (ValueError, "initial_scale.*at least 1.*0.5", lambda: stable(inner(), False, 0.5)),
            (ValueError, "initial_scale.*nan", lambda: stable(inner(), True, float("nan"))),
            (ValueError, "initial_scale.*-1", lambda: stable(inner(), True, -1)),
            (ValueError, "dynamic_growth_steps.*1.5", lambda: stable(inner(), True, 8, 1.5)),
            (ValueError, "loss_scale cannot be None", lambda: old(inner(), None)),
            (ValueError, "'static'", lambda: old(inner(), "static")),
            (ValueError, "at least 1.*0.5", lambda: old(inner(), 0.5)),
        ]
        for error, pattern, make in cases:
            with self.subTest(pattern), self.assertRaisesRegex(error, pattern):
                make()

    @keras_homes.each()
    def test_an_optimizer_is_wrapped_once(self, home):
        inner = home.SGD(1.0)
        opt = Stable(inner)
        if home.kind == "keras3" or (home.kind == "v2" and keras_homes.VERSION < (2, 4)):
            self.skipTest("this Keras' checkpoints have room for more loss scales")
        with self.assertRaisesRegex(ValueError, "drives another optimizer"):
            copy.copy(opt)
        pattern = '"inner_optimizer" is already wrapped by a LossScaleOptimizer'
        with self.assertRaisesRegex(ValueError, pattern):
            Stable(inner)

    @keras_homes.each()
    def test_minimize_says_what_loss_it_needs(self, home):
        opt = Stable(home.SGD(1.0))
        with self.assertRaisesRegex((ValueError, TypeError), "(?i)callable|tape"):
            opt.minimize(tf.constant(1.0), variables_of(home, 1.0))


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
