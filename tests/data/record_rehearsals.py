"""Records tests/programs/rehearsal_*.py as they run with TensorFlow's own loss scaling.

    python tests/data/record_rehearsals.py tests/data/rehearsals_graph.npz

Under TensorFlow 1.15.5, with its contrib and its `train.experimental`. The file holds `EACH_STEP`
after each step, under "program/name".
"""

import argparse
import os
import sys

import numpy as np

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# What a loss scale decides, by the names that the programs' variables have.
DECIDED = ("loss_scale", "current_loss_scale", "good_steps", "bad_steps", "global_step")
EACH_STEP = (*DECIDED, "loss", "norm")


def graph_programs():
    """Returns {name: (the kind of API, the program)}."""
    from tests.programs import rehearsal_bert

    return {
        f"bert_{program.__name__}": (kind, program)
        for kind, programs in rehearsal_bert.PROGRAMS.items()
        for program in programs
    }


def original_graph(name):
    """Trains a graph program with TensorFlow's own classes; returns its history."""
    from tests import originals
    from tests.programs import rehearsal_graph

    kind, program = graph_programs()[name]
    return rehearsal_graph.train(program, getattr(originals, kind)())


def main(argv=None):
    """Writes the file; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", metavar="FILE.npz")
    path = parser.parse_args(argv).file
    import tensorflow as tf

    if tf.__version__ != "1.15.5":
        parser.error(f"run this under TensorFlow 1.15.5, not {tf.__version__}")
    histories = {name: original_graph(name) for name in graph_programs()}
    np.savez_compressed(
        path,
        **{
            f"{program}/{name}": values
            for program, history in histories.items()
            for name, values in history.items()
            if name in EACH_STEP
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
