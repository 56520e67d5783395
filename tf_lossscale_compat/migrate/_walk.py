"""Finds the files to look at."""

import errno
import fnmatch
import os
from typing import Any, Iterator

SUFFIXES = (".py", ".pyi")
_LEFT_OUT = {"node_modules", "__pycache__"}
# What makes a folder a virtual environment: of venv and virtualenv, and of conda.
_MARKS = ("pyvenv.cfg", "conda-meta")


def files(path: str, exclude: Any = (), on_error: Any = lambda error: None) -> Iterator[str]:
    """Yields the paths to look at: `path` itself, or what is below it, in a fixed order.

    Symbolic links below a folder are not followed: what they lead to inside of it is examined by
    its own name; one that leads out goes to `on_error`, as a folder that cannot be listed does.
    `exclude` has patterns of `fnmatch`, of a name or of a path below `path` with slashes.
    """
    if not os.path.isdir(path):
        yield path
        return

    def is_excluded(folder: str, name: str) -> bool:
        below = os.path.relpath(os.path.join(folder, name), path).replace(os.sep, "/")
        return any(
            fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(below, pattern.rstrip("/"))
            for pattern in exclude
        )

    for folder, folders, names in os.walk(path, onerror=on_error):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and not is_excluded(folder, name)
            and not any(os.path.exists(os.path.join(folder, name, mark)) for mark in _MARKS)
        )
        for name in sorted(names):
            # Editors' locks are links to nowhere whose names begin so.
            is_source = name.endswith(SUFFIXES) and not name.startswith(".#")
            if not is_source or is_excluded(folder, name):
                continue
            file = os.path.join(folder, name)
            if not os.path.islink(file):
                yield file
            elif not os.path.realpath(file).startswith(os.path.join(os.path.realpath(path), "")):
                problem = "it is a link that leads out of the folder: name what it leads to"
                on_error(OSError(errno.ELOOP, problem, file))
