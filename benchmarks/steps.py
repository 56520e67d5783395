"""Steps that are measured side by side: their time, their graphs, their memory."""

import contextlib
import gc
import random
import sys
import time

import tensorflow as tf

from benchmarks import contenders as contenders_lib
from benchmarks import paired, workloads

tf1 = tf.compat.v1

MODES = ("graph", "eager", "jit", "session", "mirrored")
# In front of a mode: every step has a gradient that is not finite.
SKIPPED = "skipped "
# Traces that trace times are a median of, for the workloads whose trace times are reported.
TRACES = {"large": 15, "small": 15}


def prepare_devices(cpus=1):
    """Leaves everything to the CPU, as so many for `mirrored`; called before TensorFlow starts."""
    tf.config.set_visible_devices([], "GPU")
    if cpus > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        devices = [tf.config.LogicalDeviceConfiguration()] * cpus
        tf.config.set_logical_device_configuration(cpu, devices)


def mirrored():
    """Returns a MirroredStrategy over all logical CPUs."""
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


class Setting:
    """The gradients and variables that all contenders on one workload in one mode share."""

    def __init__(self, mode, workload):
        """Makes gradients and variables.

        Args:
          mode: str, one of `MODES`.
          workload: str, one of `workloads.NAMES`.
        """
        self.mode = mode
        arrays, shapes = workloads.gradients(workload)
        self.strategy = mirrored() if mode == "mirrored" else tf.distribute.get_strategy()
        self.graph = tf.Graph() if mode == "session" else None
        with self.entered():
            self.variables = [self._variable(tf.zeros(shape)) for shape in shapes]
            given = workloads.as_tensors(arrays, shapes)
            last = workloads.as_tensors([workloads.not_finite(arrays[-1])], shapes[-1:])
            if self.graph:  # Constants would be folded into the graph.
                given, last = (
                    [_with_values(g, self._variable(_values(g))) for g in some]
                    for some in (given, last)
                )
        self.gradients = given
        self.not_finite = given[:-1] + last
        self.session = None

    def _variable(self, value):
        if self.graph:
            return tf1.Variable(value, trainable=False, use_resource=True)
        return tf.Variable(value)

    @contextlib.contextmanager
    def entered(self):
        """The context that optimizers are made in."""
        with self.graph.as_default() if self.graph else self.strategy.scope():
            yield

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
    """A contender's step in a setting, ready to be run again and again.

    Attributes:
      nodes: int, nodes of its graph, once it was traced or is one of a session; else None.
      trace_seconds: list of the seconds that traces took, or None.
    """

    def __init__(self, contender, setting, skipped=False):
        self.trace_seconds = self.nodes = None
        self._given = setting.not_finite if skipped else setting.gradients
        with setting.entered():
            optimizer = contender.make()
            if hasattr(optimizer, "build"):
                # As Keras' fit does. What makes variables while it is traced is traced twice.
                optimizer.build(setting.variables)

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
        arguments = (self._given, tf.constant(1.0))
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
            update = step(self._given, one)
            self.trace_seconds = [time.perf_counter() - start]
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


def measure(workload, mode, rounds, names=(), optimizer="sgd"):
    """Measures one workload in one mode, all contenders in turn in every round.

    Args:
      workload: str, one of `workloads.NAMES`.
      mode: str, one of `MODES`, maybe with `SKIPPED` in front of it: then each contender that has a
        dynamic scale takes a step that is applied in every round, too.
      rounds: int, how often each step is run.
      names: names of the contenders to measure; empty for all.
      optimizer: str, of `contenders.OPTIMIZERS`.

    Returns:
      {name: row}, a row being a dict of figures.
    """
    gc.collect()  # What the last setting left.
    skipped = mode.startswith(SKIPPED)
    setting = Setting(mode[len(SKIPPED) :] if skipped else mode, workload)
    timed, rows = {}, {}
    for contender in contenders_lib.contenders(optimizer):
        # Keras 3 and tf_keras know no sessions.
        if setting.mode == "session" and contender.generation != "v1":
            continue
        if (names and contender.name not in names) or (skipped and contender.is_fixed):
            continue
        # Without a loss scale every step is applied, as infinity would be.
        skips = skipped and not contender.is_baseline
        try:
            steps = {"seconds": Step(contender, setting, skips)}
            if skips:
                steps["applied_seconds"] = Step(contender, setting)
        except Exception as error:  # A peer that cannot do this is a result too.
            print(f"{contender.name} ({workload}, {mode}): {error!r:.300}", file=sys.stderr)
            continue
        timed.update({(contender.name, what): step for what, step in steps.items()})
        rows[contender.name] = {
            "baseline": contenders_lib.baseline(contender.generation),
            "peer": contender.peer,
            **{what: [] for what in steps},
        }
    order, turns = random.Random(0), list(timed)
    for _ in range(rounds):
        order.shuffle(turns)  # Each step follows each other.
        for name, what in turns:
            rows[name][what].append(timed[name, what]())
    if setting.mode == "graph" and not skipped:
        _trace([timed[name, "seconds"] for name in rows], TRACES.get(workload, 1))
    for name, row in rows.items():
        step = timed[name, "seconds"]
        row.update(nodes=step.nodes, trace_seconds=step.trace_seconds)
    paired.compare(rows, paired.seed_of(workload, mode))
    return rows


def _trace(steps, times):
    """Sets the seconds that traces take, so many of each step in turn."""
    for step in steps:
        step.trace_seconds = []
    gc.disable()  # Else one trace pays for the rubbish of others.
    for _ in range(times):
        for step in steps:
            step.trace_seconds.append(step.trace())
    gc.enable()
