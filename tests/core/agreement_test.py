"""Processes that `tf.distribute` knows nothing of skip the same steps: `agree`, and Horovod.

Horovod itself is not installed here: what is called a stand-in has its class structure.
"""

import pickle
import sys
import types
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tests import crossed, keras_homes, modes
from tests.v1_optimizers import Around, LooksAtGradients, OwnManager, exponential, sgd
from tf_lossscale_compat import loss_scale as loss_scale_lib
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
Contrib = contrib.LossScaleOptimizer
Mixed = experimental.MixedPrecisionLossScaleOptimizer
PUBLIC = (mixed_precision.LossScaleOptimizer, mixed_precision.experimental.LossScaleOptimizer)


class Schedule(experimental.FixedLossScale):
    def __call__(self):
        return tf.constant(8.0)


def moving():
    return experimental.DynamicLossScale(8, 2)


def contrib_optimizer(opt, agree, manager=contrib.ExponentialUpdateLossScaleManager):
    manager = manager(8.0, 2, decr_every_n_nan_or_inf=1, decr_ratio=0.5)
    return Contrib(opt, manager, agree=agree)


V1 = {
    "contrib": contrib_optimizer,
    "own_manager": lambda opt, agree: contrib_optimizer(opt, agree, OwnManager),
    "mixed": lambda opt, agree: Mixed(opt, moving(), agree=agree),
}


class Others:
    """The other processes: what they say to each flag of this one."""

    def __init__(self, finite):
        self.finite, self.calls = finite, 0

    def __call__(self, finite):
        self.calls += 1
        return tf.logical_and(finite, self.finite)


def asking(others):
    """Returns an `agree` that runs at each step, as one that asks does, and what it was asked."""
    asked = []

    def ask(finite):
        asked.append(bool(finite))
        return np.bool_(finite and others[len(asked) - 1])

    def agree(finite):
        agreed = tf.numpy_function(ask, [finite], tf.bool)
        agreed.set_shape([])
        return agreed

    return agree, asked


class V1Test(modes.EagerTestCase):
    @crossed.product(make=sorted(V1), mode_name=("graph_v1", "graph_v2", "eager", "function"))
    def test_others_decide_too_and_are_asked_once(self, make, mode_name):
        # Own gradient; weight and scale after the step.
        steps = [(1.0, -1.0, 8.0), (1.0, -1.0, 4.0), (np.inf, -1.0, 2.0)]
        steps += [(1.0, -2.0, 2.0), (1.0, -3.0, 4.0)]
        with modes.entered(mode_name) as mode:
            weight, unused = tf1.Variable(0.0), tf1.Variable(0.0)
            agree, asked = asking(others=(True, False, True, True, True))
            opt = V1[make](sgd(), agree)
            step = mode.compile(
                lambda grad: opt.apply_gradients([(grad, weight), (None, unused)]), modes.scalar()
            )
            for grad, after, scale in steps:
                step(grad)
                self.assertEqual(mode.value(weight), after)
                self.assertEqual(mode.value(opt.variables()[0]), scale)
            # Asked more than once, the other processes would wait forever.
            self.assertEqual(asked, [True, True, False, True, True])

    def test_not_asked_where_every_step_is_applied(self):
        others = Others(True)
        opt = Mixed(tf1.train.GradientDescentOptimizer(1.0), 8, agree=others)
        tf_lossscale_compat.StepRecord(opt)  # Maybe this process alone has one.
        opt.apply_gradients([(tf.constant(1.0), tf.Variable(0.0))])
        self.assertEqual(others.calls, 0)

    def test_no_function_and_no_variable(self):
        fixed = contrib.FixedLossScaleManager(8.0)
        with tf.Graph().as_default() as graph:
            for make, scale in ((Mixed, "dynamic"), (Contrib, fixed)):
                with self.assertRaisesRegex(TypeError, "agree must be a function .* got True"):
                    make(sgd(), scale, agree=True)
            self.assertEmpty(graph.get_operations())

    @parameterized.parameters(1.0, [[True, False]])
    def test_answer_that_is_no_flag(self, answer):
        weight = tf.Variable(0.0)
        opt = V1["mixed"](sgd(), lambda finite: answer)
        with self.assertRaisesRegex(ValueError, "agree must return a scalar bool tensor"):
            opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertEqual((weight.numpy(), opt._loss_scale().numpy()), (0.0, 8.0))

    def test_loss_scale_that_looks_at_gradients(self):
        own, others = LooksAtGradients(8), Others(True)
        opt = Mixed(sgd(), 8, agree=others)
        keras_opt = PUBLIC[1](tf.keras.optimizers.SGD(1.0), 8, agree=others)
        for refused in (
            lambda: Mixed(sgd(), own, agree=others),
            lambda: PUBLIC[1](tf.keras.optimizers.SGD(1.0), own, agree=others),
            lambda: setattr(opt, "_loss_scale", own),
            lambda: setattr(keras_opt, "_loss_scale", own),
        ):
            with self.assertRaisesRegex(ValueError, "agree .* needs the gradients"):
                refused()
        Mixed(sgd(), own)  # Nothing has claimed it.

    def test_fixed_scale_of_contrib_skips_with_the_others(self):
        weight = tf.Variable(0.0)
        manager = contrib.FixedLossScaleManager(8.0)
        opt = Contrib(sgd(), manager, agree=Others(False))
        opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertEqual(weight.numpy(), 0.0)


def say_true(finite):
    return finite


def keras_optimizer(home, public, agree=None):
    return public(home.SGD(1.0), loss_scale=moving(), agree=agree)


class KerasTest(modes.EagerTestCase):
    @keras_homes.each(PUBLIC, ("eager", "function"))
    def test_others_decide_too(self, home, public, mode):
        weight = home.variable(0.0)
        agree, asked = asking(others=(True, True, False, True, True))
        opt = keras_optimizer(home, public, agree)

        def step(grad):
            opt.apply_gradients([(grad, weight)], scaled=False)

        step(tf.constant(0.0))  # Makes the variables.
        opt._loss_scale.good_steps.assign(0)
        if mode == "function":
            step = tf.function(step, autograph=False)
        for grad, after, scale in ((1, -1, 8), (1, -1, 4), (np.inf, -1, 2), (1, -2, 2)):
            step(tf.constant(float(grad)))
            self.assertEqual(home.numpy(weight), after)
            self.assertEqual(float(opt._loss_scale()), scale)
        self.assertEqual(asked, [True, True, True, False, True])

    @keras_homes.each(PUBLIC)
    def test_copies_ask_too(self, home, public):
        opt = keras_optimizer(home, public, say_true)
        self.assertIs(opt.agree, say_true)
        for again in keras_homes.copies(opt):
            self.assertIs(again.agree, say_true)

    @keras_homes.each(PUBLIC)
    def test_config_does_not_forget_it_in_silence(self, home, public):
        made = keras_optimizer(home, public, say_true)
        config = made.get_config()
        self.assertIs(config["agree"], True)
        opt = type(made).from_config(config)
        weight = home.variable(0.0)
        pairs = [(tf.constant(1.0), weight)]
        with self.assertRaisesRegex(ValueError, "Set optimizer.agree"):
            opt.apply_gradients(pairs, scaled=False)
        self.assertEqual(home.numpy(weight), 0.0)
        opt.agree = Others(False)
        opt.apply_gradients(pairs, scaled=False)
        self.assertEqual((home.numpy(weight), float(opt._loss_scale())), (0.0, 4.0))
        opt.agree = None
        opt.apply_gradients(pairs, scaled=False)
        self.assertEqual(home.numpy(weight), -1.0)
        self.assertNotIn("agree", opt.get_config())

    @keras_homes.each(PUBLIC)
    def test_no_function(self, home, public):
        # It is refused before a loss scale is made.
        made = mock.patch.object(experimental.DynamicLossScale, "__init__", side_effect=KeyError)
        with made, self.assertRaisesRegex(TypeError, "agree must be a function .* got 1"):
            public(home.SGD(1.0), loss_scale="dynamic", agree=1)


class DistributedV1(Around):
    """As in r1.15 to 2.x: computes with the wrapped optimizer, reduces; may leave some local."""

    __module__ = "horovod.tensorflow"

    def __init__(self, optimizer, backward_passes_per_step=1):
        super().__init__(optimizer)
        self._agg_helper = helper(backward_passes_per_step)


def helper(backward_passes_per_step):
    if backward_passes_per_step == 1:
        return None
    return types.SimpleNamespace(backward_passes_per_step=backward_passes_per_step)


def distributed_keras(optimizer, backward_passes_per_step=1):
    """As Horovod does: a class made of the optimizer's own, called with its config."""

    def initialize(self, **kwargs):
        super(type(self), self).__init__(**kwargs)
        self._agg_helper = helper(backward_passes_per_step)

    methods = {"__init__": initialize, "__module__": "horovod._keras"}
    cls = type(type(optimizer).__name__, (type(optimizer),), methods)
    return cls.from_config(optimizer.get_config())


def horovods(home, public, outside):
    """An optimizer that Horovod's is in, or is outside of."""
    inner = home.SGD(1.0)
    if outside:
        return distributed_keras(public(inner, loss_scale=moving()))
    return public(distributed_keras(inner), loss_scale=moving())


class StandInTest(modes.EagerTestCase):
    """Against a stand-in for Horovod: its classes' structure and `allreduce`, in one process."""

    def setUp(self):
        super().setUp()
        self.failures_elsewhere, self.reduced, self.names = 0.0, 0, []

        def allreduce(tensor, op, name=None, process_set=None):
            self.assertEqual(op, "Sum")
            self.reduced += 1
            total = tf.add(tensor, self.failures_elsewhere, name=name)
            if not tf.executing_eagerly():
                self.names.append(total.op.name)
            return total

        module = types.ModuleType("horovod.tensorflow")
        module.allreduce, module.Sum = allreduce, "Sum"
        package = types.ModuleType("horovod")
        package.tensorflow = module
        modules = {"horovod": package, "horovod.tensorflow": module}
        self.enter_context(mock.patch.dict(sys.modules, modules))

    def check_skips_with_the_others(self, step, weight):
        for self.failures_elsewhere in (0.0, 1.0):
            step()
            self.assertEqual(keras_homes.number(weight), -1.0)
        self.assertEqual(self.reduced, 2)

    @crossed.product(make=sorted(V1), subclass=(False, True))
    def test_v1_inside(self, make, subclass):
        inner = DistributedV1(sgd())
        if subclass:
            inner = type("Own", (DistributedV1,), {"__module__": __name__})(sgd())
        weight = tf.Variable(0.0)
        opt = V1[make](inner, None)
        self.check_skips_with_the_others(
            lambda: opt.apply_gradients([(tf.constant(1.0), weight)]), weight
        )

    @parameterized.parameters("contrib", "mixed")
    def test_its_name_does_not_depend_on_the_rest_of_a_graph(self, make):
        # Processes wait for those of the same name, and one of them alone may write summaries.
        names = []
        for before in range(2):
            self.names.clear()
            with tf.Graph().as_default():
                flag = tf.constant(True)
                for _ in range(before):
                    tf.logical_not(tf.cast(flag, tf.float32) > 0)
                for _ in range(2):
                    opt = V1[make](DistributedV1(sgd()), None)
                    with tf1.name_scope("of_rank_0" if before else "of_others"):
                        opt.apply_gradients([(tf.constant(1.0), tf1.Variable(0.0))])
            names.append(list(self.names))
        self.assertEqual(names[0], ["tf_lossscale_compat_agree", "tf_lossscale_compat_agree_1"])
        self.assertEqual(names[1], names[0])

    def test_a_user_s_policy_that_looks_at_gradients(self):
        # Horovod's are the same everywhere, so there is nothing to ask.
        opt = Mixed(DistributedV1(sgd()), LooksAtGradients(8, 2))
        weight = tf.Variable(0.0)
        opt.apply_gradients([(tf.constant(1.0), weight)])
        opt.apply_gradients([(tf.constant(np.inf), weight)])
        self.assertEqual((weight.numpy(), self.reduced), (-1.0, 0))
        opt._loss_scale = moving()
        opt.apply_gradients([(tf.constant(1.0), weight)])
        self.assertEqual((weight.numpy(), self.reduced), (-2.0, 1))

    @parameterized.parameters("contrib", "mixed")
    def test_own_agree_is_preferred(self, make):
        inner, others = DistributedV1(sgd()), Others(True)
        V1[make](inner, others).apply_gradients([(tf.constant(1.0), tf.Variable(0.0))])
        self.assertEqual((others.calls, self.reduced), (1, 0))

    @keras_homes.each(PUBLIC, (False, True), kind="keras3")
    def test_keras_3_is_refused(self, home, public, outside):
        with self.assertRaisesRegex(ValueError, "Horovod does not reduce the gradients of Keras 3"):
            horovods(home, public, outside)

    @keras_homes.each(PUBLIC, (False, True), kind=keras_homes.BEFORE_3)
    def test_keras(self, home, public, outside):
        # Variables that Horovod leaves local have gradients that no other process sees.
        opt, weight = horovods(home, public, outside), home.variable(0.0)
        self.check_skips_with_the_others(
            lambda: opt.minimize(lambda: weight * 1.0, [weight]), weight
        )

    @keras_homes.each(PUBLIC, kind="current")
    def test_a_branch_beside_a_count_of_steps(self, home, public):
        """As Horovod builds with `backward_passes_per_step` above 1."""
        opt, weight = public(home.SGD(1.0), loss_scale=8.0), home.variable(1.0)
        opt = distributed_keras(opt, backward_passes_per_step=2)

        @tf.function
        def step(take):
            tf.cond(
                take,
                lambda: opt.apply_gradients([(tf.constant(0.25), weight)]),
                lambda: opt.iterations.assign_add(1),
            )

        for take in (False, True):
            step(tf.constant(take))
        self.assertEqual(keras_homes.number(opt.iterations), 2)
        self.assertEqual(keras_homes.number(weight), 0.75)

    @keras_homes.each(PUBLIC, kind=keras_homes.BEFORE_3)
    def test_keras_pickles_no_plain_optimizer_in_its_place(self, home, public):
        opt = public(distributed_keras(home.SGD(1.0)), loss_scale="dynamic")
        with self.assertRaises(Exception):  # noqa: B017  As Horovod's alone, pickle's or Keras'.
            pickle.dumps(opt)

    def test_v1_accumulation_inside_a_scale_that_moves(self):
        inner, nothing = DistributedV1(sgd(), backward_passes_per_step=2), lambda *_: None
        duck = types.SimpleNamespace(get_loss_scale=lambda: 8.0, update_loss_scale=nothing)
        for loss_scale in (exponential(), moving(), duck, Schedule(8.0)):
            with self.assertRaisesRegex(ValueError, "backward_passes_per_step=2 .*the other order"):
                Mixed(inner, loss_scale)
            DistributedV1(Mixed(sgd(), loss_scale), backward_passes_per_step=2)
        Contrib(inner, contrib.FixedLossScaleManager(8.0))
        Mixed(inner, 8.0)
        with self.assertRaisesRegex(TypeError, "_loss_scale must be a LossScale, got 4.0"):
            Mixed(inner, 8.0)._loss_scale = 4.0
        with self.assertRaisesRegex(TypeError, "_loss_scale must be a LossScale, got.*Manager"):
            Mixed(inner, 8.0)._loss_scale = contrib.FixedLossScaleManager(4.0)

    @parameterized.parameters("contrib", "mixed")
    def test_v1_scale_replaced_at_run_time(self, make):
        cls = {"contrib": Contrib, "mixed": Mixed}[make]
        inner = DistributedV1(sgd(), backward_passes_per_step=2)
        opt, moves = cls(inner, contrib.FixedLossScaleManager(8.0)), moving()
        before = opt._tflsc_loss_scale
        with self.assertRaisesRegex(ValueError, "backward_passes_per_step=2"):
            if make == "mixed":
                opt._loss_scale = moves
            else:
                opt._loss_scale_manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2)
        self.assertIs(opt._tflsc_loss_scale, before)
        Mixed(sgd(), moves)  # It has no owner.

    @keras_homes.each(PUBLIC, kind=keras_homes.BEFORE_3)
    def test_keras_accumulation_inside_a_scale_that_moves(self, home, public):
        inner = distributed_keras(home.SGD(1.0), backward_passes_per_step=2)
        config = loss_scale_lib.serialize(loss_scale_lib.get(exponential()))
        message = "backward_passes_per_step=2 .*fixed loss scale"
        for moves in ("dynamic", config):
            with modes.creations() as created, self.assertRaisesRegex(ValueError, message):
                public(inner, loss_scale=moves)
            self.assertEmpty(created)
        opt = public(inner, loss_scale=8.0)
        before = opt._loss_scale
        with self.assertRaisesRegex(ValueError, "backward_passes_per_step=2"):
            opt._loss_scale = moving()
        self.assertIs(opt._loss_scale, before)

    def test_within_wrappers(self):
        class Own(tf1.train.Optimizer):
            inner_optimizer = None

            def __init__(self, opt):
                super().__init__(False, "Own")
                self.inner_optimizer, self.optimizer, self.opt = None, "sgd", opt

        opt = Own(DistributedV1(sgd(), backward_passes_per_step=2))
        with self.assertRaisesRegex(ValueError, "backward_passes_per_step=2"):
            Mixed(opt, "dynamic")
        opt.opt = opt  # No end.
        Mixed(opt, "dynamic")
