"""A wrapper and the checks for its class go together, over all files of one call."""

import json

from absl.testing import parameterized

from tests.migrate.migrate_command_test import FolderTestCase, call

KERAS = "tf_lossscale_compat.keras.mixed_precision"
STABLE = "tf.keras.mixed_precision.LossScaleOptimizer"
EXPERIMENTAL = "tf.keras.mixed_precision.experimental.LossScaleOptimizer"
IMPORT = "import tensorflow as tf\n"
CHECKS = (
    "isinstance(opt, {})",
    "isinstance(opt, (int, {}))",
    "issubclass(type(opt), {})",
    "self.assertIsInstance(opt, {})",
    "type(opt) is {}",
    "type(opt) in (int, {})",
    "opt.__class__ == {}",
    "match opt:\n    case {}(): pass",
)
MAKERS = {
    "moves": "opt = tf.keras.mixed_precision.LossScaleOptimizer(inner, dynamic=True), tf.nn\n",
    "subclass moves": "class Own(tf.keras.mixed_precision.LossScaleOptimizer): x = tf.nn\n",
    "experimental moves": f"opt = {EXPERIMENTAL}(inner, 'dynamic'), tf.nn\n",
    "has moved": f"import {KERAS}\nopt = {KERAS}.LossScaleOptimizer(inner), tf.nn\n",
    "stays": "opt = tf.keras.mixed_precision.LossScaleOptimizer(inner, name='x'), tf.nn\n",
    "open": "opt = {}(inner)\nopt.scale_loss(a), opt.get_scaled_loss(b)\n".format(STABLE),
    "unknown": "from mylib import tf\nopt = {}(inner, dynamic=True)\n".format(STABLE),
}


def file(text):
    return IMPORT + text.rstrip("\n") + "\ntf.nn\n"


class PairsTest(FolderTestCase):
    def migrate(self, **files):
        """Migrates files of one call; returns their new texts, and the exit code and messages."""
        for name, text in files.items():
            self.write(name + ".py", text)
        code, _, err = call(self.folder, "--write")
        again = call(self.folder, "--write")
        self.assertEqual((again[0], again[1]), (code, b""), "a second run differs")
        return {name: self.read(name + ".py").decode() for name in files}, code, err

    @parameterized.parameters(
        *[(check, "moves") for check in CHECKS],
        *[(CHECKS[0], maker) for maker in ("subclass moves", "experimental moves", "has moved")],
    )
    def test_checks_go_with_the_wrapper(self, check, maker):
        files, code, err = self.migrate(
            a_check=file(check.format(STABLE)), maker=file(MAKERS[maker])
        )
        self.assertIn(check.format(f"{KERAS}.LossScaleOptimizer"), files["a_check"])
        self.assertNotIn(STABLE, files["maker"])
        self.assertEqual(code, 0, err)

    @parameterized.parameters(
        (("stays",), STABLE, ""),
        (("stays", "moves"), STABLE, "check for both"),
        (("stays", "has moved"), EXPERIMENTAL, "check for both"),
        (("open",), STABLE, "change both"),
        (("unknown",), EXPERIMENTAL, "change both"),
        (("open", "moves"), STABLE, "check for both"),
        ((), EXPERIMENTAL, "no file of this call makes one"),
        ((), STABLE, "no file of this call makes one"),
    )
    def test_checks_that_stay(self, makers, name, message):
        """What is not known is reported."""
        texts = {f"maker{number}": file(MAKERS[name]) for number, name in enumerate(makers)}
        before = file(CHECKS[0].format(name))
        files, code, err = self.migrate(a_check=before, **texts)
        self.assertEqual(files["a_check"], before)
        self.assertEqual((code, err.count("a_check.py:")), (1, 1) if message else (0, 0), err)
        self.assertIn(message, err)
        left = err.count(".py:")
        self.assertIn(f"{left} place{'s' * (left != 1)} left to a person", err)

    def test_an_imported_class_is_reported_at_its_import(self):
        before = (
            "from tensorflow.keras.mixed_precision import LossScaleOptimizer\n"
            "isinstance(opt, LossScaleOptimizer)\n"
        )
        files, code, err = self.migrate(check=before)
        self.assertEqual((files["check"], code), (before, 1))
        self.assertIn("check.py:1:46: ", err)
        files, code, _ = self.migrate(check=before, maker=file(MAKERS["moves"]))
        self.assertEqual(files["check"], before.replace("tensorflow", "tf_lossscale_compat"))
        self.assertEqual(code, 0)

    @parameterized.parameters(
        (IMPORT, STABLE, "moves"),
        (IMPORT, STABLE, "stays"),
        (IMPORT, STABLE, "has moved"),
        (
            "from tensorflow.keras import mixed_precision\n",
            "mixed_precision.LossScaleOptimizer",
            "moves",
        ),
        ("from tensorflow.keras.mixed_precision import LossScaleOptimizer as K\n", "K", "moves"),
    )
    def test_a_check_for_both_is_left_alone(self, statement, name, maker):
        before = f"{statement}import {KERAS}\n"
        before += f"isinstance(x, ({name}, {KERAS}.LossScaleOptimizer))\n"
        files, code, err = self.migrate(a_check=before, maker=file(MAKERS[maker]))
        self.assertEqual((files["a_check"], code), (before, 0), err)

    def test_a_file_with_both_in_a_call_with_both_apis(self):
        both = file(MAKERS["moves"] + f"isinstance(opt, {STABLE})\n")
        files, code, err = self.migrate(both=both, other=file(MAKERS["stays"]))
        self.assertEqual((files["both"], code), (both, 1))
        self.assertEqual(err.count("both.py:"), 2, err)
        # Alone the two in it are a pair.
        files, code, _ = self.migrate(both=both, other="")
        self.assertNotIn(STABLE, files["both"])
        self.assertEqual(code, 0)

    def test_contrib_has_no_wrapper_of_its_own(self):
        check = file("isinstance(opt, tf.contrib.mixed_precision.LossScaleOptimizer)")
        files, code, _ = self.migrate(check=check)
        self.assertIn("tf_lossscale_compat.contrib", files["check"])
        self.assertEqual(code, 0)
        maker = "from mylib import tf\ntf.contrib.mixed_precision.LossScaleOptimizer(opt, m)\n"
        files, code, err = self.migrate(check=check, maker=maker)
        self.assertEqual((files["check"], code), (check, 1))
        self.assertIn("2 places left", err)

    def test_a_notebook_and_a_module(self):
        def notebook(name):
            cells = [IMPORT, f"isinstance(opt, {name}), tf.nn"]
            cells = [{"cell_type": "code", "source": [cell]} for cell in cells]
            return json.dumps({"cells": cells})

        self.write("maker.py", file(MAKERS["moves"]))
        self.write("check.ipynb", notebook(STABLE))
        self.assertEqual(call(self.folder, "--write")[0], 0)
        cells = json.loads(self.read("check.ipynb"))["cells"]
        self.assertIn(f"isinstance(opt, {KERAS}.Loss", cells[1]["source"][0])
        self.write("check.ipynb", notebook(STABLE))
        code, _, err = call(self.path("check.ipynb"))
        self.assertEqual(code, 1)
        self.assertIn("(cell 2, line 1)", err)

    def test_an_annotation_is_no_wrapper(self):
        text = file(f"def f(opt: {STABLE}):\n    return isinstance(opt, {STABLE})")
        files, code, _ = self.migrate(check=text)
        self.assertEqual((files["check"], code), (text, 1))


class PreviewTest(FolderTestCase):
    def test_preview_and_check_see_all_files_too(self):
        self.write("a.py", file(f"isinstance(opt, {STABLE})"))
        self.write("b.py", file(MAKERS["moves"]))
        code, out, _ = call(self.folder)
        self.assertEqual(code, 0)
        self.assertIn(f"+isinstance(opt, {KERAS}.LossScaleOptimizer)", out.decode())
        code, out, _ = call(self.folder, "--check")
        self.assertEqual((code, out.count(b"would rewrite")), (1, 2))
