"""Checkpoints of the original classes, written by TensorFlow 1.15.5 and 2.0.4, restore here.

The checkpoints under `tests/data` and what the originals made of the training after them were
written by `write_checkpoints.py` there.
"""

import contextlib
import os

import tensorflow as tf
from absl.testing import parameterized

from tests import modes, originals
from tests.data import write_checkpoints as data
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

FOLDER = os.path.join(originals.ROOT, "tests", "data")
OURS = data.Classes(contrib, experimental)
ORIGINALS = data.Classes(originals.contrib(), originals.experimental())


def _recorded(case):
    """(prefix of the checkpoint, state in it, states after each step that followed)."""
    folder = os.path.join(FOLDER, case)
    saved, history = data.load(os.path.join(folder, "continued.json"))
    return os.path.join(folder, "saved" if case in data.BY_NAME else "saved-1"), saved, history


def restored_eagerly(prefix, classes):
    """Restores a checkpoint into `classes` eagerly and trains on; returns the states."""
    training = data.OptimizerTraining(classes)
    status = training.checkpoint.restore(prefix)
    status.assert_existing_objects_matched()
    history = data.continued(training)
    # By now every slot has been made, so nothing of the checkpoint may be left over.
    status.assert_consumed()
    return history


class GenerationsTestCase(modes.EagerTestCase):
    def assert_same_history(self, recorded, replayed):
        """States after each step are equal in the names and bits of all variables."""
        self.assertLen(replayed, data.STEPS_AFTER)
        for step, (was, now) in enumerate(zip(recorded, replayed)):
            self.assertEqual(was, now, "step {} after the checkpoint".format(step))


class ByNameTest(GenerationsTestCase):
    @parameterized.product(case=tuple(data.BY_NAME), mode=modes.GRAPH)
    def test_restores_and_continues(self, case, mode):
        """Variables have the names that 1.15.5 gave them, and training goes on bit for bit."""
        # Where control flow names variables it is that of 1.15; tests/differential draws both.
        by_control_flow = case.startswith("mixed") or originals.IS_TF1
        flow = modes.control_flow(1) if by_control_flow else contextlib.nullcontext()
        prefix, saved, recorded = _recorded(case)
        with modes.entered(mode), flow:
            training = data.BY_NAME[case](OURS)
            names = [variable.op.name for variable in tf1.global_variables()]
            self.assertCountEqual([name for name, _ in tf1.train.list_variables(prefix)], names)
            tf1.train.Saver().restore(tf1.get_default_session(), prefix)
            self.assertEqual(saved, data.bits_of(training))
            self.assert_same_history(recorded, data.continued(training))


class ByObjectTest(GenerationsTestCase):
    def test_restores_and_continues_eagerly(self):
        """Every object of a checkpoint of 2.0.4 is matched, and training goes on bit for bit."""
        prefix, _, recorded = _recorded("object_optimizer")
        self.assert_same_history(recorded, restored_eagerly(prefix, OURS))

    def test_original_restores_what_this_package_writes(self):
        """A checkpoint written here goes on under the original as it would have gone on here."""
        if ORIGINALS.experimental is None:
            self.skipTest("this TensorFlow has no loss scales of its own")
        prefix = os.path.join(self.get_temp_dir(), "saved")
        _, ours = data.train_and_save(data.OptimizerTraining(OURS), prefix)
        theirs = restored_eagerly(prefix + "-1", ORIGINALS)
        self.assert_same_history(_recorded("object_optimizer")[2], ours)
        self.assert_same_history(ours, theirs)
