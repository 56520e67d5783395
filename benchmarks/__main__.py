"""Measures apply steps with loss scaling side by side with peers, in one process.

    python -m benchmarks                                   what RESULTS.md reports
    python -m benchmarks --workloads small --modes graph   a part of it

Each round runs one step of every contender, so that a slow moment of the machine meets all of them.
What counts is the overhead: the median step with loss scaling less the median of the same optimizer
without. Prints tables; --json and --picture write files.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks import report, steps, workloads

# What is measured when nothing is asked for. The rounds are as many as a few minutes allow.
PLAN = (
    ("large", "graph", 60),
    ("large", "eager", 60),
    ("small", "graph", 300),
    ("small", "eager", 60),
    ("10", "graph", 300),
    ("100", "graph", 300),
    ("1000", "graph", 100),
    ("10", "eager", 100),
    ("100", "eager", 100),
    ("1000", "eager", 30),
    ("bert", "graph", 20),
    ("sparse", "graph", 100),
    ("sparse", "eager", 40),
    ("large", "jit", 30),
    ("small", "jit", 60),
    ("large", "session", 30),
    ("small", "session", 200),
    ("small", "mirrored", 60),
)

# Where peak memory is measured then, as the median of so many processes.
PEAKS = {("large", "graph"): 3, ("large", "eager"): 3}

_IMPORT = """
import time, tensorflow
start = time.perf_counter()
import tf_lossscale_compat
print(1e3 * (time.perf_counter() - start))
"""


def import_milliseconds():
    """What importing the package takes once TensorFlow is there: the median of seven processes."""
    times = []
    for _ in range(7):
        output = subprocess.run(
            [sys.executable, "-c", _IMPORT], check=True, stdout=subprocess.PIPE, timeout=300
        ).stdout
        times.append(float(output))
    return statistics.median(times)


def main():
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help=", ".join(workloads.NAMES))
    parser.add_argument("--modes", nargs="+", choices=steps.MODES)
    parser.add_argument("--contenders", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, help="how often each step is run")
    parser.add_argument(
        "--peaks",
        type=int,
        metavar="N",
        help="measure peak memory too, in N processes for each contender",
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--picture", metavar="FILE")
    args = parser.parse_args()
    unknown = set(args.workloads or []) - set(workloads.NAMES)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    if args.workloads or args.modes:
        plan = [
            (workload, mode, 30)
            for workload in args.workloads or ["large", "small", "sparse"]
            for mode in args.modes or ["graph", "eager"]
        ]
    else:
        plan = PLAN
    if any(mode == "mirrored" for _, mode, _ in plan):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    print(
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"{os.cpu_count()} processors"
    )
    results = {}
    for workload, mode, rounds in plan:
        rounds = args.rounds or rounds
        peaks = args.peaks
        if peaks is None:
            peaks = PEAKS.get((workload, mode), 0) if plan is PLAN else 0
        results[workload, mode] = steps.measure(workload, mode, rounds, args.contenders, peaks)
        print(f"\n### {workload}, {mode}, median of {rounds}\n")
        print(report.table(results[workload, mode]), flush=True)
    milliseconds = import_milliseconds() if plan is PLAN else None
    print("\n### Dynamic loss scales\n\n" + report.summary(results))
    print("\n### Aims\n\n" + report.targets(results, milliseconds))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            measured = {f"{workload} {mode}": rows for (workload, mode), rows in results.items()}
            json.dump(dict(measured, import_milliseconds=milliseconds), file, indent=1)
    if args.picture:
        report.draw(results, args.picture)


if __name__ == "__main__":
    main()
