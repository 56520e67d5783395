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
import time

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


def _ask(**request):
    """Returns what the server answers."""
    with _LOCK:
        server = _server()
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())


class _Forked:
    """As much of `subprocess.Popen` as `processes.Child` needs, of a fork."""

    def __init__(self, arguments, environment, folder):
        paths = {name: os.path.join(folder, name) for name in ("in", "out", "err")}
        for name in ("in", "out"):
            os.mkfifo(paths[name])
        with open(paths["err"], "wb"):
            pass
        self.pid = _ask(start=arguments, environment=environment, folder=os.getcwd(), **paths)
        self._status = None
        # The child opens them in the same order, and each waits for the other. By then it has the
        # file of its errors open as well.
        self.stdin, self.stdout = open(paths["in"], "w"), open(paths["out"])  # noqa: SIM115

    def poll(self):
        if self._status is None:
            self._status = _ask(wait=self.pid, seconds=0)
        return self._status

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self._status


class Child(processes.Child):
    """A `processes.Child` that begins with TensorFlow imported, where there are forks."""

    def _start(self, arguments, environment):
        if not hasattr(os, "fork"):
            return super()._start(arguments, environment)
        with tempfile.TemporaryDirectory() as folder:
            process = _Forked(arguments, environment, folder)
            return process, open(os.path.join(folder, "err"), "rb")


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
    with tempfile.TemporaryDirectory() as place:
        paths = {name: os.path.join(place, name) for name in ("out", "err")}
        status = _ask(
            run=[str(argument) for argument in arguments],
            environment=dict(environment),
            folder=str(folder),
            seconds=seconds,
            **{"in": os.devnull},
            **paths,
        )
        texts = []
        for name in ("out", "err"):
            with open(paths[name], encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return (status, *texts)
