"""The command `tf-lossscale`, which runs the package as `python -m tf_lossscale_compat` does.

It stands beside the package: to import a part of a package imports the package first, which is an
error without TensorFlow, while running it is none (see `tf_lossscale_compat/__init__.py`).
"""

import runpy


def main() -> None:
    """Runs the command that `sys.argv` names; ends in `SystemExit`, with its exit code."""
    runpy.run_module("tf_lossscale_compat", run_name="__main__")
