"""The Keras wrappers around unusual optimizers, subclasses, copies and assigned loss scales."""

import functools
import os
import tempfile
import threading

import numpy as np
import tensorflow as tf

import tf_lossscale_compat as package
from tests import keras_homes, modes
from tf_lossscale_compat.keras import mixed_precision

tf1 = tf.compat.v1
Stable = mixed_precision.LossScaleOptimizer
Older = mixed_precision.experimental.LossScaleOptimizer


class InnerTest(modes.EagerTestCase):
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


class AssignedTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_assigned_loss_scale_takes_the_place(self, home):
        def make():
            opt = Stable(home.SGD(0.1))
            opt._loss_scale = package.DynamicLossScale(8.0, 2)
            return opt

        opt = make()
        opt.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
        opt._loss_scale.current_loss_scale.assign(32.0)
        scales = [float(home.numpy(v)) for v in home.variables(opt) if v.shape == ()]
        self.assertEqual(32.0 in scales, home.kind == "keras3")
        self.assertNotIn(2.0**15, scales)
        prefix = tf.train.Checkpoint(opt=opt).save(os.path.join(tempfile.mkdtemp(), "c"))
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
        self.assertIs(second._loss_scale, old)
        second._loss_scale = package.FixedLossScale(4.0)
        first._loss_scale = old
        self.assertIs(first._loss_scale, old)
        third = Stable(home.SGD(0.1))
        with self.assertRaisesRegex(ValueError, "drives another optimizer, a Keras one"):
            third._loss_scale = old

    @keras_homes.each()
    def test_none_is_not_assigned(self, home):
        opt = Stable(home.SGD(0.1))
        old = opt._loss_scale
        with self.assertRaisesRegex(ValueError, "loss_scale cannot be None"):
            opt._loss_scale = None
        self.assertIs(opt._loss_scale, old)

    @keras_homes.each(kind="keras3")
    def test_the_optimizer_stays_itself(self, home):
        opt = Stable(home.SGD(0.1), name="of_mine")
        opt._loss_scale = package.DynamicLossScale(8.0, 2)
        self.assertEqual(opt.name, "of_mine")
        self.assertEqual(float(opt.dynamic_scale.value), 8.0)
        opt._loss_scale.good_steps.assign(1)
        self.assertEqual(int(opt.step_counter.value), 1)
        self.assertEqual(
            sorted(v.name for v in opt.variables if v.name in ("step_counter", "dynamic_scale")),
            ["dynamic_scale", "step_counter"],
        )
        opt._loss_scale = package.FixedLossScale(4.0)
        self.assertFalse(hasattr(opt, "dynamic_scale") or hasattr(opt, "step_counter"))

    @keras_homes.each(kind="keras3")
    def test_not_once_built(self, home):
        opt = Stable(home.SGD(0.1))
        opt.build([home.keras.Variable(1.0)])
        with self.assertRaisesRegex(ValueError, "Make a new optimizer"):
            opt._loss_scale = package.FixedLossScale(4.0)
        self.assertEqual(float(opt.loss_scale), 2.0**15)


class ClippingTest(modes.EagerTestCase):
    @keras_homes.each(kind="v2", since=(2, 4))
    def test_computed_by_two_threads_at_once(self, home):
        # As replicas do whose losses wait for one another. The first to come is the first to go.
        opt = Stable(home.SGD(1.0, clipnorm=0.5), initial_scale=8.0)
        both, first_is_done = threading.Barrier(2), threading.Event()
        clipped = {}

        def compute(which):
            def loss():
                both.wait(30)
                if which == "second":
                    first_is_done.wait(30)
                return weight * 0.375

            with modes.eager_mode():  # A thread starts without it on TensorFlow 1.15.
                weight = tf.Variable(1.0)
                ((grad, _),) = opt._compute_gradients(loss, [weight])
                clipped[which] = float(grad)
            first_is_done.set()

        threads = [threading.Thread(target=compute, args=(name,)) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(clipped, {"first": 0.375, "second": 0.375})
        self.assertEqual(opt.inner_optimizer.clipnorm, 0.5)


class AverageTest(modes.EagerTestCase):
    @keras_homes.each(("apply_gradients", "apply_if_finite"))
    def test_moving_averages_where_a_gradient_is_missing(self, home, how):
        # Some optimizers pair these with variables by their places.
        if home.kind == "v2":
            self.skipTest("these optimizers have no moving averages")

        def averages(wrap):
            variables = [home.variable(value) for value in (1.0, 10.0, 100.0)]
            inner = home.SGD(0.5, use_ema=True, ema_momentum=0.5)
            apply_gradients = wrap(inner)
            grads = (None, tf.constant(1.0), tf.constant(2.0))
            for _ in range(3):
                apply_gradients(list(zip(grads, variables)))
            name = "_model_variables_moving_average"
            return [home.numpy(v) for v in getattr(inner, name)]

        wraps = {
            "apply_gradients": lambda inner: functools.partial(
                Stable(inner).apply_gradients, scaled=False
            ),
            "apply_if_finite": lambda inner: (
                lambda pairs: package.apply_if_finite(package.FixedLossScale(1), [(inner, pairs)])
            ),
        }
        native = averages(lambda inner: inner.apply_gradients)
        np.testing.assert_array_equal(averages(wraps[how]), native)


class ConfigTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_disabled_keeps_what_was_asked_for(self, home):
        opt = Stable(home.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=3, enabled=False)
        for each in (opt, *keras_homes.copies(opt), type(opt).from_config(opt.get_config())):
            config = each.get_config()
            self.assertEqual(float(each.loss_scale), 1.0)
            again = type(opt).from_config(dict(config, enabled=True))
            self.assertEqual((again.dynamic, float(again.loss_scale)), (True, 64.0))
            self.assertEqual(again.dynamic_growth_steps, 3)
        for loss_scale, asked in ((4.0, 4.0), ("dynamic", 2.0**15), (package.FixedLossScale(2), 2)):
            for public in (Stable, Older):
                opt = public(home.SGD(0.1), loss_scale=loss_scale, enabled=False)
                again = type(opt).from_config(dict(opt.get_config(), enabled=True))
                self.assertEqual(float(again._loss_scale()), asked)

    @keras_homes.each(kind="keras3")
    def test_skipped_steps_while_accumulating(self, home):
        inner = home.SGD(0.1, gradient_accumulation_steps=2)
        with self.assertRaisesRegex(ValueError, "gradient_accumulation_steps"):
            Stable(inner, count_skipped=True)
        Stable(inner)


class GraphTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_graph_for_a_session(self, home):
        with tf.Graph().as_default():
            weight = tf1.get_variable("w", initializer=1.0, use_resource=True)
            opt = Stable(home.SGD(0.1))
            pairs = [(tf.constant(1.0), weight)]
            if home.kind == "v2":
                opt.apply_gradients(pairs)
                return
            with self.assertRaisesRegex(ValueError, "updates nothing in a tf.Graph"):
                opt.apply_gradients(pairs)


class PlaceTest(modes.EagerTestCase):
    @keras_homes.each(kind=keras_homes.NEWER)
    def test_no_variable_is_made_where_no_step_can_be_taken(self, home):
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        with strategy.scope():
            opt, weight = Stable(home.Adam(0.1)), home.variable(0.0)
            before = len(home.variables(opt.inner_optimizer))
            with self.assertRaisesRegex(ValueError, "cross-replica context"):
                opt.apply_gradients([(tf.constant(1.0), weight)])
            self.assertLen(home.variables(opt.inner_optimizer), before)


class SubclassTest(modes.EagerTestCase):
    def zeroed(self, name):
        """A class whose method `name` sets all gradients, or the loss, to zero."""

        def apply(self, grads, trainable_variables=None):
            return super(Zeroed, self).apply([grad * 0 for grad in grads], trainable_variables)

        def apply_gradients(self, grads_and_vars, **kwargs):
            pairs = [(grad * 0, variable) for grad, variable in grads_and_vars]
            return super(Zeroed, self).apply_gradients(pairs, **kwargs)

        def get_scaled_loss(self, loss):
            return super(Zeroed, self).get_scaled_loss(loss * 0)

        def get_unscaled_gradients(self, grads):
            return [grad * 0 for grad in super(Zeroed, self).get_unscaled_gradients(grads)]

        Zeroed = type("Zeroed", (Stable,), {name: locals()[name]})  # noqa: N806
        return Zeroed

    def fit(self, home, opt):
        model = home.dense_model()
        weights = [np.concatenate([np.ravel(value) for value in model.get_weights()])]
        model.compile(opt, "mse")
        model.fit(np.ones((4, 3), "f"), np.zeros((4, 2), "f"), verbose=0)
        return [*weights, np.concatenate([np.ravel(value) for value in model.get_weights()])]

    @keras_homes.each(("apply", "apply_gradients"), kind="keras3")
    def test_keras_3_goes_through_own_methods(self, home, name):
        cls = self.zeroed(name)
        weight = home.keras.Variable(1.0)
        opt = cls(home.SGD(0.1))
        opt.minimize(lambda: weight * weight, [weight])
        self.assertEqual(float(weight.numpy()), 1.0)
        self.assertEqual(int(opt.iterations.numpy()), 1)
        np.testing.assert_array_equal(*self.fit(home, cls(home.SGD(0.1))))

    @keras_homes.each((False, True), kind="keras3")
    def test_own_apply_divides_once(self, home, scaled):
        seen = []

        class Recording(Stable):
            def apply(self, grads, trainable_variables=None):
                seen.append(float(grads[0]))
                return super().apply(grads, trainable_variables)

        weight = home.keras.Variable(1.0)
        opt = Recording(home.SGD(0.5), initial_scale=8.0)
        (grad,) = opt.get_unscaled_gradients([tf.constant(8.0)])
        opt.apply_gradients([(tf.constant(8.0) if scaled else grad, weight)], scaled=scaled)
        self.assertEqual((seen, float(weight.numpy())), ([8.0], 0.5))
        self.assertEqual(bool(self.warnings()), scaled)

    @keras_homes.each(("get_scaled_loss", "get_unscaled_gradients"))
    def test_own_scaling_methods_are_used(self, home, name):
        cls = self.zeroed(name)
        weight, opt = home.variable(1.0), cls(home.SGD(0.1))
        opt.minimize(lambda: tf.convert_to_tensor(weight) * 2.0, [weight])
        self.assertEqual(home.numpy(weight), 1.0)
        if home.kind == "keras3":  # `fit` calls neither, and says so.
            return
        opt.apply_gradients([(tf.constant(0.5), weight)])
        self.assertEmpty(self.warnings())  # Of one half that is missing.
        np.testing.assert_array_equal(*self.fit(home, cls(home.SGD(0.1))))

    @keras_homes.each(("function", "partialmethod", "mixin"))
    def test_methods_of_ones_own_count_as_asked(self, home, how):
        def unscale(self, grads):
            return [grad / self.loss_scale for grad in grads]

        method = functools.partialmethod(unscale) if how == "partialmethod" else unscale
        methods = {"get_unscaled_gradients": method}
        if how == "mixin":
            own = type("Own", (type("Mixin", (), methods), Stable), {})
        else:
            own = type("Own", (Stable,), methods)
        opt, weight = own(home.SGD(1.0), initial_scale=64.0), home.variable(0.0)
        grads = opt.get_unscaled_gradients([opt.scale_loss(tf.constant(1.0))])
        with self.assertRaisesRegex(ValueError, "cannot tell"):
            opt.apply_gradients(zip(grads, [weight]))
        opt.apply_gradients(zip(grads, [weight]), scaled=False)
        self.assertEqual(home.numpy(weight), -1.0)

    @keras_homes.each(kind="keras3")
    def test_apply_of_ones_own_and_unscaled_gradients_in_float16(self, home):
        class Own(Stable):
            def apply(self, grads, trainable_variables=None):
                super().apply(grads, trainable_variables)

        opt, weight = Own(home.SGD(1.0)), home.keras.Variable(0.0, dtype="float16")
        with self.assertRaisesRegex(ValueError, "may overflow"):
            opt.apply_gradients([(tf.constant(4.0, tf.float16), weight)], scaled=False)
        self.assertEqual((home.numpy(weight), float(opt.loss_scale)), (0.0, 2.0**15))
        opt.apply_gradients([(tf.constant(4.0, tf.float16), weight)], scaled=True)
        self.assertLess(home.numpy(weight), 0.0)

    @keras_homes.each(kind="keras3")
    def test_apply_of_the_instance(self, home):
        opt, weight = Stable(home.SGD(1.0)), home.variable(0.0)
        apply = opt.apply
        opt.apply = lambda grads, variables=None: apply([2.0 * g for g in grads], variables)
        opt.apply_gradients([(tf.constant(1.0), weight)], scaled=False)
        self.assertEqual(home.numpy(weight), -2.0)


class HyperparametersTest(modes.EagerTestCase):
    """Those set at the wrapper reach training, or are refused."""

    @keras_homes.each()
    def test_set_at_the_wrapper(self, home):
        clips = ("clipnorm", "clipvalue", "global_clipnorm")
        averages = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
        for name in (*clips, *averages, "beta_1", "epsilon", "weight_decay", "jit_compile"):
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

    @keras_homes.each()
    def test_what_is_no_hyperparameter_is_set(self, home):
        opt = Stable(home.SGD(0.5))
        opt.of_the_users_own, opt.learning_rate = "x", 0.125
        self.assertEqual(opt.of_the_users_own, "x")
        self.assertEqual(home.numpy(opt.inner_optimizer.learning_rate), 0.125)

    @keras_homes.each()
    def test_excluded_from_weight_decay(self, home):
        if home.kind == "v2" or not hasattr(home, "AdamW"):
            self.skipTest("no optimizer of this family decays weights")
        opt, weight = Stable(home.AdamW(0.125, weight_decay=0.5)), home.variable(1.0)
        opt.exclude_from_weight_decay(var_list=[weight])
        opt.apply_gradients([(tf.constant(0.0), weight)], scaled=False)
        self.assertEqual(home.numpy(weight), 1.0)
