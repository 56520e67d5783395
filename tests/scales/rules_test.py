"""The update rules: each class, its original and the models of tests against one table."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_lossscale_compat
from tests import modes, originals, rules, stepping
from tests.differential import models

pytestmark = pytest.mark.usefixtures("kept_kernels")

COUNTERS = ("_num_good_steps", "_num_bad_steps")


def parsed(steps):
    """Flags and states of a row of the table."""
    flags, states = [], []
    for step in steps.split(","):
        flag, *state = map(float, step.split())
        flags.append(flag == 1)
        states.append([np.float32(state[0]), *state[1:]])
    return flags, states


def driven(mode, home, row):
    """The states of a home's class after each step of a row."""
    name, arguments, options, steps = row

    def step(made, flag):
        if hasattr(made, "get_loss_scale"):
            read, update = made.get_loss_scale, made.update_loss_scale(flag)
        else:
            read, (update, _) = made, made.update([tf.where(flag, 1.0, np.nan)])
        counters = [getattr(made, each).read_value for each in COUNTERS if hasattr(made, each)]
        return stepping.then(update, lambda: [tf.identity(each()) for each in (read, *counters)])

    rows = [(flag,) for flag in parsed(steps)[0]]
    return stepping.run(mode, lambda: getattr(home, name)(*arguments, **options), step, rows)


class RulesTest(modes.EagerTestCase):
    @parameterized.product(row=rules.TABLE, mode=modes.ALL)
    def test_each_class(self, row, mode):
        self.assertEqual(driven(mode, tf_lossscale_compat, row), parsed(row[-1])[1])

    @parameterized.parameters(*((row,) for row in rules.TABLE))
    def test_originals_and_models(self, row):
        homes = {models: "eager"}
        if not row[2]:
            homes.update({originals.contrib(): "graph_v1", originals.experimental(): "graph_v1"})
        found = [home for home in homes if hasattr(home, row[0])]
        for home in found:
            self.assertEqual(driven(homes[home], home, row), parsed(row[-1])[1])
        if not found:
            self.skipTest("this TensorFlow has no such class of its own")
