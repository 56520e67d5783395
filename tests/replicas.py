"""Strategies with several replicas on one machine, and a look at every copy of a variable.

Import this before TensorFlow starts, as test modules do while they are collected: the number of
logical CPUs cannot be changed later.
"""

import contextlib
import functools

import tensorflow as tf

from tests import modes

tf1 = tf.compat.v1

CPUS = 4


def _make_logical_cpus():
    (cpu,) = tf.config.experimental.list_physical_devices("CPU")
    devices = [tf.config.experimental.VirtualDeviceConfiguration() for _ in range(CPUS)]
    if tf.config.experimental.get_virtual_device_configuration(cpu) is None:
        tf.config.experimental.set_virtual_device_configuration(cpu, devices)


def _join_replicas_at_once():
    """Shortens the wait for replicas' threads, for which TensorFlow looks once a second."""
    wait = tf1.train.Coordinator.wait_for_stop

    def wait_for_stop(self, timeout=None):
        return wait(self, timeout if timeout is None else min(timeout, 0.001))

    tf1.train.Coordinator.wait_for_stop = wait_for_stop


_make_logical_cpus()
_join_replicas_at_once()

# How many replicas each strategy of `strategy` has.
REPLICAS = {
    "default": 1,
    "one_device": 1,
    "multi_worker": 1,
    "mirrored_2": 2,
    "mirrored_3": 3,
    "central_3": 3,
}

# A mode of tf.distribute that does without merge_call. The TensorFlow that has it enters it by
# itself only for XLA on GPUs; its own tests turn it on as `_make_strategy` does.
if tuple(int(part) for part in tf.__version__.split(".")[:2]) >= (2, 10):
    REPLICAS["no_merge_2"] = 2

EXECUTIONS = ("eager", "function", "graph")
# What tests of contexts run: strategies, each in one mode.
PROGRAMS = [("multi_worker", "graph"), ("mirrored_2", "function"), ("central_3", "graph")]


def cpus(count):
    return [f"/cpu:{index}" for index in range(count)]


@functools.lru_cache(maxsize=None)
def strategy(name):
    """Returns the one strategy of that name, a key of `REPLICAS`, in this process."""
    # Made eagerly, TensorFlow 1.15's know the full names of devices and serve graphs too.
    with modes.eager_mode():
        return _make_strategy(name)


def _make_strategy(name):
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy("/cpu:1")
    if name == "multi_worker":
        distribute = tf.distribute
        if not hasattr(distribute, "MultiWorkerMirroredStrategy"):
            distribute = distribute.experimental
        return distribute.MultiWorkerMirroredStrategy()
    if name == "central_3":
        return tf.distribute.experimental.CentralStorageStrategy(
            compute_devices=cpus(3), parameter_device="/cpu:0"
        )
    if name == "no_merge_2":
        # Collectives are all that it has, so they need keys of their own.
        tf.distribute.MirroredStrategy._collective_key_base += 100000
        strategy = tf.distribute.MirroredStrategy(cpus(2))
        tf.distribute.MirroredStrategy._collective_key_base -= 100000
        strategy.extended._use_merge_call = lambda: False
        return strategy
    # Two strategies over the same devices would use the same keys for their collectives, so just
    # this one has the cross-device operations that TensorFlow chooses.
    operations = None if name == "mirrored_2" else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(cpus(REPLICAS[name]), cross_device_ops=operations)


def run(strategy, fn, args=()):
    """`strategy.run`, which was called otherwise before TensorFlow 2.2."""
    run = getattr(strategy, "run", None) or strategy.experimental_run_v2
    return run(fn, args=args)


def replica_id():
    """The number of this replica, an int or int32 scalar tensor."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def copies(strategy, variable):
    """Returns every copy of a variable, a list: one for each replica if it is mirrored."""
    return list(strategy.experimental_local_results(variable))


class _Execution:
    """Runs functions in the cross-replica context of a strategy, or outside its scope."""

    def __init__(self, mode, strategy, graph, made_before, inside):
        self.strategy, self.made_before = strategy, made_before
        self._scope = strategy.scope if inside else contextlib.nullcontext
        self._mode, self._graph = mode, graph

    def compile(self, function, *specs):
        """Returns a function of arrays that runs `function`, maybe traced, on tensors.

        `function` is called in the cross-replica context and returns a nested structure. In place
        of each leaf is then a list of arrays, one for each replica or copy; that of an operation or
        of None is empty.
        """
        operations = []

        def local(leaf):
            results = [] if leaf is None else list(self.strategy.experimental_local_results(leaf))
            operations.extend(each for each in results if isinstance(each, tf.Operation))
            return [
                tf.convert_to_tensor(each)
                for each in results
                if each is not None and not isinstance(each, tf.Operation)
            ]

        def call(*tensors):
            return tf.nest.map_structure(local, function(*tensors))

        if self._mode == "graph":
            placeholders = [tf1.placeholder(spec.dtype, spec.shape) for spec in specs]
            fetches = call(*placeholders), operations
            return lambda *arrays: self._graph.run(fetches, dict(zip(placeholders, arrays)))[0]

        if self._mode == "function":
            call = tf.function(call, autograph=False)

        def immediate(*arrays):
            with self._scope():
                results = call(*[tf.constant(a, s.dtype) for a, s in zip(arrays, specs)])
            return tf.nest.map_structure(lambda tensor: tensor.numpy(), results)

        return immediate

    def call(self, function):
        """`compile(function)()`."""
        return self.compile(function)()

    def values(self, variables):
        """Returns the arrays that every copy of every variable holds, a list of lists."""
        found = [copies(self.strategy, variable) for variable in variables]
        if self._mode == "graph":
            return self._graph.run(found)
        return [[copy.numpy() for copy in each] for each in found]


@contextlib.contextmanager
def executing(mode, strategy, before=lambda: None, inside=True):
    """Enters one of `EXECUTIONS` and the strategy's scope; yields an `_Execution`.

    What `before` returns, called in the mode but outside the scope, is its `made_before`. If not
    `inside`, the scope is not entered, and functions run in the default context.
    """
    with contextlib.ExitStack() as stack:
        graph = None
        if mode == "graph":
            stack.enter_context(tf.Graph().as_default())
            graph = modes.Graph(mode, tf1.ConfigProto(device_count={"CPU": CPUS}))
            stack.enter_context(graph.session)
        else:
            stack.enter_context(modes.eager_mode())
        made_before = before()
        if inside:
            stack.enter_context(strategy.scope())
        yield _Execution(mode, strategy, graph, made_before, inside)


def own(values):
    """The row of `values` that belongs to this replica."""
    return tf.gather(values, replica_id())


class TestCase(modes.EagerTestCase):
    """Tests in a mode and under a strategy that they enter."""

    def enter(self, name, mode, before=lambda: None):
        """Enters a strategy and mode till the end of the test; see `executing`."""
        self.strategy = strategy(name)
        self.count = REPLICAS[name]
        self.execution = self.enter_context(executing(mode, self.strategy, before))
        return self.execution.made_before

    def each(self, function, *args):
        """Runs `function` on each replica."""
        return run(self.strategy, function, args)
