"""`StepRecord`: what it says of steps, against a list of them kept in Python."""

import contextlib
import copy
import os
import pickle
import time
from concurrent import futures
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, keras_homes, modes, replicas, stepping
from tests.v1_optimizers import LooksAtGradients, sgd
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    FixedLossScale,
    FixedLossScaleManager,
    LossScaleError,
    StepRecord,
)
from tf_lossscale_compat._core import _scale_or_manager
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1
NAN, INF = float("nan"), float("inf")
FACTORS = (1.0, NAN, INF, 1.0, -INF, NAN, 1.0)


def _expected(factors, scales):
    """(steps, skipped, in a row, last finite, last skip) after each step.

    `scales` are those before the first step and after each.
    """
    rows, skipped, run, last = [], 0, 0, None
    for i, factor in enumerate(factors):
        finite = bool(np.isfinite(factor))
        run = 0 if finite else run + 1
        if not finite:
            skipped += 1
            last = (i + 1, scales[i], scales[i + 1])
        rows.append((i + 1, skipped, run, finite, last))
    return rows


def _said(record, value):
    """Returns what `_expected` holds, as the record says it."""
    counts = [record.steps, record.skipped_steps, record.consecutive_skips]
    *counts, finite = value([*counts, record.last_step_finite])
    skip = record.last_skip()
    return (
        *[int(count) for count in counts],
        bool(finite),
        skip and (skip.step, skip.scale_before, skip.scale_after),
    )


def _arrays(tensors):
    return tf.nest.map_structure(np.array, tensors)


class Watched:
    """An optimizer with its record; `step` multiplies a gradient with its argument."""

    def __init__(self, opt, entered=modes.EAGER, **options):
        self.weight = tf1.Variable([1.0, 2.0], name="weight", use_resource=True)
        self.opt, self.record = opt, StepRecord(opt, **options)
        self.step = entered.compile(self.apply, modes.scalar())
        self.value = entered.value

    def apply(self, x):
        return self.opt.apply_gradients([(x * tf.ones([2]), self.weight)])

    def said(self):
        return _said(self.record, self.value)


class HandsOn(contrib.LossScaleManager):
    """A user's manager with its own method, which hands on to one of the package."""

    def __init__(self):
        self.manager = ExponentialUpdateLossScaleManager(8.0, 100, 1, 2.0, 0.5)

    def get_loss_scale(self):
        return self.manager.get_loss_scale()

    def update_loss_scale(self, finite_grads):
        return self.manager.update_loss_scale(finite_grads)

    def variables(self):
        return self.manager.variables()


class Overrides(ExponentialUpdateLossScaleManager):
    """A user's manager that calls the method which it overrides, and reads its own way."""

    def get_loss_scale(self):
        return 2.0 * super().get_loss_scale()

    def update_loss_scale(self, finite_grads):
        return super().update_loss_scale(finite_grads)


class AppliesNothing(tf1.train.GradientDescentOptimizer):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        return None if tf.executing_eagerly() else tf.no_op()


class AlwaysApplies(DynamicLossScale):
    def update(self, grads):
        return super().update(grads)[0], True


def _manager(cls=ExponentialUpdateLossScaleManager):
    return cls(8.0, 100, 1, 2.0, 0.5)


def _contrib(policy=_manager):
    return lambda: contrib.LossScaleOptimizer(sgd(), policy())


def _mixed(policy=lambda: DynamicLossScale(8.0, 100)):
    return lambda: MixedPrecisionLossScaleOptimizer(sgd(), policy())


# {name: function that makes an optimizer}
WAYS = {
    "contrib": _contrib(),
    "contrib_hands_on": _contrib(HandsOn),
    "contrib_overrides": _contrib(lambda: _manager(Overrides)),
    "contrib_fixed": _contrib(lambda: FixedLossScaleManager(8.0)),
    "mixed": _mixed(),
    "mixed_manager": _mixed(_manager),
    "mixed_looks": _mixed(lambda: LooksAtGradients(8.0, 100)),
    "mixed_fixed": _mixed(lambda: FixedLossScale(8.0, skip_nonfinite=True)),
}
APPLY_ALL = {
    "mixed": _mixed(lambda: FixedLossScale(8.0)),
    "always": _mixed(lambda: AlwaysApplies(8.0)),
}
READ_BY_USERS = ("contrib_overrides", "contrib_hands_on")
CORE = ("contrib", "contrib_overrides", "mixed")
CASES = [
    (way, mode)
    for way in sorted(WAYS)
    for mode in modes.ALL
    # XLA compiles for long.
    if (mode != "jit" or way in ("contrib", "mixed"))
    and (mode in ("graph_v1", "function") or way in CORE)
]


def _scales(way, factors):
    scales = [16.0 if "overrides" in way else 8.0]
    for factor in factors:
        halves = not np.isfinite(factor) and "fixed" not in way
        low = 2.0 if "overrides" in way else 1.0
        scales.append(max(scales[-1] / 2, low) if halves else scales[-1])
    return scales


class CountsTest(modes.EagerTestCase):
    def test_a_step_of_a_fixed_scale_is_recorded_where_it_is_fetched_by_its_name(self):
        with modes.entered("graph_v1") as entered:
            watched = Watched(_mixed(lambda: FixedLossScale(8.0))(), entered)
            watched.opt.apply_gradients([(tf.ones([2]), watched.weight)], name="mystep")
            entered.run(watched.weight.graph.get_operation_by_name("mystep"))
            self.assertEqual(watched.said()[0], 1)

    @crossed.parameters(*CASES)
    def test_says_what_happened(self, way, mode):
        with modes.entered(mode) as entered:
            weight, bias = tf1.Variable([1.0, 2.0], name="weight"), tf1.Variable(1.0, name="bias")
            opt = WAYS[way]()
            record = StepRecord(opt, names=True)

            def step(x):
                return opt.apply_gradients([(x * tf.ones([2]), weight), (tf.ones([]), bias)])

            call = entered.compile(step, modes.scalar())
            self.assertEqual(_said(record, entered.value), (0, 0, 0, True, None))
            self.assertEqual(record.report(), "0 of 0 steps skipped")
            scales = _scales(way, FACTORS)
            for factor, row in zip(FACTORS, _expected(FACTORS, scales)):
                call(factor)
                if way in READ_BY_USERS and mode in modes.GRAPH and row[4]:
                    row = (*row[:4], (*row[4][:2], None))  # It may have been read before.
                self.assertEqual(_said(record, entered.value), row)
                skip = record.last_skip()
                if skip is not None:
                    self.assertEqual(skip.names, ("weight",))
            self.assertEqual(record.nonfinite_gradients(), {"weight": 4})

    @parameterized.product(mode=("graph_v1", "eager"), way=tuple(APPLY_ALL))
    def test_what_applies_everything_is_looked_at_but_never_skips(self, mode, way):
        with modes.entered(mode) as entered:
            watched = Watched(APPLY_ALL[way](), entered)
            for i, factor in enumerate((1.0, NAN, NAN, 1.0)):
                watched.step(factor)
                finite = way == "always" or bool(np.isfinite(factor))
                self.assertEqual(watched.said(), (i + 1, 0, 0, finite, None))
            self.assertTrue(np.isnan(entered.value(watched.weight)).all())

    def test_an_optimizers_record_sees_its_own_steps_alone(self):
        manager = _manager()
        weight = tf.Variable(1.0)
        first, second = (contrib.LossScaleOptimizer(sgd(), manager) for _ in range(2))
        records = [StepRecord(watched) for watched in (first, second)]
        for opt, factor in ((first, 1.0), (second, NAN), (second, 1.0), (first, NAN)):
            opt.apply_gradients([(tf.constant(factor), weight)])
        counts = [(int(each.steps), int(each.skipped_steps)) for each in records]
        self.assertEqual(counts, [(2, 1), (2, 1)])
        skip = records[0].last_skip()
        self.assertEqual((skip.step, skip.scale_before, skip.scale_after), (2, 4.0, 2.0))

    def test_two_steps_in_one_run(self):
        with modes.entered("graph_v1") as entered:
            watched = Watched(_contrib()(), entered)
            with tf.control_dependencies([watched.apply(NAN)]):
                second = watched.apply(NAN)
            entered.run(second)
            self.assertEqual(watched.said(), (2, 2, 2, False, (2, 4.0, 2.0)))

    def test_steps_of_several_threads_are_all_counted(self):
        with modes.entered("graph_v2") as entered:
            scale = DynamicLossScale(2.0**100, 10**9)
            watched = Watched(_mixed(lambda: scale)(), entered)
            watched.step(0.0)

            def work(factor):
                for _ in range(20):
                    watched.step(factor)

            with futures.ThreadPoolExecutor(4) as threads:
                list(threads.map(work, (0.0, NAN, 0.0, NAN)))
            self.assertEqual(watched.said()[:2], (81, 40))

    def test_first_skips_of_several_threads_at_once(self):
        watched = Watched(_mixed()(), names=True)
        make = watched.record._make
        watched.record._make = lambda *args: time.sleep(0.05) or make(*args)

        def step(factor):
            with modes.eager_mode():  # TensorFlow 1.15 has it for each thread.
                watched.step(factor)

        with futures.ThreadPoolExecutor(3) as threads:
            list(threads.map(step, [NAN] * 3))
        self.assertEqual(watched.said()[:2], (3, 3))
        self.assertEqual(watched.record.nonfinite_gradients()["weight"], 3)

    def test_a_step_that_is_applied_ends_a_run(self):
        skips = _mixed(lambda: FixedLossScale(8.0, skip_nonfinite=True))()
        watched = Watched(skips, max_consecutive_skips=2)
        watched.step(NAN)
        watched.opt._loss_scale = FixedLossScale(8.0)  # Which applies it.
        watched.step(NAN)
        self.assertEqual(watched.said(), (2, 1, 0, False, (1, 8.0, 8.0)))
        watched.opt._loss_scale = FixedLossScale(4.0, skip_nonfinite=True)
        watched.step(NAN)  # Which is one in a row.
        self.assertEqual(watched.said(), (3, 2, 1, False, (3, 4.0, 4.0)))
        self.assertIs(watched.record.loss_scale, watched.opt._loss_scale)

    def test_a_failed_step_is_not_counted(self):
        inner = sgd()
        watched = Watched(contrib.LossScaleOptimizer(inner, _manager()), names=True)
        with mock.patch.object(inner, "apply_gradients", side_effect=ValueError("no")):
            with self.assertRaisesRegex(ValueError, "no"):
                watched.step(1.0)
        self.assertEqual(watched.said()[0], 0)
        watched.step(1.0)
        self.assertEqual(watched.said()[0], 1)


class GradientsTest(modes.EagerTestCase):
    @parameterized.parameters("graph_v1", "eager", "jit")
    def test_kinds_of_gradients(self, mode):
        with modes.entered(mode) as entered:
            opt = contrib.LossScaleOptimizer(AppliesNothing(1.0), _manager())
            shapes = {"sparse": [4, 2], "none": [], "empty": [0], "mixed": [4]}
            dtypes = {"half": "float16", "double": "float64", "integer": "int32"}
            dtypes["complex"] = "complex64"
            names = (*shapes, *dtypes)
            zeros = [tf.zeros(shapes.get(name, [2]), dtypes.get(name, "float32")) for name in names]
            variables = [tf1.Variable(value, name=name) for value, name in zip(zeros, names)]
            record = StepRecord(opt, names=True)

            def step(x):
                grads = {
                    # Each finite, and their sum is not.
                    "sparse": tf.IndexedSlices(
                        tf.constant([[3e38, 1.0], [3e38, 1.0]]), tf.constant([1, 1]), [4, 2]
                    ),
                    "half": tf.constant([1.0, -3.0], tf.float16),
                    "none": None,
                    "empty": tf.zeros([0]),
                    "mixed": tf.stack([x, INF, -INF, -7.0]),
                    "double": tf.constant([1e200, 2.0], tf.float64) + tf.cast(x, tf.float64),
                    "integer": tf.constant([1, 2]),
                    "complex": tf.complex(tf.stack([x, 3.0]), tf.stack([-INF, 5.0])),
                }
                return opt.apply_gradients([*zip(map(grads.get, names), variables)])

            call = entered.compile(step, modes.scalar())
            call(0.0)
            self.assertEqual(set(record.last_skip().names), {"complex", "mixed", "sparse"})
            call(NAN)
            found = {"complex", "double", "mixed", "sparse"}
            self.assertEqual(set(record.last_skip().names), found)
            totals = {"complex": 2, "double": 1, "mixed": 2, "sparse": 2}
            self.assertEqual(record.nonfinite_gradients(), totals)

    def test_a_function_that_is_traced_again(self):
        names = ("first", "second", "third")
        variables = {name: tf.Variable(1.0, name=name) for name in names}
        opt = MixedPrecisionLossScaleOptimizer(sgd(), DynamicLossScale(8.0))
        record = StepRecord(opt, names=True)

        @tf.function(autograph=False)
        def step(x, names):
            if names:
                opt.apply_gradients([(x, variables[name]) for name in names])
            return x

        for names in ((), ("first", "second"), ("second",), ("second", "first")):
            step(tf.constant(NAN), names)
            found = record.last_skip().names if names else ()
            self.assertEqual(found, tuple(sorted(names)))
        self.assertEqual((int(record.steps), int(record.skipped_steps)), (3, 3))
        self.assertEqual(record.nonfinite_gradients(), {"first": 2, "second": 3})
        step(tf.constant(NAN), ("third", "second"))
        self.assertEqual(record.last_skip().names, ("second",))

    def test_in_words(self):
        names = ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v2"]
        variables = [tf.Variable(1.0, name=name) for name in names]
        opt = contrib.LossScaleOptimizer(sgd(), _manager())
        record = StepRecord(opt, names=True)
        ones = [tf.constant(1.0)] * 8
        bad = [tf.constant(value) for value in (INF, 1.0, NAN, 1.0, 1.0, 1.0, 1.0, 1.0)]
        opt.apply_gradients(list(zip(ones, variables)))
        opt.apply_gradients(list(zip(bad, variables)))
        self.assertEqual(
            record.report(),
            "1 of 2 steps skipped; step 2 skipped: v0, v2 [2]; loss scale 8 -> 4",
        )
        opt.apply_gradients(list(zip([tf.constant(NAN)] * 8, variables)))
        self.assertEqual(
            record.report(),
            "2 of 3 steps skipped, the last 2 in a row; step 3 skipped: v0, v1, v2 [2], "
            "v3, v4, …; loss scale 4 -> 2",
        )


class CheckTest(modes.EagerTestCase):
    @parameterized.parameters("graph_v1", "eager")
    def test_a_stuck_run(self, mode):
        with modes.entered(mode) as entered:
            watched = Watched(_contrib()(), entered, names=True)
            record = watched.record
            with self.assertRaisesRegex(ValueError, "max_consecutive_skips must be given"):
                record.check()
            for factor in (1.0, NAN, NAN, 1.0, NAN, NAN, NAN):
                record.max_consecutive_skips = None  # Or in eager mode the step raises.
                watched.step(factor)
                record.max_consecutive_skips = 4 if record.last_skip() else 1
                record.check()
            record.max_consecutive_skips = 3
            with self.assertRaisesRegex(
                LossScaleError,
                "3 steps in a row were skipped, since step 5, .*max_consecutive_skips=3.*"
                "step 7 skipped: weight; loss scale 1 -> 1",
            ):
                record.check()
            watched.step(1.0)
            record.max_consecutive_skips = 1
            record.check()

    def test_in_eager_mode_the_step_raises(self):
        watched = Watched(_contrib()(), max_consecutive_skips=2)
        watched.step(NAN)
        with self.assertRaisesRegex(LossScaleError, "2 steps in a row"):
            watched.step(NAN)
        # The step was taken as ever, and the next one is.
        watched.step(1.0)
        self.assertEqual(watched.said(), (3, 2, 0, True, (2, 4.0, 2.0)))


class ErrorsTest(modes.EagerTestCase):
    def test_what_cannot_be_watched(self):
        message = "watched must be a loss-scale optimizer .*, got .*`update` returns whether"
        bare = (DynamicLossScale(), FixedLossScale(8.0), _manager(), HandsOn())
        for watched in (None, 3, sgd(), DynamicLossScale, "dynamic", *bare):
            with modes.creations() as made:
                with self.assertRaisesRegex(TypeError, message):
                    StepRecord(watched)
            self.assertEqual(made, [])

    def test_bad_arguments_leave_nothing_behind(self):
        opt = _mixed()()
        skips = "max_consecutive_skips"
        for name, value in (("names", 1), (skips, 0), (skips, 1.5), (skips, "3")):
            with modes.creations() as made:
                with self.assertRaisesRegex((TypeError, ValueError), name):
                    StepRecord(opt, **{name: value})
            self.assertEqual(made, [])
        StepRecord(opt)

    def test_a_second_record(self):
        opt = _contrib()()
        StepRecord(opt)
        with self.assertRaisesRegex(ValueError, "has a StepRecord already"):
            StepRecord(opt)

    def test_after_the_step_was_traced(self):
        opt, weight = _contrib()(), tf.Variable(1.0)
        step = tf.function(lambda: opt.apply_gradients([(tf.constant(1.0), weight)]) and None)
        opt.apply_gradients([(tf.constant(1.0), weight)])  # Eagerly it does not matter.
        step()
        with self.assertRaisesRegex(ValueError, "is traced already"):
            StepRecord(opt)

    def test_in_another_graph_than_the_step(self):
        inside, outside = tf.Graph().as_default, contextlib.nullcontext
        for of_record, of_step in ((outside, inside), (inside, outside)):
            opt = contrib.LossScaleOptimizer(sgd(1.0), FixedLossScaleManager(8.0))
            with of_record():
                StepRecord(opt)
            with of_step():
                weight = tf1.Variable(1.0)
                with self.assertRaisesRegex(ValueError, "was not made in the graph of the step"):
                    opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertEqual(float(weight.numpy()), 1.0)

    def test_copies(self):
        opt = contrib.LossScaleOptimizer(sgd(1.0), FixedLossScaleManager(8.0))
        record = StepRecord(opt)
        for other in (copy.deepcopy(opt), copy.copy(opt)):
            other.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
            self.assertEqual(int(record.steps), 0)
            StepRecord(other)  # Which has none yet.
        for duplicate in (copy.deepcopy, copy.copy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                duplicate(record)

    def test_read_while_a_function_is_traced(self):
        record = StepRecord(_mixed()())
        with self.assertRaisesRegex(NotImplementedError, "eager execution"):
            tf.function(lambda: record.report() and None, autograph=False)()
        seen = tf.function(lambda: record.skipped_steps, autograph=False)()
        self.assertEqual(int(seen), 0)

    def test_without_a_session(self):
        with tf.Graph().as_default():
            record = StepRecord(_mixed()())
            with self.assertRaisesRegex(ValueError, "session must be given"):
                record.report()


class KerasTest(modes.EagerTestCase):
    @keras_homes.each()
    def test_fit(self, home):
        model = home.dense_model()
        opt = LossScaleOptimizer(home.SGD(0.125), initial_scale=8.0)
        record = StepRecord(opt, names=True)
        model.compile(opt, "mse")
        x = np.ones([4, 3], np.float32)
        x[2] = NAN
        model.fit(x, np.ones([4, 2], np.float32), batch_size=1, shuffle=False, verbose=0)
        self.assertEqual(_said(record, _arrays), (4, 1, 0, True, (3, 8.0, 4.0)))
        names = record.last_skip().names
        self.assertLen(set(names), 2)
        self.assertRegex(" ".join(names), r"dense\w*/kernel")

    @keras_homes.each()
    def test_copies_and_pickles_are_without(self, home):
        opt = LossScaleOptimizer(home.SGD(0.125), initial_scale=8.0)
        record = StepRecord(opt)
        for other in (*keras_homes.copies(opt), type(opt).from_config(opt.get_config())):
            other.apply([tf.constant(1.0)], [home.variable(1.0)])
            self.assertEqual(int(record.steps), 0)


class CheckpointTest(modes.EagerTestCase):
    def test_totals_go_on(self):
        path = os.path.join(self.get_temp_dir(), "saved")
        saved, said = None, (0, 0, 0, True, None)
        # The second run skips nothing, and hands on what it was given.
        for factors in ((1.0, NAN, NAN), (1.0,), (NAN,)):
            weight = tf.Variable(1.0, name="weight")
            opt = _contrib()()
            record = StepRecord(opt, names=True)
            checkpoint = tf.train.Checkpoint(opt=opt, record=record)
            status = checkpoint.restore(saved) if saved else None
            self.assertEqual(_said(record, _arrays), said)
            for factor in factors:
                opt.apply_gradients([(tf.constant(factor), weight)])
            if status:
                status.assert_consumed()
            said, saved = _said(record, _arrays), checkpoint.save(path)
        self.assertEqual(said, (5, 3, 1, False, (5, 2.0, 1.0)))
        self.assertEqual(record.nonfinite_gradients()["weight"], 3)

    def test_counts_by_name_begin_anew_with_more_variables(self):
        saved = None
        for names in (["first"], ["first", "second"]):  # As where a layer is no longer frozen.
            opt = _contrib()()
            record = StepRecord(opt, names=True)
            checkpoint = tf.train.Checkpoint(record=record)
            if saved:
                checkpoint.restore(saved)
            nan = tf.constant(NAN)
            opt.apply_gradients([(nan, tf.Variable(1.0, name=name)) for name in names])
            saved = checkpoint.save(os.path.join(self.get_temp_dir(), "saved"))
        self.assertEqual((int(record.steps), record.last_skip().names), (2, tuple(names)))
        self.assertEqual(record.nonfinite_gradients(), {"first": 1, "second": 1})

    def test_the_optimizers_own_checkpoint_does_not_change(self):
        found = []
        for watched in (False, True):
            weight = tf.Variable(1.0)
            opt = contrib.LossScaleOptimizer(tf1.train.MomentumOptimizer(0.1, 0.9), _manager())
            if watched:
                StepRecord(opt, names=True)
            opt.apply_gradients([(tf.constant(1.0), weight)])
            opt.apply_gradients([(tf.constant(NAN), weight)])
            saved = tf.train.Checkpoint(opt=opt).save(os.path.join(self.get_temp_dir(), "x"))
            values = [variable.numpy() for variable in opt.variables()]
            found.append([sorted(tf.train.list_variables(saved)), values])
        self.assertEqual(*found)

    def test_names_of_other_variables_do_not_change(self):
        names = []
        for watched in (False, True):
            with modes.control_flow(1), tf.Graph().as_default():
                weight = tf1.get_variable("weight", [], tf.float32)
                manager = _manager()
                adams = [tf1.train.AdamOptimizer(0.1) for _ in range(2)]
                opts = [contrib.LossScaleOptimizer(adam, manager) for adam in adams]
                if watched:
                    StepRecord(opts[0], names=True)
                for opt in opts:
                    opt.minimize(weight * weight, var_list=[weight])
                names.append({variable.name for variable in tf1.global_variables()})
        without, those = names
        self.assertEqual({name for name in those if "step_record/" not in name}, without)
        self.assertNotEqual(those, without)


class GraphTest(modes.EagerTestCase):
    def _graph(self, names=None, gradients=5):
        weights = [tf.Variable(tf.ones([2])) for _ in range(gradients)]
        opt = MixedPrecisionLossScaleOptimizer(sgd(), DynamicLossScale(8.0))
        if names is not None:
            StepRecord(opt, names=names)

        @tf.function(autograph=False, input_signature=[modes.scalar()])
        def step(x):
            opt.apply_gradients([(x * tf.ones([2]), weight) for weight in weights])

        return step.get_concrete_function().graph.as_graph_def()

    def test_how_many_nodes_a_record_takes(self):
        without, *those = [
            len([node for node in self._graph(names).node if node.op != "Placeholder"])
            for names in (None, False, True)
        ]
        for count in those:
            self.assertBetween(count - without, 1, 12)

    def test_a_finite_eager_step_reads_no_scale_and_looks_at_no_gradient(self):
        weight = tf.Variable([1.0, 2.0])
        opt = MixedPrecisionLossScaleOptimizer(sgd(), DynamicLossScale(8.0))
        record, steps = StepRecord(opt, names=True), []
        opt.apply_gradients([(tf.ones([2]), weight)])  # The first makes the variables for names.
        read = mock.patch.object(
            _scale_or_manager, "scale_after_step", wraps=_scale_or_manager.scale_after_step
        )
        look = mock.patch.object(record, "_count_gradients", wraps=record._count_gradients)
        with read as read, look as look:
            for factor in (1.0, INF):
                opt.apply_gradients([(factor * tf.ones([2]), weight)])
                steps.append((read.call_count, look.call_count))
        self.assertEqual(steps, [(0, 0), (1, 1)])
        self.assertEqual(record.last_skip()[:3], (3, 8.0, 4.0))

    def test_names_take_one_operation_of_the_branch_that_skips(self):
        # What is in a branch that is not taken costs time in each step, once it is in the graph.
        sizes = []
        for gradients in (5, 50):
            graph = self._graph(names=True, gradients=gradients)
            functions = {each.signature.name: each for each in graph.library.function}
            taken = [node.attr["else_branch"].func.name for node in graph.node if "If" in node.op]
            nodes = [(name, node) for name in taken for node in functions[name].node_def]
            ((name, call),) = [each for each in nodes if "PartitionedCall" in each[1].op]
            self.assertTrue(functions[call.attr["f"].func.name].attr["_noinline"].b)
            sizes.append(len(functions[name].node_def))
        self.assertEqual(*sizes)


class DistributedTest(modes.EagerTestCase):
    @crossed.parameters(
        ("mirrored_2", "eager", "contrib"),
        ("mirrored_2", "function", "contrib"),
        ("mirrored_2", "function", "mixed"),
        ("mirrored_2", "eager", "keras"),
        ("mirrored_2", "function", "keras"),
        ("one_device", "function", "mixed"),
        ("central_3", "eager", "mixed"),
        ("central_3", "function", "contrib"),
        ("no_merge_2", "function", "contrib"),
        ("no_merge_2", "function", "keras"),
    )
    def test_replicas(self, name, execution, optimizer):
        if name not in replicas.REPLICAS:
            self.skipTest("TensorFlow has no such mode")
        if optimizer == "keras" and stepping.VERSION < (2, 0):
            self.skipTest("Keras of 1.15 trains in graphs under strategies")
        strategy = replicas.strategy(name)
        count = replicas.REPLICAS[name]
        last = count - 1
        with strategy.scope():
            weight, other = tf.Variable([1.0, 2.0], name="weight"), tf.Variable(1.0, name="other")
            if optimizer == "keras":
                home = keras_homes.available()[0]
                if home.kind == "keras3":
                    weight, other = home.variable([1.0, 2.0]), home.variable(1.0)
                opt = LossScaleOptimizer(home.SGD(0.125), initial_scale=8.0)
            else:
                opt = WAYS[optimizer]()
        record = StepRecord(opt, names=True)  # Outside of the scope, which it finds by itself.

        def in_replica(x):
            x = tf.where(tf.equal(replicas.replica_id(), last), x, tf.ones([]))
            pairs = [(x * tf.ones([2]), weight), (tf.ones([]), other)]
            options = {"scaled": False} if optimizer == "keras" else {}
            opt.apply_gradients(pairs, **options)

        def step(x):
            replicas.run(strategy, in_replica, (x,))

        call = tf.function(step, autograph=False) if execution == "function" else step
        factors = (1.0, INF, 1.0, NAN, NAN)
        rows = _expected(factors, _scales(optimizer, factors))
        for factor, row in zip(factors, rows):
            call(tf.constant(factor))
            self.assertEqual(_said(record, _arrays), row)
        (name,) = record.last_skip().names
        self.assertEqual(record.nonfinite_gradients(), {name: 3})
        for variable in (record._last, *record._gradients):
            values = [copy.numpy() for copy in replicas.copies(strategy, variable)]
            for value in values[1:]:
                np.testing.assert_array_equal(value, values[0])
        self.assertIn(f"{name}; loss scale 2 -> 1", record.report())

    def test_made_outside_of_the_scope(self):
        strategy = replicas.strategy("mirrored_2")
        with strategy.scope():
            weight = tf.Variable(1.0)
        opt = contrib.LossScaleOptimizer(sgd(), FixedLossScaleManager(8.0))
        StepRecord(opt)
        with self.assertRaisesRegex(ValueError, "StepRecord.*under strategy.scope"):
            replicas.run(strategy, lambda: opt.apply_gradients([(tf.constant(1.0), weight)]))
        self.assertEqual(float(weight.numpy()), 1.0)
