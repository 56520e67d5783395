"""Records examples/tf1_contrib_graph.py as it runs with TensorFlow 1.15's own contrib.

    python tests/data/record_rehearsal.py tests/data/rehearsal.npz

Only under TensorFlow 1.15.5. What is trained is the example itself, with the one line that names
this package put back to what it was; the arguments are `ARGUMENTS`. The file holds `loss` and the
manager's state and the global step after each step, and weights and slots after the last one.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent.parent / "examples/tf1_contrib_graph.py"
OURS = "from tf_lossscale_compat.contrib.mixed_precision import ("
ORIGINAL = "from tensorflow.contrib.mixed_precision import ("
# float32, because float16 kernels differ more between versions than the loss scaling under test
# should be allowed to. 2**126 overflows at first, and comes down by skipping steps; more would not
# do, because the reciprocal of 2**127 is too small for a normal float32.
ARGUMENTS = ("--steps", "200", "--dtype", "float32", "--init_loss_scale", repr(2.0**126))
EACH_STEP = ("loss", "loss_scale", "good_steps", "bad_steps", "global_step")
SECONDS = 240


def original_source():
    """Returns the example's source as TensorFlow 1 users had it.

    Raises:
      ValueError: it is not exactly one line that has to change.
    """
    source = EXAMPLE.read_text(encoding="utf-8")
    if source.split("\n").count(OURS) != 1 or source.count("import tf_lossscale_compat"):
        raise ValueError(f"{EXAMPLE} should have the line {OURS!r} once")
    return source.replace(OURS, ORIGINAL)


def rehearse(original=False, python_path=""):
    """Runs the example in a process of its own.

    Args:
      original: bool, whether it is to use TensorFlow's contrib in this package's place.
      python_path: where that process finds packages, besides those that are installed.

    Returns:
      {name: array [steps, ...]} of the loss and all variables after each step.
    """
    with tempfile.TemporaryDirectory() as folder:
        program, dump = EXAMPLE, os.path.join(folder, "dump.npz")
        if original:
            program = os.path.join(folder, "original.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(original_source())
        child = subprocess.run(
            [sys.executable, str(program), *ARGUMENTS, "--dump", dump],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, PYTHONPATH=python_path, CUDA_VISIBLE_DEVICES="-1"),
            universal_newlines=True,
            timeout=SECONDS,
            check=False,
        )
        if child.returncode:
            raise RuntimeError(f"{program} ended with {child.returncode}\n{child.stderr[-3000:]}")
        with np.load(dump) as arrays:
            return {name: arrays[name] for name in arrays.files}


def main(argv=None):
    """Writes the file; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", metavar="FILE.npz")
    path = parser.parse_args(argv).file
    import tensorflow as tf

    if tf.__version__ != "1.15.5":
        parser.error(f"run this under TensorFlow 1.15.5, not {tf.__version__}")
    if not tf.contrib.mixed_precision.LossScaleOptimizer.__module__.startswith("tensorflow"):
        parser.error("tf.contrib.mixed_precision is not TensorFlow's own")
    history = rehearse(original=True)
    np.savez_compressed(
        path, **{name: all if name in EACH_STEP else all[-1] for name, all in history.items()}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
