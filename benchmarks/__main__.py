"""Measures apply steps with loss scaling side by side with peers, in one process.

    python -m benchmarks                                   what RESULTS.md reports
    python -m benchmarks --workloads small --modes graph   a part of it
    python -m benchmarks --workloads small --skipped       steps that are skipped, and applied ones
    python -m benchmarks --modes jit --optimizer adam      around an optimizer that has slots
    python -m benchmarks --growth                          several replicas, and several workers
    python -m benchmarks --device gpu                      on a GPU, with the launches of kernels

Each round runs one step of every contender, so that a slow moment of the machine meets all of them.
What counts is the overhead: the median over the rounds of what a step with loss scaling took longer
than one of the same optimizer without. In brackets is the interval that holds 95 % of what the same
rounds, drawn anew with repetition, give. A skipped step is held against the same steps, which are
applied: what it saves by not applying is in its overhead, which so may be negative.

Prints tables; --json and --picture write files.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks import contenders, growth, launches, paired, report, steps, workloads

# What is measured when nothing is asked for. The rounds are as many as a few minutes allow; growth
# takes longer, and is measured when it is asked for.
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
DRY_ROUNDS = 2

# Where peak memory is measured then, as the median of so many processes.
PEAKS = {("large", "graph"): 3, ("large", "eager"): 3}

_IMPORT = """
import time, tensorflow
start = time.perf_counter()
import tf_lossscale_compat
print(1e3 * (time.perf_counter() - start))
"""


def import_milliseconds():
    """What importing the package takes once TensorFlow is there, a figure of seven processes."""
    times = []
    for _ in range(7):
        output = subprocess.run(
            [sys.executable, "-c", _IMPORT], check=True, stdout=subprocess.PIPE, timeout=300
        ).stdout
        times.append(float(output))
    return paired.median(times)


def arguments(argv=None):
    """Returns what the command line, or a list of its arguments, asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", metavar="NAME", help=", ".join(workloads.NAMES))
    parser.add_argument("--modes", nargs="+", choices=steps.MODES)
    parser.add_argument(
        "--skipped",
        action="store_true",
        help="every step has a gradient that is not finite, and applied steps go beside",
    )
    parser.add_argument("--growth", action="store_true", help="several replicas and workers")
    parser.add_argument("--contenders", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--optimizer", choices=sorted(contenders.OPTIMIZERS), default="sgd")
    parser.add_argument("--rounds", type=int, help="how often each step is run")
    parser.add_argument(
        "--until-sure",
        type=float,
        default=0,
        metavar="SECONDS",
        help="go on with more rounds, in each setting so long at most, until every aim is met or "
        "missed for certain; who looks so often is fooled by chance more often than once in 20",
    )
    parser.add_argument(
        "--peaks",
        type=int,
        metavar="N",
        help="measure peak memory too, in N processes for each contender",
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=f"go the GPU's way on the CPU, in {DRY_ROUNDS} rounds, and count operations in place "
        "of kernels",
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--picture", metavar="FILE")
    args = parser.parse_args(argv)
    unknown = set(args.workloads or []) - set(workloads.NAMES)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    if args.growth and (args.device == "gpu" or args.dry_run):
        parser.error("--growth is of logical CPUs and of processes, not of a GPU")
    if args.optimizer != "sgd" and (args.growth or args.peaks):
        parser.error(f"--growth and --peaks are of sgd, not of {args.optimizer}")
    if args.device == "gpu" and not args.dry_run and not tf.config.list_physical_devices("GPU"):
        parser.error("there is no GPU that TensorFlow sees")
    return args


def plan_of(args):
    """Returns a list of (workload, mode, rounds) that the command line asks for."""
    if not (args.workloads or args.modes or args.skipped):
        plan = [] if args.growth else PLAN
    else:
        plan = [
            (workload, steps.SKIPPED + mode if args.skipped else mode, ROUNDS)
            for workload in args.workloads or WORKLOADS
            for mode in args.modes or MODES
        ]
    rounds = args.rounds or (DRY_ROUNDS if args.dry_run else None)
    return [(workload, mode, rounds or some) for workload, mode, some in plan]


def _prepare_devices(args, plan):
    """Sets up the devices; returns where everything is put, what is counted, and the plan's rest.

    Both are None where TensorFlow is left to itself, on the CPU.
    """
    device = counted = None
    if args.device == "gpu" and not args.dry_run:
        device, counted = "/GPU:0", launches.KERNELS
        gpus = tf.config.list_physical_devices("GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if len(gpus) < 2:
            plan = [each for each in plan if "mirrored" not in each[1]]
        print("On a GPU; growth, and memory, are measured on the CPU alone.")
    else:
        steps.hide_gpus()
        if args.dry_run:
            device, counted = "/CPU:0", launches.OPERATIONS
    if any("mirrored" in mode for _, mode, _ in plan):
        steps.make_logical_cpus(2)
    return device, counted, plan


def main(argv=None):
    """Measures what the command line, or a list of its arguments, asks for."""
    start = time.monotonic()
    args = arguments(argv)
    whole = not (args.workloads or args.modes or args.skipped or args.growth)
    device, counted, plan = _prepare_devices(args, plan_of(args))
    print(
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"{os.cpu_count()} processors"
    )
    results = {}

    def show(workload, mode, rows):
        results[workload, mode] = rows
        rounds = max(len(row["seconds"]) for row in rows.values())
        print(f"\n### {workload}, {mode}, median of {rounds}\n")
        print(report.table(rows), flush=True)

    for workload, mode, rounds in plan:
        peaks = args.peaks
        if peaks is None:
            peaks = PEAKS.get((workload, mode), 0) if whole and args.optimizer == "sgd" else 0

        def is_sure(rows, workload=workload, mode=mode):
            return report.is_sure(workload, mode, rows)

        rows = steps.measure(
            workload,
            mode,
            rounds,
            args.contenders,
            processes=0 if device else peaks,
            device=device,
            counted=counted,
            is_sure=is_sure,
            limit_seconds=args.until_sure,
            optimizer=args.optimizer,
        )
        show(workload, mode, rows)
    if args.growth:
        for kind, count in growth.SETTINGS:
            rounds = args.rounds or growth.ROUNDS
            try:
                measured = growth.measure(kind, count, rounds, args.contenders)
            except growth.FailedError as error:
                print(f"{growth.mode(kind, count)}: {error}", file=sys.stderr)
                continue
            for (workload, mode), rows in measured.items():
                show(workload, mode, rows)
    milliseconds = import_milliseconds() if whole and not device else None
    print("\n### Dynamic loss scales\n\n" + report.summary(results))
    print("\n### Above its peer\n\n" + report.above_peers(results))
    print("\n### Aims\n\n" + report.targets(results, milliseconds))
    print(f"\n{time.monotonic() - start:.0f} seconds")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            measured = {f"{workload} {mode}": rows for (workload, mode), rows in results.items()}
            measured["import_milliseconds"] = milliseconds
            json.dump(measured, file, indent=1, default=lambda figure: figure.plain())
    if args.picture:
        report.draw(results, args.picture)


if __name__ == "__main__":
    main()
