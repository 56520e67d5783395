"""A rehearsal in the shape of neural collaborative filtering: which user takes to which item.

Factors of users and items are gathered from four tables and meet in a product and in a small
network, in float16 with variables kept in float32. Adam trains it, with contrib's loss scaling.
"""

import numpy as np
import tensorflow as tf

from tests.programs import rehearsal_graph as rehearsal

tf1 = tf.compat.v1

USERS, ITEMS, FACTORS, LAYERS, BATCH = 30, 20, 8, (16, 8), 32
DTYPE = tf.float16
FIRST = 73.0


def _loss(users, items, labels, weight):
    random = np.random.RandomState(0)

    def normal(name, deviation, *shape):
        return rehearsal.variable(name, random.normal(0.0, deviation, shape), DTYPE)

    def both(kind, width):
        tables = [
            normal(f"{kind}_users", 0.5, USERS, width),
            normal(f"{kind}_items", 0.5, ITEMS, width),
        ]
        return [tf.gather(table, ids) for table, ids in zip(tables, (users, items))]

    user, item = both("gmf", FACTORS)
    product = user * item
    x = tf.concat(both("mlp", LAYERS[0] // 2), axis=1)
    for i, units in enumerate(LAYERS):
        x = tf.matmul(x, normal(f"kernel_{i}", 0.4, int(x.shape[-1]), units))
        x = tf.nn.relu(x + rehearsal.variable(f"bias_{i}", np.zeros(units), DTYPE))
    x = tf.concat([product, x], axis=1)
    logits = tf.matmul(x, normal("kernel", 0.4, int(x.shape[-1]), 1))
    logits = tf.cast(logits[:, 0], tf.float32)
    each = tf1.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(each * weight)


def _batches(users, items, labels):
    random = np.random.RandomState(1)
    taste, kind = random.normal(size=(USERS, 3)), random.normal(size=(3, ITEMS))
    taken = (taste.dot(kind) > 0).astype(np.float32)
    while True:
        # With replacement: gradients of the tables have some rows twice.
        user, item = random.randint(0, USERS, BATCH), random.randint(0, ITEMS, BATCH)
        yield [{users: user, items: item, labels: taken[user, item]}]


def _build(make_step, first=FIRST):
    """`make_step` gets a loss, Adam and the global step; it returns the step and its gradients."""
    users, items = tf1.placeholder(tf.int32, [BATCH]), tf1.placeholder(tf.int32, [BATCH])
    labels, weight = tf1.placeholder(tf.float32, [BATCH]), tf1.placeholder(tf.float32, [])
    with tf1.variable_scope("ncf", custom_getter=rehearsal.float32_storage):
        loss = _loss(users, items, labels, weight)
    adam = tf1.train.AdamOptimizer(0.005, beta1=0.9, beta2=0.95, epsilon=1e-4)
    train_op, grads = make_step(loss, adam, tf1.train.get_or_create_global_step())
    batches = _batches(users, items, labels)
    return rehearsal.Built(train_op, loss, grads, weight, batches, first)


def _exponential(contrib):
    return contrib.ExponentialUpdateLossScaleManager(
        2.0**32, incr_every_n_steps=30, decr_every_n_nan_or_inf=2, incr_ratio=2, decr_ratio=0.5
    )


def _by_the_optimizer(contrib, manager, **options):
    def make_step(loss, adam, global_step):
        optimizer = contrib.LossScaleOptimizer(adam, manager)
        pairs = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(pairs, global_step=global_step)
        return train_op, [grad for grad, _ in pairs]

    return _build(make_step, **options)


def with_dynamic_scale(contrib):
    """The usual way."""
    return _by_the_optimizer(contrib, _exponential(contrib))


def with_fixed_scale(contrib):
    """The scale that is said to do for this network."""
    return _by_the_optimizer(contrib, contrib.FixedLossScaleManager(8192.0), first=1.0)


def scaled_by_hand(contrib):
    """Only the manager is contrib's; the script scales, divides, tests and skips by itself."""
    manager = _exponential(contrib)

    def make_step(loss, adam, global_step):
        scale = manager.get_loss_scale()
        variables = tf1.trainable_variables()
        grads = [tf.convert_to_tensor(grad) for grad in tf1.gradients(loss * scale, variables)]
        grads = [grad / scale for grad in grads]
        finite = rehearsal.all_finite(grads)
        applied = tf1.cond(
            finite,
            lambda: adam.apply_gradients(list(zip(grads, variables)), global_step),
            tf.no_op,
        )
        return tf.group(applied, manager.update_loss_scale(finite)), grads

    return _build(make_step)


PROGRAMS = {"contrib": (with_dynamic_scale, with_fixed_scale, scaled_by_hand)}
