"""`DynamicLossScale(..., hysteresis=n)`: how many non-finite steps it takes to shrink.

DeepSpeed's `delayed_shift`: a count starts at n; a non-finite step with a count above 1 takes one
off and keeps the scale; at 1 the scale shrinks and the count stays 1; growth sets it back to n.
"""

import inspect
import itertools
import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import conftest, crossed, modes, replicas, stepping
from tests.numpy_model import DynamicModel
from tf_lossscale_compat import DynamicLossScale
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

hypothesis, st = conftest.hypothesis_or_skip()

tf1 = tf.compat.v1

NAN = float("nan")
OPTIMIZERS = {"contrib": LossScaleOptimizer, "mixed": MixedPrecisionLossScaleOptimizer}


def _scales(mode, flags, *arguments, **options):
    """The loss scale and good steps after each update of `DynamicLossScale(*arguments, ...)`."""
    rows = [(np.float32(1.0 if flag else NAN),) for flag in flags]

    def step(policy, factor):
        update, _ = policy.update([factor * tf.ones([2])])
        return stepping.then(update, lambda: [policy(), tf.identity(policy.good_steps)])

    results = stepping.run(mode, lambda: DynamicLossScale(*arguments, **options), step, rows)
    return [(float(scale), int(good)) for scale, good in results]


class HysteresisTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_shrinks_only_once_the_count_is_used_up(self, mode):
        flags = [False, False, False, False]
        states = _scales(mode, flags, 64.0, 10, 2.0, hysteresis=3)
        self.assertEqual(states, [(64.0, 0), (64.0, 0), (32.0, 0), (16.0, 0)])

    @parameterized.parameters(*modes.ALL)
    def test_growth_and_nothing_else_sets_the_count_back(self, mode):
        flags = [False, True, False, True, True, False, False]
        states = _scales(mode, flags, 64.0, 2, 2.0, hysteresis=2)
        self.assertEqual(
            states,
            [(64.0, 0), (64.0, 1), (32.0, 0), (32.0, 1), (64.0, 0), (64.0, 0), (32.0, 0)],
        )

    @parameterized.parameters(*modes.ALL)
    def test_growth_that_a_bound_stops_sets_the_count_back(self, mode):
        flags = [False, True, False, False]
        for options in ({"max_loss_scale": 64.0}, {}):
            start = 64.0 if options else 2.0**127
            states = _scales(mode, flags, start, 1, 2.0, hysteresis=2, **options)
            self.assertEqual([scale for scale, _ in states], [start, start, start, start / 2])

    @parameterized.parameters(*modes.ALL)
    def test_a_step_that_keeps_the_scale_still_is_to_be_skipped(self, mode):
        def step(policy, factor):
            update, should_apply = policy.update([factor])
            return stepping.then(update, lambda: tf.identity(should_apply))

        rows = [(np.float32(factor),) for factor in (NAN, 1.0, NAN, NAN)]
        flags = stepping.run(mode, lambda: DynamicLossScale(8.0, 2, 2.0, hysteresis=4), step, rows)
        self.assertEqual([bool(flag) for flag in flags], [False, True, False, False])

    @parameterized.parameters(*stepping.STATELESS)
    def test_equals_the_model(self, mode):
        flags = st.lists(
            st.tuples(st.booleans(), st.integers(1, 4)).map(lambda run: [run[0]] * run[1]),
            min_size=1,
            max_size=8,
        ).map(lambda runs: [flag for run in runs for flag in run])

        @hypothesis.settings(max_examples=20 if mode == "eager" else 6)
        @hypothesis.given(st.integers(1, 5), st.integers(1, 3), st.booleans(), flags)
        def check(hysteresis, period, bounded, finite_flags):
            low, high = (16.0, 256.0) if bounded else (1.0, None)
            model = DynamicModel(64.0, period, 2.0, low, high, hysteresis)
            states = _scales(
                mode, finite_flags, 64.0, period, 2.0,
                min_loss_scale=low, max_loss_scale=high, hysteresis=hysteresis,
            )  # fmt: skip
            for flag, state in zip(finite_flags, states):
                model.step(flag)
                self.assertEqual(state, model.state)

        check()

    @crossed.parameters(*itertools.product(sorted(OPTIMIZERS), modes.ALL))
    def test_in_an_optimizer(self, optimizer, mode):
        with stepping.entered(mode) as entered:
            weight = tf1.Variable([0.0], name="weight")
            policy = DynamicLossScale(64.0, 2, 2.0, hysteresis=2)
            opt = OPTIMIZERS[optimizer](tf1.train.GradientDescentOptimizer(1.0), policy)
            call = entered.compile(
                lambda factor: opt.apply_gradients([(tf.reshape(factor, [1]), weight)]),
                modes.scalar(),
            )
            found = []
            for factor in (NAN, NAN, 1.0, 1.0, NAN):
                call(factor)
                values = entered.value([tf.identity(weight), policy()])
                found.append((float(values[0][0]), float(values[1])))
        self.assertEqual(
            found, [(0.0, 64.0), (0.0, 32.0), (-1.0, 32.0), (-2.0, 64.0), (-2.0, 64.0)]
        )

    @crossed.parameters(
        *itertools.product(("mirrored_2", "central_3"), ("inside", "outside"), replicas.EXECUTIONS)
    )
    def test_on_replicas(self, name, where, mode):
        strategy = replicas.strategy(name)
        with replicas.executing(mode, strategy, inside=where == "inside") as execution:
            with strategy.scope():
                policy = DynamicLossScale(64.0, 2, 2.0, hysteresis=2)

            def step(factor):
                update = policy.update([factor * tf.ones([2])])[0]
                return None if mode == "function" else update

            call = execution.compile(step, modes.scalar())
            model = DynamicModel(64.0, 2, 2.0, hysteresis=2)
            for finite in (False, False, True, True, False, True, False):
                call(np.float32(1.0 if finite else NAN))
                model.step(finite)
                variables = [policy.current_loss_scale, policy.good_steps]
                for copies, wanted in zip(execution.values(variables), model.state):
                    self.assertAllEqual(copies, [wanted] * len(copies))

    def test_in_replicas_as_an_optimizer_does(self):
        strategy = replicas.strategy("mirrored_2")
        with replicas.executing("function", strategy) as execution:
            weight = tf1.Variable([0.0], use_resource=True)
            policy = DynamicLossScale(64.0, 2, 2.0, hysteresis=2)
            opt = MixedPrecisionLossScaleOptimizer(tf1.train.GradientDescentOptimizer(1.0), policy)

            def replica_step(factors):
                opt.apply_gradients([(tf.reshape(replicas.own(factors), [1]), weight)])

            call = execution.compile(
                lambda factors: replicas.run(strategy, replica_step, (factors,)) and None,
                tf.TensorSpec([2], tf.float32),
            )
            for factors, scale in (([1, NAN], 64.0), ([NAN, 1], 32.0), ([1, 1], 32.0)):
                call(np.array(factors, np.float32))
                (scales,) = execution.values([policy.current_loss_scale])
                self.assertAllEqual(scales, [scale] * 2)


class ArgumentTest(parameterized.TestCase, tf.test.TestCase):
    def test_is_keyword_only_and_one(self):
        parameter = inspect.signature(DynamicLossScale).parameters["hysteresis"]
        self.assertEqual(parameter.kind, inspect.Parameter.KEYWORD_ONLY)
        self.assertEqual(parameter.default, 1)

    @parameterized.parameters(0, -1, 1.5, "x", NAN, float("inf"), None, 2**70)
    def test_a_bad_value_raises_and_makes_nothing(self, value):
        for mode in ("eager", "graph_v2"):
            with modes.entered(mode), modes.creations() as created:
                with self.assertRaisesRegex(ValueError, "hysteresis") as raised:
                    DynamicLossScale(8.0, hysteresis=value)
                self.assertIn(repr(value), str(raised.exception))
                self.assertEmpty(created)

    def test_numpy_and_integral_floats_are_taken(self):
        with modes.entered("eager"):
            for value in (2, 2.0, np.int64(2), np.float32(2)):
                loss_scale = DynamicLossScale(8.0, hysteresis=value)
                self.assertEqual(loss_scale.hysteresis, 2)
                self.assertIsInstance(loss_scale.get_config()["hysteresis"], int)

    @parameterized.parameters("eager", "graph_v2")
    def test_is_in_the_config_only_when_changed(self, mode):
        with modes.entered(mode):
            self.assertNotIn("hysteresis", DynamicLossScale(8.0).get_config())
            self.assertNotIn("hysteresis", DynamicLossScale(8.0, hysteresis=1).get_config())
            loss_scale = DynamicLossScale(8.0, 3, 2.0, hysteresis=4)
            config = loss_scale.get_config()
            arguments = {"initial_loss_scale": 8.0, "increment_period": 3, "multiplier": 2.0}
            self.assertEqual(config, dict(arguments, hysteresis=4))
            self.assertEqual(DynamicLossScale.from_config(config).get_config(), config)
            again = loss_scale_lib.get(loss_scale_lib.serialize(loss_scale))
            self.assertEqual(again.hysteresis, 4)

    def test_repr_shows_it_only_when_changed(self):
        with modes.entered("eager"):
            self.assertNotIn("hysteresis", repr(DynamicLossScale(8.0)))
            self.assertIn("hysteresis=3", repr(DynamicLossScale(8.0, hysteresis=3)))

    @parameterized.parameters("eager", "graph_v1", "graph_v2")
    def test_one_more_variable_only_above_one(self, mode):
        for hysteresis, count in ((1, 2), (2, 3), (5, 3)):
            with modes.entered(mode), modes.creations() as created:
                DynamicLossScale(8.0, hysteresis=hysteresis)
                self.assertLen(created, count)
                self.assertEqual(created[:2], ["current_loss_scale", "good_steps"])


class CheckpointTest(tf.test.TestCase):
    def test_the_count_is_saved_and_restored(self):
        path = os.path.join(self.get_temp_dir(), "checkpoint")
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(64.0, 2, 2.0, hysteresis=3)
            for _ in range(2):
                loss_scale.update([tf.constant(NAN)])
            saved = tf.train.Checkpoint(loss_scale=loss_scale).save(path)
            fresh = DynamicLossScale(8.0, 2, 2.0, hysteresis=3)
            tf.train.Checkpoint(loss_scale=fresh).restore(saved).assert_consumed()
            self.assertEqual(fresh().numpy(), 64.0)
            fresh.update([tf.constant(NAN)])
            self.assertEqual(fresh().numpy(), 32.0)

    def test_without_it_checkpoints_are_as_before(self):
        path = os.path.join(self.get_temp_dir(), "plain")
        with modes.entered("eager"):
            saved = tf.train.Checkpoint(loss_scale=DynamicLossScale(64.0)).save(path)
            names = [name for name, _ in tf.train.list_variables(saved)]
            self.assertLen([name for name in names if name.startswith("loss_scale/")], 2)

    def test_a_checkpoint_without_the_count_starts_it_anew(self):
        path = os.path.join(self.get_temp_dir(), "older")
        with modes.entered("eager"):
            saved = tf.train.Checkpoint(loss_scale=DynamicLossScale(64.0)).save(path)
            fresh = DynamicLossScale(8.0, 2, 2.0, hysteresis=2)
            status = tf.train.Checkpoint(loss_scale=fresh).restore(saved)
            status.expect_partial()
            for scale in (64.0, 32.0):
                fresh.update([tf.constant(NAN)])
                self.assertEqual(fresh().numpy(), scale)


if __name__ == "__main__":
    tf.test.main()
