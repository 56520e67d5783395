"""`compile` and `fit` with the Keras wrappers, on each Keras: against the inner optimizer alone."""

import functools
import inspect

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat as package
from tests import keras_homes
from tf_lossscale_compat.keras import mixed_precision

Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer
STEPS = 6  # The third step's batch is the one that some tests put a NaN into.
BAD = 2
BATCH = 2
SCALE = 2.0**10
EMA = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}


def cases(**by_name):
    """One case for each home and each of these values, given under `case`."""
    return [
        dict(params, testcase_name="{}_{}".format(params["testcase_name"], name), case=case)
        for params in keras_homes.named()
        for name, case in by_name.items()
    ]


def data(bad=()):
    """Inputs and targets of `STEPS` batches, those of the batches `bad` with a NaN."""
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (STEPS * BATCH, 3)).astype("float32")
    y = random.uniform(-1, 1, (STEPS * BATCH, 2)).astype("float32")
    for step in bad:
        x[step * BATCH] = np.nan
    return x, y


def without(step, arrays):
    """The same batches but for this one."""
    keep = [i for i in range(STEPS * BATCH) if i // BATCH != step]
    return tuple(array[keep] for array in arrays)


def dense(home):
    """A model of two layers, with the same weights at each call."""
    layer = home.keras.layers.Dense
    model = home.model(layer(4, activation="tanh"), layer(2, dtype="float32"), inputs=(3,))
    random = np.random.RandomState(1)
    model.set_weights([random.uniform(-1, 1, weight.shape) for weight in model.get_weights()])
    return model


def compile_arguments(home):
    return inspect.signature(home.keras.Model.compile).parameters


def fit(model, optimizer, arrays, callbacks=(), **options):
    """Compiles and trains for one epoch, without shuffling; returns the model's weights."""
    model.compile(optimizer, "mse", **options)
    model.fit(*arrays, batch_size=BATCH, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model.get_weights()


@functools.lru_cache(maxsize=None)
def plainly(home, left_out=None):
    """The weights after SGD with momentum alone, maybe without one of the batches."""
    arrays = data() if left_out is None else without(left_out, data())
    return fit(dense(home), home.SGD(0.5, momentum=0.5), arrays)


def course(home, optimizer):
    """A callback that notes weights, scale, counter and iterations after each step."""

    class Course(home.keras.callbacks.Callback):
        steps = []

        def on_train_batch_end(self, batch, logs=None):
            if home.kind == "keras3":  # Its own class has no `loss_scale`.
                scale, counter = optimizer.dynamic_scale, optimizer.step_counter
            else:
                scale, counter = optimizer.loss_scale, optimizer.dynamic_counter
            self.steps.append(
                {
                    "weights": self.model.get_weights(),
                    "scale": float(home.numpy(scale() if callable(scale) else scale)),
                    "counter": int(home.numpy(counter)),
                    "iterations": int(home.numpy(optimizer.iterations)),
                }
            )

    callback = Course()
    callback.steps = []
    return callback


class FitTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        for home in keras_homes.available():
            home.clear_session()

    def assert_same_weights(self, weights, expected, rtol=1e-5):
        self.assertLen(weights, len(expected))
        for weight, other in zip(weights, expected):
            self.assertAllClose(weight, other, rtol=rtol, atol=rtol)

    def assert_moved(self, weights, before):
        for weight, other in zip(weights, before):
            self.assertGreater(np.abs(weight - other).max(), 1e-3)

    def scale(self, home, optimizer):
        return float(home.numpy(optimizer._loss_scale()))

    def iterations(self, home, optimizer):
        return int(home.numpy(optimizer.iterations))

    @parameterized.named_parameters(
        cases(
            default={},
            run_eagerly={"run_eagerly": True},
            jit={"jit_compile": True},
            no_jit={"jit_compile": False},
            steps_per_execution={"steps_per_execution": 3},
        )
    )
    def test_each_way_to_run_the_step(self, home, case):
        known = compile_arguments(home)
        if "kwargs" in known and "run_eagerly" not in known:
            known = dict(known, run_eagerly=None)
        missing = set(case) - set(known)
        if missing:
            # A new Keras must not drop these unnoticed.
            self.assertLess(keras_homes.VERSION, (2, 6))
            self.skipTest(f"compile of this Keras has no {missing}")
        if case.get("run_eagerly") and not tf.executing_eagerly():
            self.skipTest("run_eagerly needs eager mode, which TensorFlow 1.15 is not in")
        expected = plainly(home, BAD)
        for policy, rtol in (("float32", 1e-5), ("mixed_float16", 2e-2)):
            if policy == "mixed_float16" and (case or keras_homes.VERSION < (2, 0)):
                continue
            with self.subTest(policy=policy), home.policy(policy):
                model = dense(home)
                self.assert_moved(expected, model.get_weights())
                opt = Stable(
                    home.SGD(0.5, momentum=0.5), initial_scale=SCALE, dynamic_growth_steps=10
                )
                weights = fit(model, opt, data((BAD,)), **case)
                self.assertIs(model.optimizer, opt)
                self.assert_same_weights(weights, expected, rtol)
                self.assertEqual(self.scale(home, opt), SCALE / 2)
                self.assertEqual(self.iterations(home, opt), STEPS - 1 + home.counts_skipped)
                self.assertEqual(home.numpy(opt.dynamic_counter), STEPS - BAD - 1)

    @parameterized.named_parameters(
        cases(
            number=(lambda: SCALE, False, SCALE),
            dynamic=(lambda: "dynamic", True, 2.0**14),
            fixed=(lambda: package.FixedLossScale(SCALE), False, SCALE),
            fixed_skipping=(
                lambda: package.FixedLossScale(SCALE, skip_nonfinite=True),
                True,
                SCALE,
            ),
            dynamic_loss_scale=(lambda: package.DynamicLossScale(SCALE, 2), True, 2 * SCALE),
            exponential_manager=(
                lambda: package.ExponentialUpdateLossScaleManager(SCALE, 2, 1, 4, 0.25),
                True,
                4 * SCALE,
            ),
            fixed_manager=(lambda: package.FixedLossScaleManager(SCALE), True, SCALE),
        )
    )
    def test_each_kind_of_loss_scale(self, home, case):
        make, skips, final = case
        if not skips:
            opt = Older(home.SGD(0.5, momentum=0.5), make())
            self.assert_same_weights(fit(dense(home), opt, data()), plainly(home))
        opt = Older(home.SGD(0.5, momentum=0.5), make())
        weights = fit(dense(home), opt, data((BAD,)))
        self.assertEqual(self.scale(home, opt), final)
        if skips:
            self.assert_same_weights(weights, plainly(home, BAD))
            self.assertEqual(self.iterations(home, opt), STEPS - 1 + home.counts_skipped)
        else:  # As r2.0's fixed scale did.
            self.assertTrue(np.isnan(weights[0]).all())
            self.assertEqual(self.iterations(home, opt), STEPS)

    @parameterized.named_parameters(
        cases(
            clipnorm={"clipnorm": 0.1},
            clipvalue={"clipvalue": 0.05},
            global_clipnorm={"global_clipnorm": 0.1},
            ema=EMA,
            decay_and_ema={"weight_decay": 0.1, **EMA},
            accumulation={"gradient_accumulation_steps": 2},
        )
    )
    def test_features_of_the_inner_optimizer_see_unscaled_gradients(self, home, case):
        self._check_has(home, case)
        if keras_homes.VERSION < (2, 4):
            self.skipTest("optimizers of this Keras that clip are refused")
        expected = fit(dense(home), home.SGD(0.5, momentum=0.5, **case), without(BAD, data()))
        self.assert_moved(expected, plainly(home, BAD))
        inner = home.SGD(0.5, momentum=0.5, **case)
        # A skipped step that counts would overwrite variables with their averages a step earlier.
        opt = Stable(inner, initial_scale=SCALE, count_skipped=False)
        self.assert_same_weights(fit(dense(home), opt, data((BAD,))), expected)

    def _check_has(self, home, features):
        has = {"clipnorm", "clipvalue"}
        if keras_homes.VERSION >= (2, 4) or home.kind != "v2":
            has.add("global_clipnorm")
        if home.kind != "v2":
            has.update(("use_ema", "ema_momentum", "ema_overwrite_frequency"))
            if home.kind == "keras3" or keras_homes.VERSION >= (2, 11):
                has.add("weight_decay")
        if home.kind == "keras3":
            has.add("gradient_accumulation_steps")
        if not has.issuperset(features):
            self.skipTest(f"optimizers of this Keras have no {set(features) - has}")

    @keras_homes.each((False, True))
    def test_schedules_and_the_bias_of_adam_follow_the_steps_that_count(self, home, is_adam):
        def inner():
            if is_adam:
                return home.keras.optimizers.Adam(0.5)
            return home.SGD(home.keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5))

        expected = fit(dense(home), inner(), without(BAD, data()))
        self.assert_moved(expected, plainly(home, BAD))
        opt = Stable(inner(), count_skipped=False)
        self.assert_same_weights(fit(dense(home), opt, data((BAD,))), expected)
        # With the skipped step counted, what comes after it has half the rate, or another bias.
        opt = Stable(inner(), count_skipped=True)
        weights = fit(dense(home), opt, data((BAD,)))
        with self.assertRaises(AssertionError):
            self.assert_same_weights(weights, expected)
        self.assertEqual(self.iterations(home, opt), STEPS)

    @parameterized.named_parameters(keras_homes.named())
    def test_callbacks_set_the_learning_rate(self, home):
        def callbacks():
            module = home.keras.callbacks
            return [
                module.LearningRateScheduler(lambda epoch: 0.5 * 0.5**epoch),
                # The loss never shrinks by as much as 100.
                module.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=100, verbose=0),
            ]

        def run(optimizer):
            model = dense(home)
            model.compile(optimizer, "mse")
            history = model.fit(
                *data(), batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=callbacks()
            )
            return model.get_weights(), history.history

        plain = home.SGD(0.3)
        expected, history = run(plain)
        inner = home.SGD(0.3)
        opt = Stable(inner)
        weights, ours = run(opt)
        self.assert_same_weights(weights, expected)
        (key,) = set(history) & {"lr", "learning_rate"}
        self.assertAllClose(ours[key], history[key])
        rate = home.numpy(plain.learning_rate)
        self.assertAllClose(rate, 0.0125)
        self.assertAllClose(home.numpy(opt.learning_rate), rate)
        self.assertAllClose(home.numpy(inner.learning_rate), rate)

    @parameterized.named_parameters(keras_homes.named())
    def test_fit_again_after_evaluate_and_compile_with_a_frozen_layer(self, home):
        def run(optimizer):
            model = dense(home)
            model.layers[-2].trainable = False
            before = model.get_weights()
            fit(model, optimizer, data())
            model.evaluate(*data(), verbose=0)
            model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
            return before, fit(model, optimizer, data())

        _, expected = run(home.Adam(0.1))
        opt = Stable(home.Adam(0.1))
        before, weights = run(opt)
        self.assert_same_weights(weights, expected)
        self.assertAllEqual(weights[0], before[0])
        self.assert_moved(weights[2:], before[2:])
        self.assertEqual(self.iterations(home, opt), 3 * STEPS)

    @parameterized.named_parameters(keras_homes.named())
    def test_growth_at_the_limit_of_float32_stays_finite(self, home):
        # Keras 3 divides by the scale. Elsewhere one over 2**127 is zero and the step is skipped.
        divides = home.kind == "keras3"
        for period, powers in ((1, [127, 126]), (2, [127, 126, 126])):
            policy = package.DynamicLossScale(2.0**126, period)
            opt = Older(home.SGD(0.5), policy)
            model = dense(home)
            # No loss, so that no scale is too large for its gradients.
            model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
            callback = course(home, opt)
            x, y = data()
            fit(model, opt, (x, np.zeros_like(y)), [callback])
            scales = [np.log2(step["scale"]) for step in callback.steps]
            start = [126] * (period - 1)
            expected = start + ([127] * STEPS if divides else powers * STEPS)
            self.assertEqual(scales, expected[:STEPS])

    @parameterized.named_parameters(cases(float32="float32", mixed_float16="mixed_float16"))
    def test_dynamic_as_that_keras_own(self, home, case):
        if keras_homes.VERSION < (2, 4):
            self.skipTest("Keras had no such class yet")
        if case == "mixed_float16" and home is not keras_homes.available()[0]:
            self.skipTest("one family is enough")
        numbers = {"initial_scale": SCALE, "dynamic_growth_steps": 2}
        # Those before Keras 3 count skipped steps as iterations, which Adam looks at.
        bad = (BAD,) if home.kind == "keras3" or home.counts_skipped else ()
        courses = []
        for cls in (home.own(), Stable):
            with home.policy(case):
                opt = cls(home.Adam(0.1), **numbers)
                courses.append(course(home, opt))
                fit(dense(home), opt, data(bad), [courses[-1]])
        self.assertLen(courses[1].steps, STEPS)
        for theirs, ours in zip(courses[0].steps, courses[1].steps):
            self.assert_same_weights(ours.pop("weights"), theirs.pop("weights"), 1e-6)
            if home.before(3, 9):  # Its own class does not hand on the inner optimizer's count.
                self.assertEqual(theirs.pop("iterations"), 0)
                self.assertGreater(ours.pop("iterations"), 0)
            self.assertEqual(ours, theirs)
