"""The variables of a loss scale: made and assigned on all replicas, read before they move.

Updates and steps under strategies are in replicas_test.py and scales/state_property_test.py.
"""

import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, replicas, stepping
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic, exponential, sgd, state_of
from tf_lossscale_compat import ExponentialUpdateLossScaleManager
from tf_lossscale_compat._core import _variables

tf1 = tf.compat.v1

NAN = float("nan")


class MadeTest(replicas.TestCase):
    @parameterized.parameters(*replicas.PROGRAMS)
    def test_state_is_mirrored_and_not_aggregated(self, name, mode):
        self.enter(name, mode)
        loss_scale, manager = dynamic(), exponential()
        variables = [*state_of(loss_scale), *manager.variables()]
        copies = 1 if name == "central_3" else self.count
        for variable in variables:
            found = replicas.copies(self.strategy, variable)
            self.assertLen({id(copy) for copy in found}, copies, msg=variable.name)
            self.assertTrue(self.strategy.extended.variable_created_in_scope(variable))
            if name != "central_3" or stepping.VERSION >= (2, 4):  # It did not answer before.
                self.assertFalse(variable.trainable)
            aggregation = getattr(variable, "aggregation", tf.VariableAggregation.NONE)
            self.assertEqual(aggregation.name, "NONE", msg=variable.name)


class ReferencesTest(parameterized.TestCase, tf.test.TestCase):
    @crossed.product(optimizer=BOTH, mode=modes.GRAPH)
    def test_a_scale_that_was_read_stays_when_the_variable_moves(self, optimizer, mode):
        # The second optimizer's loss is scaled after the first has moved the scale, its gradients
        # are divided by what was read before, if reading gave but the variable's memory.
        with modes.entered(mode) as entered:
            manager = ExponentialUpdateLossScaleManager(8.0, 1, 1, 2.0, 0.5)
            first, second = tf1.Variable(1.0), tf1.Variable(1.0)
            make = OPTIMIZERS[optimizer]
            step = make(sgd(0.25), manager).minimize(first * 1.0, var_list=[first])
            with tf.control_dependencies([step]):
                seen = tf1.convert_to_tensor(first) if mode == "graph_v2" else first.read_value()
            batch = tf1.placeholder_with_default(1, [])
            loss = second * (1.0 + 0.0 * seen) * tf.ones([batch])
            step = make(sgd(0.25), manager).minimize(loss, var_list=[second])
            for wanted in (0.75, 0.5, 0.25):
                entered.run(step)
                self.assertEqual(entered.value([first, second]), [wanted, wanted])


class CounterTest(modes.EagerTestCase):
    def test_python_compares_a_counter(self):
        counter = tf.Variable(2)
        compared = [_variables.reaches(counter, each) for each in (3, 4)]
        self.assertEqual(compared, [True, False])
        self.assertIsInstance(_variables.reaches(counter, 3), bool)
