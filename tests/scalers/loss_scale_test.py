"""The loss scales of TensorFlow r2.0, and getting one from an identifier."""

import collections
import fractions
import functools
import json
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, stepping
from tf_lossscale_compat import loss_scale as lib
from tf_lossscale_compat._core import _arguments
from tf_lossscale_compat.contrib import mixed_precision as lsm
from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
GOOD, BAD = np.float32(1), np.float32("nan")
Pair = collections.namedtuple("Pair", ["first", "second"])

NOT_REAL = ["8", None, [8.0], (8.0,), {"scale": 8.0}, 8j, object(), b"8"]
NOT_FINITE = [NAN, INF, -INF, 1e39, -1e39, 2**128, 10**400, np.float32("nan"), np.float64("inf")]
NUMPY_EIGHTS = [np.float16(8), np.float32(8), np.float64(8), np.int8(8), np.int64(8), np.uint32(8)]


# Arguments, options, gradients, the scale after each of them, and the good steps.
RULES = [
    # Growth at the period, shrinking at once, counters, and the floor of 1.
    (
        (8, 2, 4.0),
        {},
        [1, 1, 1, NAN, 1, INF, -INF, NAN, 1, 1, 1],
        [8, 32, 32, 8, 8, 2, 1, 1, 1, 4, 4],
        [1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1],
    ),
    # Growth beyond float32 keeps the scale.
    (
        (2.0**127, 2),
        {},
        [1, 1, 1, NAN, 1, 1],
        [2.0**127] * 3 + [2.0**126] * 2 + [2.0**127],
        [1, 0, 1, 0, 1, 0],
    ),
    # Periods of 1 and below grow at every finite step.
    ((1, 1, 3), {}, [1, 1, NAN, 1], [3, 9, 3, 9], [0] * 4),
    ((8, 0), {}, [1, 1, NAN], [16, 32, 16], [0] * 3),
    # Bounds, also where a non-finite step raises the scale.
    ((4, 1, 8), {"min_loss_scale": 0.25}, [NAN, NAN, NAN, 1], [0.5, 0.25, 0.25, 2], [0] * 4),
    ((512, 1, 8), {"min_loss_scale": 100}, [NAN, NAN, 1], [100, 100, 800], [0] * 3),
    (
        (8, 2, 4),
        {"max_loss_scale": 100},
        [1] * 6 + [NAN],
        [8, 32, 32, 100, 100, 100, 25],
        [1, 0, 1, 0, 1, 0, 0],
    ),
    (
        (8, 1, 0.5),
        {"min_loss_scale": 2, "max_loss_scale": 20},
        [NAN, NAN, NAN, 1, 1],
        [16, 20, 20, 10, 5],
        [0] * 5,
    ),
    # Hysteresis: the scale shrinks once the count is used up, and only growth sets that back, also
    # where a bound or float32 stops it.
    ((64, 10), {"hysteresis": 3}, [NAN] * 4, [64, 64, 32, 16], [0] * 4),
    (
        (64, 2),
        {"hysteresis": 2},
        [NAN, 1, NAN, 1, 1, NAN, NAN],
        [64, 64, 32, 32, 64, 64, 32],
        [0, 1, 0, 1, 0, 0, 0],
    ),
    (
        (64, 1),
        {"hysteresis": 2, "max_loss_scale": 64},
        [NAN, 1, NAN, NAN],
        [64] * 3 + [32],
        [0] * 4,
    ),
    ((2.0**127, 1), {"hysteresis": 2}, [NAN, 1, NAN, NAN], [2.0**127] * 3 + [2.0**126], [0] * 4),
]


class CountingLossScale(LossScale):
    """A user's own loss scale: counts calls of `update`."""

    def __init__(self, start=3.0):
        super().__init__()
        self.start = start
        self.count = self._add_weight("count", start, tf.float32)

    def __call__(self):
        return tf.convert_to_tensor(self.count)

    def update(self, grads):
        del grads
        return self.count.assign_add(1.0), True

    def get_config(self):
        return {"start": self.start}


def _dynamic_step(loss_scale, *grads):
    """One update; returns the flag and the state after it."""
    update, should_apply = loss_scale.update(list(grads))
    state = stepping.then(update, lambda: [loss_scale(), loss_scale.good_steps.read_value()])
    return [should_apply] + state


def _follow(mode, make, values):
    """The (flag, scale, good steps) after each update with one of `values`, from `make()`."""
    results = stepping.run(mode, make, _dynamic_step, [(np.float32(value),) for value in values])
    return [(bool(flag), float(scale), int(good)) for flag, scale, good in results]


class LossScaleTest(parameterized.TestCase, tf.test.TestCase):
    """The abstract class."""

    def test_is_abstract(self):
        with self.assertRaises(TypeError):
            LossScale()
        for missing in ("__call__", "update", "get_config"):
            body = {
                name: lambda self, *args: None
                for name in ("__call__", "update", "get_config")
                if name != missing
            }
            with self.assertRaisesRegex(TypeError, missing):
                type("Incomplete", (LossScale,), body)()

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_from_config_makes_one_from_get_config(self, mode):
        with modes.entered(mode):
            again = CountingLossScale.from_config(CountingLossScale(5.0).get_config())
            self.assertIsInstance(again, CountingLossScale)
            self.assertEqual(again.start, 5.0)

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_add_weight_makes_a_variable(self, mode):
        with modes.entered(mode):
            loss_scale = CountingLossScale()
            for dtype, value in ((tf.float32, 2), (tf.int64, 7), (tf.bool, True), (None, 1.5)):
                name = "weight_of_{}".format(dtype and dtype.name)
                weight = loss_scale._add_weight(name, value, dtype)
                self.assertIsInstance(weight, tf.Variable)
                self.assertEqual(weight.dtype.base_dtype, dtype or tf.float32)
                self.assertEqual(weight.shape.rank, 0)
                self.assertEqual(weight.name, name + ":0")
                self.assertFalse(weight.trainable)
                self.assertEqual(weight.aggregation, tf.VariableAggregation.NONE)
                if mode in modes.GRAPH:
                    self.assertIs(tf1.global_variables()[-1], weight)
                    self.assertEmpty(tf1.trainable_variables())
                    with tf1.Session() as session:
                        session.run(weight.initializer)
                        self.assertEqual(session.run(weight), value)
                else:
                    self.assertEqual(weight.numpy(), value)

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_add_weight_of_a_taken_name_raises_and_makes_nothing(self, mode):
        with modes.entered(mode):
            loss_scale = CountingLossScale()
            before = len(tf1.global_variables())
            with self.assertRaisesRegex(RuntimeError, "count"):
                loss_scale._add_weight("count", 0.0)
            self.assertEqual(len(tf1.global_variables()), before)
            # The name is taken in this loss scale only, and the weight that has it still works.
            CountingLossScale()
            with self.assertRaisesRegex(RuntimeError, "good_steps"):
                DynamicLossScale()._add_weight("good_steps", 0)


class FixedLossScaleTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*modes.ALL)
    def test_call_returns_a_scalar_float32(self, mode):
        for cls in (FixedLossScale, DynamicLossScale):
            (scale,) = stepping.run(mode, lambda c=cls: c(2**32), lambda x, _: x(), [(GOOD,)])
            self.assertEqual((scale.dtype, scale.shape, scale), (np.float32, (), 2.0**32))

    def test_makes_no_tensor_in_its_constructor(self):
        with tf.Graph().as_default() as graph:
            FixedLossScale(128.0)
            FixedLossScale(128.0, skip_nonfinite=True)
            self.assertEmpty(graph.get_operations())

    def test_works_in_any_context_wherever_it_was_made(self):
        with tf.Graph().as_default():
            made_in_graph = FixedLossScale(64.0)
        with modes.entered("eager"):
            made_in_eager = FixedLossScale(64.0)
            for loss_scale in (made_in_graph, made_in_eager):
                self.assertEqual(loss_scale().numpy(), 64)
                self.assertEqual(tf.function(loss_scale.__call__)().numpy(), 64)
        for loss_scale in (made_in_graph, made_in_eager):
            with tf.Graph().as_default() as graph, tf1.Session() as session:
                self.assertIs(loss_scale().graph, graph)
                self.assertEqual(session.run(loss_scale()), 64)

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_update_applies_whatever_the_gradients_hold(self, mode):
        seen = []

        def step(loss_scale, *grads):
            for given in (list(grads), grads[0], [None], [], {"a": [grads[0], None]}):
                update, should_apply = loss_scale.update(given)
                seen.append((update if update is None else update.type, should_apply))
            return tf.constant(0)

        nan_and_inf = np.array([NAN, INF], np.float32)
        stepping.run(mode, lambda: FixedLossScale(8), step, [(nan_and_inf, np.float16(-INF))])
        self.assertGreaterEqual(len(seen), 5)  # Old versions trace more than once.
        for update, should_apply in seen:
            self.assertIs(should_apply, True)
            self.assertEqual(update, None if mode == "eager" else "NoOp")

    def test_update_looks_at_no_gradient(self):
        with tf.Graph().as_default() as graph:
            FixedLossScale(8).update([tf1.placeholder(tf.float32)])
            self.assertEqual([op.type for op in graph.get_operations()], ["Placeholder", "NoOp"])

    @parameterized.parameters(*modes.ALL)
    def test_skip_nonfinite_asks_for_non_finite_steps_to_be_skipped(self, mode):
        def step(loss_scale, *grads):
            update, should_apply = loss_scale.update([grads[0], None, {"b": grads[1]}])
            assert (update is None) == (mode == "eager")
            return should_apply, loss_scale()

        half_inf = np.float16(INF)
        rows = [
            (GOOD, np.float16(1)),
            (BAD, np.float16(1)),
            (GOOD, half_inf),
            (GOOD, np.float16(2)),
        ]
        results = stepping.run(mode, lambda: FixedLossScale(8, skip_nonfinite=True), step, rows)
        for flag, scale in results:
            self.assertEqual((flag.dtype, flag.shape, scale), (np.bool_, (), 8))
        self.assertEqual([bool(flag) for flag, _ in results], [True, False, False, True])

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_repr(self, mode):
        with modes.entered(mode):
            self.assertEqual(repr(FixedLossScale(128)), "FixedLossScale(128.0)")
            manager = lsm.FixedLossScaleManager(8.0)
            self.assertEqual(repr(lib.get(manager)), f"LossScale of {manager!r}")
            self.assertIn("skip_nonfinite=True", repr(FixedLossScale(8, skip_nonfinite=True)))

    def test_config(self):
        self.assertIs(FixedLossScale(8.0).skip_nonfinite, False)
        self.assertIs(FixedLossScale(8.0, skip_nonfinite=True).skip_nonfinite, True)
        self.assertEqual(
            FixedLossScale(2, skip_nonfinite=True).get_config(),
            {"loss_scale_value": 2.0, "skip_nonfinite": True},
        )
        for value in NUMPY_EIGHTS:
            config = FixedLossScale(value).get_config()
            self.assertEqual(json.loads(json.dumps(config)), {"loss_scale_value": 8.0})
            self.assertIs(type(config["loss_scale_value"]), float)

    @parameterized.parameters(
        *[[value] for value in [0.5, 0, -1, -8.0, np.float32(0.25), -(2**32), *NOT_FINITE]],
        *[[value] for value in NOT_REAL],
    )
    def test_what_is_no_number_from_1_on_raises_a_value_error(self, value):
        with self.assertRaises(ValueError) as raised:
            FixedLossScale(value)
        for part in ("loss_scale_value", "at least 1", repr(value)):
            self.assertIn(part, str(raised.exception))

    def test_takes_large_numbers(self):
        for value in (1, 2**32, 2**127, float(np.finfo(np.float32).max)):
            with tf.Graph().as_default(), tf1.Session() as session:
                self.assertEqual(session.run(FixedLossScale(value)()), np.float32(value))


class DynamicLossScaleTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_arguments_are_readable_floats_and_int(self, mode):
        with modes.entered(mode):
            for loss_scale in (
                DynamicLossScale(8, 3, 4),
                DynamicLossScale(np.float32(8), np.int32(3), np.int64(4)),
                DynamicLossScale(initial_loss_scale=8, increment_period=3.0, multiplier=4),
            ):
                values = [
                    loss_scale.initial_loss_scale,
                    loss_scale.increment_period,
                    loss_scale.multiplier,
                ]
                self.assertEqual(values, [8.0, 3, 4.0])
                self.assertEqual([type(value) for value in values], [float, int, float])
                with self.assertRaises(AttributeError):
                    loss_scale.multiplier = 2.0
            for value in (2, 2.0, np.int64(2), np.float32(2)):
                hysteresis = DynamicLossScale(8, hysteresis=value).get_config()["hysteresis"]
                self.assertEqual((hysteresis, type(hysteresis)), (2, int))

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_state(self, mode):
        with modes.entered(mode):
            loss_scale = DynamicLossScale()
            self.assertEqual(loss_scale.current_loss_scale.dtype.base_dtype, tf.float32)
            self.assertEqual(loss_scale.good_steps.dtype.base_dtype, tf.int64)
            self.assertEqual(loss_scale.current_loss_scale.name, "current_loss_scale:0")
            self.assertEqual(loss_scale.good_steps.name, "good_steps:0")
            self.assertIs(loss_scale._current_loss_scale, loss_scale.current_loss_scale)
            self.assertIs(loss_scale._num_good_steps, loss_scale.good_steps)
            with modes.creations() as created:
                DynamicLossScale(hysteresis=2)
            self.assertEqual(created, ["current_loss_scale", "good_steps", "shrink_delay"])

    @parameterized.parameters(*modes.ALL)
    def test_rule(self, mode):
        for arguments, options, values, scales, good in RULES:
            make = functools.partial(DynamicLossScale, *arguments, **options)
            results = _follow(mode, make, values)
            self.assertEqual([flag for flag, _, _ in results], list(np.isfinite(values)))
            self.assertEqual([scale for _, scale, _ in results], scales, arguments)
            self.assertEqual([count for _, _, count in results], good, arguments)

    @parameterized.parameters(*modes.ALL)
    def test_grads_may_be_nested_or_one_tensor_with_none_among_them(self, mode):
        builds = [
            lambda x, y: [x, y],
            lambda x, y: (x, [y]),
            lambda x, y: {"x": x, "y": (y,)},
            lambda x, y: Pair(x, {"y": [y]}),
            lambda x, y: y,
            lambda x, y: [None, y, None],
        ]
        rows = [(GOOD, GOOD), (GOOD, BAD)]

        def step(loss_scale, x, y):
            flags, updates = [], []
            for build in builds:
                with tf.control_dependencies(updates):
                    update, flag = loss_scale.update(build(x, y))
                updates += [] if update is None else [update]
                flags.append(flag)
            with tf.control_dependencies(updates):
                return tf.stack(flags), loss_scale()

        first, second = stepping.run(mode, lambda: DynamicLossScale(2**10, 9), step, rows)
        self.assertAllEqual(first[0], [True] * 6)
        self.assertAllEqual(second[0], [False] * 6)
        self.assertEqual((first[1], second[1]), (2**10, 2**4))

    @parameterized.parameters(*modes.ALL)
    def test_steps_without_any_gradient_are_finite(self, mode):
        def step(loss_scale, _):
            return _dynamic_step(loss_scale, None)

        results = stepping.run(mode, lambda: DynamicLossScale(8, 9), step, [(BAD,), (BAD,)])
        self.assertEqual([(flag, int(good)) for flag, _, good in results], [(True, 1), (True, 2)])

    @parameterized.parameters(*modes.ALL)
    def test_indexed_slices_are_looked_at_by_their_values(self, mode):
        def step(loss_scale, values):
            sparse = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([3, 1]))
            return _dynamic_step(loss_scale, sparse)

        rows = [(np.array([[1], [2]], np.float32),), (np.array([[1], [INF]], np.float32),)]
        results = stepping.run(mode, lambda: DynamicLossScale(8, 9), step, rows)
        self.assertEqual([(flag, scale) for flag, scale, _ in results], [(True, 8), (False, 4)])

    @parameterized.parameters(*modes.ALL)
    def test_integer_and_complex_gradients(self, mode):
        rows = [
            (np.int32(2**31 - 1), np.complex64(1)),
            (np.int32(0), np.complex64(complex(0, NAN))),
            (np.int32(0), np.complex64(complex(INF, 0))),
        ]
        results = stepping.run(mode, lambda: DynamicLossScale(8, 9), _dynamic_step, rows)
        self.assertEqual([bool(flag) for flag, _, _ in results], [True, False, False])

    def test_update_in_eager_mode_returns_none_and_a_scalar_bool_tensor(self):
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(8, 9)
            for value, finite in ((1.0, True), (NAN, False)):
                update, should_apply = loss_scale.update([tf.constant([value])])
                self.assertIsNone(update)
                self.assertIsInstance(should_apply, tf.Tensor)
                self.assertEqual((should_apply.dtype, should_apply.shape.rank), (tf.bool, 0))
                self.assertEqual(bool(should_apply), finite)
            self.assertEqual((loss_scale().numpy(), loss_scale.good_steps.numpy()), (4, 0))

    @parameterized.parameters("run", "group", "control_dependencies", "identity")
    def test_update_in_a_graph_returns_a_tensor_whose_evaluation_updates(self, use):
        with tf.Graph().as_default(), tf1.Session() as session:
            loss_scale = DynamicLossScale(8, 9)
            grad = tf1.placeholder(tf.float32, [])
            update, should_apply = loss_scale.update([grad])
            self.assertIsInstance(update, tf.Tensor)
            self.assertEqual((should_apply.dtype, should_apply.shape.rank), (tf.bool, 0))
            if use == "run":
                fetch = update
            elif use == "group":
                fetch = tf.group(update)
            elif use == "identity":
                fetch = tf.identity(update)
            else:
                with tf.control_dependencies([update]):
                    fetch = tf.constant(0)
            session.run(tf1.global_variables_initializer())
            for value, state in ((1, [8, 1]), (1, [8, 2]), (NAN, [4, 0]), (1, [4, 1])):
                session.run(fetch, {grad: value})
                after = session.run([loss_scale.current_loss_scale, loss_scale.good_steps])
                self.assertEqual(after, state)

    def test_asking_whether_to_apply_moves_nothing_in_a_graph(self):
        with tf.Graph().as_default(), tf1.Session() as session:
            loss_scale = DynamicLossScale(8, 1)
            _, should_apply = loss_scale.update([tf.constant(1.0)])
            session.run(tf1.global_variables_initializer())
            self.assertTrue(session.run(should_apply))
            self.assertEqual(session.run(loss_scale()), 8)

    def test_update_in_a_function_returns_a_tensor(self):
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(8, 9)

            @tf.function
            def step(grad):
                update, _ = loss_scale.update([grad])
                assert isinstance(update, tf.Tensor), update
                return loss_scale()

            for value, state in ((1, (8, 1)), (1, (8, 2)), (NAN, (4, 0)), (1, (4, 1))):
                step(tf.constant(value, tf.float32))
                after = (loss_scale().numpy(), loss_scale.good_steps.numpy())
                self.assertEqual(after, state)

    @parameterized.parameters("graph_v1", "graph_v2", "function")
    def test_update_in_a_branch_moves_only_if_the_branch_is_taken(self, mode):
        def step(loss_scale, taken, grad):
            def update():
                return tf.identity(loss_scale.update([grad])[0])

            done = tf1.cond(taken, update, lambda: tf.constant(True))
            return stepping.then(done, lambda: [loss_scale(), loss_scale.good_steps.read_value()])

        rows = [
            (np.bool_(taken), np.float32(grad))
            for taken, grad in ((False, 1), (True, 1), (False, NAN), (True, NAN), (True, 1))
        ]
        results = stepping.run(mode, lambda: DynamicLossScale(8, 9), step, rows)
        self.assertAllEqual(np.array(results), [[8, 0], [8, 1], [8, 1], [4, 0], [4, 1]])

    def test_repr_in_eager_mode(self):
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(1, 2, 3)
            self.assertEqual(
                repr(loss_scale),
                "DynamicLossScale(current_loss_scale=1.0, num_good_steps=0, "
                "initial_loss_scale=1.0, increment_period=2, multiplier=3.0)",
            )
            loss_scale.update([tf.constant(1.0)])
            self.assertIn("current_loss_scale=1.0, num_good_steps=1, ", repr(loss_scale))
            loss_scale.update([tf.constant(1.0)])
            self.assertIn("current_loss_scale=3.0, num_good_steps=0, ", repr(loss_scale))
            self.assertIn("current_loss_scale=0.7, ", repr(DynamicLossScale(0.7)))

    def test_repr_in_a_graph(self):
        text = "DynamicLossScale(initial_loss_scale=1.0, increment_period=2, multiplier=3.0)"
        with tf.Graph().as_default():
            made_in_graph = DynamicLossScale(1, 2, 3)
            self.assertEqual(repr(made_in_graph), text)
            bounded = DynamicLossScale(4, 2, 3, min_loss_scale=0.5, max_loss_scale=9, hysteresis=3)
            end = "multiplier=3.0, min_loss_scale=0.5, max_loss_scale=9.0, hysteresis=3)"
            self.assertEndsWith(repr(bounded), end)
        with modes.entered("eager"):
            in_function = []
            loss_scale = DynamicLossScale(1, 2, 3)
            tf.function(lambda: in_function.append(repr(loss_scale)))()
            self.assertEqual(in_function[:1], [text])
            self.assertEqual(repr(made_in_graph), text)

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_config_holds_options_only_when_changed(self, mode):
        with modes.entered(mode):
            default = DynamicLossScale()
            self.assertEqual(
                default.get_config(),
                {"initial_loss_scale": 2.0**15, "increment_period": 2000, "multiplier": 2.0},
            )
            self.assertEqual((default.min_loss_scale, default.max_loss_scale), (1.0, None))
            for options, kept in (
                ({}, {}),
                ({"min_loss_scale": 1, "max_loss_scale": None}, {}),
                ({"min_loss_scale": 0.5}, {"min_loss_scale": 0.5}),
                ({"max_loss_scale": np.float32(64)}, {"max_loss_scale": 64.0}),
                ({"hysteresis": 1}, {}),
                ({"hysteresis": 4}, {"hysteresis": 4}),
            ):
                numbers = np.float32(8), np.int64(3), np.float64(4)
                config = DynamicLossScale(*numbers, **options).get_config()
                arguments = {"initial_loss_scale": 8.0, "increment_period": 3, "multiplier": 4.0}
                self.assertEqual(json.loads(json.dumps(config)), dict(arguments, **kept))
                again = DynamicLossScale.from_config(config)
                self.assertEqual(again.get_config(), config)

    def test_from_config_starts_anew(self):
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(8, 1)
            loss_scale.update([tf.constant(1.0)])
            again = DynamicLossScale.from_config(loss_scale.get_config())
            self.assertEqual((loss_scale().numpy(), again().numpy()), (16, 8))

    @parameterized.parameters(
        *[
            (name, value)
            for name in ("initial_loss_scale", "multiplier", "min_loss_scale", "max_loss_scale")
            for value in [0, 0.0, -1, -8.0, 1e-60] + NOT_FINITE + NOT_REAL
            if (name, value) != ("max_loss_scale", None)
        ],
        *[
            ("increment_period", value)
            for value in [1.5, "2", None, [2], 2j, NAN, INF, -INF, 2**63, 1e30, np.float32(0.5)]
        ],
        *[("hysteresis", value) for value in [0, -1, 1.5, "x", NAN, INF, None, 2**70]],
    )
    def test_bad_numbers_raise_a_value_error_and_make_no_variable(self, name, value):
        with tf.Graph().as_default() as graph:
            with self.assertRaises(ValueError) as raised:
                DynamicLossScale(**{name: value})
            self.assertIn(name, str(raised.exception))
            self.assertIn(repr(value), str(raised.exception))
            self.assertEmpty(graph.get_operations())

    @parameterized.parameters(
        lambda: 10**5000,
        lambda: -(10**5000),
        lambda: fractions.Fraction(10**400),
        lambda: fractions.Fraction(10**5000, 3),
    )
    def test_values_too_long_to_show_are_named(self, make_value):
        """Python 3.11 and later write no integer of more than 4,300 digits."""
        value = make_value()
        makes = {
            name: functools.partial(DynamicLossScale, **{name: value})
            for name in ("initial_loss_scale", "multiplier", "min_loss_scale", "max_loss_scale")
        }
        makes["increment_period"] = lambda: DynamicLossScale(increment_period=value)
        makes["loss_scale_value"] = lambda: FixedLossScale(value)
        for name, make in makes.items():
            with self.subTest(name), tf.Graph().as_default() as graph:
                with self.assertRaises(ValueError) as raised:
                    make()
                self.assertStartsWith(str(raised.exception), name)
                self.assertIn(", got ", str(raised.exception))
                self.assertLess(len(str(raised.exception)), 700)
                self.assertEmpty(graph.get_operations())

    @parameterized.parameters(
        {"initial_loss_scale": 8, "max_loss_scale": 7},
        {"initial_loss_scale": 8, "min_loss_scale": 9},
        {"initial_loss_scale": 8, "min_loss_scale": 9, "max_loss_scale": 10},
        {"initial_loss_scale": 8, "min_loss_scale": 4, "max_loss_scale": 2},
        {"initial_loss_scale": 0.5, "max_loss_scale": 0.75},
    )
    def test_bounds_that_leave_no_room_raise_a_value_error(self, **arguments):
        with tf.Graph().as_default() as graph:
            with self.assertRaisesRegex(ValueError, "m(ax|in)_loss_scale"):
                DynamicLossScale(**arguments)
            self.assertEmpty(graph.get_operations())

    @parameterized.parameters(
        {"increment_period": 0},
        {"increment_period": -4},
        {"multiplier": 0.5},
        {"initial_loss_scale": 0.5},
    )
    def test_odd_values_are_accepted_with_one_warning(self, **arguments):
        with tf.Graph().as_default():
            with self.assertLogs("absl", "WARNING") as logs:
                DynamicLossScale(**arguments)
        self.assertLen(logs.records, 1)
        self.assertIn(next(iter(arguments)), logs.records[0].getMessage())

    def test_takes_numpy_scalars_large_ints_and_integral_floats(self):
        with tf.Graph().as_default(), tf1.Session() as session:
            for value in NUMPY_EIGHTS:
                loss_scale = DynamicLossScale(value, value, value, min_loss_scale=value)
                self.assertEqual(loss_scale.get_config()["min_loss_scale"], 8)
            large = DynamicLossScale(2**32, 2**32, 2**32)
            self.assertEqual((large.increment_period, large.multiplier), (2**32, 2.0**32))
            session.run(tf1.global_variables_initializer())
            self.assertEqual(session.run(large()), 2.0**32)

    def test_good_values_warn_of_nothing(self):
        with tf.Graph().as_default():
            with self.assertLogs("absl", "WARNING") as logs:
                DynamicLossScale()
                DynamicLossScale(1, 1, 1.0)
                DynamicLossScale(0.5, 1, 1.0, min_loss_scale=0.25, max_loss_scale=2)
                FixedLossScale(1)
                _arguments.logging.warning("the only one")
        self.assertLen(logs.records, 1)

    def test_bad_gradients_leave_the_state_alone(self):
        """A value that cannot be tested for being finite raises before anything changes."""
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(8, 1)
            with self.assertRaises((TypeError, ValueError)):
                loss_scale.update([tf.constant(1.0), object()])
            self.assertEqual((loss_scale().numpy(), loss_scale.good_steps.numpy()), (8, 0))

    def test_state_is_kept_in_resource_variables(self):
        # As the original's, whatever the scope says: a read of another kind may see it move.
        with tf.Graph().as_default(), tf1.variable_scope("of_references", use_resource=False):
            scale = DynamicLossScale(8.0)
            self.assertFalse(hasattr(tf1.Variable(1.0), "handle"))
            for variable in (scale.current_loss_scale, scale.good_steps):
                self.assertTrue(hasattr(variable, "handle"))


class CheckpointTest(parameterized.TestCase, tf.test.TestCase):
    def _folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def _keys(self, path):
        return {name for name, _ in tf.train.list_variables(path) if name.startswith("scale/")}

    def test_children_are_current_loss_scale_and_good_steps(self):
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(8, 9)
            loss_scale.update([tf.constant(1.0)])
            checkpoint = tf.train.Checkpoint(scale=loss_scale)
            path = checkpoint.save(os.path.join(self._folder(), "ckpt"))
            suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
            self.assertEqual(
                self._keys(path),
                {"scale/" + n + suffix for n in ("current_loss_scale", "good_steps")},
            )
            self.assertEqual(tf.train.load_variable(path, "scale/current_loss_scale" + suffix), 8)
            self.assertEqual(tf.train.load_variable(path, "scale/good_steps" + suffix), 1)

    def test_saves_and_restores_in_eager_mode(self):
        with modes.entered("eager"):
            loss_scale = DynamicLossScale(8, 2)
            for value in (1.0, 1.0, 1.0):
                loss_scale.update([tf.constant(value)])
            path = tf.train.Checkpoint(scale=loss_scale).save(os.path.join(self._folder(), "ckpt"))
            root = tf.train.Checkpoint()
            early, late = root.restore(path), DynamicLossScale(64, 2)
            root.scale = late
            early.assert_existing_objects_matched()
            other = DynamicLossScale(64, 2)
            status = tf.train.Checkpoint(scale=other).restore(path)
            status.assert_existing_objects_matched()
            for restored in (late, other):
                self.assertEqual((restored().numpy(), restored.good_steps.numpy()), (16, 1))
                restored.update([tf.constant(1.0)])
                self.assertEqual((restored().numpy(), restored.good_steps.numpy()), (32, 0))

    def test_weights_of_a_subclass_are_saved_under_their_names(self):
        with modes.entered("eager"):
            loss_scale = CountingLossScale(3.0)
            loss_scale.update([])
            path = tf.train.Checkpoint(scale=loss_scale).save(os.path.join(self._folder(), "ckpt"))
            self.assertEqual(self._keys(path), {"scale/count/.ATTRIBUTES/VARIABLE_VALUE"})
            other = CountingLossScale(50.0)
            tf.train.Checkpoint(scale=other).restore(path).assert_existing_objects_matched()
            self.assertEqual(other().numpy(), 4)

    def test_a_fixed_loss_scale_can_be_part_of_a_checkpoint(self):
        with modes.entered("eager"):
            path = tf.train.Checkpoint(scale=FixedLossScale(8)).save(
                os.path.join(self._folder(), "ckpt")
            )
            status = tf.train.Checkpoint(scale=FixedLossScale(8)).restore(path)
            status.assert_existing_objects_matched()
            self.assertEmpty(self._keys(path))


class GetTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(8, 8.0, np.float16(8), np.float32(8), np.int64(8))
    def test_a_number_is_a_fixed_loss_scale(self, value):
        loss_scale = lib.get(value)
        self.assertIs(type(loss_scale), FixedLossScale)
        self.assertEqual(loss_scale.get_config(), {"loss_scale_value": 8.0})

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_dynamic_and_what_is_taken_as_it_is(self, mode):
        with modes.entered(mode):
            loss_scale = lib.get("dynamic")
            self.assertIs(type(loss_scale), DynamicLossScale)
            self.assertEqual(loss_scale.get_config(), DynamicLossScale().get_config())
            self.assertIsNone(lib.get(None))
            for loss_scale in (FixedLossScale(8), DynamicLossScale(), CountingLossScale()):
                self.assertIs(lib.get(loss_scale), loss_scale)

    def test_a_keras_config(self):
        with tf.Graph().as_default():
            config = {"class_name": "FixedLossScale", "config": {"loss_scale_value": 4.0}}
            self.assertEqual(repr(lib.get(config)), "FixedLossScale(4.0)")
            arguments = {"initial_loss_scale": 8.0, "increment_period": 3, "multiplier": 4.0}
            config = {"class_name": "DynamicLossScale", "config": arguments}
            loss_scale = lib.get(config)
            self.assertIs(type(loss_scale), DynamicLossScale)
            self.assertEqual(loss_scale.get_config(), arguments)

    @parameterized.parameters(*modes.ALL)
    def test_a_manager_is_run_by_the_loss_scale(self, mode):
        def make():
            manager = lsm.ExponentialUpdateLossScaleManager(
                8, incr_every_n_steps=2, decr_every_n_nan_or_inf=2, incr_ratio=4, decr_ratio=0.5
            )
            return lib.get(manager)

        def step(loss_scale, grad):
            assert isinstance(loss_scale, LossScale)
            update, should_apply = loss_scale.update([grad, None])
            assert (update is None) == (mode == "eager"), update
            return should_apply, stepping.then(update, loss_scale)

        values = [1, 1, NAN, INF, 1, 1]
        results = stepping.run(mode, make, step, [(np.float32(value),) for value in values])
        self.assertEqual(
            [(bool(flag), float(scale)) for flag, scale in results],
            [(True, 8), (True, 32), (False, 32), (False, 16), (True, 16), (True, 64)],
        )

    @parameterized.parameters(*modes.ALL)
    def test_a_fixed_manager_skips_non_finite_steps(self, mode):
        def step(loss_scale, grad):
            return loss_scale.update([grad])[1], loss_scale()

        results = stepping.run(
            mode, lambda: lib.get(lsm.FixedLossScaleManager(8)), step, [(GOOD,), (BAD,)]
        )
        self.assertEqual(
            [(bool(flag), float(scale)) for flag, scale in results], [(True, 8), (False, 8)]
        )

    @parameterized.parameters("graph_v1", "graph_v2", "eager", "function")
    def test_a_managers_own_update_may_return_anything(self, mode):
        """`update` has the form of any loss scale's, whatever the manager's own method returns."""

        class Doubling(lsm.LossScaleManager):
            def __init__(self, kind):
                self.kind = kind
                self.scale = tf1.Variable(2.0, trainable=False, use_resource=True)

            def get_loss_scale(self):
                return tf.identity(self.scale)

            def update_loss_scale(self, finite_grads):
                if self.kind == "none":
                    return None
                moved = self.scale.assign(self.scale * 2)
                return tf.group(moved) if self.kind == "op" else tf.convert_to_tensor(moved)

        for kind in ("op", "tensor", "none"):
            updates = []

            def step(loss_scale, grad):
                update, should_apply = loss_scale.update([grad])
                updates.append(update)
                return should_apply, stepping.then(update, loss_scale)

            results = stepping.run(mode, lambda: lib.get(Doubling(kind)), step, [(GOOD,), (BAD,)])
            scales = [2, 2] if kind == "none" else [4, 8]
            self.assertEqual([float(scale) for _, scale in results], scales)
            for update in updates:
                self.assertEqual(update is None, mode == "eager", (kind, update))

    @parameterized.parameters(
        *[
            [identifier]
            for identifier in (
                ["8", "fixed", "Dynamic", "", b"dynamic", [8], (8.0,), {}, 8j, object(), NAN, INF]
                + [0.5, 0, -1, 1e39, FixedLossScale, lsm.FixedLossScaleManager, np.ones([2])]
                + [{"class_name": "DynamicLossScale"}, {"config": {}}]
                + [{"class_name": "SomethingElse", "config": {}}]
                + [{"class_name": "FixedLossScale", "config": None}]
                + [{"class_name": "FixedLossScale", "config": {}}]
                + [{"class_name": "FixedLossScale", "config": {"no_such_argument": 1}}]
                + [{"class_name": ["FixedLossScale"], "config": {}}]
            )
        ]
    )
    def test_anything_else_raises_a_value_error(self, identifier):
        with tf.Graph().as_default() as graph:
            with self.assertRaises(ValueError):
                lib.get(identifier)
            self.assertEmpty(graph.get_operations())

    def test_serialize(self):
        with tf.Graph().as_default():
            self.assertEqual(
                lib.serialize(FixedLossScale(4)),
                {"class_name": "FixedLossScale", "config": {"loss_scale_value": 4.0}},
            )
            loss_scale = DynamicLossScale(8, 3, 4, max_loss_scale=16)
            self.assertEqual(
                lib.serialize(loss_scale),
                {"class_name": "DynamicLossScale", "config": loss_scale.get_config()},
            )

    def test_deserialize_is_the_inverse_of_serialize(self):
        with tf.Graph().as_default():
            for loss_scale in (
                FixedLossScale(4),
                FixedLossScale(4, skip_nonfinite=True),
                DynamicLossScale(8, 3, 4),
                DynamicLossScale(8, 3, 4, min_loss_scale=0.5, max_loss_scale=16, hysteresis=2),
            ):
                config = json.loads(json.dumps(lib.serialize(loss_scale)))
                again = lib.deserialize(config)
                self.assertIs(type(again), type(loss_scale))
                self.assertEqual(again.get_config(), loss_scale.get_config())

    def test_deserialize_takes_custom_objects(self):
        with tf.Graph().as_default():
            config = lib.serialize(CountingLossScale(5.0))
            with self.assertRaisesRegex(ValueError, "CountingLossScale"):
                lib.deserialize(config)
            again = lib.deserialize(config, {"CountingLossScale": CountingLossScale})
            self.assertIsInstance(again, CountingLossScale)
            self.assertEqual(again.start, 5.0)

    @parameterized.parameters(None, 8.0, "dynamic")
    def test_serialize_of_no_loss_scale_raises_a_value_error(self, value):
        with self.assertRaises(ValueError):
            lib.serialize(value)
