"""The variables of a loss scale: made and assigned on all replicas, read before they move.

Updates and steps under strategies are in replicas_test.py and scales/state_property_test.py.
"""

import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import crossed, modes, replicas, stepping
from tests.v1_optimizers import BOTH, OPTIMIZERS, dynamic, exponential, moved, sgd, state_of
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


class CopiesTest(parameterized.TestCase, tf.test.TestCase):
    """State made under `strategy.scope()` and updated from outside: copies never differ."""

    @crossed.parameters(*itertools.product(("mirrored_2", "central_3"), replicas.EXECUTIONS[:2]))
    def test_values_per_replica_outside_of_the_scope_are_taken_right_or_refused(self, name, mode):
        strategy, count = replicas.strategy(name), replicas.REPLICAS[name]
        with replicas.executing(mode, strategy, inside=False) as execution:
            with strategy.scope():
                loss_scale, manager = dynamic(), exponential()

            def by_gradients(factors):
                loss_scale.update([replicas.run(strategy, replicas.own, (factors,))])

            def by_flags(factors):
                flags = (tf.math.is_finite(factors),)
                manager.update_loss_scale(replicas.run(strategy, replicas.own, flags))

            for update, state in (
                (by_gradients, [loss_scale.current_loss_scale, loss_scale.good_steps]),
                (by_flags, manager.variables()[:2]),
            ):
                call, wanted = execution.compile(update, tf.TensorSpec([count], tf.float32)), (8, 0)
                for last in (NAN, 1.0):
                    try:
                        call(np.array([1.0] * (count - 1) + [last], np.float32))
                        wanted = moved(wanted, np.isfinite(last))
                    except ValueError:  # TensorFlow's, which takes no such value there.
                        pass
                    for copies, value in zip(execution.values(state), wanted):
                        self.assertAllEqual(copies, [value] * len(copies))


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
