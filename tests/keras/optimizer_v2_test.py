"""On `OptimizerV2`: tf.keras up to 2.10, and the legacy optimizers after it."""

from unittest import mock

import tensorflow as tf

import tf_lossscale_compat
from tests import keras_homes, modes
from tests.keras_homes import Stable, number, variables_of

tf1 = tf.compat.v1


class OptimizerV2Test(modes.EagerTestCase):
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

    @keras_homes.each(kind="v2")
    def test_a_session_graph_has_the_originals_operations(self, home):
        # Variables of an `ExponentialMovingAverage` of gradients have their names.
        def operations(wrap):
            with tf.Graph().as_default() as graph:
                variables = [tf1.get_variable(name, initializer=[1.0, 2.0]) for name in "vw"]
                opt = wrap(home.SGD(1.0))
                first = len(graph.get_operations())
                loss = tf.reduce_sum(variables[0] * variables[1])
                opt.get_unscaled_gradients(tf.gradients(opt.get_scaled_loss(loss), variables))
                opt.get_gradients(loss, variables)
                return [(op.name, op.type) for op in graph.get_operations()[first:]]

        for steps in (2000, None):
            own = operations(lambda inner: home.wrapped_in_own(inner, 8.0, steps))
            ours = operations(lambda inner: Stable(inner, steps is not None, 8.0, steps))
            self.assertEqual(ours, own)

    @keras_homes.each(kind="v2")
    def test_a_step_in_a_session_with_a_scale_without_reciprocal_is_skipped(self, home):
        with tf.Graph().as_default(), tf1.Session() as session:
            variable = tf1.get_variable("w", initializer=1.0, use_resource=True)
            opt = Stable(home.SGD(1.0), initial_scale=2.0**127)
            (grad,) = opt.get_unscaled_gradients([tf.constant(8.0)])
            step = opt.apply_gradients([(grad, variable)])
            session.run(tf1.global_variables_initializer())
            session.run(step)
            self.assertEqual(session.run([variable, opt.loss_scale]), [1.0, 2.0**126])

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

    @keras_homes.each(kind="v2")
    def test_slots_are_found_by_name(self, home):
        weight = home.variable([1.0, 2.0])
        opt = Stable(home.SGD(1.0, momentum=0.5), initial_scale=2)
        opt.minimize(lambda: tf.convert_to_tensor(weight), [weight])
        self.assertEqual(opt.get_slot_names(), ["momentum"])
        self.assertAllEqual(home.numpy(opt.get_slot(weight, "momentum")), [-1.0, -1.0])
        added = opt.add_slot(weight, "more", "ones")
        self.assertIs(opt.inner_optimizer.get_slot(weight, "more"), added)

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

    @keras_homes.each(kind="v2", since=(2, 3))
    def test_only_a_step_makes_slots(self, home):
        """Larq's `CaseOptimizer` calls `_create_slots`, which does nothing in Keras' own class."""
        kept = []
        for opt in (home.wrapped_in_own(home.Adam(0.25)), Stable(home.Adam(0.25))):
            weight = home.variable()
            opt._create_slots([weight])
            opt.apply_gradients([(tf.constant(0.5), weight)])
            kept.append(opt.get_weights())
        self.assertEqual(kept[1], kept[0])
        self.assertEqual(kept[1][0], 1)  # The iterations come first.
        opt.set_weights(kept[0])
