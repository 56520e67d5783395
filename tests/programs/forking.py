"""Imports TensorFlow, then becomes in a fork what it is told to run; see tests/forks.py.

Each line of standard input is a request, a dict with one of these, and is answered with a line:

    run     what to run, a list of str; answered at its end with its exit status
    start   as `run`, but answered at once with the process id
    wait    a process id; answered after `seconds` at most with its exit status, or null if it runs
"""

import contextlib
import json
import os
import random
import runpy
import signal
import sys
import time


def serve():
    """Answers requests to their end; returns in a fork, once it has become what it is to run."""
    base = list(sys.path)
    import numpy as np
    import tensorflow  # noqa: F401  All that forks share.

    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if "wait" in request:
            answer = ended(request["wait"], request["seconds"])
        else:
            child = os.fork()
            if child == 0:
                answers.close()
                random.seed()
                np.random.seed()
                become(request, base)
                return
            with contextlib.suppress(OSError):  # The child does the same; here for who kills it.
                os.setpgid(child, child)
            answer = child if "start" in request else at_its_end(child, request["seconds"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def ended(child, seconds):
    """Returns the exit status of a child, None if it runs on after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.01)


def at_its_end(child, seconds):
    """Waits for a child; returns its exit status, that of a kill after so many seconds."""
    status = ended(child, seconds)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        status = ended(child, float("inf"))
    return status


def become(request, base):
    """Runs a program as `python ARGUMENTS` does in a new process."""
    os.setpgid(0, 0)
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path, flags in (
        (0, request["in"], os.O_RDONLY),
        (2, request["err"], writing),
        (1, request["out"], writing),  # Last: when it is open, all are.
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    first, *rest = request.get("run") or request["start"]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *filter(None, path), *base]
    if first in ("-c", "-m"):
        what, *rest = rest
        sys.argv[:] = [first, *rest]
        if first == "-c":
            exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)
        else:
            sys.path[0] = os.getcwd()
            runpy._run_module_as_main(what)
    else:
        sys.argv[:] = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        runpy.run_path(first, run_name="__main__")
