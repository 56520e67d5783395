"""Child processes of tests: heard line by line, and ended whatever happens to the test."""

import contextlib
import importlib.util
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"


class Child:
    """A running program of tests/programs and the lines that it prints.

    It leads a process group of its own. Its standard input stays open for as long as this process
    lives, so that a child that reads it learns of this process's end even when that was a kill.
    """

    def __init__(self, program, *arguments, **variables):
        # The child tests the same copy of the package, installed or not, as this process.
        package = pathlib.Path(importlib.util.find_spec("tf_lossscale_compat").origin).parent
        path = [str(package.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
        }
        environment.update(
            PYTHONPATH=os.pathsep.join(filter(None, path)), TF_CPP_MIN_LOG_LEVEL="2", **variables
        )
        # Open as long as the child: __exit__ closes it.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            universal_newlines=True,
            start_new_session=True,
        )
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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
