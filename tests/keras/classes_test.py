"""The Keras wrappers as classes: families, subclasses, copies, configs, owners of loss scales."""

import copy
import functools
import importlib
import inspect
import itertools
import json
import sys
import types
import warnings
from unittest import mock

import h5py
import numpy as np
import tensorflow as tf

import tf_lossscale_compat as package
from tests import keras_homes, modes, originals
from tests.keras_homes import Older, Stable, number, variables_of
from tf_lossscale_compat._core import _scale_or_manager
from tf_lossscale_compat.keras import _classes

VERSION = keras_homes.VERSION


# This and the next three are mixed into the class for each family.
class ExtraArgument:
    def __init__(self, inner_optimizer, extra, initial_scale=8.0):
        super().__init__(inner_optimizer, initial_scale=initial_scale)
        self.extra = extra

    def get_config(self):
        config = super().get_config()
        return {
            "inner_optimizer": config["inner_optimizer"],
            "initial_scale": config["initial_scale"],
            "extra": self.extra,
        }


class Documented:
    """Overrides what Keras documents."""

    def __init__(self, inner_optimizer):
        super().__init__(inner_optimizer, initial_scale=8.0, dynamic_growth_steps=3)

    def get_config(self):
        return {"inner_optimizer": super().get_config()["inner_optimizer"]}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(config["inner_optimizer"])


class OtherFirstName:
    def __init__(self, opt, loss_scale, **options):
        self.before = 5  # Assigned before there is anything to assign to.
        super().__init__(opt, loss_scale, **options)


class ReplacedMethod:
    def get_scaled_loss(self, loss):
        return super().get_scaled_loss(loss) * 2.0


class Recursing(Stable):
    """As neurst's, which names no class."""

    def __init__(self, *args, **kwargs):
        super(self.__class__, self).__init__(*args, **kwargs)


@functools.lru_cache(maxsize=None)
def derived(mixin, home):
    """A subclass for that home's optimizers, which pickles find here."""
    public = Older if mixin is OtherFirstName else Stable
    name = f"{mixin.__name__}{home}"
    bases = mixin, keras_homes.sibling(public, home)
    globals()[name] = type(name, bases, {"__module__": __name__})
    return globals()[name]


SUBCLASSES = {
    "extra": lambda home, opt: derived(ExtraArgument, home)(opt, 7),
    "documented": lambda home, opt: derived(Documented, home)(opt),
    "name": lambda home, opt: derived(OtherFirstName, home)(opt=opt, loss_scale=8.0),
    "method": lambda home, opt: derived(ReplacedMethod, home)(opt, initial_scale=8.0),
}


class Counted(package.LossScale):
    """A user's, with as many variables as a dynamic one, in another order."""

    def __init__(self):
        self.scale = self._add_weight("scale", 64.0, tf.float32)
        self.seen = self._add_weight("seen", 0, tf.int64)

    def __call__(self):
        return tf.identity(self.scale)

    def update(self, grads):
        self.seen.assign_add(1)
        return None, True

    def get_config(self):
        return {}


class Delayed(package.DynamicLossScale):
    """A user's, with a variable more."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.delay = self._add_weight("delay", 40, tf.int64)


class Moving(package.FixedLossScale):
    """A user's, which is fixed no more."""

    def update(self, grads):
        self._loss_scale_value *= 2
        return None, True


# Loss scales with states of two and three variables.
POLICIES = {
    "dynamic": lambda: package.DynamicLossScale(64.0, 50),
    "delayed": lambda: Delayed(64.0, 50),
    "manager": lambda: package.ExponentialUpdateLossScaleManager(64.0, 50, 40),
}


def default():
    """The home whose optimizers are tf.keras' own."""
    return keras_homes.available()[0]


class _Base(modes.EagerTestCase):
    def take_step(self, opt, home, variable=None):
        """A step whose gradient is 0.25."""
        variable = home.variable() if variable is None else variable
        before = number(variable)
        with tf.GradientTape() as tape:
            loss = opt.get_scaled_loss(tf.convert_to_tensor(variable) * 0.25)
        grads = opt.get_unscaled_gradients(tape.gradient(loss, [variable]))
        opt.apply_gradients(zip(grads, [variable]))
        return before - number(variable)


class SubclassTest(_Base):
    @keras_homes.each(SUBCLASSES)
    def test_constructors_of_their_own(self, home, name):
        opt = SUBCLASSES[name](home, home.SGD(1.0))
        self.assertIsInstance(opt, type(home.SGD(1.0)).__mro__[1])
        self.assertIsInstance(opt, Stable)
        self.assertEqual(number(opt._loss_scale()), 8.0)
        self.assertEqual(self.take_step(opt, home), 0.5 if name == "method" else 0.25)
        made = [type(opt).from_config(json.loads(json.dumps(opt.get_config(), default=float)))]
        if name in ("name", "method"):  # Whose constructors take the same.
            copies = keras_homes.copies(opt)
            made += [*copies, *itertools.chain(*map(keras_homes.copies, copies))]
        for each in made:
            self.assertIs(type(each), type(opt))
            self.assertEqual(each.get_config(), opt.get_config())
            self.assertEqual(getattr(each, "before", None), 5 if name == "name" else None)
            self.assertEqual(getattr(each, "extra", None), 7 if name == "extra" else None)
            self.assertEqual(self.take_step(each, home), 0.5 if name == "method" else 0.25)


class ClassesTest(modes.EagerTestCase):
    @keras_homes.each((Stable, Older))
    def test_siblings_are_known_as_the_public_class(self, home, public):
        sibling = keras_homes.sibling(public, home)
        self.assertEqual(sibling is public, home.name == default().name)
        subclass = type("Subclass", (sibling,), {})
        for cls in (sibling, subclass):
            self.assertTrue(issubclass(cls, public))
            self.assertTrue(issubclass(cls, Stable))
            self.assertEqual(issubclass(cls, Older), public is Older)
            self.assertIsInstance(cls(home.SGD(1.0), loss_scale=8.0), public)
        self.assertNotIsInstance(home.SGD(1.0), public)
        of_v1 = originals.experimental()
        if of_v1:  # An optimizer of TensorFlow with a loss scale, but none of Keras.
            v1 = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            self.assertNotIsInstance(of_v1.MixedPrecisionLossScaleOptimizer(v1, 8.0), public)
        self.assertFalse(issubclass(home.SGD, public))
        # Called with an optimizer of another family, it picks that family's class, too.
        inner = default().SGD(1.0)
        self.assertIs(type(sibling(inner, loss_scale=8.0)), public)

    @keras_homes.each()
    def test_what_compile_wraps_is_an_instance(self, home):
        """Custom steps ask so before they scale the loss."""
        if VERSION < (2, 1):
            self.skipTest("its layers cast no variables by themselves")
        with home.policy("mixed_float16"):
            models = [home.dense_model(), home.dense_model()]
            ours = Stable(home.SGD(1.0))
            for model, opt in zip(models, (ours, home.SGD(1.0))):
                model.compile(opt, "mse")
        self.assertIs(models[0].optimizer, ours)
        own = models[1].optimizer
        self.assertIn("LossScaleOptimizer", type(own).__name__)
        self.assertIsInstance(own, Stable)
        self.assertIsInstance(own, Older)
        self.assertNotIsInstance(own, type("Own", (keras_homes.sibling(Stable, home),), {}))
        self.assertNotIsInstance(home.SGD(1.0), Stable)
        self.assertNotIsInstance(ours, Older)

    @keras_homes.each((Stable, Older))
    def test_a_subclass_around_another_family_is_refused(self, home, public):
        if home.name == default().name:
            self.skipTest("that family is the public class' own")
        own, inner = type("Own", (public,), {}), home.SGD(1.0)
        first = "optimizer" if public is Older else "inner_optimizer"
        error = rf"{first} must derive .* Own wraps.* Derive the subclass from type\(LossScaleOpt"
        with self.assertRaisesRegex(TypeError, error):
            own(inner, loss_scale=8.0)
        other = type("Own", (type(public(inner, loss_scale=8.0)),), {})
        self.assertIs(type(other(home.SGD(1.0), loss_scale=8.0)), other)

    @keras_homes.each()
    def test_of_each_family_by_a_config_of_the_inner_optimizer(self, home):
        opt = Stable(home.keras.optimizers.serialize(home.SGD(0.25)))
        self.assertIsInstance(opt.inner_optimizer, home.SGD)
        self.assertEqual(number(opt.learning_rate), 0.25)

    @keras_homes.each()
    def test_of_each_family(self, home):
        opt = Stable(home.SGD(1.0))
        for cls in (Stable, home.SGD.__mro__[-2 if home.kind == "keras3" else 1]):
            self.assertIsInstance(opt, cls)
        self.assertEqual(type(opt).__module__, "tf_lossscale_compat.keras.mixed_precision")
        self.assertEqual(type(opt).__qualname__, "LossScaleOptimizer")
        if keras_homes.VERSION >= (2, 2):  # Before, files know a class by this name alone.
            self.assertEqual(type(opt).__name__, "LossScaleOptimizer")
        self.assertIs(type(opt), type(Stable(home.SGD(1.0))))
        for other in keras_homes.copies(opt):
            self.assertIs(type(other), type(opt))

    @keras_homes.each()
    def test_signatures_are_those_of_the_constructors(self, home):
        """As `help` and notebooks show them."""
        own_class = derived(Documented, home)
        for cls, opt in (
            (Stable, Stable(home.SGD(1.0))),
            (Older, Older(home.SGD(1.0), 8.0)),
            (own_class, own_class(home.SGD(1.0))),
            (Recursing, Recursing(default().SGD(1.0))),
        ):
            own = list(inspect.signature(cls.__init__).parameters.values())[1:]
            for shown in (cls, type(opt)):
                self.assertEqual(list(inspect.signature(shown).parameters.values()), own)

    def test_a_module_that_is_called_keras_and_is_none(self):
        """As a folder of that name is where a program starts and no Keras is installed."""
        with mock.patch.dict(sys.modules, keras=types.ModuleType("keras")):
            _classes.register_imported()


class StateTest(_Base):
    """State that is taken out of one optimizer and put into another."""

    def built(self, home, policy):
        """An optimizer of a vector that has its slots, as it was once given a gradient of zeros."""
        opt = Older(home.Adam(0.1), POLICIES[policy]())
        opt.apply_gradients([(tf.constant([0.0, 0.0]), home.variable([1.0, 2.0]))], scaled=False)
        return opt

    def filled(self, home, policy):
        """Such an optimizer, each of whose variables holds another number, and their values."""
        opt = self.built(home, policy)
        for i, variable in enumerate(self.variables(home, opt)):
            variable.assign(np.full_like(home.numpy(variable), i + 2))
        return opt, self.values(home, opt)

    def variables(self, home, opt):
        """Those of an optimizer and its loss scale, in the order that files have."""
        variables = home.variables(opt)
        if home.kind != "keras3" and hasattr(opt, "_loss_scale"):
            variables += _scale_or_manager.variables_of(opt._loss_scale)
        return variables

    def values(self, home, opt):
        return [home.numpy(variable) for variable in self.variables(home, opt)]

    def own(self, opt):
        """The values of the loss scale's variables."""
        return [number(variable) for variable in _scale_or_manager.variables_of(opt._loss_scale)]

    def stored(self, opt):
        """Returns what an optimizer puts into a file, a dict."""
        store = {}
        opt.save_own_variables(store)
        return store

    @keras_homes.each(sorted(POLICIES))
    def test_weights(self, home, policy):
        opt, values = self.filled(home, policy)
        again = self.built(home, policy)
        own = self.own(again)
        self.assertEmpty(set(own) & set(self.own(opt)))
        inner = self.values(home, opt.inner_optimizer)
        again.set_weights(inner)  # That of the inner optimizer alone.
        np.testing.assert_equal(self.values(home, again.inner_optimizer), inner)
        self.assertEqual(self.own(again), own)
        again.set_weights(values)
        np.testing.assert_equal(self.values(home, again), values)
        # As they come out of JSON, or of one array for all.
        for dtype in (np.float32, np.int64):
            again.set_weights([np.asarray(value).astype(dtype) for value in values])
            self.assertAllClose(self.own(again), self.own(opt))
        bad = [[], values[:1], [*values, values[-1]]]
        for i, value in enumerate(values):
            bad.append([*values[:i], np.zeros((*value.shape, 3)), *values[i + 1 :]])
        for each in bad:
            with self.assertRaisesRegex(ValueError, "(?i)weight"):
                again.set_weights(each)
            np.testing.assert_equal(self.values(home, again), values)

    @keras_homes.each((dict, lambda group: group), kind="current")
    def test_own_variables_of_a_group(self, home, read):
        """HDF5 files; tf_keras after 2.21.0 reads a group as a mapping without attributes."""
        opt, values = self.filled(home, "dynamic")
        with h5py.File("file", "w", driver="core", backing_store=False) as file:
            opt.save_own_variables(file)
            again = self.built(home, "dynamic")
            again.load_own_variables(read(file))
        np.testing.assert_equal(self.values(home, again), values)
        self.assertEmpty(self.warnings())

    @keras_homes.each(sorted(POLICIES), kind=keras_homes.NEWER)
    def test_own_variables(self, home, policy):
        opt, values = self.filled(home, policy)
        again = self.built(home, policy)
        own = self.own(again)
        inner = self.values(home, opt.inner_optimizer)
        again.load_own_variables({str(i): value for i, value in enumerate(inner)})
        np.testing.assert_equal(self.values(home, again.inner_optimizer), inner)
        self.assertEqual(self.own(again), own)
        (warning,) = self.warnings()
        self.assertIn("a loss scale of another kind or none", warning)
        store = self.stored(opt)
        self.assertLen(store, len(values))
        again.load_own_variables(store)
        np.testing.assert_equal(self.values(home, again), values)
        self.assertLen(self.warnings(), 1)
        for few in ({}, {"0": store["0"]}):
            with mock.patch.object(warnings, "warn") as warn:  # By which Keras 3 says it.
                again.load_own_variables(few)
            told = [*self.warnings(), *(call[0][0] for call in warn.call_args_list)]
            self.assertIn("saved optimizer has", told[-1])
        slot = max(store, key=lambda name: np.size(store[name]))
        with self.assertRaisesRegex(ValueError, "(?i)shape"):
            again.load_own_variables({**store, slot: np.zeros([3])})
        np.testing.assert_equal(self.values(home, again), values)

    @keras_homes.each(itertools.permutations(sorted([*POLICIES, "counted"]), 2), kind="keras3")
    def test_own_variables_of_another_kind_of_loss_scale(self, home, kinds):
        """They go by their places, where others may be as many: no counter becomes a scale."""
        saved, loaded = kinds
        with mock.patch.dict(POLICIES, counted=Counted):
            opt, values = self.filled(home, saved)
            again = self.built(home, loaded)
        own, before = self.own(again), self.values(home, again)
        again.load_own_variables(self.stored(opt))
        if kinds == ("dynamic", "delayed"):
            # As a file of Keras' own class.
            self.assertEqual(float(again.loss_scale), float(values[3]))
            return
        self.assertEqual(self.own(again), own)
        self.assertIn("a loss scale of another kind", self.warnings()[-1])
        inner = len(again.inner_optimizer.variables)
        np.testing.assert_equal(self.values(home, again)[-inner:], values[-inner:])
        if len(before) == len(values):
            weights = [np.asarray(value) for value in before]
            with self.assertRaisesRegex(ValueError, "to another kind of loss scale"):
                again.set_weights(values)
            self.assertEqual(self.own(again), own)
            again.set_weights(weights)
            np.testing.assert_equal(self.values(home, again), before)

    @keras_homes.each(kind=keras_homes.NEWER)
    def test_variables_without_a_name(self, home):
        """In eager mode all of them are named `Variable:0`."""

        class Unnamed(package.LossScaleManager):
            def __init__(self):
                self.state = [tf.Variable(8.0), tf.Variable(0.0)]

            def variables(self):
                return self.state

            def get_loss_scale(self):
                return self.state[0]

            def update_loss_scale(self, finite_grads):
                self.state[1].assign_add(1.0)

        with mock.patch.dict(POLICIES, unnamed=Unnamed):
            opt, again = self.built(home, "unnamed"), self.built(home, "unnamed")
        for variable, value in zip(opt._loss_scale.manager.state, (16.0, 5.0)):
            variable.assign(value)
        again.load_own_variables(self.stored(opt))
        self.assertEqual(self.own(again), [16.0, 5.0])


class ConfigTest(_Base):
    @keras_homes.each()
    def test_it_holds_this_and_nothing_else(self, home):
        def numbers(*values):
            config = dict(zip(("dynamic", "initial_scale", "dynamic_growth_steps"), values))
            if home.kind == "keras3" and config["dynamic"]:
                del config["dynamic"]  # Which its own class refuses.
            return config

        def of(name, **config):
            return {"loss_scale": {"class_name": name, "config": config}}

        quadrupling = {"initial_loss_scale": 8.0, "increment_period": 3, "multiplier": 4.0}
        skipping = {"loss_scale_value": 8.0, "skip_nonfinite": True}
        options = {"name": "mine", "count_skipped": False}

        def stable(**arguments):
            return Stable(home.SGD(1.0), **arguments)

        def older(loss_scale, **arguments):
            return Older(home.SGD(1.0), loss_scale, **arguments)

        dynamic, fixed = package.DynamicLossScale, package.FixedLossScale
        of_four, of_eight = of("DynamicLossScale", **quadrupling), {"loss_scale_value": 8.0}
        for opt, expected in (
            (stable(), numbers(True, 2.0**15, 2000)),
            (stable(dynamic=False, initial_scale=8), numbers(False, 8.0, None)),
            (stable(loss_scale=dynamic(8, 3)), numbers(True, 8.0, 3)),
            (stable(loss_scale=dynamic(**quadrupling)), {**numbers(True, 8.0, 3), **of_four}),
            (
                stable(loss_scale=fixed(**skipping)),
                {**numbers(False, 8.0, None), **of("FixedLossScale", **skipping)},
            ),
            (stable(initial_scale=8, **options), {**numbers(True, 8.0, 2000), **options}),
            (older(8), of("FixedLossScale", **of_eight)),
            (older(dynamic(**quadrupling)), of_four),
            (older(fixed(8), **options), {**of("FixedLossScale", **of_eight), **options}),
        ):
            config = opt.get_config()
            self.assertEqual(type(opt).from_config(config).get_config(), config)
            inner = config.pop("optimizer" if isinstance(opt, Older) else "inner_optimizer")
            self.assertEndsWith(inner["class_name"], "SGD")
            if home.kind == "keras3":  # As Keras' own config there.
                expected = {"name": opt.name, **expected}
            self.assertEqual(config, expected)

    @keras_homes.each(
        (Stable, Older), (("name", "mine"), ("count_skipped", True), ("count_skipped", False))
    )
    def test_an_option_is_kept(self, home, public, option):
        name, value = option
        plain = public(home.SGD(1.0), loss_scale=8.0)
        self.assertNotEqual(plain.get_config().get(name, "not there"), value)
        opt = public(home.SGD(1.0), loss_scale=8.0, **{name: value})
        for each in (opt, type(opt).from_config(opt.get_config()), *keras_homes.copies(opt)):
            self.assertEqual(each.get_config()[name], value)
            if name == "name":
                self.assertEqual(getattr(each, "name", getattr(each, "_name", None)), value)

    @keras_homes.each((Stable, Older))
    def test_constructors_take_what_configs_hold(self, home, public):
        if home is not keras_homes.available()[0]:
            self.skipTest("a config alone says nothing of the other Kerases")
        opt = public(home.SGD(0.25), *([8.0] if public is Older else [True, 8.0, 3]))
        again = public(**opt.get_config())
        self.assertEqual(again.get_config(), opt.get_config())
        self.assertIsNot(again.inner_optimizer, opt.inner_optimizer)
        self.assertEqual(self.take_step(again, home), 0.0625)

    @keras_homes.each(
        [{"dynamic": False, "initial_scale": 8}, {"initial_scale": 8}, {"dynamic_growth_steps": 3}]
    )
    def test_a_loss_scale_and_numbers_are_refused(self, home, numbers):
        with self.assertRaisesRegex(ValueError, "loss_scale must be None if dynamic, .* 'dynamic'"):
            Stable(home.SGD(1.0), loss_scale="dynamic", **numbers)

    @keras_homes.each((Stable, Older))
    def test_bad_arguments_are_refused_before_anything_is_made(self, home, public):
        dynamic, inner = {"loss_scale": "dynamic"}, home.SGD(1.0)
        bad = [
            (TypeError, "count_skipped must be .*, got 1", {**dynamic, "count_skipped": 1}),
            (TypeError, "name must .*, got 5", {**dynamic, "name": 5}),
        ]
        if home.kind == "keras3":
            bad.append((ValueError, "name.*a/b", {**dynamic, "name": "a/b"}))
        for loss_scale in ("static", 0.5, float("nan"), {"class_name": "Nothing"}):
            bad.append((ValueError, "", {"loss_scale": loss_scale}))
        if public is Stable:
            bad.append((ValueError, "initial_scale", {"initial_scale": -1.0}))
        for error, message, arguments in bad:
            with modes.creations() as created, self.assertRaisesRegex(error, message):
                public(inner, **arguments)
            self.assertEmpty(created)
        # Had it been wrapped by halves, it could not be wrapped now.
        self.assertIs(public(inner, loss_scale=8).inner_optimizer, inner)

    @keras_homes.each()
    def test_an_inner_optimizer_of_the_users(self, home):
        class Own(home.SGD):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.own = 123

        functions = home.keras.optimizers
        config = functions.serialize(Stable(Own(2.0, momentum=0.5), initial_scale=2))
        again = functions.deserialize(config, custom_objects={"Own": Own})
        self.assertIsInstance(again.inner_optimizer, Own)
        self.assertEqual(again.inner_optimizer.own, 123)
        weight = home.variable(5.0)
        again.minimize(lambda: tf.convert_to_tensor(weight), [weight])
        self.assertEqual((number(weight), number(again.dynamic_counter)), (3.0, 1))


class CopyTest(_Base):
    @keras_homes.each(keras_homes.COPIES, (False, True))
    def test_goes_on_by_itself(self, home, way, trained):
        opt = Older(home.SGD(1.0), package.DynamicLossScale(8.0, 1), name="mine")
        variable = home.variable()
        if trained:
            self.take_step(opt, home, variable)
        scale, steps = number(opt.loss_scale()), number(opt.iterations)
        try:  # As much as this Keras' own optimizers keep.
            kept = number(keras_homes.COPIES[way](opt.inner_optimizer).iterations)
        except Exception as error:
            with self.assertRaises(type(error)):
                keras_homes.COPIES[way](opt)
            self.skipTest("optimizers of this Keras cannot be copied so")
        again = keras_homes.COPIES[way](opt)
        self.assertIs(type(again), type(opt))
        self.assertIsNot(again.inner_optimizer, opt.inner_optimizer)
        self.assertEqual(again.get_config(), opt.get_config())
        # Of Keras 3's own class no copy keeps the scale.
        self.assertEqual(number(again.loss_scale()), 8.0 if home.kind == "keras3" else scale)
        self.assertEqual(number(again.iterations), kept)
        again.loss_scale.current_loss_scale.assign(2.0)
        # A copy has been asked for nothing yet.
        again.apply_gradients([(again.scale_loss(tf.constant(0.25)), home.variable())])
        self.assertEqual(number(again.loss_scale()), 4.0)
        self.assertEqual(number(again.iterations), kept + 1)
        self.assertEqual(number(opt.loss_scale()), scale)
        self.assertEqual(number(opt.iterations), steps)
        self.assertEqual(self.take_step(opt, home, variable), 0.25)


class OwnerTest(_Base):
    """A loss scale drives one Keras optimizer."""

    def both(self):
        dynamic = package.DynamicLossScale(8.0)
        return dynamic, package.ExponentialUpdateLossScaleManager(8.0, 2), Moving(8.0)

    @keras_homes.each((0, 1, 2))
    def test_a_second_optimizer_is_refused(self, home, which):
        policy = self.both()[which]
        first, inner = Older(home.SGD(1.0), policy), home.SGD(1.0)
        for make in (lambda: Older(inner, policy), lambda: Stable(inner, loss_scale=policy)):
            with self.assertRaisesRegex(ValueError, "Keras one.*of its own"):
                make()
        # Nothing of the inner optimizer was touched, nor of the first one.
        self.assertEqual(self.take_step(Older(inner, self.both()[which]), home), 0.25)
        self.assertEqual(self.take_step(first, home), 0.25)

    @keras_homes.each((("function", 0), ("cycle", 1)))
    def test_one_that_is_gone_leaves_the_loss_scale_free(self, home, case):
        """As the folds of a cross-validation, or a cell of a notebook that is executed again."""
        how, which = case
        policy = self.both()[which]
        for _ in range(2):
            opt = Older(home.SGD(0.125), policy)
            begins_anew = opt._loss_scale is not policy and which == 0
            if how == "function":
                step = tf.function(functools.partial(self.take_one, opt, home.variable()))
                step(tf.constant(0.25))
                del step
            else:
                opt._tflsc.options["itself"] = opt
            if not begins_anew:
                with self.assertRaisesRegex(ValueError, "Keras one.*first delete it"):
                    Older(home.SGD(0.125), policy)
            del opt

    @keras_homes.each()
    def test_folds_begin_alike_where_those_of_the_original_did(self, home):
        """Up to TensorFlow 2.3 the object goes on with its state; 2.4's class takes its numbers."""

        def folds(make, loss_scale):
            for _ in range(3):
                opt, variable = make(home.SGD(0.125), loss_scale), home.variable()
                for _ in range(4):
                    self.take_step(opt, home, variable)
                scale = opt.loss_scale() if callable(opt.loss_scale) else opt.loss_scale
                yield float(scale.numpy())
                del opt

        expected = [32.0] * 3 if keras_homes.VERSION >= (2, 4) else [32.0, 128.0, 512.0]
        self.assertEqual(list(folds(Older, package.DynamicLossScale(8.0, 2))), expected)
        if keras_homes.VERSION < (2, 5):
            own = home.keras.mixed_precision.experimental.LossScaleOptimizer
            original = originals.experimental().DynamicLossScale(8.0, 2)
            self.assertEqual(list(folds(own, original)), expected)

    def take_one(self, opt, variable, grad):
        opt.apply_gradients([(grad, variable)])

    @keras_homes.each()
    def test_a_failed_constructor_claims_nothing(self, home):
        policy = package.DynamicLossScale(8.0)
        opt = Older(home.SGD(1.0), 8.0)
        with mock.patch.object(type(opt), "_tflsc_init_base_class", side_effect=KeyError):
            with self.assertRaises(KeyError):
                Older(home.SGD(1.0), policy)
        Older(home.SGD(1.0), policy)

    @keras_homes.each()
    def test_fixed_ones_never_move_and_are_shared(self, home):
        for policy in (package.FixedLossScale(8.0), package.FixedLossScaleManager(8.0)):
            for _ in range(2):
                opt = Older(home.SGD(1.0), policy)
                self.assertEqual(self.take_step(opt, home), 0.25)


class BadInputTest(modes.EagerTestCase):
    def test_the_keras_inside_of_tensorflow_is_refused(self):
        if keras_homes.VERSION < (2, 6):
            self.skipTest("it is tf.keras there")
        module = importlib.import_module("tensorflow.python.keras.optimizer_v2.gradient_descent")
        for cls in (Stable, Older):
            with self.assertRaisesRegex(TypeError, "^(inner_)?optimizer must.*SGD.*Write tf.keras"):
                cls(module.SGD(1.0), "dynamic") if cls is Older else cls(module.SGD(1.0))

    @keras_homes.each()
    def test_odd_arguments_are_warned_of_once_by_their_names(self, home):
        with mock.patch("absl.logging.warning") as warning:
            opt = Stable(home.SGD(1.0), initial_scale=True, dynamic_growth_steps=0)
        named = [call[0][1] for call in warning.call_args_list]
        self.assertEqual(named, ["initial_scale", "dynamic_growth_steps"])
        self.assertEqual(opt.dynamic_growth_steps, 0)

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
                "growth_interval.*dynamic_growth_steps .the finite steps",
                lambda: stable(inner(), growth_interval=100),
            ),
            (TypeError, "inner_optimizer", lambda: stable(home.SGD)),
            (TypeError, "^inner_optimizer must be a Keras optimizer, got {}", lambda: stable({})),
            (TypeError, "^optimizer must be a Keras optimizer, got {}", lambda: old({}, 8)),
            (TypeError, "^optimizer.*None", lambda: old(None, 8)),
            (
                TypeError,
                "inner_optimizer.*MixedPrecisionLossScaleOptimizer",
                lambda: stable(tf.compat.v1.train.GradientDescentOptimizer(1.0)),
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
            # No scale of 0 is advised.
            (TypeError, f"{no_bool}, but got: 0.*loss_scale=.$", lambda: stable(inner(), 0, 128)),
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
