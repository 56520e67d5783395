"""Training in several processes with `MultiWorkerMirroredStrategy`, in float16 with loss scaling.

    python multi_worker.py --workers 2

starts two workers on this machine. On several machines you would start one on each; their TF_CONFIG
differs only in the index. The data are scikit-learn's handwritten digits. If gradients are not
finite on one worker, all workers skip the step. All end with the same loss scale.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

BATCH = 60


def train(steps):
    """Trains as one worker of the cluster in TF_CONFIG; returns the outcome."""
    # Imported here, because the process that starts the workers does not need them.
    import numpy as np
    import tensorflow as tf
    from sklearn import datasets

    from tf_lossscale_compat.contrib.mixed_precision import (
        ExponentialUpdateLossScaleManager,
        LossScaleOptimizer,
    )

    tf1 = tf.compat.v1
    tf1.enable_v2_behavior()  # Needed on TensorFlow 1.15.
    if hasattr(tf.distribute, "MultiWorkerMirroredStrategy"):
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:  # TensorFlow before 2.4
        strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ["TF_CONFIG"])["task"]

    digits = datasets.load_digits()
    random = np.random.RandomState(0)  # The same on every worker.
    order = random.permutation(len(digits.target))
    train, test = order[360:], order[:360]
    pixels = (digits.data / 8 - 1).astype(np.float16)
    labels = digits.target.astype(np.int32)

    # All state is made in the strategy's scope: variables, manager and optimizer.
    with strategy.scope():
        kernel_1 = tf.Variable(random.randn(64, 32).astype(np.float32) / 8)
        bias_1 = tf.Variable(tf.zeros([32]))
        kernel_2 = tf.Variable(random.randn(32, 10).astype(np.float32) / 6)
        bias_2 = tf.Variable(tf.zeros([10]))
        applied = tf.Variable(
            0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        # It starts far too high: the first steps are skipped until it has shrunk.
        manager = ExponentialUpdateLossScaleManager(
            2**24, incr_every_n_steps=200, decr_every_n_nan_or_inf=1, decr_ratio=0.5
        )
        optimizer = LossScaleOptimizer(tf1.train.MomentumOptimizer(0.05, 0.9), manager)
    variables = [kernel_1, bias_1, kernel_2, bias_2]

    def network(images):
        hidden = tf.matmul(images, tf.cast(kernel_1, tf.float16)) + tf.cast(bias_1, tf.float16)
        hidden = tf.matmul(tf.tanh(hidden), tf.cast(kernel_2, tf.float16))
        return hidden + tf.cast(bias_2, tf.float16)

    def replica_step(images, targets):
        def loss():
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=targets, logits=network(images)
            )
            # Gradients are summed over the workers, so each divides by the whole batch.
            return tf.reduce_sum(losses) / BATCH

        gradients = optimizer.compute_gradients(loss, var_list=variables)
        optimizer.apply_gradients(gradients, global_step=applied)

    run = strategy.run if hasattr(strategy, "run") else strategy.experimental_run_v2

    @tf.function
    def train_step(images, targets):
        run(replica_step, args=(images, targets))

    for _ in range(steps):
        # All workers draw the same batch, and each takes its share of it.
        share = random.choice(train, BATCH)[task["index"] :: strategy.num_replicas_in_sync]
        train_step(tf.constant(pixels[share]), tf.constant(labels[share]))

    guesses = np.argmax(network(tf.constant(pixels[test])).numpy(), axis=1)
    return {
        "accuracy": float(np.mean(guesses == labels[test])),
        "skipped": steps - int(applied.numpy()),
        "loss_scale": float(manager.get_loss_scale().numpy()),
    }


def work(steps):
    """Trains as a worker, prints the outcome, and stays until all other workers have finished.

    If it left earlier, it would break the connections of workers that still train. The process that
    started it ends it; if that process is gone, its standard input breaks and ends it.
    """

    def leave_with_parent():
        sys.stdin.read()
        os._exit(1)

    watch = threading.Thread(target=leave_with_parent, daemon=True)
    watch.start()
    print(json.dumps(train(steps)), flush=True)
    watch.join()


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start_worker(addresses, index, steps):
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    environment = dict(os.environ, TF_CONFIG=json.dumps(config))
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment["no_proxy"] = "127.0.0.1"
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--as_worker", "--steps", str(steps)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        universal_newlines=True,
        start_new_session=True,  # Ctrl-C reaches this process only, which ends the workers.
    )


def outcome_of(worker):
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError("A worker ended early; what it had to say is above.")
    return json.loads(line)


def run_workers(count, steps):
    """Starts workers, waits for them and returns their outcomes; always ends all of them."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    workers = []
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        try:
            for index in range(count):
                workers.append(start_worker(addresses, index, steps))
            outcomes = [pool.submit(outcome_of, worker) for worker in workers]
            # If one fails, the others would wait for it forever.
            done, _ = concurrent.futures.wait(
                outcomes, return_when=concurrent.futures.FIRST_EXCEPTION
            )
            for outcome in done:
                outcome.result()
            return [outcome.result() for outcome in outcomes]
        finally:
            for worker in workers:
                if worker.poll() is None:
                    os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--as_worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker:
        work(args.steps)
        return
    outcomes = run_workers(args.workers, args.steps)
    if any(outcome != outcomes[0] for outcome in outcomes):
        sys.exit(f"The workers disagree: {outcomes}")
    print(
        "accuracy {accuracy:.4f}, {} steps in {} workers, {skipped} skipped, "
        "final loss scale {loss_scale:g}".format(args.steps, args.workers, **outcomes[0])
    )


if __name__ == "__main__":
    main()
