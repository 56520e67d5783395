"""State goes between plain optimizers and loss-scale optimizers as docs/checkpoints.md says."""

import itertools
import os
import warnings

import numpy as np
import tensorflow as tf

from tests import keras_homes, modes
from tests.keras_homes import Stable, number

KINDS = {
    "plain": lambda inner: inner,
    "fixed": lambda inner: Stable(inner, dynamic=False, initial_scale=8.0),
    "dynamic": lambda inner: Stable(inner, initial_scale=8.0),
}
# On Keras 3, from checkpoints and from files; other pairs and other Kerases restore.
EXCEPTIONS = {("dynamic", "plain"): ("error", "nothing")}


def built(home, kind, inner):
    """A model with a built optimizer of this kind."""
    model = home.dense_model()
    model.compile(KINDS[kind](inner), "mse", run_eagerly=True)
    model.optimizer.build(model.trainable_variables)
    return model


def trained(home, kind, inner):
    """Such a model after two steps."""
    model = built(home, kind, inner)
    for _ in range(2):
        model.train_on_batch(np.ones([2, 3]), np.ones([2, 2]))
    if kind == "dynamic":
        model.optimizer.dynamic_scale.assign(64.0)
    return model


def state(home, model):
    """What the inner optimizer goes on from."""
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return [home.numpy(each) for each in [inner.learning_rate, *home.variables(inner)]]


class PlainOptimizersTest(modes.EagerTestCase):
    def carry(self, form, old, new):
        """Saves the one model and restores the other; returns the warnings."""
        path = os.path.join(self.get_temp_dir(), "saved" + form)
        before = len(self.warnings())
        with warnings.catch_warnings(record=True) as of_keras_3:
            warnings.simplefilter("always")
            if form:
                old.save(path) if form == ".keras" else old.save_weights(path)
                new.load_weights(path)
            else:
                path = tf.train.Checkpoint(model=old, optimizer=old.optimizer).save(path)
                tf.train.Checkpoint(model=new, optimizer=new.optimizer).restore(path)
        return " ".join([*(str(each.message) for each in of_keras_3), *self.warnings()[before:]])

    @keras_homes.each(list(itertools.product(KINDS, KINDS)), kind=keras_homes.NEWER, since=(2, 13))
    def test_each_pair(self, home, pair):
        saved, restored = pair
        exception = EXCEPTIONS.get(pair) if home.kind == "keras3" else None
        checkpoint, file = exception or ("restored", "restored")
        for form, expected in (("", checkpoint), (".weights.h5", file), (".keras", file)):
            old = trained(home, saved, home.Adam(0.25))
            new = built(home, restored, home.Adam(0.5))
            before, own = state(home, new), getattr(new.optimizer, "dynamic_scale", None)
            if expected == "error":
                with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "step_counter"):
                    self.carry(form, old, new)
                continue
            told = self.carry(form, old, new)
            rate = slice(form != "" and home.kind != "keras3", None)  # Not in tf_keras' files.
            np.testing.assert_equal(
                state(home, new)[rate],
                (before if expected == "nothing" else state(home, old))[rate],
            )
            self.assertEqual("Skipping variable loading" in told, expected == "nothing", told)
            other = "dynamic" in (saved, restored) and restored not in (saved, "plain")
            self.assertEqual("another kind or none" in told, other and form != "", told)
            if own is not None:
                self.assertEqual(number(own), 64.0 if saved == "dynamic" else 8.0)

    @keras_homes.each(("", ".weights.h5"), kind=keras_homes.NEWER, since=(2, 13))
    def test_from_dynamic_to_plain_by_way_of_the_wrapper(self, home, form):
        old, new = (
            trained(home, "dynamic", home.Adam(0.25)),
            built(home, "dynamic", home.Adam(0.25)),
        )
        self.carry(form, old, new)
        new.compile(new.optimizer.inner_optimizer, "mse", run_eagerly=True)
        for model in (old, new):
            model.train_on_batch(np.ones([2, 3]), np.ones([2, 2]))
        self.assertAllEqual(new.get_weights()[0], old.get_weights()[0])

    @keras_homes.each((True, False), (True, False))
    def test_with_and_without_the_wrapper(self, home, saves, restores):
        """Also a variable that the inner optimizer has beside its slots; twice, with slots made."""
        if saves != restores and (home.kind == "keras3" or keras_homes.VERSION < (2, 4)):
            self.skipTest("this Keras' own class keeps an inner optimizer in another place")

        class Counting(home.SGD):
            def __init__(self):
                super().__init__(1.0, momentum=1.0)
                self.own = tf.Variable(0.0)
                if hasattr(self, "_track_trackable"):
                    self._track_trackable(self.own, "own")

        def make(wrapped):
            inner, weight = Counting(), home.variable(2.0)
            if home.kind != "v2":
                inner.build([weight])
            opt = Stable(inner, initial_scale=1.0, dynamic_growth_steps=2) if wrapped else inner
            return inner, opt, weight, tf.train.Checkpoint(optimizer=opt, weight=weight)

        def step(opt, weight):
            pairs = [(tf.constant(1.0), weight)]
            opt.apply_gradients(pairs, **({} if opt is inner else {"scaled": False}))

        inner, opt, weight, checkpoint = make(saves)
        step(opt, weight)
        inner.own.assign(3.0)
        path = checkpoint.save(os.path.join(self.get_temp_dir(), "c"))
        inner, opt, weight, checkpoint = make(restores)
        status = checkpoint.restore(path)
        self.assertEqual((number(weight), number(opt.iterations)), (1.0, 1))
        if restores:
            self.assertEqual(number(opt.dynamic_counter), 1 if saves else 0)
        step(opt, weight)
        self.assertEqual((number(weight), number(opt.iterations)), (-1.0, 2))
        self.assertEqual(number(inner.own), 3.0)
        if saves == restores:
            status.assert_consumed()
        checkpoint.restore(path)
        step(opt, weight)
        self.assertEqual((number(weight), number(opt.iterations)), (-1.0, 2))

    @keras_homes.each(("fixed", "dynamic"), kind=keras_homes.NEWER)
    def test_checkpoint_without_slots(self, home, kind):
        """A plain optimizer finds its own step count and learning rate, not zeros of a wrapper."""
        old, new = trained(home, kind, home.SGD(0.25)), built(home, "plain", home.SGD(0.5))
        self.carry("", old, new)
        np.testing.assert_equal(state(home, new), state(home, old))

    @keras_homes.each(kind="keras3")
    def test_checkpoint_restored_before_the_variables_are_made(self, home):
        for kind in ("fixed", "dynamic"):
            old = trained(home, "plain", home.Adam(0.25))
            new = home.dense_model()
            new.compile(KINDS[kind](home.Adam(0.5)), "mse")
            self.carry("", old, new)
            new.optimizer.build(new.trainable_variables)
            np.testing.assert_equal(state(home, new), state(home, old))

    @keras_homes.each(tuple(KINDS))
    def test_variables_called_are_what_a_reset_sets_to_zero(self, home, kind):
        """As of Keras 2: the step count and the slots; no learning rate, scale or counter."""
        if kind == "plain" and home.kind == "keras3":
            self.skipTest("there it is a list")
        variable = home.variable(1.0)
        opt = KINDS[kind](home.SGD(0.5, momentum=0.5))
        moved, said = [], {} if kind == "plain" else {"scaled": True}
        for _ in range(2):
            variable.assign(1.0)
            for _ in range(2):
                opt.apply_gradients([(tf.constant(8.0), variable)], **said)
            moved.append(number(variable))
            for each in opt.variables():
                each.assign(np.zeros(each.shape))
        self.assertEqual(moved[1], moved[0])
        self.assertNotEqual(moved[0], 1.0)
        if keras_homes.VERSION >= (2, 11) or home.kind != "current":  # There, it is not in them.
            self.assertEqual(number(opt.iterations), 0)
        if kind != "plain":
            self.assertEqual(number(opt.loss_scale), 8.0)

    @keras_homes.each(kind="keras3")
    def test_variables_called_leave_out_the_product_of_a_nadam(self, home):
        variable, opt = home.variable(1.0), KINDS["dynamic"](home.Nadam(0.5))
        opt.apply([tf.constant(8.0)], [variable])
        self.assertEqual([np.shape(each) for each in opt.variables()], [()] * 3)
        product = {id(opt.inner_optimizer._u_product)}
        self.assertTrue(product.isdisjoint(map(id, opt.variables())))
        self.assertTrue(product.issubset(map(id, opt.variables)))
