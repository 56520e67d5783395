"""A notebook is migrated through jupytext, by the command of docs/migrate-command.md."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")
pytest.importorskip("jupytext", reason="notebooks are read by jupytext")

from tests import processes

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/migrate-command.md"
OURS = "tf_lossscale_compat.contrib.mixed_precision"


def code(*lines):
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["tf.contrib\n"]}]
    cell = {"cell_type": "code", "execution_count": 3, "metadata": {"tags": ["kept"]}}
    return {**cell, "outputs": outputs, "source": "\n".join(lines).splitlines(keepends=True)}


class NotebookTest(absltest.TestCase):
    def test_the_pages_command(self):
        before = [
            code("%matplotlib inline", "!pip install tensorflow", "import tensorflow as tf"),
            {"cell_type": "markdown", "metadata": {}, "source": ["By `tf.contrib`"]},
            code("%%time", "manager = tf.contrib.mixed_precision.FixedLossScaleManager(8.0)"),
            code("tf.contrib.mixed_precision.loss_scale(8.0)"),
        ]
        after = [
            code(*"".join(before[0]["source"]).split("\n"), "import tf_lossscale_compat"),
            before[1],
            code("%%time", f"manager = {OURS}.FixedLossScaleManager(8.0)"),
            before[3],
        ]
        notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}}
        (command,) = re.findall(r"(?m)^(jupytext .*?)(?: +#.*)?$", PAGE.read_text("utf-8"))
        migrate = f"{shlex.quote(sys.executable)} -m tf_lossscale_compat migrate"
        command = command.replace("tf-lossscale migrate", migrate).replace(
            "jupytext", f"{shlex.quote(sys.executable)} -m jupytext", 1
        )
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.ipynb")
            processes.write(folder, "train.ipynb", json.dumps({**notebook, "cells": before}))
            done = subprocess.run(
                command,
                shell=True,
                cwd=folder,
                env=processes.environment(),
                stderr=subprocess.PIPE,
                check=True,
                timeout=120,
            )
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["cells"], after)
        # What is left to a person is said, and keeps nothing from being written.
        self.assertIn("LSC212 `tf.contrib.mixed_precision.loss_scale`", done.stderr.decode())
