"""Variables have the names that TensorFlow's own class gives them, and checkpoints with them.

`MixedPrecisionLossScaleOptimizer` is held against the installed TensorFlow's, contrib's optimizer
against what 1.15 makes, under the control flow of TensorFlow 1 and of TensorFlow 2.
"""

import unittest

import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, originals
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

CONTROL_FLOWS = {"v1": 1, "v2": 2}
SCALES = {"dynamic": "dynamic", "fixed": 128.0}


def train(optimizer, scope=None):
    """A training step of one more variable, in a variable scope."""
    with tf1.variable_scope(scope or tf1.get_variable_scope()):
        variable = tf1.get_variable("weight", [2], tf.float32)
        return optimizer.minimize(tf.reduce_sum(variable**2), var_list=[variable])


def in_scopes(make):
    train(make(tf1.train.AdamOptimizer()), "outer/inner")


def in_a_name_scope(make):
    with tf1.name_scope("train"):
        train(make(tf1.train.AdamOptimizer(name="MyAdam")))


def after_a_conditional(make):
    tf1.cond(tf.constant(True), lambda: tf.constant(1), lambda: tf.constant(2))
    train(make(tf1.train.MomentumOptimizer(0.1, 0.9)), "first")
    train(make(tf1.train.AdamOptimizer()), "second")


PROGRAMS = {
    function.__name__: function for function in (in_scopes, in_a_name_scope, after_a_conditional)
}


def names(program, make, control_flow, use_resource):
    """The names of all variables of a program's graph, in the order in which they were made."""
    with modes.control_flow(CONTROL_FLOWS[control_flow]), tf.Graph().as_default():
        with tf1.variable_scope("", use_resource=use_resource):
            PROGRAMS[program](make)
        return [variable.op.name for variable in tf1.global_variables()]


class VariableNamesTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.product(
        program=sorted(PROGRAMS), scale=sorted(SCALES), control_flow=sorted(CONTROL_FLOWS)
    )
    def test_mixed_precision_optimizer_names_as_the_installed_original(
        self, program, scale, control_flow
    ):
        theirs = originals.experimental()
        if theirs is None:
            raise unittest.SkipTest("this TensorFlow has no such class of its own")
        use_resource = control_flow == "v2"
        expected, ours = (
            names(
                program,
                lambda opt, home=home: home.MixedPrecisionLossScaleOptimizer(opt, SCALES[scale]),
                control_flow,
                use_resource,
            )
            for home in (theirs, experimental)
        )
        self.assertNotEmpty(expected)
        self.assertEqual(ours, expected)

    @crossed.product(program=sorted(PROGRAMS), control_flow=sorted(CONTROL_FLOWS))
    def test_contrib_optimizer_names_as_1_15(self, program, control_flow):
        def make(home):
            return lambda opt: home.LossScaleOptimizer(
                opt, home.ExponentialUpdateLossScaleManager(8.0, 2)
            )

        ours = names(program, make(contrib), control_flow, control_flow == "v2")
        if originals.contrib() is not None:  # On 1.15 those of the control flow in force.
            theirs = names(program, make(originals.contrib()), control_flow, control_flow == "v2")
            self.assertEqual(ours, theirs)
            return
        self.assertEqual(ours, names(program, make(contrib), "v1", False))
        conds = [name for name in ours if "beta1_power" in name]
        self.assertTrue(all("cond" in name for name in conds), conds)

    def test_contrib_optimizer_names_in_eager_mode_as_1_15(self):
        theirs = originals.contrib()
        if theirs is None:
            raise unittest.SkipTest("TensorFlow 2 has no contrib")

        def names(home):
            variable = tf.Variable([1.0, 2.0], name="weight")
            inner = tf1.train.AdamOptimizer()
            manager = home.ExponentialUpdateLossScaleManager(8.0, 2)
            home.LossScaleOptimizer(inner, manager).minimize(
                lambda: tf.reduce_sum(variable**2), var_list=[variable]
            )
            return [each.name for each in inner.variables()]

        with modes.eager_mode():
            expected, ours = [sorted(names(home))[:2] for home in (theirs, contrib)]
        self.assertEqual(["cond/beta1_power:0", "cond/beta2_power:0"], expected)
        self.assertEqual(expected, ours)
