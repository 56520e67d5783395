"""How overhead grows with replicas, and with workers: `python -m benchmarks --growth`.

Replicas are logical CPUs under MirroredStrategy, workers are processes on this machine under
MultiWorkerMirroredStrategy. How many there are has to be said before TensorFlow starts, so each
number is a run of its own, in processes of its own:

    python -m benchmarks.growth replicas 4 ROUNDS WORKLOAD,WORKLOAD... [CONTENDER...]
    TF_CONFIG=... python -m benchmarks.growth workers 2 ROUNDS WORKLOAD... [CONTENDER...]

All workers run the same rounds in the same order, and the first one's times are taken. A run prints
a line before each contender's step is made, and in the end one with what was measured, all JSON. It
ends when its standard input does, which is when the process that started it is gone.

What it says of one number of replicas and another is of two processes, which differ by a little
more than the rounds of one do, of which intervals are.
"""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time

from benchmarks import paired

KINDS = REPLICAS, WORKERS = ("replicas", "workers")
SETTINGS = ((REPLICAS, 1), (REPLICAS, 2), (REPLICAS, 4), (REPLICAS, 8), (WORKERS, 2), (WORKERS, 4))
# Few gradients and many, all small.
FEW, MANY = WORKLOADS = ("10", "small")
ROUNDS = 60
# How long nothing may be heard of a run. Workers that disagree wait for each other without end.
LIMIT_SECONDS = 300
_TAKEN = "Could not start gRPC server"


def mode(kind, count):
    """What a setting is called where modes are, as in tables."""
    return f"{count} {kind if count > 1 else kind[:-1]}"


class FailedError(Exception):
    """A run ended without a result, or did not end.

    Attributes:
      last: str, the contender whose step was being made last; None if there was none.
    """

    def __init__(self, message, last):
        super().__init__(message)
        self.last = last


def measure(kind, count, rounds=ROUNDS, names=(), workloads=WORKLOADS, limit_seconds=LIMIT_SECONDS):
    """Measures all contenders with so many replicas or workers.

    A contender at which the processes end or hang is left out, and they are started again.

    Args:
      kind: str, one of `KINDS`.
      count: int.
      rounds: int, how often each step is run.
      names: names of the contenders to measure; empty for all that have a dynamic scale or none.
      workloads: names of workloads.
      limit_seconds: number; processes of which nothing is heard for so long are ended.

    Returns:
      {(workload, mode): rows}, as `steps.measure` returns rows.

    Raises:
      FailedError: there was no result, whatever was left out.
    """
    names, measured = list(names) or _names(), None
    while measured is None:
        try:
            measured = _run(kind, count, rounds, names, workloads, limit_seconds)
        except FailedError as error:
            if error.last not in names or len(names) == 1:
                raise
            print(f"{error.last} ({mode(kind, count)}): {error}", file=sys.stderr)
            names.remove(error.last)
    results = {}
    for workload, rows in measured.items():
        paired.compare(rows, paired.seed_of(workload, mode(kind, count)))
        results[workload, mode(kind, count)] = rows
    return results


def _names():
    from benchmarks import contenders, report

    found = [contender for contender in contenders.contenders() if not contender.is_fixed]
    return [each.name for each in found if each.is_baseline or each.name in report.COMPARED]


def _free_ports(count):
    """Returns different ports of 127.0.0.1 that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _run(kind, count, rounds, names, workloads, limit_seconds, attempts=3):
    """Runs the processes of one setting; returns {workload: rows} of the first of them."""
    command = [sys.executable, "-m", "benchmarks.growth", kind, str(count), str(rounds)]
    command += [",".join(workloads), *names]
    configs = [None]
    if kind == WORKERS:
        workers = [f"127.0.0.1:{port}" for port in _free_ports(count)]
        configs = [
            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            for index in range(count)
        ]
    try:
        return _outcome(command, configs, limit_seconds)
    except FailedError as error:
        # Somebody else may be quicker to listen at a port that was free.
        if _TAKEN in str(error) and attempts > 1:
            return _run(kind, count, rounds, names, workloads, limit_seconds, attempts - 1)
        raise


def _outcome(command, configs, limit_seconds):
    """Runs a command once for each TF_CONFIG, None for none; returns what the first one measured.

    All are ended when this returns or raises.
    """
    said = queue.Queue()
    last, deadline = None, time.monotonic() + limit_seconds
    with contextlib.ExitStack() as stack:
        processes, logs = [], []
        for config in configs:
            logs.append(stack.enter_context(tempfile.TemporaryFile()))
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if not processes else subprocess.DEVNULL,
                stderr=logs[-1],
                env=_environment(config),
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)  # Called before the process is waited for.
        threading.Thread(target=_hear, args=(processes[0].stdout, said), daemon=True).start()
        while True:
            with contextlib.suppress(queue.Empty):
                message = said.get(timeout=0.1)
                last, deadline = message.get("making", last), time.monotonic() + limit_seconds
                for text in message.get("failures", []):
                    print(text, file=sys.stderr)
                if "measured" in message:
                    return message["measured"]
                continue
            if time.monotonic() > deadline:
                what = f"nothing was heard for {limit_seconds} seconds"
            elif any(process.poll() for process in processes):
                what = "a process ended early"
            else:
                continue
            texts = [f"{what}:"]
            for log in logs:
                log.seek(0)
                texts.append(log.read().decode("utf-8", "replace")[-2000:])
            raise FailedError("\n".join(texts), last)


def _hear(output, said):
    for line in output:
        if line.startswith(b"{"):
            said.put(json.loads(line))


def _environment(config):
    """The environment of a process: this one's, with its own TF_CONFIG and without proxies."""
    variables = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    variables.pop("TF_CONFIG", None)
    if config:
        variables["TF_CONFIG"] = json.dumps(config)
    # What this process imports is imported there too, whatever folder it was started in.
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return variables


def _end_with_parent():
    sys.stdin.read()
    os._exit(1)


def _say(**message):
    print(json.dumps(message), flush=True)


def main():
    """Measures as one of the processes that `measure` starts."""
    kind, count, rounds, workloads, *names = sys.argv[1:]
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import tensorflow as tf

    from benchmarks import steps

    steps.hide_gpus()
    if kind == REPLICAS:
        steps.make_logical_cpus(int(count))
        strategy = steps.mirrored(int(count))
    else:  # Made before anything runs, as it demands.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    measured = {}
    for workload in workloads.split(","):
        setting = steps.Setting("mirrored", workload, strategy)
        label = f"{workload}, {mode(kind, int(count))}"
        turns = steps.Turns(setting, label, names, say=lambda name: _say(making=name))
        _say(making=None, failures=turns.failures)
        for _ in range(int(rounds)):
            turns.run(1)
            _say()  # It still goes on.
        measured[workload] = turns.rows()
    _say(measured=measured)
    time.sleep(LIMIT_SECONDS)  # Ended by then: the others may still need this one.


if __name__ == "__main__":
    main()
