"""A process of tf1_cluster_test.py: the parameter server or a worker of a TensorFlow 1 cluster.

    python tf1_cluster.py CLUSTER JOB INDEX

CLUSTER is a ClusterSpec as JSON. Prints `{"ready": true}` when its server runs. A worker then reads
commands from standard input, each a JSON object that names a case: a training job with a graph, a
session and a container on the parameter server of its own.

    {"case": CASE, "do": "open"}                  makes its graph and session
    {"case": CASE, "do": "step", "gradient": G}   takes a step on a batch with this gradient
    {"case": CASE, "do": "read"}

Each is answered by a JSON object with the case and its state, or with the error. A step with
`"hold": true` answers `"held"` once its scaled gradient is known, and waits for `"do": "go on"`.

Gradients are small integers and all else is powers of two, so the arithmetic is exact.
"""

import json
import os
import sys
import threading

import lifeline
import numpy as np
import tensorflow as tf

from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1

WORKERS = 2


def say(**answer):
    # One write: steps of several cases end in threads of their own.
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def contrib_optimizer(opt, options):
    home = tf.contrib.mixed_precision if "original" in options else contrib
    manager = home.ExponentialUpdateLossScaleManager(
        2.0**13, incr_every_n_steps=3, decr_every_n_nan_or_inf=2, decr_ratio=0.5
    )
    names = ("_loss_scale", "_num_good_steps", "_num_bad_steps")
    return home.LossScaleOptimizer(opt, manager), [getattr(manager, name) for name in names]


def mixed_optimizer(opt, options):
    if "fixed" in options:
        return experimental.MixedPrecisionLossScaleOptimizer(opt, 2.0**13), []
    scale = experimental.DynamicLossScale(2.0**13, increment_period=3, multiplier=2.0)
    optimizer = experimental.MixedPrecisionLossScaleOptimizer(opt, scale)
    return optimizer, [scale.current_loss_scale, scale.good_steps]


OPTIMIZERS = {"contrib": contrib_optimizer, "mixed": mixed_optimizer}


class Case:
    """A training job; its name is an order, an optimizer and maybe options.

    Orders: `alone`, without SyncReplicasOptimizer; `inside` of it; `outside` of it. Options:
    `original`, contrib's own classes; `fixed`, a loss scale that lets all steps through; `sparse`;
    `v2`, with the variables and conditionals of TensorFlow 2.
    """

    def __init__(self, name, cluster, index, target):
        order, optimizer, *options = name.split()
        (tf1.enable_resource_variables if "v2" in options else tf1.disable_resource_variables)()
        (tf1.enable_control_flow_v2 if "v2" in options else tf1.disable_control_flow_v2)()
        self.name, self.hold, self.go_on = name, False, threading.Event()
        task = f"/job:worker/task:{index}"
        place = tf1.train.replica_device_setter(cluster=cluster, worker_device=task)
        with tf.Graph().as_default() as graph:
            with graph.container(name.replace(" ", ".")), tf1.device(place):
                hooks = self._build(order, optimizer, options, index == 0)
            self._session = tf1.train.MonitoredTrainingSession(
                target,
                is_chief=index == 0,
                hooks=hooks,
                config=tf1.ConfigProto(device_filters=["/job:ps", task]),
            )

    def _build(self, order, optimizer, options, is_chief):
        count = tf1.train.get_or_create_global_step()
        weights = tf1.get_variable("weights", [2], initializer=tf1.zeros_initializer())
        opt = inner = tf1.train.MomentumOptimizer(0.25, 0.5)
        if order == "outside":
            opt = sync = tf1.train.SyncReplicasOptimizer(opt, WORKERS)
        opt, policy = OPTIMIZERS[optimizer](opt, options)
        if order == "inside":
            opt = sync = tf1.train.SyncReplicasOptimizer(opt, WORKERS)

        self._gradient = tf1.placeholder(tf.float32, [])
        used = tf.gather(weights, [0, 1]) if "sparse" in options else weights
        half = tf.cast(self._held(used), tf.float16)
        loss = tf.reduce_sum(half * tf.cast(self._gradient, tf.float16))
        self._train = opt.minimize(loss, global_step=count, var_list=[weights])
        self._state = [weights, inner.get_slot(weights, "momentum"), count, *policy]
        if order == "alone":
            return []
        # Without tokens at the start a step ends when it has been applied or skipped.
        return [sync.make_session_run_hook(is_chief, num_tokens=0)]

    def _held(self, tensor):
        @tf.custom_gradient
        def held(tensor):
            def gradient(scaled):
                waited = tf1.py_func(self._wait, [scaled], scaled.dtype)
                waited.set_shape(scaled.shape)
                return waited

            return tf.identity(tensor), gradient

        return held(tensor)

    def _wait(self, scaled):
        if self.hold:
            say(case=self.name, held=True)
            self.go_on.wait()
        return scaled

    def read(self):
        return [np.asarray(value).tolist() for value in self._session.run(self._state)]

    def step(self, gradient):
        self._session.run(self._train, {self._gradient: gradient})


def work(cluster, index, target):
    cases = {}

    def follow(command):
        name = command["case"]
        try:
            if command["do"] == "open":
                cases[name] = Case(name, cluster, index, target)
            elif command["do"] == "step":
                cases[name].hold = command["hold"]
                cases[name].go_on.clear()
                cases[name].step(float(command["gradient"]))
            say(case=name, state=cases[name].read())
        except Exception as error:
            say(case=name, error=f"{type(error).__name__}: {error}")

    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "step":  # It may wait for other workers.
            threading.Thread(target=follow, args=(command,), daemon=True).start()
        elif command["do"] == "go on":
            cases[command["case"]].hold = False
            cases[command["case"]].go_on.set()
        else:
            follow(command)
    os._exit(1)  # The process that started this one is gone.


def main(cluster, job, index):
    tf1.disable_v2_behavior()
    cluster = tf1.train.ClusterSpec(json.loads(cluster))
    # A step that is held takes one of these threads.
    config = tf1.ConfigProto(inter_op_parallelism_threads=32)
    server = tf1.train.Server(cluster, job_name=job, task_index=int(index), config=config)
    say(ready=True)
    if job == "ps":
        lifeline.end_with_parent()
        server.join()
    work(cluster, int(index), server.target)


if __name__ == "__main__":
    main(*sys.argv[1:])
