"""Steps that are measured side by side: their time, their graphs, their memory."""

import concurrent.futures
import gc
import os
import random
import statistics
import sys
import time

import numpy as np
import tensorflow as tf

from benchmarks import contenders as contenders_lib
from benchmarks import peak, workloads

tf1 = tf.compat.v1

MODES = ("graph", "eager", "jit", "session", "mirrored")
# Traces that trace times are a median of, for the workloads whose trace times are reported.
TRACES = {"large": 5, "small": 5}


class Setting:
    """What all contenders on one workload in one mode share: gradients and variables."""

    def __init__(self, mode, workload):
        self.mode = mode
        arrays, shapes = workloads.gradients(workload)
        self.strategy = tf.distribute.get_strategy()
        if mode == "mirrored":
            devices = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
            self.strategy = tf.distribute.MirroredStrategy(
                devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
            )
        self.graph = tf.Graph() if mode == "session" else None
        with self.entered():
            self.variables = [self._variable(tf.zeros(shape)) for shape in shapes]
            given = workloads.as_tensors(arrays, shapes)
            self.gradients = given
            if self.graph:  # Constants would be folded into the graph.
                self.gradients = [_with_values(g, self._variable(_values(g))) for g in given]
        self.session = None

    def _variable(self, value):
        if self.graph:
            return tf1.Variable(value, trainable=False, use_resource=True)
        return tf.Variable(value)

    def entered(self):
        """The context that optimizers are made in."""
        return self.graph.as_default() if self.graph else self.strategy.scope()

    def started_session(self):
        """The session that all steps share, with what was added to the graph initialized."""
        if self.session is None:
            self.session = tf1.Session(graph=self.graph)
        with self.graph.as_default():
            self.session.run(tf1.global_variables_initializer())
        return self.session


def _values(gradient):
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _with_values(gradient, values):
    values = tf.convert_to_tensor(values)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return values


def _computed(gradients, one):
    """The same gradients as results of the step, which it may overwrite, as those of backprop."""
    return [_with_values(gradient, _values(gradient) * one) for gradient in gradients]


class Step:
    """A contender's step in a setting, ready to be run again and again."""

    def __init__(self, contender, setting):
        self.trace_seconds = self.nodes = None
        with setting.entered():
            optimizer = contender.make()

        def step(gradients, one):
            if setting.mode != "eager":
                gradients = _computed(gradients, one)
            return contender.apply(optimizer, gradients, setting.variables)

        if setting.mode == "session":
            self._in_session(setting, step)
        else:
            self._in_eager_mode(setting, step)
        self._run()

    def _in_eager_mode(self, setting, step):
        # Python's `one` would be a constant that is folded away.
        arguments = (setting.gradients, tf.constant(1.0))
        if setting.mode == "mirrored":

            def whole(*args):
                setting.strategy.run(step, args=args)

        else:

            def whole(*args):
                step(*args)

        if setting.mode == "eager":
            self._run = lambda: whole(*arguments)
            return
        options = {"jit_compile": True} if setting.mode == "jit" else {}
        function = tf.function(whole, autograph=False, **options)
        function(*arguments)  # The first trace makes variables, which are not to be measured.
        self._run = lambda: function(*arguments)
        self._traces = lambda: tf.function(whole, autograph=False).get_concrete_function(*arguments)

    def _in_session(self, setting, step):
        with setting.graph.as_default():
            one = tf1.placeholder_with_default(1.0, [])
            before = len(setting.graph.get_operations())
            start = time.perf_counter()
            update = step(setting.gradients, one)
            self.trace_seconds = time.perf_counter() - start
            self.nodes = len(setting.graph.get_operations()) - before
        session = setting.started_session()
        self._run = lambda: session.run(update)

    def trace(self):
        """Traces the step once; returns the seconds it took."""
        start = time.perf_counter()
        concrete = self._traces()
        seconds = time.perf_counter() - start
        graph = concrete.graph.as_graph_def()
        self.nodes = len(graph.node) + sum(len(f.node_def) for f in graph.library.function)
        return seconds

    def __call__(self):
        """Runs a step; returns its seconds."""
        start = time.perf_counter()
        self._run()
        return time.perf_counter() - start


class _Floor:
    """One multiplication in place of all gradients' bytes and one reading of them, on all cores.

    By NumPy, as what TensorFlow multiplies in place depends on the graph around it.
    """

    def __init__(self, workload):
        arrays, _ = workloads.gradients(workload)
        arrays = [array[0] if isinstance(array, tuple) else array for array in arrays]
        cores = len(os.sched_getaffinity(0))
        self._parts = np.array_split(np.concatenate([array.ravel() for array in arrays]), cores)
        self._pool = concurrent.futures.ThreadPoolExecutor(cores)

    def __call__(self):
        """Returns the seconds that it took."""
        start = time.perf_counter()
        list(self._pool.map(lambda part: np.multiply(part, np.float32(1), out=part), self._parts))
        list(self._pool.map(np.max, self._parts))
        return time.perf_counter() - start


def measure(workload, mode, rounds, names=(), processes=0):
    """Measures one workload in one mode, all contenders in turn in every round.

    Args:
      workload: str, one of `workloads.NAMES`.
      mode: str, one of `MODES`.
      rounds: int, how often each step is run.
      names: names of the contenders to measure; empty for all.
      processes: int, how many processes peak memory is a median of, for what has a dynamic scale
        and for what has none; 0 leaves it out.

    Returns:
      {name: row}, a row being a dict of figures; "floor" is among the names.
    """
    gc.collect()  # What the last setting left.
    setting = Setting(mode, workload)
    chosen, steps = [], {}
    for contender in contenders_lib.contenders():
        # Keras 3 and tf_keras know no sessions.
        if mode == "session" and contender.generation != "v1":
            continue
        if names and contender.name not in names:
            continue
        try:
            steps[contender.name] = Step(contender, setting)
            chosen.append(contender)
        except Exception as error:  # A peer that cannot do this is a result too.
            print(f"{contender.name} ({workload}, {mode}): {error!r:.300}", file=sys.stderr)
    timed = {"floor": _Floor(workload), **steps}
    seconds = {name: [] for name in timed}
    # In another order each time: a step that follows the floor finds its data no longer in a cache.
    turns = list(timed)
    order = random.Random(0)
    for _ in range(rounds):
        order.shuffle(turns)
        for name in turns:
            seconds[name].append(timed[name]())
    if mode == "graph":
        _trace(steps, TRACES.get(workload, 1))
    elif mode == "mirrored":
        # For the nodes alone: threads of replicas wait for each other, now and then for a second.
        for step in steps.values():
            step.trace()
    rows = {"floor": {"milliseconds": 1e3 * statistics.median(seconds["floor"])}}
    for contender in chosen:
        step = steps[contender.name]
        peaks = []
        if not contender.is_fixed:
            peaks = [peak.of(workload, mode, contender.name) for _ in range(processes)]
        rows[contender.name] = {
            "milliseconds": 1e3 * statistics.median(seconds[contender.name]),
            "nodes": step.nodes,
            "trace_seconds": step.trace_seconds,
            "peak_bytes": statistics.median(peaks) if peaks else None,
            "peer": contender.peer,
        }
    _compare(rows, chosen)
    return rows


def _trace(steps, times):
    """Sets the seconds that tracing takes, the median of so many times in turn."""
    seconds = {name: [] for name in steps}
    gc.disable()  # Else one trace pays for the rubbish of others.
    for _ in range(times):
        for name, step in steps.items():
            seconds[name].append(step.trace())
    gc.enable()
    for name, step in steps.items():
        step.trace_seconds = statistics.median(seconds[name])


# What a contender has more of than its baseline: the figure, and how it is called then.
ADDED = {
    "milliseconds": "overhead",
    "nodes": "nodes_added",
    "trace_seconds": "trace_added",
    "peak_bytes": "peak_added",
}


def _compare(rows, chosen):
    """Adds to rows what each has more than its baseline, and the ratios to its peer's."""
    for contender in chosen:
        row = rows[contender.name]
        base = rows.get(contenders_lib.baseline(contender.generation))
        if base is None or base is row:
            continue
        for figure, added in ADDED.items():
            if row[figure] is not None and base[figure] is not None:
                row[added] = row[figure] - base[figure]
        if rows["floor"]["milliseconds"] > 1:  # Else it is noise.
            row["overhead_to_floor"] = row["overhead"] / rows["floor"]["milliseconds"]
    for contender in chosen:
        row, peer = rows[contender.name], rows.get(contender.peer, {})
        for added in ADDED.values():
            if peer.get(added) and added in row:
                row[f"{added}_ratio"] = row[added] / peer[added]
