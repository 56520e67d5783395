"""Runs an unmodified TensorFlow 1 script: python -m tf_lossscale_compat.run SCRIPT ARGS...

On TensorFlow 2, `tf.contrib.mixed_precision` is there (see `install_contrib`), the behaviour of
TensorFlow 1 is on (`tf.compat.v1.disable_v2_behavior()`), and `import tensorflow` means
`tensorflow.compat.v1` in the script and in modules that are not installed. Installed packages,
Keras among them, are given TensorFlow as it is. On TensorFlow 1.15 the script is just run.
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


class _Importer:
    """Stands in for `builtins.__import__`: some modules are given the API of TensorFlow 1."""

    def __init__(self, packages):
        self._packages = frozenset(packages)
        self._import = builtins.__import__
        self._v1 = _tf.v1_module()
        for name in ("v1", "v2"):
            if not hasattr(self._v1.compat, name):  # TensorFlow 2.0 has them in tf.compat alone.
                setattr(self._v1.compat, name, getattr(_tf.tf.compat, name))
        places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
        places.append(os.path.dirname(os.path.dirname(_tf.tf.__file__)))
        places.append(os.path.dirname(os.path.abspath(__file__)))
        self._installed = tuple(_folder(place) for place in places if place)
        self._is_installed = functools.lru_cache(maxsize=None)(self._look_where)

    def __call__(self, name, globals=None, locals=None, fromlist=(), level=0):
        if level == 0 and name.partition(".")[0] == "tensorflow" and self._wants_v1(globals):
            module = self._in_v1(name.split(".")[1:], fromlist)
            if module is not None:
                return module
        return self._import(name, globals, locals, fromlist, level)

    def _wants_v1(self, importing):
        importing = importing or {}
        name = importing.get("__name__") or ""
        if name == "__main__" or name.partition(".")[0] in self._packages:
            return True
        file = importing.get("__file__")
        return bool(file) and not self._is_installed(file)

    def _look_where(self, file):
        folder = _folder(os.path.dirname(file))
        if {"site-packages", "dist-packages"}.intersection(folder.split(os.sep)):
            return True
        return folder.startswith(self._installed)

    def _in_v1(self, parts, fromlist):
        """Returns what an import gets from the API of TensorFlow 1, None if not all is there."""
        if parts[:1] == ["compat"]:  # The code has chosen for itself.
            return None
        module: object = self._v1
        for part in parts:
            module = getattr(module, part, None)
            if not isinstance(module, types.ModuleType):
                return None
        if not fromlist:  # `import tensorflow.a.b as c` takes a and b from what it is given.
            return self._v1
        return module if all(name == "*" or hasattr(module, name) for name in fromlist) else None


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a script as `python SCRIPT ARGUMENT...` does, with contrib's loss scaling there.

    It changes this process for good: `sys.argv`, `sys.path[0]`, `__main__`, imports of TensorFlow.

    Args:
      argv: list of str, what follows the program's name; None for `sys.argv`.

    Raises:
      SystemExit: with 2, the call cannot be served; or the script raised it. Errors of the script
        come through as they are.
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
    # Where Python's options say to put no such folder first, there is none to replace.
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if _importer.install_contrib() and not args.tf2:
        builtins.__import__ = _Importer(args.tf1)
        _tf.tf1.disable_v2_behavior()
    # Like the module that `python PATH` runs in; since Python 3.9 the path is made absolute.
    module = types.ModuleType("__main__")
    module.__file__ = os.path.abspath(path) if sys.version_info >= (3, 9) else path
    module.__dict__.update(__builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    try:
        exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        if "not available with Keras 3" in str(error):
            print(f"tf_lossscale_compat.run: {_importer.KERAS_2}", file=sys.stderr)
        raise


if __name__ == "__main__":
    main()
