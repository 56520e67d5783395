"""Tries what the table in docs/versions.md claims of this TensorFlow; prints one JSON object.

Each column of the table has a function here that trains through both optimizers with a NaN on the
way and checks what came of it. The object maps columns to "yes" ("graph" where the strategy was
tried in a graph with a Session), to "no" where TensorFlow lacks what it takes, or to what failed.
"""

import contextlib
import inspect
import json
import math
import sys

import tensorflow as tf

import tf_lossscale_compat as lossscale
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1
tf1.enable_eager_execution()  # TensorFlow 1.15 would not be eager otherwise.

LOGICAL_CPUS = 2

try:
    cpu = tf.config.experimental.list_physical_devices("CPU")[0]
    tf.config.experimental.set_virtual_device_configuration(
        cpu, [tf.config.experimental.VirtualDeviceConfiguration()] * LOGICAL_CPUS
    )
except (ValueError, RuntimeError) as error:
    print(f"one CPU only: {error}", file=sys.stderr)

STEPS = (1.0, math.nan, 1.0)  # What the gradient is multiplied with.


def make_optimizers():
    return [
        contrib.LossScaleOptimizer(
            tf1.train.GradientDescentOptimizer(0.25),
            contrib.ExponentialUpdateLossScaleManager(8.0, 2, 1, decr_ratio=0.5),
        ),
        experimental.MixedPrecisionLossScaleOptimizer(
            tf1.train.GradientDescentOptimizer(0.25), lossscale.DynamicLossScale(8.0, 2)
        ),
    ]


def scale_of(optimizer):
    state = {
        variable.name.split(":")[0].split("/")[-1]: variable for variable in optimizer.variables()
    }
    return state.get("loss_scale", state.get("current_loss_scale"))


def check(weight, scale):
    """Two finite steps of four moved the weight from 1 by 1/4 each; the NaN halved the scale."""
    assert float(weight) == 0.5, f"weight {weight}"
    assert float(scale) == 4.0, f"scale {scale}"


def train(run):
    """Trains with both optimizers; `run(step, factor)` runs one step."""
    for optimizer in make_optimizers():
        weight = tf1.Variable(1.0, use_resource=True)

        def step(factor, optimizer=optimizer, weight=weight):
            optimizer.minimize(lambda: weight * factor, var_list=[weight])

        runner = run(step)
        for factor in STEPS:
            runner(tf.constant(factor))
        check(weight.numpy(), scale_of(optimizer).numpy())


def session():
    with tf.Graph().as_default():
        factor = tf1.placeholder(tf.float32, [])
        pairs = []
        for optimizer in make_optimizers():
            weight = tf1.Variable(1.0)
            pairs.append(
                (optimizer.minimize(weight * factor, var_list=[weight]), weight, optimizer)
            )
        with tf1.Session() as running:
            running.run(tf1.global_variables_initializer())
            for value in STEPS:
                running.run([train_op for train_op, _, _ in pairs], {factor: value})
            for _, weight, optimizer in pairs:
                check(*running.run([weight, scale_of(optimizer)]))


def eager():
    train(lambda step: step)


def function():
    train(tf.function)


def jit_compile():
    if TF1:
        return "no"  # Its XLA is compiled for speed at the price of taking NaN for a number.
    for argument in ("jit_compile", "experimental_compile"):
        if argument in inspect.signature(tf.function).parameters:
            return train(tf.function(**{argument: True}))
    return "no"


def graph_rewrite():
    optimizer = experimental.enable_mixed_precision_graph_rewrite(
        tf1.train.GradientDescentOptimizer(0.25), 8.0
    )
    try:
        options = tf.config.optimizer.get_experimental_options()
        assert options.get("auto_mixed_precision"), options
        assert isinstance(optimizer, experimental.MixedPrecisionLossScaleOptimizer)
    finally:
        experimental.disable_mixed_precision_graph_rewrite()
    assert not tf.config.optimizer.get_experimental_options().get("auto_mixed_precision")


def checkpoint():
    import tempfile

    optimizer, fresh = make_optimizers()[1], make_optimizers()[1]
    scale_of(optimizer).assign(2.0)
    path = tf.train.Checkpoint(optimizer=optimizer).save(tempfile.mkdtemp() + "/checkpoint")
    tf.train.Checkpoint(optimizer=fresh).restore(path).assert_existing_objects_matched()
    assert scale_of(fresh).numpy() == 2.0


def under(strategy, in_graph=False):
    """Trains under the strategy; the NaN is on the last replica only."""
    replicas = strategy.num_replicas_in_sync

    def replica_step(optimizer, weight, factor):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        last = tf.equal(tf.cast(replica, tf.int32), replicas - 1)
        here = tf.compat.v2.where(last, factor, 1.0) / replicas
        return optimizer.apply_gradients([(tf.identity(here), weight)])

    with contextlib.ExitStack() as stack:
        if in_graph:
            stack.enter_context(tf.Graph().as_default())
        stack.enter_context(strategy.scope())
        for optimizer in make_optimizers():
            weight = tf1.Variable(
                1.0, use_resource=True, aggregation=tf1.VariableAggregation.ONLY_FIRST_REPLICA
            )
            run = getattr(strategy, "run", None) or strategy.experimental_run_v2
            if in_graph:
                factor = tf1.placeholder(tf.float32, [])
                train_op = strategy.group(run(replica_step, args=(optimizer, weight, factor)))
                with tf1.Session(config=strategy.configure(session_config())) as running:
                    running.run(tf1.global_variables_initializer())
                    for value in STEPS:
                        running.run(train_op, {factor: value})
                    for copy in strategy.experimental_local_results(weight):
                        check(*running.run([copy, scale_of(optimizer)]))
            else:

                @tf.function
                def step(factor, optimizer=optimizer, weight=weight):
                    run(replica_step, args=(optimizer, weight, factor))

                for value in STEPS:
                    step(tf.constant(value))
                for copy in strategy.experimental_local_results(weight):
                    check(copy.numpy(), scale_of(optimizer).numpy())
    return "graph" if in_graph else "yes"


def session_config():
    return tf1.ConfigProto(device_count={"CPU": LOGICAL_CPUS})


DEVICES = [f"/cpu:{i}" for i in range(LOGICAL_CPUS)]
TF1 = tf.__version__.startswith("1.")


def one_device():
    return under(tf.distribute.OneDeviceStrategy("/cpu:0"), in_graph=TF1)


def mirrored():
    return under(tf.distribute.MirroredStrategy(DEVICES), in_graph=TF1)


def central_storage():
    home = tf.distribute.experimental
    return under(home.CentralStorageStrategy(DEVICES, "/cpu:0"), in_graph=TF1)


def multi_worker_mirrored():
    home = getattr(tf.distribute, "MultiWorkerMirroredStrategy", None)
    return under((home or tf.distribute.experimental.MultiWorkerMirroredStrategy)(), in_graph=TF1)


COLUMNS = {
    "Session": session,
    "eager": eager,
    "tf.function": function,
    "jit_compile": jit_compile,
    "graph rewrite": graph_rewrite,
    "Checkpoint": checkpoint,
    "OneDevice": one_device,
    "Mirrored": mirrored,
    "CentralStorage": central_storage,
    "MultiWorkerMirrored": multi_worker_mirrored,
}


def main():
    results = {}
    for column, probe in COLUMNS.items():
        try:
            results[column] = probe() or "yes"
        except Exception as error:  # Why not is the answer.
            results[column] = f"{type(error).__name__}: {error}"[:400]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
