"""Child processes of tests: heard line by line, and ended whatever happens to the test."""

import concurrent.futures
import contextlib
import functools
import importlib.util
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

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


class Child:
    """A running program of tests/programs and the lines that it prints.

    It leads a process group of its own. Its standard input stays open for as long as this process
    lives, so that a child that reads it learns of this process's end even when that was a kill.
    """

    def __init__(self, program, *arguments, **variables):
        self._process, self._errors = self._start(
            [str(PROGRAMS / program), *arguments], environment(**variables)
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, arguments, environment):
        """Returns a process and the binary file that its standard error is."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115  Open as long as the child.
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            universal_newlines=True,
            start_new_session=True,
        )
        return process, errors

    def _read(self):
        for line in self._process.stdout:
            if line.endswith("\n"):  # A kill may cut the last one off.
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, deadline):
        """Returns the next line of output, or None at its end.

        Args:
          deadline: what `time.monotonic()` may reach before the line is there.

        Raises:
          TimeoutError: it was not there in time; with what the child wrote to standard error.
        """
        try:
            line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise TimeoutError(f"no line in time; standard error:\n{self.errors()}") from None
        if line is None:
            self._lines.put(None)
        return line

    def say(self, line):
        """Writes a line to the child's standard input."""
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """Sends SIGKILL to the whole process group, if the child has not ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, deadline):
        """Waits for the child's end; returns its exit status and the lines not yet heard."""
        status = self._process.wait(max(deadline - time.monotonic(), 0))
        lines = []
        while True:
            line = self.line(deadline)
            if line is None:
                return status, lines
            lines.append(line)

    def errors(self):
        """Returns what the child has written to standard error, its last 4,000 characters."""
        self._errors.seek(0)
        return self._errors.read().decode("utf-8", "replace")[-4000:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._errors.close()


class PortTakenError(Exception):
    """A port that was free had been taken when the worker wanted to listen there."""


def free_ports(count):
    """Returns different ports of 127.0.0.1 that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def with_free_ports(count, run):
    """Returns what `run(ports)` does, with other ports if one is taken meanwhile."""
    for _ in range(2):
        with contextlib.suppress(PortTakenError):
            return run(free_ports(count))
    return run(free_ports(count))


def first_lines(children, deadline):
    """Returns the first line of each child, in order; fails as soon as one ends without any.

    Raises:
      PortTakenError: one ended as it could not listen at its port.
      TimeoutError: `time.monotonic()` reached the deadline before.
    """
    lines = {}
    while len(lines) < len(children):
        for child in children:
            if child in lines:
                continue
            try:
                lines[child] = child.line(min(deadline, time.monotonic() + 0.1))
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                continue
            if lines[child] is None:
                errors = child.errors()
                if "Could not start gRPC server" in errors:
                    raise PortTakenError(errors)
                raise AssertionError(f"a worker ended early:\n{errors}")
    return [lines[child] for child in children]


def remembered(function):
    """Makes `function` run once for each argument, also if it fails: then it fails again at once.

    A cluster that hangs takes its whole time limit, which every test would wait for otherwise.
    """

    @functools.lru_cache(maxsize=None)
    def outcome(*args):
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    return functools.wraps(function)(lambda *args: outcome(*args).result())
