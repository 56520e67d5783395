"""Who divides: whether `apply_gradients` takes gradients as scaled, by what was asked before."""

import functools

import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes
from tests.keras_homes import Older, Stable, arrays, compiled, number, variables_of

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


class MethodsTest(modes.EagerTestCase):
    @keras_homes.each(("asked", "said"), kind="keras3")
    def test_own_apply_is_given_scaled_gradients(self, home, how):
        seen = []

        class Recording(Stable):
            def apply(self, grads, trainable_variables=None):
                seen.append(float(grads[0]))
                return super().apply(grads, trainable_variables)

        weight = home.keras.Variable(1.0)
        opt = Recording(home.SGD(0.5), initial_scale=8.0)
        said = {"scaled": False} if how == "said" else {}
        grads = [tf.constant(1.0)] if said else opt.get_unscaled_gradients([tf.constant(8.0)])
        with self.assertRaisesRegex(ValueError, "overrides apply.* was given unscaled grad"):
            opt.apply_gradients(zip(grads, [weight]), **said)
        self.assertEqual((seen, float(weight.numpy())), ([], 1.0))
        opt.apply_gradients([(tf.constant(8.0), weight)], scaled=True)
        self.assertEqual((seen, float(weight.numpy())), ([8.0], 0.5))

    @keras_homes.each(("get_scaled_loss", "get_unscaled_gradients"))
    def test_own_scaling_methods_are_used(self, home, name):
        base = keras_homes.sibling(Stable, home)

        def zeroed(self, given):
            is_loss = callable(given)
            zeros = (lambda: given() * 0) if is_loss else [grad * 0 for grad in given]
            return getattr(base, name)(self, zeros)

        weight = home.variable(1.0)
        opt = type("Zeroed", (base,), {name: zeroed})(home.SGD(0.1))
        opt.minimize(lambda: tf.convert_to_tensor(weight) * 2.0, [weight])
        self.assertEqual(home.numpy(weight), 1.0)
        if home.kind == "keras3":  # `fit` calls neither, and says so.
            return
        opt.apply_gradients([(tf.constant(0.5), weight)])
        self.assertEmpty(self.warnings())  # Of one half that is missing.

    @keras_homes.each(("function", "partialmethod", "mixin"))
    def test_methods_of_ones_own_count_as_asked(self, home, how):
        def unscale(self, grads):
            return [grad / self.loss_scale for grad in grads]

        method = functools.partialmethod(unscale) if how == "partialmethod" else unscale
        methods = {"get_unscaled_gradients": method}
        sibling = keras_homes.sibling(Stable, home)
        if how == "mixin":
            own = type("Own", (type("Mixin", (), methods), sibling), {})
        else:
            own = type("Own", (sibling,), methods)
        opt, weight = own(home.SGD(1.0), initial_scale=64.0), home.variable(0.0)
        grads = opt.get_unscaled_gradients([opt.scale_loss(tf.constant(1.0))])
        with self.assertRaisesRegex(ValueError, "cannot tell"):
            opt.apply_gradients([(grads[0] * 0.5, weight)])
        opt.apply_gradients(zip(grads, [weight]))  # What they returned is known.
        self.assertEqual(home.numpy(weight), -1.0)
