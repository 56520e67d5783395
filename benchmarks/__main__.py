"""Measures apply steps with loss scaling side by side with peers, in one process.

    python -m benchmarks                                   what RESULTS.md reports
    python -m benchmarks --workloads small --modes graph   a part of it
    python -m benchmarks --workloads small --skipped       steps that are skipped, and applied ones
    python -m benchmarks --modes jit --optimizer adam      around an optimizer that has slots

Each round runs one step of every contender, so that a slow moment of the machine meets all of them.
What counts is the overhead: the median over the rounds of what a step with loss scaling took longer
than one of the same optimizer without. In brackets is the interval that holds 95 % of what the same
rounds, drawn anew with repetition, give. A skipped step is held against the same steps, which are
applied: what it saves by not applying is in its overhead, which so may be negative.

Prints tables; --picture writes a file.
"""

import argparse
import os
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks import contenders, report, steps, workloads

# What is measured when nothing is asked for: workload, mode, and as many rounds as a few minutes
# allow.
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
    ("large", "skipped graph", 30),
    ("large", "skipped eager", 20),
    ("small", "skipped graph", 100),
    ("small", "skipped eager", 40),
    ("small", "skipped session", 60),
    ("small", "skipped mirrored", 40),
)
# What is measured of chosen workloads where no modes are chosen, and the other way round.
WORKLOADS, MODES = ("large", "small", "sparse"), ("graph", "eager")
ROUNDS = 30


def arguments(argv=None):
    """Returns what the command line, or a list of its arguments, asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", choices=workloads.NAMES)
    parser.add_argument("--modes", nargs="+", choices=steps.MODES)
    parser.add_argument(
        "--skipped",
        action="store_true",
        help="every step has a gradient that is not finite, and applied steps go beside",
    )
    parser.add_argument("--contenders", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--optimizer", choices=sorted(contenders.OPTIMIZERS), default="sgd")
    parser.add_argument("--rounds", type=int, help="how often each step is run")
    parser.add_argument("--picture", metavar="FILE")
    return parser.parse_args(argv)


def plan_of(args):
    """Returns a list of (workload, mode, rounds) that is asked for."""
    plan = PLAN
    if args.workloads or args.modes or args.skipped:
        plan = [
            (workload, steps.SKIPPED + mode if args.skipped else mode, ROUNDS)
            for workload in args.workloads or WORKLOADS
            for mode in args.modes or MODES
        ]
    return [(workload, mode, args.rounds or rounds) for workload, mode, rounds in plan]


def main(argv=None):
    """Measures what the command line, or a list of its arguments, asks for."""
    start = time.monotonic()
    args = arguments(argv)
    plan = plan_of(args)
    steps.prepare_devices(2 if any("mirrored" in mode for _, mode, _ in plan) else 1)
    print(
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"{os.cpu_count()} processors"
    )
    results = {}
    for workload, mode, rounds in plan:
        rows = steps.measure(workload, mode, rounds, args.contenders, args.optimizer)
        results[workload, mode] = rows
        print(f"\n### {workload}, {mode}, median of {rounds}\n\n{report.table(rows)}", flush=True)
    print("\n### Dynamic loss scales\n\n" + report.summary(results))
    print(f"\n{time.monotonic() - start:.0f} seconds")
    if args.picture:
        report.draw(results, args.picture)


if __name__ == "__main__":
    main()
