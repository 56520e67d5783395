"""What child processes of tests are given: variables, files, ports."""

import contextlib
import importlib.util
import os
import pathlib
import socket

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"


def package_parent():
    """Returns the folder in which this process finds the package, installed or not."""
    return str(pathlib.Path(importlib.util.find_spec("tf_lossscale_compat").origin).parent.parent)


def environment(**variables):
    """Returns this process's variables for a child that is to find the same copy of the package.

    Without those of proxies, through which processes of one machine would not reach each other.
    """
    path = [package_parent(), os.environ.get("PYTHONPATH", "")]
    inherited = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    inherited.update(PYTHONPATH=os.pathsep.join(filter(None, path)), TF_CPP_MIN_LOG_LEVEL="2")
    return {**inherited, **variables}


def write(folder, name, text):
    """Writes a file, and the folders that it is in; returns its path."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def free_ports(count):
    """Returns different ports of 127.0.0.1 that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
