"""Migrates a folder in processes that are killed: `migrate_and_die.py FOLDER`.

For every line of standard input, a number of milliseconds, a fork of this process rewrites the
folder's files, and then goes on replacing them by each other's two states; it is killed after that
time. Prints the milliseconds that it takes here to find out what to write, and then, for each fork,
the signal that ended it.
"""

import contextlib
import os
import signal
import sys
import time

from tf_lossscale_compat.migrate import _command, _files, _source


def rewrite_without_end(folder):
    """Runs the command, then turns its changes back and forth."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    paths = [path for path in paths if path.endswith(".py")]
    old = {path: _files.read(path) for path in paths}
    _command.Run(True, False, _source.Options()).paths([folder], ())
    new = {path: _files.read(path) for path in paths}
    while True:
        for path in paths:
            _files.replace(path, new[path], old[path])
        old, new = new, old


def killed_fork(folder, seconds):
    """Returns the signal that ended the fork."""
    pid = os.fork()
    if pid == 0:
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            rewrite_without_end(folder)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status)


def main():
    (folder,) = sys.argv[1:]
    start = time.monotonic()
    with open(os.devnull, "w") as nothing:
        with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            _command.Run(False, True, _source.Options()).paths([folder], ())
    print(1000 * (time.monotonic() - start), flush=True)
    for line in sys.stdin:
        print(killed_fork(folder, float(line) / 1000), flush=True)


if __name__ == "__main__":
    main()
