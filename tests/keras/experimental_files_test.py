"""Files of TensorFlow 2.2's experimental class are read, as Keras' own class reads them.

`tests/data/write_experimental_files.py` wrote `tests/data/keras_experimental`, with 2.2.3.
"""

import json
import pathlib

import numpy as np
from absl.testing import absltest

from tests import keras_homes, modes
from tests.keras_homes import number
from tf_lossscale_compat.keras import mixed_precision
from tf_lossscale_compat.keras.mixed_precision import experimental

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "keras_experimental"
STATE = json.loads((FOLDER / "state.json").read_text(encoding="utf-8"))
WRAPPERS = {
    "stable": mixed_precision.LossScaleOptimizer,
    "experimental": lambda inner: experimental.LossScaleOptimizer(inner, "dynamic"),
}


@absltest.skipIf(keras_homes.VERSION < (2, 0), "TensorFlow 1 has no such class")
class ExperimentalFilesTest(modes.EagerTestCase):
    @keras_homes.each(("weights", "saved_model/variables/variables"), WRAPPERS, (False, True))
    def test_read_before_and_after_the_variables_are_made(self, home, file, wrapper, made):
        if home.kind == "keras3":
            self.skipTest("Keras 3 reads no weights of that format")
        keras = home.keras
        opt = WRAPPERS[wrapper](home.SGD(0.125, momentum=0.5))
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile(opt, "mse")
        if made:
            model.fit(np.ones([1, 2]), np.ones([1, 2]), verbose=0)
        model.load_weights(str(FOLDER / file))
        if not made:  # A step that is skipped makes them and moves no weight.
            model.fit(np.full([1, 2], np.inf), np.ones([1, 2]), verbose=0)
        expected = (STATE["scale"], STATE["good_steps"]) if made else (STATE["scale"] / 2, 0)
        self.assertEqual((number(opt.loss_scale), number(opt.dynamic_counter)), expected)
        kernel = model.weights[0]
        np.testing.assert_array_equal(kernel.numpy(), STATE["kernel"])
        if home.kind == "v2":  # Later optimizers keep their slots elsewhere, whatever is around.
            slot = opt.inner_optimizer.get_slot(kernel, "momentum")
            np.testing.assert_array_equal(slot.numpy(), STATE["momentum"])


if __name__ == "__main__":
    absltest.main()
