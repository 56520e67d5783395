"""Runs Python programs in forks of one process that has imported TensorFlow, and nothing else.

The import takes longer than most programs. What comes before it is to be tested in processes of
their own.
"""

import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
from unittest import mock

# Not on Windows, where programs start as processes of their own.
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
_SERVER = multiprocessing.get_context("forkserver" if FORKS else "spawn")
_SERVER.set_forkserver_preload(["tensorflow"])


def alone(arguments, environment, folder, seconds):
    """As `run`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env=environment,
        text=True,
        timeout=seconds,
    )
    return done.returncode, done.stdout, done.stderr


def _execute(arguments, environment, folder, paths):
    """Runs a program as `python ARGUMENTS` does in a new process.

    `paths` are those of standard input, output and errors.
    """
    first, *rest = map(str, arguments)
    os.setpgid(0, 0)
    # Errors first: they are open when the others are.
    for number, flags in ((2, os.O_WRONLY), (0, os.O_RDONLY), (1, os.O_WRONLY)):
        opened = os.open(paths[number], flags | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    path = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = ["", *path, *sys.path]
    sys.argv[:] = [first, *rest]
    if first == "-c":
        exec(compile(sys.argv.pop(1), "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        runpy.run_path(first, run_name="__main__")


def run(arguments, environment, folder, seconds):
    """Runs Python on `arguments`, as a process of its own would, and kills it after some seconds.

    `arguments` begin with a script, or with "-c" and code. `environment` has all variables. Returns
    (exit status, standard output, standard error), the latter two as text.
    """
    if not FORKS:
        return alone(arguments, environment, folder, seconds)
    (result,) = run_together([(arguments, environment)], folder, seconds)
    return result


def run_together(calls, folder, seconds):
    """Runs Python on several (arguments, environment) at once; returns what `run` does of each."""
    with tempfile.TemporaryDirectory() as place:
        started = []
        for index, (arguments, environment) in enumerate(calls):
            paths = [pathlib.Path(place, f"{name}{index}") for name in ("out", "err")]
            given = arguments, environment, str(folder), [os.devnull, *paths]
            process = _SERVER.Process(target=_execute, args=given)
            # Without the main module of this process, which a fork would import first.
            with mock.patch.dict(sys.modules, __main__=types.ModuleType("__main__")):
                process.start()
            started.append((process, paths))
        end = time.monotonic() + seconds
        try:
            for process, _ in started:
                process.join(max(end - time.monotonic(), 0))
        finally:
            for process, _ in started:
                if process.is_alive():
                    os.killpg(process.pid, signal.SIGKILL)
                    process.join()
        return [
            (process.exitcode, *(path.read_text("utf-8", errors="replace") for path in paths))
            for process, paths in started
        ]
