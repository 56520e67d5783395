"""Saving by the Keras wrappers, in every form that their Keras has, and going on from it."""

import copy
import functools
import itertools
import json
import os
import tempfile

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat as package
from tests import forks, keras_homes, processes
from tests.keras_homes import Older, Stable
from tf_lossscale_compat import loss_scale as loss_scale_lib

SCALE = 2.0**10
BATCH = 2
STEPS = 4  # In each of two halves of the training.
VERSION = keras_homes.VERSION

# The experimental optimizers of 2.9 and 2.10 could not be saved in most of these forms.
HOMES = [home for home in keras_homes.available() if VERSION >= (2, 11) or home.kind != "current"]

# Each kind of wrapper. At the end of the first half they have seen three finite steps, and of the
# second of these two kinds is in the middle of counting up to growth.
WRAPPERS = {
    "dynamic": lambda opt: Stable(opt, initial_scale=SCALE, dynamic_growth_steps=4),
    "bounded": lambda opt: Older(
        opt, package.DynamicLossScale(SCALE, 3, 4.0, min_loss_scale=0.5, max_loss_scale=2 * SCALE)
    ),
    "manager": lambda opt: Older(
        opt, package.ExponentialUpdateLossScaleManager(SCALE, 4, 2, 4, 0.5)
    ),
}
LOADED = ("keras", "h5")  # By load_model.
RESTORED = ("weights_h5", "weights_tf", "saved_model", "checkpoint")  # Into a model made anew.


def has(home, form):
    """Returns whether that Keras saves optimizers in this form."""
    if form in ("keras", "weights_h5"):
        # Optimizers of the kind that is legacy by now are not saved so, with or without this.
        return home.kind == "keras3" or (home.kind == "current" and VERSION >= (2, 13))
    if form == "h5":
        return home.kind != "keras3"  # Which restores no optimizer's state from it.
    if form in ("weights_tf", "saved_model"):
        return home.kind != "keras3" and VERSION >= (2, 4)
    return True


def halves():
    """Inputs and targets of both halves; the first batch has a NaN."""
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, (2, STEPS * BATCH, 3)).astype("float32")
    y = random.uniform(-1, 1, (2, STEPS * BATCH, 2)).astype("float32")
    x[0, 0] = np.nan
    return list(zip(x, y))


def fit(model, half):
    if tf.executing_eagerly():  # A few steps take less time than a trace.
        model.run_eagerly = True
    model.fit(*half, batch_size=BATCH, shuffle=False, verbose=0)


def dense(home, optimizer):
    """A compiled model with the same weights at each call."""
    model = home.dense_model()
    model.compile(optimizer, home.keras.losses.MeanSquaredError())
    return model


def state(home, model):
    """Everything that training goes on from, as NumPy."""
    opt = model.optimizer
    counted = {
        "iterations": opt.iterations,
        "scale": opt._loss_scale(),
        "counter": opt.dynamic_counter,
    }
    inner = [home.numpy(variable) for variable in home.variables(opt.inner_optimizer)]
    return {
        "weights": model.get_weights(),
        # Their order is not the same after loading in every Keras; the values are.
        "inner": sorted(inner, key=lambda a: (a.shape, a.tobytes())),
        **{k: None if v is None else home.numpy(v) for k, v in counted.items()},
    }


@functools.lru_cache(maxsize=None)
def trained(home, wrapper):
    """Trains for both halves and saves in between.

    Returns a folder with what was saved, the state in between and the state at the end.
    """
    home.clear_session()
    folder = tempfile.mkdtemp(dir=tf.compat.v1.test.get_temp_dir())
    model = dense(home, WRAPPERS[wrapper](home.Adam(0.1)))
    first, second = halves()
    fit(model, first)
    between = state(home, model)
    for form in LOADED + RESTORED:
        if has(home, form):
            save(home, model, form, folder)
    fit(model, second)
    return folder, between, state(home, model)


def path_of(folder, form):
    return os.path.join(folder, {"weights_h5": "of.weights.h5"}.get(form, "of." + form))


def save(home, model, form, folder):
    path = path_of(folder, form)
    if form == "checkpoint":
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        assert saved.save(path) == path + "-1"
        return
    options = {"save_format": "tf"} if form in ("weights_tf", "saved_model") else {}
    if form.startswith("weights"):
        model.save_weights(path, **options)
    else:
        model.save(path, **options)


def restore(home, model, form, folder):
    path = path_of(folder, form)
    if form == "checkpoint":
        if not tf.executing_eagerly():  # In a graph nothing is restored later: made as by a step.
            opt = model.optimizer.inner_optimizer
            opt.iterations  # noqa: B018 - makes it.
            opt._create_hypers()
            opt._create_slots(model.trainable_variables)
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        status = saved.restore(path + "-1")
        status.assert_existing_objects_matched()
        status.initialize_or_restore()
    elif form == "saved_model":
        # What load_model of these Kerases leaves out, the checkpoint in it has.
        model.load_weights(os.path.join(path, "variables", "variables"))
    else:
        if form == "weights_h5":  # Only then there is something to load into.
            model.optimizer.build(model.trainable_variables)
        model.load_weights(path)


class _Base(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        for home in keras_homes.available():
            home.clear_session()


def saved_cases(forms, wrappers):
    return [case for case in itertools.product(HOMES, forms, wrappers) if has(*case[:2])]


class GoesOnTest(_Base):
    """Training that stops, is saved and goes on ends as if it had never stopped, bit for bit."""

    @parameterized.parameters(
        *saved_cases(["saved_model"], ["dynamic"]), *saved_cases(LOADED, ["manager"])
    )
    def test_in_a_loaded_model(self, home, form, wrapper):
        folder, between, end = trained(home, wrapper)
        home.clear_session()
        model = home.keras.models.load_model(path_of(folder, form))
        original = WRAPPERS[wrapper](home.Adam(0.1))
        self.assertIs(type(model.optimizer), type(original))
        self.assertEqual(
            loss_scale_lib.serialize(model.optimizer._loss_scale),
            loss_scale_lib.serialize(original._loss_scale),
        )
        if form == "saved_model":  # Brings no optimizer's state: see `restore`.
            np.testing.assert_equal(model.get_weights(), between["weights"])
            fit(model, halves()[1])
            self.assertEqual(home.numpy(model.optimizer.iterations), STEPS)
            return
        np.testing.assert_equal(state(home, model), between)
        fit(model, halves()[1])
        np.testing.assert_equal(state(home, model), end)

    @parameterized.parameters(
        *saved_cases(RESTORED, ["dynamic"]), *saved_cases(["checkpoint"], ["manager"])
    )
    def test_in_a_new_model(self, home, form, wrapper):
        folder, _, end = trained(home, wrapper)
        home.clear_session()
        model = dense(home, WRAPPERS[wrapper](home.Adam(0.1)))
        restore(home, model, form, folder)
        fit(model, halves()[1])
        np.testing.assert_equal(state(home, model), end)

    @parameterized.product(home=HOMES[:2])
    def test_loaded_by_a_new_process_after_the_import_that_pages_name(self, home):
        folder, between, _ = trained(home, "dynamic")
        form = "keras" if has(home, "keras") else "h5"
        keras = "from tensorflow import keras"
        if VERSION >= (2, 16):
            keras = f"import {home.keras.__name__} as keras"
        program = (
            f"{keras}\n"
            "import tf_lossscale_compat.keras\n"
            f"opt = keras.models.load_model({path_of(folder, form)!r}).optimizer\n"
            "cls = tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer\n"
            "value = getattr(keras.backend, 'get_value', float)\n"
            "scale = float(value(opt._loss_scale.current_loss_scale))\n"
            "print(issubclass(type(opt), cls), scale)\n"
        )
        status, out, err = forks.run(
            ["-c", program], processes.environment(), self.get_temp_dir(), 300
        )
        self.assertEqual(status, 0, err)
        self.assertEqual(out.split()[-2:], ["True", str(float(between["scale"]))])

    # Optimizers of Keras before 3 are built as they are loaded, or not at all.
    @keras_homes.each(("dynamic", "manager"), kind="keras3")
    def test_in_a_model_loaded_from_before_the_first_step(self, home, wrapper):
        """The file has no slots and what reads it has; the shapes of numbers do not tell."""

        @home.keras.saving.register_keras_serializable(package="before_first_step")
        class Factor(home.keras.layers.Layer):
            def build(self, shape):
                self.kernel = self.add_weight(shape=(), initializer="ones", name="kernel")

            def call(self, x):
                return x * self.kernel

        x = np.ones([4, 3], np.float32)
        for inner in (home.Adam(0.1), home.SGD(0.1, momentum=0.9)):
            ended = []
            model = home.keras.Sequential([home.keras.layers.Input((3,)), Factor()])
            model.compile(WRAPPERS[wrapper](inner), "mse", run_eagerly=True)
            path = os.path.join(self.get_temp_dir(), f"{inner.name}.keras")
            model.save(path)
            for each in (home.keras.models.load_model(path), copy.deepcopy(model), model):
                each.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0)
                ended.append([*map(np.asarray, each.get_weights() + each.optimizer.variables)])
                rate = home.numpy(each.optimizer.learning_rate)
                self.assertAlmostEqual(float(rate), 0.1, places=6)
            for found in ended[:-1]:
                np.testing.assert_equal(found, ended[-1])


class UnbuiltTest(_Base):
    """Weights load into a model whose optimizer has not been built, and its state stays."""

    @parameterized.product(home=keras_homes.available(), saved=("ours", "plain"))
    def test_weights_load(self, home, saved):
        if VERSION < (2, 4):
            self.skipTest("there weights files hold no optimizer")
        wrap = {"ours": Stable, "plain": lambda inner: inner}[saved]
        trained = dense(home, wrap(home.Adam(0.25)))
        fit(trained, halves()[1])
        path = os.path.join(self.get_temp_dir(), "model.weights.h5")
        trained.save_weights(path)
        opt = Stable(home.Adam(0.25), initial_scale=8)
        loaded = dense(home, opt)
        loaded.load_weights(path)
        self.assertAllEqual(loaded.get_weights()[0], trained.get_weights()[0])
        self.assertEqual(home.numpy(opt.loss_scale), 8.0)
        self.assertEqual(home.numpy(opt.iterations), 0)


class LoaderTest(_Base):
    """Keras' loaders walk `dir(optimizer)`, and load each optimizer there as a child."""

    @parameterized.product(home=HOMES)
    def test_sees_no_inner_optimizer(self, home):
        opt = Stable(home.SGD(0.1))
        library = {"__name__": "keras.saving_lib"}
        exec("def _walk(opt): return dir(opt)\ndef _load_state(opt): return _walk(opt)", library)
        seen = [getattr(opt, name, None) for name in library["_load_state"](opt)]
        self.assertFalse([each for each in seen if each is opt.inner_optimizer])
        self.assertIn("inner_optimizer", dir(opt))


class ConfigTest(_Base):
    @parameterized.product(home=HOMES, wrapper=("dynamic", "bounded", "manager"))
    def test_round_trip(self, home, wrapper):
        opt, functions = WRAPPERS[wrapper](home.Adam(0.25)), home.keras.optimizers
        serialized = json.loads(json.dumps(functions.serialize(opt), default=float))
        options = {"use_legacy_optimizer": True} if home.name == "legacy" else {}
        again = functions.deserialize(serialized, **options)
        self.assertIs(type(again), type(opt))
        self.assertIs(type(again.inner_optimizer), type(opt.inner_optimizer))
        self.assertEqual(again.get_config(), opt.get_config())
        self.assertAllClose(home.numpy(again.learning_rate), 0.25)

    @parameterized.product(home=HOMES)
    def test_other_classes_do_not_stand_for_loss_scales(self, home):
        class Scale:
            @classmethod
            def from_config(cls, config):
                return 8.0

        opt = Stable(home.SGD(0.1))
        inner = opt.get_config()["inner_optimizer"]
        config = {"inner_optimizer": inner, "loss_scale": {"class_name": "Scale", "config": {}}}
        with self.assertRaisesRegex(ValueError, "unknown loss scale 'Scale'"):
            type(opt).from_config(config, custom_objects={"Scale": Scale})

    @parameterized.product(home=HOMES)
    def test_a_loss_scale_of_ones_own_is_found_in_the_scope_of_that_keras(self, home):
        class Own(package.FixedLossScale):
            pass

        opt = Older(home.SGD(0.1), Own(8.0))
        config = opt.get_config()
        utils = opt._tflsc_family.keras.utils
        if not hasattr(utils, "get_registered_object"):
            self.skipTest("this Keras hands custom_objects to from_config")
        with utils.custom_object_scope({"Own": Own}):  # As `load_model` enters it.
            loaded = type(opt).from_config(config)
        self.assertIsInstance(loaded.loss_scale, Own)
        with self.assertRaisesRegex(ValueError, "unknown loss scale 'Own'"):
            type(opt).from_config(config)

    @parameterized.product(home=HOMES)
    def test_malformed_configs(self, home):
        inner = {"inner_optimizer": home.keras.optimizers.serialize(home.SGD(0.25))}
        for config, message in (
            ({}, "config must hold the inner optimizer"),
            ({"dynamic": True}, "config must hold the inner optimizer"),
            (dict(inner, initial_scale=-1.0), "initial_scale must be above zero.*-1"),
            (dict(inner, initial_scale="8"), "initial_scale must be a real number.*'8'"),
            (dict(inner, initial_scale="increment_period"), "initial_scale .*'increment_period'"),
            (dict(inner, dynamic_growth_steps=1.5), "dynamic_growth_steps must be.*1.5"),
            (dict(inner, dynamic=False), "initial_scale. must be specified"),
            (dict(inner, loss_scale=None), "loss_scale cannot be None"),
            (dict(inner, loss_scale="big"), "Cannot make a loss scale from 'big'"),
            (
                dict(inner, loss_scale={"class_name": "Unknown", "config": {}}),
                "unknown loss scale 'Unknown'",
            ),
            (
                dict(inner, loss_scale={"class_name": "FixedLossScale", "config": {"a": 1}}),
                "config does not fit its class",
            ),
        ):
            for public in (Stable, Older):
                before = copy.deepcopy(config)
                with self.assertRaisesRegex(ValueError, message):
                    keras_homes.sibling(public, home).from_config(config)
                self.assertEqual(config, before)
