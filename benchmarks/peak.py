"""Prints the peak resident memory, in bytes, of a process that makes steps of one contender.

    python -m benchmarks.peak WORKLOAD MODE CONTENDER

A process has one peak, so each contender gets a process of its own. Linux only.
"""

import os
import re
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STEPS = 4


def of(workload, mode, name):
    """Runs that process for a contender by name; returns the bytes."""
    command = [sys.executable, "-m", "benchmarks.peak", workload, mode, name]
    # What this process imports is imported there too, whatever folder it was started in.
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600, env=env)
    return int(done.stdout)


def main():
    """Makes the steps that the command line names."""
    from benchmarks import contenders, steps

    steps.prepare_devices()
    workload, mode, name = sys.argv[1:]
    (contender,) = [each for each in contenders.contenders() if each.name == name]
    step = steps.Step(contender, steps.Setting(mode, workload))
    for _ in range(STEPS):
        step()
    with open("/proc/self/status", encoding="ascii") as file:
        # getrusage would say what the parent had, where that is more.
        print(1024 * int(re.search(r"VmHWM:\s+(\d+) kB", file.read()).group(1)))


if __name__ == "__main__":
    main()
