"""Updates through every way in, under strategies: all copies of the state go on alike."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests import replicas
from tests.v1_optimizers import dynamic, exponential, sgd, state_of, states
from tf_lossscale_compat.contrib.mixed_precision import LossScaleOptimizer
from tf_lossscale_compat.train.experimental import MixedPrecisionLossScaleOptimizer

tf1 = tf.compat.v1

NAN, INF = float("nan"), float("inf")
# What the last replica and the others are given in each step.
FACTORS = ((1.0, 1.0), (1.0, 1.0), (NAN, 1.0), (1.0, INF), (1.0, 1.0), (-INF, NAN), (1.0, 1.0))


def update(policies, grads, flag):
    """Updates a dynamic loss scale and an exponential manager; returns what they do."""
    loss_scale, manager = policies
    return loss_scale.update({"a": [grads, None]})[0], manager.update_loss_scale(flag)


class StatePropertyTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        ("mirrored_2", "eager"),
        ("mirrored_2", "function"),
        ("mirrored_2", "graph"),
        ("central_3", "eager"),
        ("central_3", "graph"),
    )
    def test_all_copies_are_alike_after_every_update(self, name, mode):
        strategy, count = replicas.strategy(name), replicas.REPLICAS[name]
        with replicas.executing(mode, strategy, inside=False) as execution:
            unscoped = dynamic(), exponential()  # One for all replicas.
            with strategy.scope():
                plain, outside, per_replica, late, in_replica, in_step = [
                    (dynamic(), exponential()) for _ in range(6)
                ]
                weights = [tf1.Variable([0.0], use_resource=True) for _ in range(4)]
            classes = 2 * (MixedPrecisionLossScaleOptimizer, LossScaleOptimizer)
            optimizers = [cls(sgd(0.25), each) for cls, each in zip(classes, in_step + unscoped)]

            def replica_step(factors):
                factor = replicas.own(factors)
                grads, flag = factor * tf.ones([1]), tf.math.is_finite(factor)
                done = [
                    optimizer.apply_gradients([(grads, weight)])
                    for optimizer, weight in zip(optimizers, weights)
                ]
                done.append(
                    tf.distribute.get_replica_context().merge_call(
                        lambda _, merged: in_replica[0].update([merged])[0], args=(grads,)
                    )
                )
                done.append(in_replica[1].update_loss_scale(flag))
                if mode == "graph":
                    with tf.control_dependencies(done):
                        flag = tf.identity(flag)
                return grads, flag

            def step(factors):
                last = factors[-1]
                done = [update(outside, last, tf.math.is_finite(last))]
                with strategy.scope():
                    done.append(update(plain, last, tf.math.is_finite(last)))
                    of_replicas = replicas.run(strategy, replica_step, (factors,))
                    done.append(update(per_replica, *of_replicas))
                done.append(update(late, *of_replicas))
                return done if mode == "graph" else None

            call = execution.compile(step, tf.TensorSpec([count], tf.float32))
            of_last, of_all = [], []
            for last, others in FACTORS:
                call(np.array([others] * (count - 1) + [last], np.float32))
                of_last.append(bool(np.isfinite(last)))
                of_all.append(bool(np.isfinite([last, others]).all()))
                for policies in (plain, outside, per_replica, late, in_replica, in_step, unscoped):
                    flags = of_last if policies in (plain, outside) else of_all
                    for policy in policies:
                        state = execution.values(state_of(policy))
                        for copies, wanted in zip(state, states(flags)[-1]):
                            self.assertAllEqual(copies, [wanted] * len(copies))
                for copies in execution.values(weights):
                    moved = np.full([len(copies), 1], -0.25 * count * sum(of_all))
                    self.assertAllEqual(copies, moved)
