"""Strategies with several replicas on one machine, and a look at every copy of a variable.

Import this before TensorFlow starts, as test modules do while they are collected: the number of
logical CPUs cannot be changed later.
"""

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
    "mirrored_4": 4,
    "central_3": 3,
}


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
    # Two strategies over the same devices would use the same keys for their collectives, so just
    # this one has the cross-device operations that TensorFlow chooses.
    operations = None if name == "mirrored_2" else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(cpus(REPLICAS[name]), cross_device_ops=operations)


def run(strategy, fn, args=()):
    """`strategy.run`, which was called otherwise before TensorFlow 2.2."""
    run = getattr(strategy, "run", None) or strategy.experimental_run_v2
    return run(fn, args=args)


def replica_id():
    """Which replica this is, an int or int32 scalar tensor."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def copies(strategy, variable):
    """Returns every copy of a variable, a list: one for each replica if it is mirrored."""
    return list(strategy.experimental_local_results(variable))


def slots(strategy, optimizer, variable, name):
    """Returns every copy of a slot variable, a list."""
    slots = copies(strategy, optimizer.get_slot(variable, name))
    if len(slots) > 1:
        return slots
    # Before TensorFlow 2.4 an optimizer answers with one copy, here that which is asked for.
    slots = [optimizer.get_slot(copy, name) for copy in copies(strategy, variable)]
    return list({id(slot): slot for slot in slots}.values())


def session_config():
    return tf1.ConfigProto(device_count={"CPU": CPUS})
