"""What the update rules have beyond the originals'; for theirs, see v1/conformance_test.py."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat as package
from tests import conftest, modes, stepping
from tests.numpy_model import F32, DynamicModel

pytestmark = pytest.mark.usefixtures("kept_kernels")

hypothesis, st = conftest.hypothesis_or_skip()

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

# Long runs of one kind and alternation both, or counters never get anywhere.
flags = st.lists(
    st.tuples(st.booleans(), st.integers(1, 6)).map(lambda run: [run[0]] * run[1]),
    min_size=1,
    max_size=8,
).map(lambda runs: [flag for run in runs for flag in run])


def _specs(*dtypes):
    return [tf.TensorSpec([], dtype) for dtype in dtypes]


class UpdateRuleTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("graph_v2", "eager")
    def test_a_dynamic_loss_scale_equals_the_model(self, mode):
        """With bounds and hysteresis: DeepSpeed's `delayed_shift`, a count that only growth resets.

        A non-finite step with a count above 1 takes one off and keeps the scale; at 1 it shrinks.
        """

        def step(loss_scale, grad):
            update, _ = loss_scale.update([grad])
            return stepping.then(update, lambda: [loss_scale(), tf.identity(loss_scale.good_steps)])

        # Initial scales and bounds; growth is stopped by a bound, or by float32.
        starts = [(64.0, 1.0, None), (64.0, 16.0, 256.0), (64.0, 0.25, 64.0), (2.0**127, 1.0, None)]

        @hypothesis.settings(max_examples=8 if mode == "eager" else 2)
        @hypothesis.given(
            st.sampled_from(starts),
            st.integers(1, 3),
            st.sampled_from([2.0, 4.0, 0.5]),
            st.integers(1, 5),
            flags,
        )
        @hypothesis.example(starts[2], 1, 2.0, 2, [False, True, False, False])
        def check(start, period, multiplier, hysteresis, finite_flags):
            scale, low, high = start
            model = DynamicModel(scale, period, multiplier, low, high, hysteresis)
            states = stepping.run(
                mode,
                lambda: package.DynamicLossScale(
                    scale, period, multiplier,
                    min_loss_scale=low, max_loss_scale=high, hysteresis=hysteresis,
                ),
                step,
                [(F32(1 if finite else np.nan),) for finite in finite_flags],
            )  # fmt: skip
            for finite, state in zip(finite_flags, states):
                model.step(finite)
                self.assertEqual(tuple(state), model.state)

        check()

    @parameterized.parameters("graph_v1", "eager")
    def test_subclasses_assign_ratios_as_they_like(self, name):
        """Arrays, and values that are not ratios, which leave the scale as it is."""
        with stepping.entered(name) as mode:
            for ratio in (np.array(3.0), np.float32(3), float("inf"), 1e39):
                manager = package.ExponentialUpdateLossScaleManager(8.0, 1)
                dynamic = package.DynamicLossScale(8.0, 1)
                manager._incr_ratio = dynamic._multiplier = ratio

                def step(finite, manager=manager, dynamic=dynamic):
                    done = [manager.update_loss_scale(finite), dynamic.update([1.0])[0]]
                    done = [each for each in done if each is not None]
                    with tf.control_dependencies(done):
                        return tf.identity(finite)

                for scale in (manager._loss_scale, dynamic.current_loss_scale):
                    mode.value(tf.identity(scale))
                mode.compile(step, *_specs(np.bool_))(True)
                expected = 24.0 if ratio == 3 else 8.0
                for scale in (manager._loss_scale, dynamic.current_loss_scale):
                    self.assertEqual(mode.value(tf.identity(scale)), expected)

    @parameterized.parameters("graph_v1", "eager")
    def test_counters_reach_the_largest_period(self, name):
        with modes.entered(name) as mode:
            manager = package.ExponentialUpdateLossScaleManager(8.0, INT32_MAX, INT32_MAX, 2, 0.5)
            of_manager, good, bad = manager.variables()
            loss_scale = package.DynamicLossScale(8.0, INT64_MAX, 2.0)
            managed = mode.compile(manager.update_loss_scale, *_specs(np.bool_))
            updated = mode.compile(lambda x: loss_scale.update([x])[0], modes.scalar())
            for update, argument, scale, count, last, grown in (
                (managed, True, of_manager, good, INT32_MAX, 16.0),
                (managed, False, of_manager, bad, INT32_MAX, 8.0),
                (updated, 1.0, loss_scale.current_loss_scale, loss_scale.good_steps,
                 INT64_MAX, 16.0),
            ):  # fmt: skip
                mode.compile(lambda count=count, last=last: count.assign(last - 2))()
                before = mode.value(tf.identity(scale))
                for wanted in ((before, last - 1), (grown, 0)):
                    update(argument)
                    found = mode.value([tf.identity(scale), tf.identity(count)])
                    self.assertEqual(tuple(found), wanted)
