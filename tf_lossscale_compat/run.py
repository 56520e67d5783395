"""Runs an unmodified TensorFlow 1 script: python -m tf_lossscale_compat.run SCRIPT ARGS...

On TensorFlow 2, `tf.contrib.mixed_precision` is available (see `install_contrib`), the behaviour of
TensorFlow 1 is on (`tf.compat.v1.disable_v2_behavior()`), and `import tensorflow` means
`tensorflow.compat.v1` in the script and in modules that are not installed. Installed packages, such
as Keras, import the unchanged TensorFlow. On TensorFlow 1.15 the script runs unchanged.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import os
import sys
import sysconfig
import types
from typing import Sequence

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import _importer


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tf_lossscale_compat.run",
        description="Runs a TensorFlow 1 script on the TensorFlow that is installed, with "
        "tf.contrib.mixed_precision. sys.argv, sys.path[0] and __main__ are as after "
        "`python SCRIPT ARGUMENT...`.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--tf1",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="`import tensorflow` means tensorflow.compat.v1 in this installed package too",
    )
    parser.add_argument(
        "--tf2",
        action="store_true",
        help="bring back tf.contrib.mixed_precision only, and leave TensorFlow as it is",
    )
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)
    return parser


def _folder(path):
    return os.path.join(os.path.normcase(os.path.realpath(path)), "")


class _V1Import:
    """Replaces `builtins.__import__`, so that some modules import the API of TensorFlow 1."""

    def __init__(self, packages):
        self._packages = frozenset(packages)
        self._import = builtins.__import__
        self._v1 = _tf.v1_module()
        for name in ("v1", "v2"):
            if not hasattr(self._v1.compat, name):  # TensorFlow 2.0 has them only in tf.compat.
                setattr(self._v1.compat, name, getattr(_tf.tf.compat, name))
        places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
        places.append(os.path.dirname(os.path.dirname(_tf.tf.__file__)))
        places.append(os.path.dirname(os.path.abspath(__file__)))
        self._installed_folders = tuple(_folder(place) for place in places if place)
        self._is_installed = functools.lru_cache(maxsize=None)(self._in_installed_folder)

    def __call__(self, name, globals=None, locals=None, fromlist=(), level=0):
        if level == 0 and name.partition(".")[0] == "tensorflow" and self._wants_v1(globals):
            module = self._v1_module_for(name.split(".")[1:], fromlist)
            if module is not None:
                return module
        return self._import(name, globals, locals, fromlist, level)

    def _wants_v1(self, caller_globals):
        caller_globals = caller_globals or {}
        name = caller_globals.get("__name__") or ""
        if name == "__main__" or name.partition(".")[0] in self._packages:
            return True
        file = caller_globals.get("__file__")
        return bool(file) and not self._is_installed(file)

    def _in_installed_folder(self, file):
        folder = _folder(os.path.dirname(file))
        if {"site-packages", "dist-packages"}.intersection(folder.split(os.sep)):
            return True
        return folder.startswith(self._installed_folders)

    def _v1_module_for(self, parts, fromlist):
        """Returns an import's module of the API of TensorFlow 1; None if it lacks a name."""
        if parts[:1] == ["compat"]:  # The program chooses an API itself.
            return None
        module: object = self._v1
        for part in parts:
            module = getattr(module, part, None)
            if not isinstance(module, types.ModuleType):
                return None
        if not fromlist:  # `import tensorflow.a.b as c` takes a and b from the result.
            return self._v1
        return module if all(name == "*" or hasattr(module, name) for name in fromlist) else None


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a script like `python SCRIPT ARGUMENT...`, with contrib's loss scaling available.

    It permanently changes `sys.argv`, `sys.path[0]`, `__main__` and imports of TensorFlow.

    Args:
      argv: list of str, the arguments after the program's name; None for `sys.argv`.

    Raises:
      SystemExit: with 2, the arguments are wrong; or the script raised it. Errors of the script are
        raised unchanged.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    path = args.script
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        parser.error(f"cannot open SCRIPT {path!r}: {error.strerror}")

    sys.argv[:] = [path, *args.arguments]
    # With these options Python puts no folder first in `sys.path` that could be replaced.
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if _importer.install_contrib() and not args.tf2:
        builtins.__import__ = _V1Import(args.tf1)
        _tf.tf1.disable_v2_behavior()
    # Like the module of `python PATH`; Python 3.9 and later make the path absolute.
    module = types.ModuleType("__main__")
    module.__file__ = os.path.abspath(path) if sys.version_info >= (3, 9) else path
    module.__dict__.update(__builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    try:
        exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        if "not available with Keras 3" in str(error):
            print(f"tf_lossscale_compat.run: {_importer.KERAS_2_HINT}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
