"""Stands in for Horovod, in one process: as much of `horovod.tensorflow` as documents use.

tests/core/horovod_test.py runs the same documents with Horovod itself, in two processes.
"""

import tensorflow as tf

tf1 = tf.compat.v1


def init():
    """Does nothing: there are no other processes to find."""


def rank():
    """Returns the number of this process."""
    return 0


def size():
    """Returns how many processes there are."""
    return 1


class DistributedOptimizer(tf1.train.Optimizer):
    """Adds up the wrapped optimizer's gradients and applies them in every n-th run of a graph."""

    def __init__(self, optimizer, backward_passes_per_step=1, average_aggregated_gradients=False):
        super().__init__(use_locking=False, name="Distributed")
        self._optimizer, self._passes = optimizer, backward_passes_per_step
        self._divisor = backward_passes_per_step if average_aggregated_gradients else 1
        self._sums = self._pass = None

    def compute_gradients(self, *args, **kwargs):
        """Returns, as tensors, the sums of the gradients up to this pass."""
        grads, variables = zip(*self._optimizer.compute_gradients(*args, **kwargs))
        options = {
            "trainable": False,
            "collections": [tf1.GraphKeys.LOCAL_VARIABLES],
            "use_resource": True,
        }
        self._sums = [tf1.Variable(tf.zeros_like(grad), **options) for grad in grads]
        self._pass = tf1.Variable(0, **options)
        sums = [each.assign_add(grad) / self._divisor for each, grad in zip(self._sums, grads)]
        return list(zip(sums, variables))

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        """Returns an operation that applies and empties the sums if this is the last pass."""

        def apply_and_empty():
            with tf.control_dependencies(
                [self._optimizer.apply_gradients(grads_and_vars, *args, **kwargs)]
            ):
                empty = [each.assign(tf.zeros_like(each)) for each in [self._pass, *self._sums]]
            return tf.group(*empty)

        with tf.control_dependencies([grad for grad, _ in grads_and_vars]):
            is_last = tf.equal(self._pass.assign_add(1), self._passes)
        return tf1.cond(is_last, apply_and_empty, tf.no_op)
