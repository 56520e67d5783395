"""Measures apply steps with loss scaling side by side with peers, in one process.

    python -m benchmarks                                   what RESULTS.md reports
    python -m benchmarks --workloads small --modes graph   a part of it

Each round runs one step of every contender, so that a slow moment of the machine meets all of them.
What counts is the overhead: the median step with loss scaling less the median of the same optimizer
without. Prints a table; --json and --picture write files.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from benchmarks import contenders as contenders_lib
from benchmarks import workloads

tf1 = tf.compat.v1

TRACES = 5
MODES = ("graph", "eager", "jit", "session", "mirrored")


class _Step:
    """A contender's step on a workload in a mode, ready to be run again and again."""

    def __init__(self, contender, mode, workload):
        self.contender = contender
        arrays, shapes = workloads.gradients(workload)
        self.strategy = None
        self.trace_seconds = self.nodes = None
        if mode == "session":
            self._in_session(arrays, shapes)
            return
        if mode == "mirrored":
            self.strategy = tf.distribute.MirroredStrategy(
                [device.name.replace("/physical_device:", "") for device in _logical_devices()],
                cross_device_ops=tf.distribute.ReductionToOneDevice(),
            )
        scope = self.strategy or tf.distribute.get_strategy()
        with scope.scope():
            variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
            optimizer = contender.make()
            # Gradients come as values of the step's arguments, as from a tape.
            self.gradients = workloads.as_tensors(arrays, shapes)

        def step(gradients):
            contender.apply(optimizer, gradients, variables)

        if mode == "mirrored":
            replica = step

            def step(gradients):
                self.strategy.run(replica, args=(gradients,))

        if mode == "eager":
            self._run = lambda: step(self.gradients)
        else:
            options = {"jit_compile": True} if mode == "jit" else {}
            function = tf.function(step, autograph=False, **options)
            self._run = lambda: function(self.gradients)
            self._trace(function)
        self._run()

    def _trace(self, function):
        # The first trace makes variables, which costs more than what is to be measured.
        function(self.gradients)
        times = []
        for _ in range(TRACES):
            fresh = tf.function(function.python_function, autograph=False)
            gc.collect()
            gc.disable()  # Else one trace pays for the rubbish of others.
            start = time.perf_counter()
            concrete = fresh.get_concrete_function(self.gradients)
            times.append(time.perf_counter() - start)
            gc.enable()
        self.trace_seconds = statistics.median(times)
        self.nodes = _count_nodes(concrete.graph.as_graph_def())

    def _in_session(self, arrays, shapes):
        graph = tf.Graph()
        with graph.as_default():
            variables = [
                tf1.get_variable(f"v{i}", shape, initializer=tf1.zeros_initializer())
                for i, shape in enumerate(shapes)
            ]
            # Variables, not constants, which would be folded into the graph.
            held = [
                tf1.get_variable(f"g{i}", initializer=array, trainable=False)
                if not isinstance(array, tuple)
                else None
                for i, array in enumerate(arrays)
            ]
            gradients = [
                tf.identity(h) if h is not None else g
                for h, g in zip(held, workloads.as_tensors(arrays, shapes))
            ]
            start = time.perf_counter()
            optimizer = self.contender.make()
            update = self.contender.apply(optimizer, gradients, variables)
            self.trace_seconds = time.perf_counter() - start
            self.nodes = _count_nodes(graph.as_graph_def())
            session = tf1.Session()
            session.run(tf1.global_variables_initializer())
        self._run = lambda: session.run(update)
        self._run()

    def __call__(self):
        """Runs a step; returns its seconds."""
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start


def _count_nodes(graph_def):
    return len(graph_def.node) + sum(len(f.node_def) for f in graph_def.library.function)


def _logical_devices():
    return tf.config.list_logical_devices("CPU")[:2]


def _floor(workload):
    """A function that multiplies all gradients once and reads them once: the least there is."""
    arrays, shapes = workloads.gradients(workload)
    held = [
        tf.Variable(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient)
        for gradient in workloads.as_tensors(arrays, shapes)
    ]

    @tf.function(autograph=False)
    def multiply():
        for variable in held:
            variable.assign(variable * 1.0000001, read_value=False)

    @tf.function(autograph=False)
    def read():
        return tf.add_n([tf.reduce_sum(variable) for variable in held])

    def run():
        start = time.perf_counter()
        multiply()
        read().numpy()
        return time.perf_counter() - start

    run()
    return run


def measure(workload, mode, rounds, names):
    """Returns {contender: row} of one workload in one mode; the floor is among them."""
    chosen = [
        contender
        for contender in contenders_lib.contenders()
        # Keras 3 and tf_keras know no sessions.
        if (mode != "session" or contender.generation == "v1")
        and (not names or contender.name in names)
    ]
    steps = {}
    for contender in chosen:
        try:
            steps[contender.name] = _Step(contender, mode, workload)
        except Exception as error:  # A peer that cannot do this is a result too.
            print(f"{contender.name} ({workload}, {mode}): {error!r:.200}", file=sys.stderr)
    runs = dict(steps, floor=_floor(workload))
    seconds = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(run())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rows = {"floor": {"milliseconds": 1e3 * medians["floor"]}}
    for contender in chosen:
        if contender.name in steps:
            rows[contender.name] = _row(contender, steps, medians)
    for contender in chosen:
        row, peer = rows.get(contender.name), rows.get(contender.peer)
        if row and peer:
            for key in ("overhead", "nodes_added", "trace_added"):
                ours, theirs = row.get(key), peer.get(key)
                row[f"{key}_ratio"] = ours / theirs if ours is not None and theirs else None
    return rows


def _row(contender, steps, medians):
    step = steps[contender.name]
    row = {
        "milliseconds": 1e3 * medians[contender.name],
        "nodes": step.nodes,
        "trace_seconds": step.trace_seconds,
        "peer": contender.peer,
    }
    base = contenders_lib.baseline(contender.generation)
    if base in steps and base != contender.name:
        row["overhead"] = 1e3 * (medians[contender.name] - medians[base])
        row["overhead_to_floor"] = row["overhead"] / (1e3 * medians["floor"])
        if step.nodes is not None:
            row["nodes_added"] = step.nodes - steps[base].nodes
            row["trace_added"] = step.trace_seconds - steps[base].trace_seconds
    return row


def _shown(value, form):
    return "" if value is None else form.format(value)


def table(results):
    """Returns the results as a Markdown table."""
    lines = [
        "| workload | mode | contender | ms | overhead ms | to peer | to floor | nodes added "
        "| to peer | trace s added | to peer |",
        "|" + " --- |" * 11,
    ]
    for (workload, mode), rows in results.items():
        for name, row in rows.items():
            cells = [
                workload,
                mode,
                name,
                _shown(row["milliseconds"], "{:.2f}"),
                _shown(row.get("overhead"), "{:.2f}"),
                _shown(row.get("overhead_ratio"), "{:.2f}"),
                _shown(row.get("overhead_to_floor"), "{:.2f}"),
                _shown(row.get("nodes_added"), "{:d}"),
                _shown(row.get("nodes_added_ratio"), "{:.2f}"),
                _shown(row.get("trace_added"), "{:.2f}"),
                _shown(row.get("trace_added_ratio"), "{:.2f}"),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(results, path):
    """Draws the overhead against the number of gradients, 10, 100 and 1,000."""
    from matplotlib import pyplot

    numbers = (10, 100, 1000)
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5))
    for axis, mode in zip(axes, ("graph", "eager")):
        found = [results.get((str(number), mode), {}) for number in numbers]
        for name in found[0]:
            overheads = [rows.get(name, {}).get("overhead") for rows in found]
            if None not in overheads:
                style = "-o" if name.startswith("ours") else "--x"
                axis.loglog(numbers, [max(o, 1e-3) for o in overheads], style, label=name)
        axis.set(title=mode, xlabel="gradients of 8x8", ylabel="overhead in ms")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", nargs="+", default=["large", "small", "sparse"])
    parser.add_argument("--modes", nargs="+", default=["graph", "eager"], choices=MODES)
    parser.add_argument("--contenders", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--picture", metavar="FILE")
    args = parser.parse_args()
    unknown = set(args.workloads) - set(workloads.NAMES)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    if "mirrored" in args.modes:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2
        )
    print(
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"{os.cpu_count()} processors, median of {args.rounds}\n"
    )
    results = {}
    for workload in args.workloads:
        for mode in args.modes:
            results[workload, mode] = measure(workload, mode, args.rounds, args.contenders)
            print(table({(workload, mode): results[workload, mode]}) + "\n", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({f"{w} {m}": rows for (w, m), rows in results.items()}, file, indent=1)
    if args.picture:
        draw(results, args.picture)


if __name__ == "__main__":
    main()
