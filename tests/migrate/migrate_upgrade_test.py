"""A script of TensorFlow 1 trains when this tool rewrites it before or after `tf_upgrade_v2`."""

import io
import pathlib
import tempfile
import unittest

import pytest
from absl.testing import absltest

pytest.importorskip("tensorflow", reason="rewritten scripts train, which needs TensorFlow")
pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

import tensorflow as tf

from tests import forks, processes
from tf_lossscale_compat.migrate import _source

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
SECONDS = 240
CORPUS = pathlib.Path(__file__).with_name("corpus")
# With the names of TensorFlow 1, which `tf_upgrade_v2` changes.
PROGRAM = (CORPUS / "contrib_session.py").read_text(encoding="utf-8").replace("compat.v1.", "")


def upgraded(source):
    """Returns what tf_upgrade_v2 makes of a source."""
    from tensorflow.tools.compatibility import ast_edits, tf_upgrade_v2

    upgrader = ast_edits.ASTCodeUpgrader(tf_upgrade_v2.TFAPIChangeSpec())
    out = io.StringIO()
    upgrader.process_opened_file("in.py", io.StringIO(source), "out.py", out)
    return out.getvalue()


def migrated(source):
    result = _source.migrate(source)
    if result.findings:
        raise AssertionError(result.findings)
    return result.text


@unittest.skipIf(VERSION < (2, 4), "tf_upgrade_v2 of these versions does not know this TensorFlow")
class UpgradeTest(absltest.TestCase):
    def test_rewritten_scripts_train(self):
        texts = migrated(upgraded(PROGRAM)), upgraded(migrated(PROGRAM))
        for text in texts:
            self.assertNotIn("tf.contrib", text)
            self.assertNotIn("tensorflow.contrib", text)
            self.assertIn("tf.compat.v1.Session", text)
            self.assertEqual(migrated(text), text)
        with tempfile.TemporaryDirectory() as folder:
            program = processes.write(folder, "program.py", "\n".join(texts))
            status, _, err = forks.run([program], processes.environment(), folder, SECONDS)
        self.assertEqual(status, 0, err[-3000:])
