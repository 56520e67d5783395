"""The upgrade rehearsed: a TF1 script first gets the new import, then the new TensorFlow.

examples/tf1_contrib_graph.py with TensorFlow 1.15's own contrib, with this package on 1.15, and
with this package on every later version trains the same network, step by step.
"""

import functools
import os
import pathlib

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests import processes
from tests.data import record_rehearsal

RECORD = pathlib.Path(__file__).resolve().parents[1] / "data" / "rehearsal.npz"
# Weights, batches and seeds are the same, so only kernels differ: how matrix products and sums are
# ordered and fused, and how tanh and exp are approximated, changed between versions (up to 2.0
# nothing differs) and depends on the processor. That makes some ulps a step, and after 200 steps up
# to 2e-6 of an array's largest entry. One step more or fewer makes 1e-3 and more.
TOLERANCE = 3e-5


@functools.lru_cache(maxsize=None)
def with_this_package():
    return record_rehearsal.rehearse(python_path=processes.environment()["PYTHONPATH"])


def record():
    with np.load(RECORD) as arrays:
        return {name: arrays[name] for name in arrays.files}


class RehearsalTest(tf.test.TestCase):
    def test_only_the_import_line_differs_from_the_script_for_contrib(self):
        ours = record_rehearsal.EXAMPLE.read_text(encoding="utf-8").split("\n")
        original = record_rehearsal.original_source().split("\n")
        pairs = [pair for pair in zip(ours, original) if pair[0] != pair[1]]
        self.assertEqual(len(ours), len(original))
        self.assertEqual(pairs, [(record_rehearsal.OURS, record_rehearsal.ORIGINAL)])

    def test_with_the_new_import_every_bit_stays_the_same_on_1_15(self):
        """Weights, slots, global step, scale, counters and loss after each of 200 steps."""
        if not tf.__version__.startswith("1.15."):
            self.skipTest("tf.contrib is in TensorFlow 1.15 only")
        original = record_rehearsal.rehearse(original=True)
        self.assertEqual(set(with_this_package()), set(original))
        for name, values in with_this_package().items():
            self.assertEqual(values.dtype, original[name].dtype, name)
            self.assertEqual(values.tobytes(), original[name].tobytes(), name)

    def test_scale_counters_and_global_step_are_those_of_real_contrib(self):
        for name in ("loss_scale", "good_steps", "bad_steps", "global_step"):
            self.assertAllEqual(with_this_package()[name], record()[name])

    def test_loss_weights_and_slots_are_those_of_real_contrib_but_for_rounding(self):
        ours, recorded = with_this_package(), record()
        self.assertEqual(set(ours), set(recorded))
        self.assertAllClose(ours["loss"], recorded["loss"], rtol=TOLERANCE, atol=0)
        for name in set(ours) - set(record_rehearsal.EACH_STEP):
            largest = np.abs(recorded[name]).max()
            self.assertGreater(largest, 0, name)
            last = ours[name][-1]
            self.assertAllClose(last, recorded[name], rtol=0, atol=TOLERANCE * largest, msg=name)

    def test_what_was_recorded_saw_skipped_steps_and_growth(self):
        scales = record()["loss_scale"]
        applied = np.diff(np.concatenate([[0], record()["global_step"]]))
        self.assertEqual(len(applied), 200)
        self.assertGreater(np.sum(applied == 0), 2)
        self.assertTrue(np.any(np.diff(scales) < 0))
        self.assertTrue(np.any(np.diff(scales) > 0))
        self.assertLess(record()["loss"][-1], record()["loss"][0] / 20)

    def test_recording_again_gives_the_committed_record(self):
        if not tf.__version__.startswith("1.15."):
            self.skipTest("the record is of TensorFlow 1.15.5's own contrib")
        path = os.path.join(self.get_temp_dir(), "again.npz")
        self.assertEqual(record_rehearsal.main([path]), 0)
        with np.load(path) as again:
            self.assertEqual(set(again.files), set(record()))
            for name, values in record().items():
                # Kernels depend on the processor, so a rerun elsewhere may differ by rounding.
                atol = TOLERANCE * np.abs(values).max() if values.dtype == np.float32 else 0
                self.assertAllClose(again[name], values, rtol=0, atol=atol, msg=name)

    def test_recording_is_refused_elsewhere(self):
        if tf.__version__ == "1.15.5":
            self.skipTest("this is where the record is made")
        path = os.path.join(self.get_temp_dir(), "refused.npz")
        with self.assertRaises(SystemExit):
            record_rehearsal.main([path])
        self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    absltest.main()
