"""This package's errors under a ParameterServerStrategy, in a cluster within one process.

    python parameter_server.py

A parameter server, a worker and this coordinator, on 127.0.0.1. Prints one line, a JSON object: the
strategy's class, what each call raised, and how many variables were made meanwhile.
"""

import json
import os
import sys

import lifeline
import tensorflow as tf

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests import processes
from tf_lossscale_compat.contrib import mixed_precision as contrib
from tf_lossscale_compat.train import experimental

tf1 = tf.compat.v1


def make_strategy():
    """Starts the servers; returns a strategy and the servers, which live as long as the list."""
    addresses = [f"127.0.0.1:{port}" for port in processes.free_ports(3)]
    cluster = tf.train.ClusterSpec(
        {"chief": addresses[:1], "worker": addresses[1:2], "ps": addresses[2:]}
    )
    servers = [
        tf.distribute.Server(cluster, job_name=job, task_index=0, protocol="grpc")
        for job in ("worker", "ps")
    ]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.experimental.ParameterServerStrategy(resolver), servers


def main():
    lifeline.end_with_parent()
    strategy, _servers = make_strategy()
    # Made before the strategy is entered, they are found out when they are used.
    manager = contrib.ExponentialUpdateLossScaleManager(8.0, 2)
    loss_scale = experimental.DynamicLossScale(8.0, 2)
    sgd = tf1.train.GradientDescentOptimizer(1.0)
    calls = {
        "contrib": lambda: contrib.LossScaleOptimizer(sgd, 8.0),
        "contrib dynamic": lambda: contrib.LossScaleOptimizer(sgd, "dynamic"),
        "mixed": lambda: experimental.MixedPrecisionLossScaleOptimizer(sgd, 8.0),
        "mixed dynamic": lambda: experimental.MixedPrecisionLossScaleOptimizer(sgd, "dynamic"),
        "rewrite": lambda: experimental.enable_mixed_precision_graph_rewrite(sgd),
        "update": lambda: loss_scale.update([tf.constant(1.0)]),
        "update_loss_scale": lambda: manager.update_loss_scale(True),
    }
    made, outcomes = [], {}

    def creator(next_creator, **arguments):
        made.append(arguments.get("name"))
        return next_creator(**arguments)

    with strategy.scope(), tf.variable_creator_scope(creator):
        for name, call in calls.items():
            try:
                call()
                outcomes[name] = "nothing"
            except Exception as error:
                outcomes[name] = f"{type(error).__name__}: {error}"
    state = [float(manager.get_loss_scale()), float(loss_scale()), int(loss_scale.good_steps)]
    result = {"class": type(strategy).__name__, "raised": outcomes, "made": made, "state": state}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
