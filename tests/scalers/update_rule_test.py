"""Both update rules against independent NumPy float32 models, bit for bit."""

import types

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat as package
from tests import conftest, stepping
from tests.numpy_model import F32, TINY, DynamicModel, ExponentialModel
from tf_lossscale_compat._scalers import _update_rule

pytestmark = pytest.mark.usefixtures("kept_kernels")

hypothesis, st = conftest.hypothesis_or_skip()

tf1 = tf.compat.v1

F32_MAX = float(np.finfo(np.float32).max)
INT32_MAX = 2**31 - 1

_EDGE_SCALES = [1.0, 1.5, 2.0**15, 2.0**32, 1e20, F32_MAX / 2, F32_MAX]
_EDGE_RATIOS = [2, 2.0, 0.5, 0.8, 1 / 3, 3, 1, 1.0000001, 1e20, 3e38]


def _floats(low, high):
    return st.floats(float(F32(low)), float(F32(high)), width=32)


scales = st.one_of(st.sampled_from(_EDGE_SCALES), _floats(1, F32_MAX))
ratios = st.one_of(st.sampled_from(_EDGE_RATIOS), _floats(0.01, 1e6))
growths = st.one_of(st.sampled_from([r for r in _EDGE_RATIOS if r >= 1]), _floats(1, 1e6))
periods = st.one_of(st.integers(1, 4), st.sampled_from([0, -3, INT32_MAX]))
# Long runs of one kind and alternation both, or counters never get anywhere.
flags = st.lists(
    st.tuples(st.booleans(), st.integers(1, 6)).map(lambda run: [run[0]] * run[1]),
    min_size=1,
    max_size=8,
).map(lambda runs: [flag for run in runs for flag in run])


def _bits(scale):
    return int(np.asarray(scale, np.float32).view(np.uint32))


_EXPONENTIAL_TYPES = (np.float32, np.int32, np.int32)
_DYNAMIC_TYPES = (np.float32, np.int64)


def _specs(*dtypes):
    return [tf.TensorSpec([], dtype) for dtype in dtypes]


_EXPONENTIAL_SPECS = _specs(*_EXPONENTIAL_TYPES, np.bool_)
_DYNAMIC_SPECS = _specs(*_DYNAMIC_TYPES, np.bool_)


class _Rule:
    """A rule as a function of state, which passes through variables that are made once."""

    def __init__(self, dtypes):
        self._state = [tf1.Variable(np.zeros([], t), use_resource=True) for t in dtypes]

    def __call__(self, *arguments):
        count = len(self._state)
        assigned = [
            variable.assign(value, read_value=False)
            for variable, value in zip(self._state, arguments)
        ]
        with tf.control_dependencies([each for each in assigned if each is not None]):
            update = self._update(*self._state, *arguments[count:])
        # In eager mode there is nothing to wait for.
        update = None if tf.executing_eagerly() else update
        return stepping.then(update, lambda: [tf.identity(each) for each in self._state])


class _Exponential(_Rule):
    def __init__(self):
        super().__init__(_EXPONENTIAL_TYPES)

    def _update(self, scale, good, bad, finite, incr_every, decr_every, incr_ratio, decr_ratio):
        manager = types.SimpleNamespace(
            _loss_scale=scale, _num_good_steps=good, _num_bad_steps=bad,
            _incr_every_n_steps=incr_every, _decr_every_n_nan_or_inf=decr_every,
            _incr_ratio=incr_ratio, _decr_ratio=decr_ratio,
        )  # fmt: skip
        return _update_rule.exponential(manager, finite)


class _Dynamic(_Rule):
    def __init__(self):
        super().__init__(_DYNAMIC_TYPES)

    def _update(self, scale, good, finite, period, multiplier, low, high=None):
        loss_scale = types.SimpleNamespace(
            _current_loss_scale=scale, _num_good_steps=good, shrink_delay=None,
            _increment_period=period, _multiplier=multiplier,
            min_loss_scale=low, max_loss_scale=high,
        )  # fmt: skip
        return _update_rule.dynamic(loss_scale, finite)


class UpdateRuleTest(parameterized.TestCase, tf.test.TestCase):
    def _follow(self, caller, model, parameters, finite_flags):
        state = model.state
        for finite in finite_flags:
            model.step(finite)
            if model.state[0] < TINY:
                return  # Session threads flush subnormals to zero, eager ones do not.
            state = caller(*(tuple(state) + (finite,) + parameters))
            self.assertEqual(_bits(state[0]), _bits(model.state[0]), (state, model.state))
            self.assertEqual(tuple(state[1:]), model.state[1:])
            self.assertFalse(np.isnan(state[0]))

    @parameterized.parameters(*stepping.STATELESS)
    def test_exponential_equals_the_model_bit_for_bit(self, mode):
        with stepping.entered(mode) as mode:
            specs = _EXPONENTIAL_SPECS + _specs(np.int32, np.int32, *[np.float32] * 2)
            caller = mode.compile(_Exponential(), *specs)

            @hypothesis.settings(max_examples=60)
            @hypothesis.given(scales, periods, periods, ratios, ratios, flags)
            def check(scale, incr_every, decr_every, incr_ratio, decr_ratio, finite_flags):
                parameters = (incr_every, decr_every, incr_ratio, decr_ratio)
                model = ExponentialModel(scale, *parameters)
                self._follow(caller, model, parameters, finite_flags)

            check()

    @parameterized.parameters(*stepping.STATELESS)
    def test_dynamic_equals_the_model_bit_for_bit(self, mode):
        with stepping.entered(mode) as mode:
            specs = _DYNAMIC_SPECS + _specs(np.int64, *[np.float32] * 2)

            unbounded = mode.compile(_Dynamic(), *specs)
            bounded = mode.compile(_Dynamic(), *(specs + _specs(np.float32)))

            @hypothesis.settings(max_examples=60)
            @hypothesis.given(scales, periods, ratios, _floats(1e-30, 1), st.booleans(), flags)
            def check(scale, period, multiplier, low, has_high, finite_flags):
                parameters = (period, multiplier, low)
                if has_high:
                    parameters += (min(scale * 3.7, F32_MAX),)
                model = DynamicModel(scale, *parameters)
                caller = bounded if has_high else unbounded
                self._follow(caller, model, parameters, finite_flags)

            check()

    @parameterized.parameters(*stepping.STATELESS)
    def test_a_dynamic_loss_scale_equals_the_model(self, mode):
        """With bounds and hysteresis: DeepSpeed's `delayed_shift`, a count that only growth resets.

        A non-finite step with a count above 1 takes one off and keeps the scale; at 1 it shrinks.
        """

        def step(loss_scale, grad):
            update, _ = loss_scale.update([grad])
            return stepping.then(update, lambda: [loss_scale(), tf.identity(loss_scale.good_steps)])

        # Initial scales and bounds; growth is stopped by a bound, or by float32.
        starts = [(64.0, 1.0, None), (64.0, 16.0, 256.0), (64.0, 0.25, 64.0), (2.0**127, 1.0, None)]

        @hypothesis.settings(max_examples=20 if mode == "eager" else 6)
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

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
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

    @parameterized.parameters(*stepping.STATELESS)
    def test_counters_reach_the_largest_period(self, mode):
        with stepping.entered(mode) as mode:
            last, period = INT32_MAX - 1, INT32_MAX
            rule = _Exponential()
            exponential = mode.compile(
                lambda *state: rule(*state, period, period, 2, 0.5), *_EXPONENTIAL_SPECS
            )
            self.assertEqual(tuple(exponential(8, last - 1, 3, True)), (8, last, 3))
            self.assertEqual(tuple(exponential(8, last, 3, True)), (16, 0, 0))
            self.assertEqual(tuple(exponential(8, 3, last - 1, False)), (8, 0, last))
            self.assertEqual(tuple(exponential(8, 3, last, False)), (4, 0, 0))
            period = 2**63 - 1
            rule = _Dynamic()
            dynamic = mode.compile(lambda *state: rule(*state, period, 2.0, 1.0), *_DYNAMIC_SPECS)
            self.assertEqual(tuple(dynamic(8, period - 2, True)), (8, period - 1))
            self.assertEqual(tuple(dynamic(8, period - 1, True)), (16, 0))
