"""What the optimizers of each Keras show, of themselves and of the inner one; what can be set."""

import _thread
import contextlib
import os
import queue

import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes
from tests.keras_homes import Older, Stable, arrays, number, variables_of


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

    @keras_homes.each()
    def test_iterations_are_the_inner_optimizers(self, home):
        inner = home.SGD(1.0)
        opt = Stable(inner)
        self.assertIs(opt.iterations, inner.iterations)
        if home.kind == "v2":
            opt = Stable(home.SGD(1.0))
            opt.iterations = 7
            self.assertEqual((opt.iterations, opt.inner_optimizer.iterations), (7, 7))

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


class HyperparametersTest(modes.EagerTestCase):
    """Those set at the wrapper reach training, or are refused."""

    @keras_homes.each()
    def test_set_at_the_wrapper(self, home):
        clips = ("clipnorm", "clipvalue", "global_clipnorm")
        averages = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
        others = ("beta_1", "epsilon", "weight_decay", "jit_compile")
        ignored = ("gradient_accumulation_steps", "loss_scale_factor")  # Of Keras 3.
        for name in (*clips, *averages, *others, *ignored):
            opt = Stable(home.Adam(0.5))
            if not hasattr(opt.inner_optimizer, name):
                continue
            before = getattr(opt.inner_optimizer, name)
            try:
                setattr(opt, name, 0.25)
            except AttributeError as error:
                self.assertRegex(str(error), f"inner_optimizer.{name} = 0.25")
                self.assertEqual(getattr(opt.inner_optimizer, name), before)
                reaches = False
            else:
                for each in (opt, opt.inner_optimizer):
                    self.assertEqual(home.numpy(getattr(each, name)), 0.25)
                reaches = True
            if home.kind == "keras3":
                expected = False
            elif name == "beta_1":
                expected = home.kind == "v2" and keras_homes.VERSION >= (2, 4)
            else:
                expected = name != "epsilon"
            self.assertEqual(reaches, expected, name)

    @keras_homes.each(("SGD", "Adam", "Ftrl"))
    def test_setting_makes_no_variable(self, home, inner):
        """But for a rate, whose old value Keras' own class reads in some versions."""

        def made_by_setting(opt, name):
            made = []

            def create(make, **options):
                made.append(make(**options))
                return made[-1]

            with tf.variable_creator_scope(create), contextlib.suppress(AttributeError):
                setattr(opt, name, 0.25)
            return len(made)

        make = getattr(home, inner)
        others = {"momentum", "clipnorm", "epsilon", "another"} | set(getattr(make(), "_hyper", ()))
        for name in sorted(others - {"learning_rate"}):
            self.assertEqual(made_by_setting(Stable(make()), name), 0, name)
        own = made_by_setting(home.wrapped_in_own(make()), "learning_rate")
        self.assertEqual(made_by_setting(Stable(make()), "learning_rate"), own)

    @keras_homes.each(("variable", "function"), kind="v2", since=(2, 4))
    def test_a_hyperparameter_may_be_a_variable_or_a_function(self, home, kind):
        """The former is the workaround of TensorFlow issue 33150, the latter warms one up."""
        weight, momentum = tf.Variable(1.0), tf.Variable(0.5)
        opt = Stable(home.SGD(0.125, momentum=0.25))
        opt.momentum = momentum if kind == "variable" else lambda: momentum + 0.0
        for expected in (0.875, 0.75):
            opt.apply_gradients([(tf.constant(1.0), weight)], scaled=False)
            self.assertEqual(number(weight), expected)
            momentum.assign(0.0)

    @keras_homes.each()
    def test_excluded_from_weight_decay(self, home):
        if home.kind == "v2" or not hasattr(home, "AdamW"):
            self.skipTest("no optimizer of this family decays weights")
        opt, weight = Stable(home.AdamW(0.125, weight_decay=0.5)), home.variable(1.0)
        opt.exclude_from_weight_decay(var_list=[weight])
        opt.apply_gradients([(tf.constant(0.0), weight)], scaled=False)
        self.assertEqual(home.numpy(weight), 1.0)


class AssignedTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_assigned_loss_scale_takes_the_place(self, home):
        def make():
            opt = Stable(home.SGD(0.1))
            opt._loss_scale = tf_lossscale_compat.DynamicLossScale(8.0, 2)
            return opt

        opt = make()
        opt.apply([tf.constant(1.0)], [tf.Variable(1.0)])
        opt._loss_scale.current_loss_scale.assign(32.0)
        scales = [float(home.numpy(v)) for v in home.variables(opt) if v.shape == ()]
        self.assertEqual(32.0 in scales, home.kind == "keras3")
        self.assertNotIn(2.0**15, scales)
        prefix = tf.train.Checkpoint(opt=opt).save(os.path.join(self.get_temp_dir(), "c"))
        names = [name for name, _ in tf.train.list_variables(prefix)]
        self.assertFalse([name for name in names if "/_loss_scale/" in name])
        for again in (make(), Stable(home.SGD(0.1))):
            tf.train.Checkpoint(opt=again).restore(prefix)
            self.assertEqual(float(again.loss_scale), 32.0)

    @keras_homes.each()
    def test_assigned_loss_scale_is_of_one_optimizer(self, home):
        first, second = Stable(home.SGD(0.1)), Stable(home.SGD(0.1))
        old = second._loss_scale
        with self.assertRaisesRegex(ValueError, "drives another optimizer"):
            second._loss_scale = first._loss_scale
        with self.assertRaisesRegex(ValueError, "loss_scale cannot be None"):
            second._loss_scale = None
        self.assertIs(second._loss_scale, old)
        second._loss_scale = tf_lossscale_compat.FixedLossScale(4.0)
        first._loss_scale = old
        self.assertIs(first._loss_scale, old)
        third = Stable(home.SGD(0.1))
        with self.assertRaisesRegex(ValueError, "drives another optimizer, a Keras one"):
            third._loss_scale = old

    @keras_homes.each()
    def test_assigned_again_stays(self, home):
        manager = tf_lossscale_compat.ExponentialUpdateLossScaleManager(8.0, 2)
        opt = Stable(home.SGD(0.1), loss_scale=manager)
        before = opt._loss_scale
        opt._loss_scale = manager
        opt._loss_scale = before
        self.assertIs(opt._loss_scale, before)
