"""A non-finite gradient on any replica makes every replica skip that step, and just that step.

Each case starts from known values, takes one step with a fault and one without, and after each
looks at every copy of every variable, slot and part of the loss scale's state.
"""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests import modes, replicas
from tf_lossscale_compat import (
    DynamicLossScale,
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
)
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

pytestmark = pytest.mark.usefixtures("kept_kernels")

tf1 = tf.compat.v1

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
NEWEST = VERSION >= (2, 21)

FAULTS = {"nan": float("nan"), "inf": float("inf"), "minus_inf": float("-inf")}
GRADIENTS = ("dense", "sparse")
LEARNING_RATE, MOMENTUM = 0.25, 0.5

# Where a case starts from. The slots are not zero, so that a step that is half skipped shows.
DENSE = np.array([1.0, 2.0], np.float32)
SPARSE = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
SLOT, STEP = np.float32(0.25), np.int64(7)

# What the gradient of one replica is without a fault: constant, as the loss is linear.
ROWS = [0, 2]
DENSE_GRADIENT = np.array([3.0, 3.0], np.float32)
SPARSE_GRADIENT = np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], np.float32)


# A loss scale: a function that makes (policy, optimizer) of an optimizer, one that returns the list
# of the policy's variables, and what a case makes of these.
Policy = collections.namedtuple("Policy", ["wrap", "state", "start", "after_fault", "after_both"])


def _exponential():
    return ExponentialUpdateLossScaleManager(
        64.0, incr_every_n_steps=3, decr_every_n_nan_or_inf=2, incr_ratio=2.0, decr_ratio=0.5
    )


def _dynamic():
    return DynamicLossScale(64.0, increment_period=3, multiplier=2.0)


def _wrapped(wrapper, make_policy):
    def wrap(inner):
        policy = make_policy()
        return policy, wrapper(inner, policy)

    return wrap


def _contrib(optimizer, policy):
    """Contrib's optimizer, with sparse gradients left sparse, as the others leave them."""
    return LossScaleOptimizer(optimizer, policy, keep_sparse=True)


def _exponential_policy(wrapper):
    # The fault is the second one, so that the scale moves; a second update for the same step
    # would show in the counters.
    return Policy(
        _wrapped(wrapper, _exponential),
        lambda manager: manager.variables(),
        start=(64.0, 1, 1),
        after_fault=(32.0, 0, 0),
        after_both=(32.0, 1, 0),
    )


def _dynamic_policy(wrap):
    return Policy(
        wrap,
        lambda loss_scale: [loss_scale.current_loss_scale, loss_scale.good_steps],
        start=(64.0, 1),
        after_fault=(32.0, 0),
        after_both=(32.0, 1),
    )


POLICIES = {
    "contrib_fixed": Policy(
        _wrapped(_contrib, lambda: FixedLossScaleManager(8.0)),
        lambda manager: [],
        start=(),
        after_fault=(),
        after_both=(),
    ),
    "contrib_exponential": _exponential_policy(_contrib),
    "contrib_dynamic": _dynamic_policy(_wrapped(_contrib, _dynamic)),
    "mixed_dynamic": _dynamic_policy(_wrapped(MixedPrecisionLossScaleOptimizer, _dynamic)),
    "mixed_exponential": _exponential_policy(MixedPrecisionLossScaleOptimizer),
    # No wrapper: DynamicLossScale.update in a cross-replica context, and an optimizer as it is.
    "bare_update": _dynamic_policy(lambda inner: (_dynamic(), inner)),
}


class Program:
    """A model with one training step, built once for all the cases that differ in the fault."""

    def __init__(self, strategy, policy, mode):
        self.strategy, self.policy, self.mode = strategy, policy, mode
        self.replicas = strategy.num_replicas_in_sync
        self._graph = tf.Graph()
        with self.entered():
            with strategy.scope():
                self.dense = tf1.Variable(DENSE, name="dense", use_resource=True)
                self.sparse = tf1.Variable(SPARSE, name="sparse", use_resource=True)
                self.global_step = tf1.Variable(
                    STEP,
                    trainable=False,
                    use_resource=True,
                    aggregation=tf1.VariableAggregation.ONLY_FIRST_REPLICA,
                )
                inner = tf1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)
                self.policy_object, self.optimizer = policy.wrap(inner)
                self.bare = self.optimizer is inner
            self._build()

    def entered(self):
        return self._graph.as_default() if self.mode == "graph" else modes.eager_mode()

    def _build(self):
        no_faults = np.zeros([len(GRADIENTS), self.replicas], np.float32)
        if self.mode == "graph":
            faults = tf1.placeholder(tf.float32, no_faults.shape)
            with self.strategy.scope():
                train = self._all_replicas(faults)
            self._find_copies()
            self._reset = tf.group(self._assign_start())
            self._session = tf1.Session(config=replicas.session_config())
            self._session.run(tf1.global_variables_initializer())
            self._step = lambda values: self._session.run(train, {faults: values})
        else:
            function = self._all_replicas
            if self.mode == "function":
                function = tf.function(
                    lambda faults: self._all_replicas(faults) and None, autograph=False
                )

            def step(values):
                with self.strategy.scope():
                    function(tf.constant(values))

            self._step = step
            step(no_faults)  # Makes the slots.
            self._find_copies()

    def _all_replicas(self, faults):
        """The step of all replicas, in the cross-replica context; an operation in graphs."""
        if self.bare:
            done = self._bare_step(faults)
        else:
            done = replicas.run(self.strategy, self._optimizer_step, (faults,))
        return None if tf.executing_eagerly() else tf.group(self._operations(done))

    def _operations(self, done):
        return [op for op in self.strategy.experimental_local_results(done) if op is not None]

    def _gradients(self, faults, optimizer):
        def loss():
            return 3.0 * tf.reduce_sum(self.dense) + tf.reduce_sum(tf.gather(self.sparse, ROWS))

        (dense, _), (sparse, _) = optimizer.compute_gradients(loss, [self.dense, self.sparse])
        dense_fault, sparse_fault = tf.unstack(tf.gather(faults, replicas.replica_id(), axis=1))
        # Just one element is at fault, and not the first.
        return [
            (dense + tf.stack([0.0, dense_fault]), self.dense),
            (
                tf.IndexedSlices(
                    sparse.values + tf.stack([[0.0, 0.0], [sparse_fault, 0.0]]),
                    sparse.indices,
                    sparse.dense_shape,
                ),
                self.sparse,
            ),
        ]

    def _optimizer_step(self, faults):
        grads_and_vars = self._gradients(faults, self.optimizer)
        return self.optimizer.apply_gradients(grads_and_vars, global_step=self.global_step)

    def _bare_step(self, faults):
        def gradients(faults):
            return [grad for grad, _ in self._gradients(faults, self.optimizer)]

        grads = replicas.run(self.strategy, gradients, (faults,))
        update, should_apply = self.policy_object.update(grads)

        def apply(*grads):
            return self.optimizer.apply_gradients(
                zip(grads, [self.dense, self.sparse]), global_step=self.global_step
            )

        def apply_everywhere():
            done = replicas.run(self.strategy, apply, tuple(grads))
            return None if tf.executing_eagerly() else tf.group(self._operations(done))

        if tf.executing_eagerly():
            return apply_everywhere() if should_apply else None
        return tf.group(tf.cond(should_apply, apply_everywhere, tf.no_op), update)

    def _find_copies(self):
        """Finds every copy of everything that a step may change, by name."""
        find = functools.partial(replicas.copies, self.strategy)
        find_slots = functools.partial(replicas.slots, self.strategy, self.optimizer)
        self.copies = collections.OrderedDict(
            [
                ("dense", find(self.dense)),
                ("sparse", find(self.sparse)),
                ("dense slot", find_slots(self.dense, "momentum")),
                ("sparse slot", find_slots(self.sparse, "momentum")),
                ("global step", find(self.global_step)),
            ]
        )
        for index, variable in enumerate(self.policy.state(self.policy_object)):
            self.copies[f"state {index}"] = find(variable)

    def _assign_start(self):
        start = self.expected(DENSE, SPARSE, SLOT, SLOT, STEP, self.policy.start)
        return [
            copy.assign(np.broadcast_to(start[name], copy.shape).astype(copy.dtype.as_numpy_dtype))
            for name, copies in self.copies.items()
            for copy in copies
        ]

    def expected(self, dense, sparse, dense_slot, sparse_slot, step, state):
        """The expected values of all copies, a dict as `copies`."""
        values = [dense, sparse, dense_slot, sparse_slot, step] + list(state)
        return dict(zip(self.copies, values))

    def reset(self):
        with self.entered():
            if self.mode == "graph":
                self._session.run(self._reset)
            else:
                self._assign_start()

    def step(self, faults):
        with self.entered():
            self._step(faults)

    def values(self):
        """The values of all copies, a dict as `copies`."""
        with self.entered():
            if self.mode == "graph":
                return self._session.run(dict(self.copies))
            return {name: [c.numpy() for c in copies] for name, copies in self.copies.items()}


@functools.lru_cache(maxsize=None)
def program(strategy, policy, mode):
    return Program(replicas.strategy(strategy), POLICIES[policy], mode)


# The policies that differ for a strategy; the rest are combinations of the same parts.
MAIN_POLICIES = ("contrib_exponential", "mixed_dynamic", "bare_update")


def _programs():
    """(strategy, policy, mode) of each program; fewer where TensorFlow is not the newest."""
    product = itertools.product
    if not NEWEST:
        return itertools.chain(
            product(("mirrored_3",), POLICIES, ("graph",)),
            product(("mirrored_2",), MAIN_POLICIES, ("eager", "function")),
            product(("central_3", "multi_worker"), MAIN_POLICIES, ("graph",)),
        )
    return itertools.chain(
        product(("mirrored_2",), POLICIES, ("function",)),
        product(("mirrored_2",), MAIN_POLICIES, ("eager", "graph")),
        product(("mirrored_3", "central_3"), MAIN_POLICIES, ("function",)),
        product(("mirrored_3",), ("contrib_fixed",), ("graph",)),
        product(("central_3",), ("bare_update",), ("eager",)),
        product(("one_device", "multi_worker"), MAIN_POLICIES, ("eager", "function")),
    )


def _cases():
    for strategy, policy, mode in _programs():
        last = replicas.REPLICAS[strategy] - 1
        places = collections.OrderedDict([("first", [0]), ("last", [last])])
        if last > 1:
            places["middle"] = [1]
        if last > 0:
            places["all"] = list(range(last + 1))
        else:
            del places["last"]
        for where, fault, gradient in itertools.product(places, FAULTS, GRADIENTS):
            yield {
                "testcase_name": "_".join((strategy, policy, mode, where, fault, gradient)),
                "program_key": (strategy, policy, mode),
                "places": places[where],
                "fault": FAULTS[fault],
                "gradient": gradient,
            }


class FaultMatrixTest(parameterized.TestCase, tf.test.TestCase):
    def assert_every_copy(self, values, expected):
        for name, copies in values.items():
            for index, copy in enumerate(copies):
                wanted = np.broadcast_to(np.asarray(expected[name], copy.dtype), copy.shape)
                self.assertAllEqual(copy, wanted, msg=f"copy {index} of {name}")

    @parameterized.named_parameters(*_cases())
    def test_fault_is_skipped_everywhere_and_next_step_applied(
        self, program_key, places, fault, gradient
    ):
        built = program(*program_key)
        policy = built.policy
        faults = np.zeros([len(GRADIENTS), built.replicas], np.float32)
        faults[GRADIENTS.index(gradient), places] = fault

        built.reset()
        built.step(faults)
        expected = built.expected(DENSE, SPARSE, SLOT, SLOT, STEP, policy.after_fault)
        self.assert_every_copy(built.values(), expected)

        built.step(np.zeros_like(faults))
        # Gradients are summed over replicas. Rows without a gradient do not even lose momentum.
        rows = SPARSE_GRADIENT != 0
        dense_slot = MOMENTUM * SLOT + built.replicas * DENSE_GRADIENT
        sparse_slot = np.where(rows, MOMENTUM * SLOT + built.replicas * SPARSE_GRADIENT, SLOT)
        expected = built.expected(
            DENSE - LEARNING_RATE * dense_slot,
            SPARSE - LEARNING_RATE * sparse_slot * rows,
            dense_slot,
            sparse_slot,
            STEP + 1,
            policy.after_both,
        )
        self.assert_every_copy(built.values(), expected)
