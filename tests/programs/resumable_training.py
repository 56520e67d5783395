"""A training run for crash_resume_test.py that saves after every step and goes on from there.

    python resumable_training.py MODE FOLDER [MODE FOLDER]...

MODE is `checkpoint`, `mirrored` or `saver`. Prints "resumed P", where P is the number of batches
seen, then for each further one "saving P" and "saved P", and at the end "done" and the whole state
as JSON.
"""

import json
import os
import sys

import lifeline
import numpy as np
import tensorflow as tf

from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
STEPS = 80
EXAMPLES, FEATURES, HIDDEN = 8, 6, 5


def batch(position):
    """Returns features and targets; in every seventh batch the last example is NaN."""
    random = np.random.RandomState(position)
    features = random.normal(size=(EXAMPLES, FEATURES)).astype(np.float16)
    targets = features[:, 0] * features[:, 1]
    if position % 7 == 3:
        features[-1, 0] = np.nan
    return features, targets


def make_variables():
    random = np.random.RandomState(0)
    shapes = [("hidden", (FEATURES, HIDDEN)), ("output", (HIDDEN, 1))]
    return [
        tf1.Variable(random.normal(0, 0.5, shape).astype(np.float32), name=name, use_resource=True)
        for name, shape in shapes
    ]


def loss_of(variables, features, targets):
    """Mean squared error, computed in float16 from float32 variables."""
    hidden, output = [tf.cast(variable, tf.float16) for variable in variables]
    predictions = tf.matmul(tf.tanh(tf.matmul(features, hidden)), output)
    return tf.reduce_mean(tf.square(predictions[:, 0] - targets))


# Both start above float16's range, so the first steps overflow.
def dynamic_optimizer():
    policy = experimental.DynamicLossScale(2.0**17, increment_period=4, multiplier=2.0)
    opt = tf1.train.AdamOptimizer(0.01)
    opt = experimental.MixedPrecisionLossScaleOptimizer(opt, policy)
    return opt, [policy.current_loss_scale, policy.good_steps]


def contrib_optimizer(inner=tf1.train.AdamOptimizer):
    manager = contrib.ExponentialUpdateLossScaleManager(2.0**17, 4, decr_ratio=0.7)
    return contrib.LossScaleOptimizer(inner(0.01), manager), manager.variables()


def mirrored_optimizer():
    """Makes the optimizer that TensorFlow itself can resume under MirroredStrategy.

    Measured with a plain tf.compat.v1.train.AdamOptimizer, no loss scaling, restored after 12 of 24
    steps: on 2.4.4 and 2.10.1 it goes on with `beta1_power` and `beta2_power` of step 0, though
    `assert_consumed` finds nothing left (after one more step 0.81 instead of 0.2288), with moments
    restored; on 2.0.4 the moments are not restored either; on 2.15.1 all is equal.
    """
    if VERSION >= (2, 15):
        return contrib_optimizer()
    if VERSION >= (2, 4):  # Slots, but no other variables.
        return contrib_optimizer(lambda rate: tf1.train.MomentumOptimizer(rate, 0.9))
    return contrib_optimizer(tf1.train.GradientDescentOptimizer)


def train_eager(folder, strategy, make_optimizer):
    """Trains with `tf.function` and `tf.train.CheckpointManager`; returns the state at the end."""
    position = tf.Variable(0, trainable=False)
    with strategy.scope():
        variables = make_variables()
        count = tf.Variable(
            0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        opt, policy = make_optimizer()
    checkpoint = tf.train.Checkpoint(
        hidden=variables[0], output=variables[1], opt=opt, position=position, count=count
    )
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    with strategy.scope():  # Elsewhere TensorFlow would make slot variables that are not mirrored.
        checkpoint.restore(manager.latest_checkpoint)
    print("resumed", position.numpy(), flush=True)

    def replica_step(features, targets):
        share = EXAMPLES // strategy.num_replicas_in_sync
        start = tf.distribute.get_replica_context().replica_id_in_sync_group * share
        features, targets = [part[start : start + share] for part in (features, targets)]
        gradients = opt.compute_gradients(
            lambda: loss_of(variables, features, targets), var_list=variables
        )
        opt.apply_gradients(gradients, global_step=count)

    @tf.function
    def step(features, targets):
        run = getattr(strategy, "run", None) or strategy.experimental_run_v2
        run(replica_step, args=(features, targets))

    while position.numpy() < STEPS:
        step(*[tf.constant(part) for part in batch(position.numpy())])
        position.assign_add(1)
        print("saving", position.numpy(), flush=True)
        manager.save()
        print("saved", position.numpy(), flush=True)

    state = {"position": position, "count": count}
    state.update(("policy%d" % index, value) for index, value in enumerate(policy))
    for variable in variables:
        state[variable.name] = variable
        for name in opt.get_slot_names():
            state[variable.name + name] = opt.get_slot(variable, name)
    return {
        name: [
            np.asarray(tf1.convert_to_tensor(copy)).tolist()
            for copy in strategy.experimental_local_results(value)
        ]
        for name, value in state.items()
    }


def train_graph(folder):
    """Trains with a Session and `tf.compat.v1.train.Saver`; returns the state at the end."""
    with tf.Graph().as_default():
        features = tf1.placeholder(tf.float16, [EXAMPLES, FEATURES])
        targets = tf1.placeholder(tf.float16, [EXAMPLES])
        variables = make_variables()
        count = tf1.train.create_global_step()
        position = tf1.Variable(0, trainable=False, name="position", use_resource=True)
        opt, _ = contrib_optimizer()
        train_op = opt.minimize(loss_of(variables, features, targets), global_step=count)
        advance = position.assign_add(1)
        initialize = tf1.global_variables_initializer()
        saver = tf1.train.Saver(max_to_keep=2)
        latest = tf1.train.latest_checkpoint(folder)
        with tf1.Session() as session:
            if latest is None:
                session.run(initialize)
            else:
                saver.restore(session, latest)
            seen = session.run(position)
            print("resumed", seen, flush=True)
            while seen < STEPS:
                session.run(train_op, dict(zip((features, targets), batch(seen))))
                seen = session.run(advance)
                print("saving", seen, flush=True)
                saver.save(session, os.path.join(folder, "model"), seen, write_meta_graph=False)
                print("saved", seen, flush=True)
            values = session.run({variable.name: variable for variable in tf1.global_variables()})
            return {name: value.tolist() for name, value in values.items()}


def train(mode, folder):
    os.makedirs(folder, exist_ok=True)
    if mode == "saver":
        return train_graph(folder)
    if mode == "checkpoint":
        return train_eager(folder, tf.distribute.get_strategy(), dynamic_optimizer)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    assert strategy.num_replicas_in_sync == 2
    return train_eager(folder, strategy, mirrored_optimizer)


def main(arguments):
    lifeline.end_with_parent()
    tf1.enable_v2_behavior()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    config = tf.config.experimental
    config.set_virtual_device_configuration(
        config.list_physical_devices("CPU")[0], [config.VirtualDeviceConfiguration()] * 2
    )
    for mode, folder in zip(arguments[::2], arguments[1::2]):
        print("done", json.dumps(train(mode, folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
