"""Runs Python programs in forks of one process that has imported TensorFlow, and nothing else.

The import takes longer than most programs. What comes before it is to be tested in processes of
their own.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading

from tests import processes

_LOCK = threading.Lock()


@functools.lru_cache(maxsize=None)
def _server():
    code = "import sys; sys.path[0] = sys.argv.pop(); import forking; del sys.path[0]; "
    process = subprocess.Popen(
        [sys.executable, "-c", code + "del sys; forking.serve()", str(processes.PROGRAMS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Forks find the package in their own path.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        universal_newlines=True,
    )

    def end():
        process.stdin.close()
        process.wait()
        process.stdout.close()

    atexit.register(end)
    return process


def alone(arguments, environment, folder, seconds):
    """As `run`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
        universal_newlines=True,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def run(arguments, environment, folder, seconds):
    """Runs Python on `arguments`, as a process of its own would.

    Args:
      arguments: list of str: a script, or "-m" and a module, or "-c" and code, and what follows.
      environment: dict of str, all variables.
      folder: str, where it runs.
      seconds: after which it is killed.

    Returns:
      (exit status, standard output, standard error), the latter two as text.
    """
    if not hasattr(os, "fork"):
        return alone(arguments, environment, folder, seconds)
    with tempfile.TemporaryDirectory() as place, _LOCK:
        paths = {name: os.path.join(place, name) for name in ("out", "err")}
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(environment),
            "folder": str(folder),
            "seconds": seconds,
            **paths,
        }
        server = _server()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = json.loads(server.stdout.readline())
        texts = []
        for name in ("out", "err"):
            with open(paths[name], encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return (status, *texts)
