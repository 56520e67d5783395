"""The loss scales of TensorFlow r2.0, and getting one from an identifier."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, stepping
from tf_lossscale_compat import loss_scale as lib
from tf_lossscale_compat.contrib import mixed_precision as lsm
from tf_lossscale_compat.loss_scale import DynamicLossScale, FixedLossScale, LossScale

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
GOOD, BAD = np.float32(1), np.float32("nan")
Pair = collections.namedtuple("Pair", ["first", "second"])


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
    def test_add_weight_makes_a_variable(self, mode):
        with modes.entered(mode) as entered:
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
                self.assertEqual(entered.value(weight), value)

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


class FlagTest(modes.EagerTestCase):
    """The flag that a manager's update takes is no gradient."""

    @crossed.product(
        mode=modes.IMMEDIATE[:2] + modes.GRAPH,
        make=(
            lambda: FixedLossScale(8),
            lambda: FixedLossScale(8, skip_nonfinite=True),
            DynamicLossScale,
            lambda: lib.get(lsm.FixedLossScaleManager(8)),
        ),
    )
    def test_is_refused(self, mode, make):
        with modes.entered(mode) as entered:
            loss_scale = make()
            for build in (
                lambda: False,
                lambda: np.bool_(False),
                lambda: np.array([True]),
                lambda: tf.constant(False),
                lambda: [tf.constant(1.0), {"flag": tf.constant(True)}],
            ):
                with self.assertRaisesRegex(TypeError, r"the bool .* update_loss_scale\(finite\)"):
                    entered.compile(lambda: loss_scale.update(build())[0])()
            before = entered.value(loss_scale())
            entered.compile(lambda: loss_scale.update([None, tf.constant(1)])[0])()
            self.assertEqual(entered.value(loss_scale()), before)


class FixedLossScaleTest(parameterized.TestCase, tf.test.TestCase):
    def test_repr(self):
        self.assertEqual(repr(FixedLossScale(128)), "FixedLossScale(128.0)")
        manager = lsm.FixedLossScaleManager(8.0)
        self.assertEqual(repr(lib.get(manager)), f"LossScale of {manager!r}")
        self.assertIn("skip_nonfinite=True", repr(FixedLossScale(8, skip_nonfinite=True)))


class DynamicLossScaleTest(modes.EagerTestCase):
    def test_state(self):
        loss_scale = DynamicLossScale()
        self.assertIs(loss_scale._current_loss_scale, loss_scale.current_loss_scale)
        self.assertIs(loss_scale._num_good_steps, loss_scale.good_steps)
        with self.assertRaises(AttributeError):
            loss_scale.multiplier = 2.0
        with modes.creations() as created:
            DynamicLossScale()
        self.assertEqual(created, ["current_loss_scale", "good_steps"])

    @parameterized.parameters("graph_v1", "eager", "function")
    def test_grads_may_be_nested_or_one_tensor_with_none_among_them(self, mode):
        builds = [
            lambda x, y: [x, y],
            lambda x, y: (x, [y]),
            lambda x, y: {"x": x, "y": (y,)},
            lambda x, y: Pair(x, {"y": [y]}),
            lambda x, y: y,
            lambda x, y: [None, y, None],
            lambda x, y: [None],
        ]
        rows = [(GOOD, GOOD), (GOOD, BAD)]

        def step(loss_scale, x, y):
            flags, updates = [], []
            for build in builds:
                with tf.control_dependencies(updates):
                    update, flag = loss_scale.update(build(x, y))
                self.assertIsInstance(update, type(None) if mode == "eager" else tf.Tensor)
                self.assertEqual((flag.dtype, flag.shape.rank), (tf.bool, 0))
                updates += [] if update is None else [update]
                flags.append(flag)
            with tf.control_dependencies(updates):
                return tf.stack(flags), loss_scale()

        first, second = stepping.run(mode, lambda: DynamicLossScale(2**10, 9), step, rows)
        self.assertAllEqual(first[0], [True] * 7)
        self.assertAllEqual(second[0], [False] * 6 + [True])
        self.assertEqual((first[1], second[1]), (2**10, 2**4))

    def test_repr_in_eager_mode(self):
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
        later = type("Later", (DynamicLossScale,), {"get_config": lambda self: self.later})
        self.assertIn("(current_loss_scale=8.0, ", repr(later(8)))  # Before it has that attribute.

    def test_repr_in_a_graph(self):
        text = "DynamicLossScale(initial_loss_scale=1.0, increment_period=2, multiplier=3.0)"
        with tf.Graph().as_default():
            made_in_graph = DynamicLossScale(1, 2, 3)
            self.assertEqual(repr(made_in_graph), text)
            bounded = DynamicLossScale(4, 2, 3, min_loss_scale=0.5, max_loss_scale=9)
            end = "multiplier=3.0, min_loss_scale=0.5, max_loss_scale=9.0)"
            self.assertEndsWith(repr(bounded), end)
        in_function = []
        loss_scale = DynamicLossScale(1, 2, 3)
        tf.function(lambda: in_function.append(repr(loss_scale)))()
        self.assertEqual(in_function[:1], [text])
        self.assertEqual(repr(made_in_graph), text)

    @parameterized.parameters("graph_v1", "eager")
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
            ):
                numbers = np.float32(8), np.int64(3), np.float64(4)
                config = DynamicLossScale(*numbers, **options).get_config()
                arguments = {"initial_loss_scale": 8.0, "increment_period": 3, "multiplier": 4.0}
                self.assertEqual(json.loads(json.dumps(config)), dict(arguments, **kept))
                again = DynamicLossScale.from_config(config)
                self.assertEqual(again.get_config(), config)


class CheckpointTest(modes.EagerTestCase):
    @parameterized.parameters(
        (lambda: DynamicLossScale(64, 2), ["current_loss_scale", "good_steps"]),
        (CountingLossScale, ["count"]),
        (lambda: FixedLossScale(8), []),
    )
    def test_state_is_saved_under_its_names_and_restored(self, make, names):
        saved, early, late = make(), make(), make()
        for value in (NAN, 1.0):
            saved.update([tf.constant(value)])
        path = tf.train.Checkpoint(scale=saved).save(self.get_temp_dir() + "/checkpoint")
        keys = {name for name, _ in tf.train.list_variables(path) if name.startswith("scale/")}
        self.assertEqual(keys, {f"scale/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in names})
        status = tf.train.Checkpoint(scale=early).restore(path)
        status.assert_existing_objects_matched()
        root = tf.train.Checkpoint()
        root.restore(path)
        root.scale = late
        for restored in (early, late):
            self.assertEqual(
                [getattr(restored, name).numpy() for name in names],
                [getattr(saved, name).numpy() for name in names],
            )


class GetTest(modes.EagerTestCase):
    @parameterized.parameters(8, 8.0, np.float16(8), np.float32(8), np.int64(8))
    def test_a_number_is_a_fixed_loss_scale(self, value):
        loss_scale = lib.get(value)
        self.assertIs(type(loss_scale), FixedLossScale)
        self.assertEqual(loss_scale.get_config(), {"loss_scale_value": 8.0})
        for held in (np.array(value), tf.constant(value)):
            self.assertEqual(lib.get(held).get_config(), loss_scale.get_config())

    @parameterized.parameters("graph_v1", "graph_v2", "eager")
    def test_dynamic_and_what_is_taken_as_it_is(self, mode):
        with modes.entered(mode):
            loss_scale = lib.get("dynamic")
            self.assertIs(type(loss_scale), DynamicLossScale)
            self.assertEqual(loss_scale.get_config(), DynamicLossScale().get_config())
            self.assertIsNone(lib.get(None))
            for loss_scale in (FixedLossScale(8), DynamicLossScale(), CountingLossScale()):
                self.assertIs(lib.get(loss_scale), loss_scale)

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

    def test_deserialize_is_the_inverse_of_serialize(self):
        with tf.Graph().as_default():
            for loss_scale in (
                FixedLossScale(4),
                FixedLossScale(4, skip_nonfinite=True),
                DynamicLossScale(8, 3, 4),
                DynamicLossScale(8, 3, 4, min_loss_scale=0.5, max_loss_scale=16),
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
