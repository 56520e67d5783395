"""`DynamicLossScale(..., hysteresis=n)`: how many non-finite steps it takes to shrink.

DeepSpeed's `delayed_shift`: a count starts at n; a non-finite step with a count above 1 takes one
off and keeps the scale; at 1 the scale shrinks and the count stays 1; growth sets it back to n.
"""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import conftest, modes, stepping
from tests.numpy_model import DynamicModel
from tf_lossscale_compat import DynamicLossScale

hypothesis, st = conftest.hypothesis_or_skip()

NAN = float("nan")


def _scales(mode, flags, *arguments, **options):
    """The loss scale and good steps after each update of `DynamicLossScale(*arguments, ...)`."""
    rows = [(np.float32(1.0 if flag else NAN),) for flag in flags]

    def step(policy, factor):
        update, _ = policy.update([factor * tf.ones([2])])
        return stepping.then(update, lambda: [policy(), tf.identity(policy.good_steps)])

    results = stepping.run(mode, lambda: DynamicLossScale(*arguments, **options), step, rows)
    return [(float(scale), int(good)) for scale, good in results]


class HysteresisTest(parameterized.TestCase, tf.test.TestCase):
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
