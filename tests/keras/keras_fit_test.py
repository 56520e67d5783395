"""`compile` and `fit` with the Keras wrappers, on each Keras: against the inner optimizer alone."""

import functools
import inspect

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import keras_homes
from tf_lossscale_compat.keras import mixed_precision

Stable = mixed_precision.LossScaleOptimizer
STEPS = 6  # The third step's batch is the one that some tests put a NaN into.
BAD = 2
BATCH = 2
SCALE = 2.0**10


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


def fit(model, optimizer, arrays, traced=False, **options):
    """Compiles and trains for one epoch, without shuffling; returns the model's weights."""
    if not traced and tf.executing_eagerly():  # A few steps take less time than a trace.
        options["run_eagerly"] = True
    model.compile(optimizer, "mse", **options)
    model.fit(*arrays, batch_size=BATCH, shuffle=False, verbose=0)
    return model.get_weights()


@functools.lru_cache(maxsize=None)
def plainly(home, left_out=None):
    """The weights after SGD with momentum alone, maybe without one of the batches."""
    arrays = data() if left_out is None else without(left_out, data())
    return fit(dense(home), home.SGD(0.5, momentum=0.5), arrays)


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
            steps_per_execution={"steps_per_execution": 3},
        )
    )
    def test_each_way_to_run_the_step(self, home, case):
        missing = set(case) - set(inspect.signature(home.keras.Model.compile).parameters)
        if missing:
            # A new Keras must not drop these unnoticed.
            self.assertLess(keras_homes.VERSION, (2, 6))
            self.skipTest(f"compile of this Keras has no {missing}")
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
                weights = fit(model, opt, data((BAD,)), traced=True, **case)
                self.assertIs(model.optimizer, opt)
                self.assert_same_weights(weights, expected, rtol)
                self.assertEqual(self.scale(home, opt), SCALE / 2)
                self.assertEqual(self.iterations(home, opt), STEPS - 1 + home.counts_skipped)
                self.assertEqual(home.numpy(opt.dynamic_counter), STEPS - BAD - 1)

    @parameterized.named_parameters(
        cases(
            global_clipnorm={"global_clipnorm": 0.1},
            decay_and_ema={
                "weight_decay": 0.1,
                "use_ema": True,
                "ema_momentum": 0.5,
                "ema_overwrite_frequency": 2,
            },
            accumulation={"gradient_accumulation_steps": 2},
        )
    )
    def test_features_of_the_inner_optimizer_see_unscaled_gradients(self, home, case):
        self._check_has(home, case)
        if keras_homes.VERSION < (2, 4):
            self.skipTest("this Keras has none of them")
        expected = fit(dense(home), home.SGD(0.5, momentum=0.5, **case), without(BAD, data()))
        self.assert_moved(expected, plainly(home, BAD))
        inner = home.SGD(0.5, momentum=0.5, **case)
        # A skipped step that counts would overwrite variables with their averages a step earlier.
        opt = Stable(inner, initial_scale=SCALE, count_skipped=False)
        self.assert_same_weights(fit(dense(home), opt, data((BAD,))), expected)

    def _check_has(self, home, features):
        has = {"global_clipnorm"}
        if home.kind != "v2":
            has.update(("use_ema", "ema_momentum", "ema_overwrite_frequency"))
            if home.kind == "keras3" or keras_homes.VERSION >= (2, 11):
                has.add("weight_decay")
        if home.kind == "keras3":
            has.add("gradient_accumulation_steps")
        if not has.issuperset(features):
            self.skipTest(f"optimizers of this Keras have no {set(features) - has}")

    @parameterized.named_parameters(keras_homes.named())
    def test_fit_again_after_evaluate_and_compile_with_a_frozen_layer(self, home):
        # XLA, by which Keras 3 compiles unless told, takes longer than the steps.
        options = {"jit_compile": False} if home.kind == "keras3" else {}

        def run(optimizer, traced):
            model = dense(home)
            model.layers[-2].trainable = False
            before = model.get_weights()
            fit(model, optimizer, data(), traced, **options)
            model.evaluate(*data(), verbose=0)
            model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
            return before, fit(model, optimizer, data(), traced, **options)

        _, expected = run(home.Adam(0.1), False)
        opt = Stable(home.Adam(0.1))
        before, weights = run(opt, True)
        self.assert_same_weights(weights, expected)
        self.assertAllEqual(weights[0], before[0])
        self.assert_moved(weights[2:], before[2:])
        self.assertEqual(self.iterations(home, opt), 3 * STEPS)
