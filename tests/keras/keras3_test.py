"""On Keras 3, beside Keras' own class in the same process: `fit`, division, what it keeps."""

import functools
from unittest import mock

import numpy as np
import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes
from tests.keras_homes import Older, Stable, arrays, number, variables_of
from tf_lossscale_compat.keras import _keras3


def both(home, train):
    """Returns what `train` returns for this package's class and for Keras' own."""
    return [train(cls) for cls in (Stable, home.own())]


class FitTest(modes.EagerTestCase):
    """`fit` gives scaled gradients."""

    def trained(self, home, opt):
        """Returns weights after `fit`."""
        layer = home.keras.layers.Dense(1, kernel_initializer="ones")
        model = home.keras.Sequential([home.keras.layers.Input((2,)), layer])
        model.compile(opt, "mse", run_eagerly=True)
        model.fit(np.ones([4, 2], np.float32), np.zeros([4, 1]), batch_size=4, verbose=0)
        return model.get_weights()

    @keras_homes.each(kind="keras3")
    def test_classes_that_extend_what_it_does_not_call(self, home):
        """An error says what it calls, and of that they can make use of the others."""

        class Clips(keras_homes.sibling(Stable, home)):
            def get_unscaled_gradients(self, grads):
                return tf.clip_by_global_norm(super().get_unscaled_gradients(grads), 0.5)[0]

        class Doubles(keras_homes.sibling(Stable, home)):
            def get_scaled_loss(self, loss):
                return 2.0 * super().get_scaled_loss(loss)

        class ClipsInFit(Clips):
            def apply_gradients(self, grads_and_vars, **said):
                grads, variables = zip(*grads_and_vars)
                grads = self.get_unscaled_gradients(grads)
                return super().apply_gradients(zip(grads, variables), scaled=False)

        class DoublesInFit(Doubles):
            def scale_loss(self, loss):
                return 2.0 * super().scale_loss(loss)

        for cls, error, in_fit, plain in (
            (
                Clips,
                "get_unscaled_gradients, which fit .*Override apply_gradients.*scaled=False",
                ClipsInFit,
                home.SGD(0.125, global_clipnorm=0.5),
            ),
            (
                Doubles,
                r"get_scaled_loss, which fit .*Override scale_loss.*super..\.scale_loss",
                DoublesInFit,
                home.SGD(0.25),
            ),
        ):
            with self.assertRaisesRegex(ValueError, f"{cls.__name__} overrides {error}"):
                self.trained(home, cls(home.SGD(0.125)))
            ours = self.trained(home, in_fit(home.SGD(0.125)))
            self.assertAllClose(ours, self.trained(home, plain), rtol=1e-6)


class DivisionTest(modes.EagerTestCase):
    """Gradients are divided by the scale as Keras' own class divides them."""

    @keras_homes.each(
        (
            ("float16", 2.0**25, 2.0**12, "function"),
            ("float16", 1024.0, 2.0**-16, "eager"),
            ("float32", 2.0**127, 2.0**120, "eager"),
            ("bfloat16", 2.0**127, 2.0**120, "eager"),
        ),
        kind="keras3",
    )
    def test_as_keras_own(self, home, case):
        dtype, scale, grad, mode = case
        lr = 2.0**20 if grad < 1 else 1.0 if scale < 2**20 else 2.0**10

        def train(cls):
            variable = home.keras.Variable(np.zeros([2]), dtype=dtype, name="w")
            opt = cls(home.SGD(lr), initial_scale=scale)
            opt.build([variable])

            def step():
                opt.apply([tf.cast([grad, -grad / 3], dtype)], [variable])

            (tf.function(step, autograph=False) if mode == "function" else step)()
            return home.numpy(variable)

        ours, theirs = both(home, train)
        self.assertAllEqual(ours, theirs)
        self.assertTrue(np.all(ours != 0))
        # Nor is such a fixed scale refused, whose reciprocal may be zero.
        self.assertEqual(Stable(home.SGD(lr), False, scale).initial_scale, scale)

    @keras_homes.each(("float16", "int32"), kind="keras3")
    def test_a_scaled_loss_is_as_wide_as_keras_own(self, home, dtype):
        """So that a scale that float16 cannot hold trains where the loss is divided after it."""

        def train(cls):
            variable = home.keras.Variable([3.0, 4.0], dtype="float16")
            opt = cls(home.SGD(1.0), initial_scale=2.0**17)
            opt.build([variable])
            seen = []

            def step():
                with tf.GradientTape() as tape:
                    loss = opt.scale_loss(tf.cast(tf.reduce_sum(variable.value), dtype))
                    seen.append(loss.dtype)
                    scaled = loss / 1024.0
                if dtype != "int32":
                    opt.apply([tape.gradient(scaled, variable.value)], [variable])

            tf.function(step, autograph=False)()
            return seen[0], home.numpy(opt.step_counter), home.numpy(variable)

        ours, theirs = both(home, train)
        self.assertEqual(ours[:2], theirs[:2])
        self.assertAllEqual(ours[2], theirs[2])

    @keras_homes.each(kind="keras3")
    def test_new_values_in_a_gradients_place_are_not_divided(self, home):
        one, two = variables_of(home, 1.0, 1.0)
        two.overwrite_with_gradient = True
        opt = Stable(home.SGD(1.0), False, 8.0)
        opt.apply([tf.constant(4.0), tf.constant(7.0)], [one, two])
        self.assertAllEqual(arrays([one, two]), [0.5, 7.0])


class Keras3ClassTest(modes.EagerTestCase):
    def test_optimizers_of_keras_3_0_are_in_no_checkpoint(self):
        # They are no trackable objects, and so is a class that wraps them.
        wrapper = object.__new__(type("Wrapper", (_keras3.Keras3OptimizerBase,), {}))
        wrapper._track_trackable(tf.Variable(1.0), "loss_scale", overwrite=True)
        self.assertEmpty(vars(wrapper))

    # Adafactor and Nadam make variables that Keras' own class keeps out of the optimizer's.
    @keras_homes.each(
        (
            ("SGD", {"momentum": 0.5}),
            ("Adam", {"use_ema": True, "gradient_accumulation_steps": 2}),
            ("Adafactor", {}),
            ("Nadam", {}),
        ),
        kind="keras3",
    )
    def test_names_and_places_are_those_of_keras_own(self, home, inner):
        """In checkpoints, and of variables, by which state trees and files know them.

        By `build`, too, where Keras' own class gives other paths than in its first step.
        """
        name, arguments = inner
        found, fixed = [], functools.partial(Stable, dynamic=False, initial_scale=8.0)
        ways = (Stable, True), (Stable, False), (home.own(), False), (fixed, True), (fixed, False)
        for cls, builds in ways:
            home.clear_session()
            model = home.dense_model()
            opt = cls(getattr(home, name)(0.5, **arguments, name="inner"), name="outer")
            model.compile(opt, "mse")
            weights = model.trainable_variables
            if builds:
                opt.build(weights)
            else:
                opt.apply([tf.zeros(weight.shape) for weight in weights], weights)
            path = tf.train.Checkpoint(model=model, opt=opt).save(self.get_temp_dir() + "/c")
            keys = sorted(key for key, _ in tf.train.list_variables(path))
            variables = [(each.path, each.shape) for each in opt.variables]
            # Of a Nadam, its own class loses one.
            found.append((keys, variables if name != "Nadam" else None))
        for one, other in ((0, 1), (1, 2), (3, 4)):
            self.assertEqual(found[one], found[other])
        self.assertIn("outer", str(variables))

    @keras_homes.each(kind="keras3")
    def test_a_checkpoint_that_has_the_loss_scale_too_is_whole(self, home):
        """As those of a user's own loss scale have."""

        class Mine(tf_lossscale_compat.DynamicLossScale):
            pass

        variable = home.variable(1.0)
        opts = [
            Older(home.SGD(1.0), cls(8.0)) for cls in (Mine, tf_lossscale_compat.DynamicLossScale)
        ]
        for opt in opts:
            opt.build([variable])
        opts[0].apply([tf.constant(np.inf)], [variable])
        path = tf.train.Checkpoint(opt=opts[0]).save(self.get_temp_dir() + "/c")
        self.assertTrue([n for n, _ in tf.train.list_variables(path) if "opt/loss_scale/" in n])
        tf.train.Checkpoint(opt=opts[1]).restore(path).assert_consumed()
        self.assertEqual(number(opts[1].dynamic_scale), 4.0)

    @keras_homes.each()
    def test_arguments_that_belong_to_the_inner_optimizer(self, home):
        kind, hint = TypeError, ""
        if home.kind == "keras3":
            kind, hint = ValueError, ".*set it on the `inner_optimizer`"
        inner = home.SGD(1.0)
        for name, message in (("clipnorm", "clipnorm" + hint), ("no_such_argument", "no_such_arg")):
            with self.assertRaisesRegex(kind, message):
                Stable(inner, **{name: 2})
        Stable(inner)  # Nothing was kept of the first ones.

    @keras_homes.each(kind="keras3")
    def test_setting_where_the_scale_begins_once_it_is_built(self, home):
        for cls in (Stable, home.own()):
            opt = cls(home.SGD(1.0), initial_scale=8.0)
            opt.build([home.variable(1.0)])
            opt.initial_scale = 32.0
            self.assertEqual(
                (number(opt.dynamic_scale), opt.get_config()["initial_scale"]), (8, 32)
            )

    @keras_homes.each(kind="keras3")
    def test_setting_what_cannot_be(self, home):
        opt = Stable(home.SGD(1.0), initial_scale=8.0)
        with self.assertRaisesRegex(ValueError, "initial_scale.*-1"):
            opt.initial_scale = -1.0
        with self.assertRaisesRegex(ValueError, "dynamic_growth_steps.*2.5"):
            opt.dynamic_growth_steps = 2.5
        self.assertEqual(opt.initial_scale, 8.0)
        bounds = {"min_loss_scale": 4.0, "max_loss_scale": 16.0}
        opt = Stable(home.SGD(1.0), loss_scale=tf_lossscale_compat.DynamicLossScale(8.0, **bounds))
        for name, value in (("min_loss_scale", 2.0), ("max_loss_scale", 32.0)):
            with self.assertRaisesRegex(ValueError, f"{name} .* initial_scale={value}.*, got"):
                opt.initial_scale = value
            self.assertEqual((opt.initial_scale, number(opt.dynamic_scale)), (8.0, 8.0))
        opt = Stable(home.SGD(1.0), False, 8.0)
        for name in ("initial_scale", "dynamic_growth_steps"):
            with self.assertRaisesRegex(AttributeError, f"{name} can be set only"):
                setattr(opt, name, 16.0)

    @keras_homes.each(
        (("class", "made"), ("both", "made"), ("instance", "replaced")), kind="keras3"
    )
    def test_an_inner_apply_gradients_that_would_be_passed_over(self, home, case):
        """As its own class passes over it, silently: there the step is not clipped."""
        where, when = case

        class Clips(home.SGD):
            def apply_gradients(self, grads_and_vars):
                pairs = [(tf.clip_by_value(grad, -0.5, 0.5), v) for grad, v in grads_and_vars]
                return super().apply_gradients(pairs)

            if where == "both":

                def apply(self, grads, trainable_variables=None):
                    return super().apply(grads, trainable_variables)

        class ClipsWhereItIsCalled(home.SGD):
            def apply(self, grads, trainable_variables=None):
                grads = [tf.clip_by_value(grad, -0.5, 0.5) for grad in grads]
                return super().apply(grads, trainable_variables)

        inner = (home.SGD if where == "instance" else Clips)(1.0)
        if where == "instance":
            inner.apply_gradients = functools.partial(Clips.apply_gradients, inner)
        opt, variable = Stable(home.SGD(1.0), initial_scale=4.0), home.variable(1.0)
        error = "no apply_gradients of its own.*calls only apply.*Override apply"
        with self.assertRaisesRegex(ValueError, error):
            if when == "replaced":
                opt.inner_optimizer = inner
            else:
                Stable(inner)
        opt.inner_optimizer = ClipsWhereItIsCalled(1.0)
        opt.apply([tf.constant(8.0)], [variable])
        self.assertAllEqual(home.numpy(variable), 0.5)

    @keras_homes.each(kind="keras3")
    def test_an_inner_optimizer_of_several_that_keras_has(self, home):
        """Whose apply_gradients is Keras' own."""
        if not hasattr(home.optimizers, "MultiOptimizer"):
            self.skipTest("this Keras has no MultiOptimizer")
        one, two = home.variable(1.0), home.variable(1.0)
        opts = {id(one): home.SGD(1.0), id(two): home.SGD(0.5)}
        inner = home.optimizers.MultiOptimizer(lambda variable: opts[id(variable)])
        opt = Stable(inner, initial_scale=4.0)
        opt.apply([tf.constant(1.0), tf.constant(1.0)], [one, two])
        self.assertAllEqual([home.numpy(one), home.numpy(two)], [0.75, 0.875])

    @keras_homes.each(kind="keras3")
    def test_a_row_twice_in_a_gradient_infinite_first(self, home):
        """Skipped here, and applied by Keras' own class, which looks at the last of the two."""

        def train(cls):
            table = home.variable(np.ones([3, 1]))
            opt = cls(home.SGD(1.0), initial_scale=8.0)
            opt.build([table])
            rows = tf.constant([[np.inf], [1.0]])
            opt.apply([tf.IndexedSlices(rows, tf.constant([1, 1]), tf.constant([3, 1]))], [table])
            return [*home.numpy(table)[:, 0], number(opt.dynamic_scale)]

        self.assertEqual(both(home, train), [[1, 1, 1, 4], [1, -np.inf, 1, 8]])

    @keras_homes.each(kind="keras3")
    def test_another_backend_is_refused(self, home):
        with mock.patch.object(home.keras.backend, "backend", return_value="jax"):
            with self.assertRaisesRegex(ValueError, "TensorFlow backend.*'jax'"):
                Stable(home.SGD(1.0))

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

    @keras_homes.each((Stable, Older), kind="keras3")
    def test_a_name_that_is_set_is_kept(self, home, public):
        opt = public(home.SGD(1.0), loss_scale=8.0)
        opt.name = "set_later"
        for each in (opt, type(opt).from_config(opt.get_config()), *keras_homes.copies(opt)):
            self.assertEqual((each.name, each.get_config()["name"]), ("set_later", "set_later"))

    @keras_homes.each(kind="keras3")
    def test_skipped_steps_while_accumulating(self, home):
        inner = home.SGD(0.1, gradient_accumulation_steps=2)
        with self.assertRaisesRegex(ValueError, "gradient_accumulation_steps"):
            Stable(inner, count_skipped=True)
        opt = Stable(home.SGD(0.1), count_skipped=True)
        with self.assertRaisesRegex(ValueError, "gradient_accumulation_steps"):
            opt.inner_optimizer = inner
        Stable(inner)

    @keras_homes.each(kind="keras3")
    def test_another_inner_optimizer_put_in_place(self, home):
        opt = Stable(home.SGD(1.0), False, 8.0)
        other = home.SGD(0.5, loss_scale_factor=4.0)
        opt.inner_optimizer = other
        self.assertIs(opt._optimizer, other)
        variable = tf.Variable([1.0])
        opt.apply([tf.constant([8.0])], [variable])
        self.assertAllEqual(variable, [0.5])
        for refused in (None, opt, 0.5):
            with self.assertRaisesRegex((TypeError, ValueError), "inner_optimizer"):
                opt.inner_optimizer = refused
            self.assertIs(opt.inner_optimizer, other)
            self.assertIs(opt._optimizer, other)

    @keras_homes.each(kind="keras3")
    def test_the_optimizer_stays_itself(self, home):
        opt = Stable(home.SGD(0.1), name="of_mine")
        opt._loss_scale = tf_lossscale_compat.DynamicLossScale(8.0, 2)
        self.assertEqual(opt.name, "of_mine")
        self.assertEqual(float(opt.dynamic_scale.value), 8.0)
        opt._loss_scale.good_steps.assign(1)
        self.assertEqual(int(opt.step_counter.value), 1)
        self.assertEqual(
            sorted(v.name for v in opt.variables if v.name in ("step_counter", "dynamic_scale")),
            ["dynamic_scale", "step_counter"],
        )
        opt._loss_scale = tf_lossscale_compat.FixedLossScale(4.0)
        self.assertFalse(hasattr(opt, "dynamic_scale") or hasattr(opt, "step_counter"))
        opt.build([home.variable()])
        with self.assertRaisesRegex(ValueError, "Make a new optimizer"):
            opt._loss_scale = tf_lossscale_compat.DynamicLossScale(8.0, 2)
        self.assertEqual(float(opt.loss_scale), 4.0)
