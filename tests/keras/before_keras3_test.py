"""Before Keras 3: gradients are aggregated once and then tested; what `minimize` goes through."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest

import tf_lossscale_compat
from tests import keras_homes, modes, replicas
from tests.keras_homes import Stable, arrays, variables_of

VERSION = keras_homes.VERSION


def counting(calls, factor):
    def aggregate(pairs):
        calls.append([grad for grad, _ in pairs])
        return [(grad * factor, variable) for grad, variable in pairs]

    return aggregate


def names_of(home):
    return "aggregate_gradients" if home.kind == "current" else "_aggregate_gradients"


def with_aggregation(home, function, base=None):
    """An SGD of rate 1 with an aggregation of its own, of (gradient, variable) pairs."""

    def aggregate(self, grads_and_vars):
        pairs = function(list(grads_and_vars))
        return pairs if VERSION >= (2, 4) else [grad for grad, _ in pairs]

    return type("Aggregating", (base or home.SGD,), {names_of(home): aggregate})(1.0)


def clipping(home, calls):
    """As tensorflow/models' AdamWeightDecay: clips, but only where it is to aggregate."""

    class Clipping(home.SGD):
        def apply_gradients(self, grads_and_vars, name=None, experimental_aggregate_gradients=True):
            calls.append((name, experimental_aggregate_gradients))
            grads, variables = zip(*grads_and_vars)
            if experimental_aggregate_gradients:
                grads, _ = tf.clip_by_global_norm(grads, 1.0)
            options = (
                {}
                if VERSION < (2, 2)
                else {"experimental_aggregate_gradients": experimental_aggregate_gradients}
            )
            return super().apply_gradients(zip(grads, variables), name=name, **options)

    return Clipping(1.0)


def dynamic(inner):
    return keras_homes.Stable(inner, initial_scale=8.0)


# Before 2.2, optimizers sum over replicas when they apply. Those of Keras 3 do not aggregate.
@absltest.skipIf(VERSION < (2, 2), "optimizers have no aggregation before TensorFlow 2.2")
class AggregationTest(modes.EagerTestCase):
    def step(self, opt, variable, gradient, function, **options):
        def apply():
            opt.apply_gradients([(tf.constant(gradient), variable)], **options)

        (tf.function(apply) if function else apply)()

    @keras_homes.each(
        [(False, True, "method"), (True, False, "method"), (False, False, "argument")],
        kind=keras_homes.BEFORE_3,
    )
    def test_aggregates_once_and_tests_what_that_brings(self, home, case):
        function, scaled, where = case
        if where == "argument" and (home.kind != "v2" or VERSION < (2, 4)):
            self.skipTest("these optimizers take no gradient_aggregator")
        for factor in (3.0, np.float32(np.nan)):
            calls = []
            if where == "method":
                inner = with_aggregation(home, counting(calls, factor))
            else:
                inner = home.SGD(1.0, gradient_aggregator=counting(calls, factor))
            opt, variable = dynamic(inner), tf.Variable(1.0)
            self.step(opt, variable, 2.0, function, scaled=scaled)
            if not function:  # Which may be traced twice.
                (((grad,),),) = [calls]
                self.assertEqual(float(grad), 2.0 / 8 if scaled else 2.0)
            # And the optimizer's own aggregation is back in its place.
            self.assertNotIn(names_of(home), vars(inner))
            finite = factor == 3.0
            applied = 2.0 * 3 / 8 if scaled else 2.0 * 3
            self.assertEqual(variable.numpy(), 1.0 - applied * finite)
            self.assertEqual(float(opt.loss_scale), 8.0 if finite else 4.0)

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_leaves_out_what_has_no_gradient(self, home):
        calls = []
        opt = dynamic(with_aggregation(home, counting(calls, 1.0)))
        unused, variable = tf.Variable(1.0, name="unused"), tf.Variable(1.0)
        opt.apply_gradients([(None, unused), (tf.constant(2.0), variable)], scaled=False)
        self.assertIn("unused", str(self._warning.call_args))
        self.assertLen(calls[0], 1)
        self.assertEqual([unused.numpy(), variable.numpy()], [1.0, -1.0])

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_does_not_aggregate_if_told(self, home):
        calls = []
        inner = with_aggregation(home, counting(calls, 3.0))
        opt, variable = dynamic(inner), tf.Variable(1.0)
        pair = [(tf.constant(1.0), variable)]
        if home.kind == "current":
            opt.apply_gradients(pair, True)
            opt.apply_gradients(pair, skip_gradients_aggregation=True)
            opt.apply_gradients(pair, experimental_aggregate_gradients=False)
            with self.assertRaisesRegex(TypeError, "skip_gradients_aggregation .*, got 'train'"):
                opt.apply_gradients(pair, "train")  # Other optimizers have `name` there.
        else:
            opt.apply_gradients(pair, "name", False)
            opt.apply_gradients(pair, None, False)
            opt.apply_gradients(pair, experimental_aggregate_gradients=False)
        self.assertEqual(calls, [])
        self.assertEqual(variable.numpy(), -2.0)

    @keras_homes.each(kind="v2")
    def test_clips_where_the_own_class_has_it_clip(self, home):
        def after_a_step(wrap):
            calls, variable = [], tf.Variable(0.0)
            opt = wrap(clipping(home, calls))
            opt.apply_gradients([(tf.constant(100.0), variable)])
            return variable.numpy(), [aggregates for _, aggregates in calls]

        ours = after_a_step(dynamic)
        self.assertEqual(ours, (-100.0, [False]) if VERSION >= (2, 5) else (-1.0, [True]))
        self.assertEqual(ours, after_a_step(home.wrapped_in_own))

    @keras_homes.each(kind="v2")
    def test_one_that_clips_and_aggregates_on_its_own(self, home):
        # On TensorFlow 2.4 it is to clip, and so is called as if it were to aggregate, but doesn't.
        calls, variable = [], tf.Variable(0.0)
        inner = clipping(home, [])
        inner = with_aggregation(home, counting(calls, np.float32(0.5)), type(inner))
        opt = dynamic(inner)
        opt.apply_gradients([(tf.constant(100.0), variable)])
        self.assertEqual(variable.numpy(), -50.0 if VERSION >= (2, 5) else -1.0)
        self.assertLen(calls, 1)
        inner = with_aggregation(home, counting(calls, np.float32(np.nan)), type(inner))
        opt = dynamic(inner)
        opt.apply_gradients([(tf.constant(100.0), variable)])
        self.assertTrue(np.isfinite(variable.numpy()))

    @keras_homes.each(kind="v2")
    def test_an_inner_optimizer_that_takes_other_arguments(self, home):
        """Something else in the second place, as TensorFlowTTS's AdamWeightDecay; pairs alone."""
        seen = []

        class Plain(home.SGD):
            def apply_gradients(self, grads_and_vars):
                return super().apply_gradients(grads_and_vars)

        class Clipping(home.SGD):
            def apply_gradients(self, grads_and_vars, clip_norm=0.5, **kwargs):
                seen.append((clip_norm, kwargs.get("name", "not given")))
                return super().apply_gradients(grads_and_vars, **kwargs)

        opt, variable = dynamic(Plain(1.0)), tf.Variable(0.0)
        opt.apply_gradients([(tf.constant(1.0), variable)])
        self.assertEqual(variable.numpy(), -1.0)
        opt = dynamic(Clipping(1.0))
        for args, kwargs in [((), {}), ((1.0,), {}), ((), {"name": "x"}), ((), {"clip_norm": 2.0})]:
            opt.apply_gradients([(tf.constant(1.0), variable)], *args, **kwargs)
        self.assertEqual(
            seen, [(0.5, "not given"), (1.0, "not given"), (0.5, "x"), (2.0, "not given")]
        )

    @keras_homes.each(
        [("mirrored_2", True), ("no_merge_2", True), ("central_3", False)],
        kind=keras_homes.BEFORE_3,
    )
    def test_a_sum_over_replicas_that_overflows_is_skipped(self, home, case):
        name, function = case
        slow = VERSION < (2, 5) and (not function or name == "central_3")
        if name not in replicas.REPLICAS or slow:
            self.skipTest("not on this TensorFlow, or too slow there")
        strategy = replicas.strategy(name)
        with strategy.scope():
            opt, variable = dynamic(home.SGD(1.0)), tf.Variable(1.0)

        def apply(gradient):
            opt.apply_gradients([(gradient * 1.0, variable)])  # A tensor of each replica's own.

        def run(gradient):
            strategy.run(apply, args=(gradient,))

        run = tf.function(run, autograph=False) if function else run
        bad = np.nan if name == "central_3" else 3e38  # There the variable sums.
        for gradient, expected in ((bad, 1.0), (0.5, 1.0 - 0.5 * strategy.num_replicas_in_sync)):
            run(tf.constant(gradient))
            for copy in strategy.experimental_local_results(variable):
                self.assertEqual(copy.numpy(), expected)
            self.assertEqual(float(opt.loss_scale), 4.0)


class BeforeKeras3Test(modes.EagerTestCase):
    def optimizer(self, home, cls=Stable):
        (variable,) = variables_of(home, 1.0)
        scale = tf_lossscale_compat.DynamicLossScale(8.0)
        return cls(home.SGD(1.0), loss_scale=scale), variable

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_minimize_goes_through_what_a_subclass_overrides(self, home):
        base = type(self.optimizer(home)[0])
        name = "compute_gradients" if home.kind == "current" else "_compute_gradients"
        seen = []

        def compute(self, *args, **kwargs):
            seen.append(name)
            pairs = getattr(base, name)(self, *args, **kwargs)
            return [(tf.clip_by_norm(grad, 1.0), each) for grad, each in pairs]

        opt, variable = self.optimizer(home)
        opt = type("Sub", (base,), {name: compute}).from_config(opt.get_config())
        opt.minimize(lambda: tf.convert_to_tensor(variable) * 0.125, [variable])
        self.assertEqual(seen, [name])
        self.assertAllClose(arrays([variable]), [0.875])

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_minimize_gives_overrides_the_arguments_that_the_original_gives(self, home):
        is_v2, has_tape = home.kind == "v2", keras_homes.VERSION >= (2, 4)
        name, seen = "_compute_gradients" if is_v2 else "compute_gradients", []

        def overriding(base, **methods):
            def compute(self, loss, var_list, *args, **kwargs):
                given = {key: type(value) for key, value in kwargs.items()}
                seen.append((callable(loss), list(map(type, args)), given))
                return getattr(base, name)(self, loss, var_list, *args, **kwargs)

            return type("Sub", (base,), {name: compute, **methods})

        def get_scaled_loss(self, loss):
            seen.append(callable(loss))
            return base.get_scaled_loss(self, loss)

        base, nothing = keras_homes.sibling(Stable, home), type(None)
        variable = tf.Variable(1.0)
        opt = overriding(base, get_scaled_loss=get_scaled_loss)(overriding(home.SGD)(1.0))
        opt.minimize(lambda: tf.convert_to_tensor(variable) * 0.25, [variable])
        outer = (True, [], {"grad_loss": nothing}) if is_v2 else (True, [nothing], {})
        if is_v2 and has_tape:
            outer[2]["tape"] = nothing
        tape = {"tape": tf.GradientTape} if has_tape else {}
        self.assertEqual(seen, [outer, True, (True, [nothing] if is_v2 else [], tape)])
        self.assertEqual(variable.numpy(), 0.75)

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_an_optimizer_may_go_through_the_pairs_twice(self, home):
        class Counting(home.SGD):
            def apply_gradients(self, grads_and_vars, *args, **kwargs):
                self.__dict__["pairs"] = sum(1 for _ in grads_and_vars)
                return super().apply_gradients(grads_and_vars, *args, **kwargs)

        inner, variable = Counting(1.0), tf.Variable(1.0)
        opt = Stable(inner, dynamic=False, initial_scale=2.0)
        opt.apply_gradients([(tf.constant(0.25), variable)])
        self.assertEqual((inner.__dict__["pairs"], variable.numpy()), (1, 0.75))

    @keras_homes.each(kind=keras_homes.BEFORE_3)
    def test_variables_are_the_inner_optimizers(self, home):
        opts = [Stable(home.SGD(1.0, momentum=0.5))]
        # On 1.15 Keras' own class raises an AttributeError, and that of `current` has no variables.
        since = (2, 11) if home.kind == "current" else (2, 0)
        if keras_homes.VERSION >= since:
            opts.append(home.wrapped_in_own(home.SGD(1.0, momentum=0.5)))
        counts = []
        for opt in opts:
            opt.apply_gradients([(tf.constant([3.0, 4.0]), tf.Variable([0.0, 0.0]))])
            found = home.variables(opt)
            inner = home.variables(opt.inner_optimizer if opt is opts[0] else opt._optimizer)
            self.assertEqual([id(each) for each in found], [id(each) for each in inner])
            counts.append(len(found))
            if home.kind == "v2":
                self.assertEqual([id(each) for each in opt.weights], [id(each) for each in inner])
                self.assertAllEqual(opt.get_weights()[1], [3.0 * -1, 4.0 * -1])
        self.assertLen(set(counts), 1)
