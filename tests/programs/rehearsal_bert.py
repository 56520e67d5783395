"""A rehearsal in the shape of BERT pre-training: a transformer that fills in masked tokens.

One layer, tiny, but with what such scripts have: a token table that is both gathered from and
multiplied with, an optimizer of their own that makes moments with `get_variable`, clipping by the
global norm, micro-batches added up and applied in a conditional, a global step that counts what was
applied, a warm-up. It computes either in float16 with variables kept in float32, with contrib's
loss scaling, or in float32 for the graph rewrite to convert, with the optimizer that this returns.
"""

import re

import numpy as np
import tensorflow as tf

from tests.programs import rehearsal_graph as rehearsal

tf1 = tf.compat.v1

VOCABULARY, LENGTH, WIDTH, HEADS, BATCH = 12, 6, 16, 2, 8
MASK = 0
RATE, WARM_UP = 0.0015, 20
FIRST = 80.0


class AdamWeightDecayOptimizer(tf1.train.Optimizer):
    """Adam without bias correction, with weight decay of all but norms and biases beside it."""

    def __init__(self, rate, decay=0.01):
        super().__init__(False, "AdamWeightDecayOptimizer")
        self.rate, self.decay = rate, decay
        self.beta_1, self.beta_2, self.epsilon = 0.9, 0.999, 1e-4

    def _moment(self, param, which):
        base = re.match(r"^(.*):\d+$", param.name).group(1)
        return tf1.get_variable(
            f"{base}/{which}",
            shape=param.shape.as_list(),
            dtype=tf.float32,
            trainable=False,
            initializer=tf1.zeros_initializer(),
        )

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Leaves `global_step` as it is: counting is the training script's affair."""
        assignments = []
        for grad, param in grads_and_vars:
            if grad is None or param is None:
                continue
            grad = tf.convert_to_tensor(grad)
            m, v = self._moment(param, "adam_m"), self._moment(param, "adam_v")
            next_m = self.beta_1 * m + (1.0 - self.beta_1) * grad
            next_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(grad)
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if not re.search("norm|bias", param.name):
                update += self.decay * param
            assignments += [
                tf1.assign(param, param - self.rate * update),
                tf1.assign(m, next_m),
                tf1.assign(v, next_v),
            ]
        return tf.group(*assignments, name=name)


class _Network:
    """The transformer; `variable` hands out the initial values, always the same."""

    def __init__(self, dtype):
        self.dtype, self.random = dtype, np.random.RandomState(0)

    def normal(self, name, *shape):
        return rehearsal.variable(name, self.random.normal(0.0, 0.2, shape), self.dtype)

    def dense(self, x, units, name):
        with tf1.variable_scope(name):
            kernel = self.normal("kernel", int(x.shape[-1]), units)
            return tf.matmul(x, kernel) + rehearsal.variable("bias", np.zeros(units), self.dtype)

    def norm(self, x, name):
        with tf1.variable_scope(name):
            x = tf.cast(x, tf.float32)
            mean, variance = tf1.nn.moments(x, [-1], keep_dims=True)
            gamma = rehearsal.variable("gamma", np.ones(WIDTH), tf.float32)
            beta = rehearsal.variable("beta", np.zeros(WIDTH), tf.float32)
            return tf.cast((x - mean) * tf1.rsqrt(variance + 1e-3) * gamma + beta, self.dtype)

    def attention(self, x):
        with tf1.variable_scope("attention"):
            x = self.dense(x, 3 * WIDTH, "query_key_value")
            x = tf.reshape(x, [BATCH, LENGTH, 3, HEADS, WIDTH // HEADS])
            query, key, value = tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]))
            scores = tf.matmul(query, key, transpose_b=True) * (WIDTH // HEADS) ** -0.5
            mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
            return self.dense(tf.reshape(mixed, [BATCH * LENGTH, WIDTH]), WIDTH, "output")

    def loss(self, ids, places, answers, weight):
        """The cross entropy, summed over the batch, of the tokens at `places`; float32."""
        with tf1.variable_scope("embeddings"):
            table = self.normal("words", VOCABULARY, WIDTH)
            positions = self.normal("positions", LENGTH, WIDTH)
            # The gradient of this table is sparse, with each row several times. That of the other
            # one is dense, since the table is multiplied with below.
            x = tf.gather(positions, np.tile(np.arange(LENGTH), [BATCH, 1]))
            x += tf.gather(table, ids)
            x = self.norm(x, "norm")
        x = tf.reshape(x, [BATCH * LENGTH, WIDTH])
        x = self.norm(x + self.attention(x), "attention_norm")
        hidden = self.dense(tf.nn.relu(self.dense(x, 2 * WIDTH, "wide")), WIDTH, "narrow")
        x = self.norm(x + hidden, "output_norm")
        x = tf.gather(x, tf.range(BATCH) * LENGTH + places)
        with tf1.variable_scope("predictions"):
            bias = rehearsal.variable("bias", np.zeros(VOCABULARY), tf.float32)
            logits = tf.cast(tf.matmul(x, table, transpose_b=True), tf.float32) + bias
        each = tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=answers, logits=logits)
        return tf.reduce_sum(each * weight)


def _rate(global_step):
    """Up for `WARM_UP` steps, then down to zero in a straight line."""
    down = tf1.train.polynomial_decay(RATE, global_step, rehearsal.STEPS)
    share = tf.cast(global_step, tf.float32) / WARM_UP
    return tf1.where(share < 1.0, RATE * share, down)


def _batches(micro_batches, ids, places, answers):
    """Sequences that count upwards, round and round, with one token masked."""
    random = np.random.RandomState(1)
    rows = np.arange(BATCH)
    while True:
        feeds = []
        for _ in range(micro_batches):
            start = random.randint(0, VOCABULARY - 1, BATCH)
            tokens = 1 + (start[:, None] + np.arange(LENGTH)) % (VOCABULARY - 1)
            masked = random.randint(0, LENGTH, BATCH)
            right = tokens[rows, masked]
            tokens[rows, masked] = MASK
            feeds.append({ids: tokens, places: masked, answers: right})
        yield feeds


def _build(wrap, dtype, micro_batches=1):
    ids = tf1.placeholder(tf.int32, [BATCH, LENGTH])
    places, answers = tf1.placeholder(tf.int32, [BATCH]), tf1.placeholder(tf.int32, [BATCH])
    weight = tf1.placeholder(tf.float32, [])
    with tf1.variable_scope("bert", custom_getter=rehearsal.float32_storage):
        loss = _Network(dtype).loss(ids, places, answers, weight)
    global_step = tf1.train.get_or_create_global_step()
    optimizer = wrap(AdamWeightDecayOptimizer(_rate(global_step)))
    variables = tf1.trainable_variables()
    pairs = optimizer.compute_gradients(loss / micro_batches, variables)
    grads = [grad for grad, _ in pairs]
    finite = rehearsal.all_finite(grads)
    # A norm that is not finite would make all gradients NaN.
    norm = tf1.cond(finite, lambda: tf1.global_norm(grads), lambda: tf.constant(1.0))
    clipped, _ = tf.clip_by_global_norm(grads, 1.0, use_norm=norm)

    def apply(grads):
        return optimizer.apply_gradients(list(zip(grads, variables)), global_step)

    if micro_batches == 1:
        applied = apply(clipped)
    else:
        sums, finite_so_far, last = _accumulate(clipped, finite, variables, micro_batches)
        applied = tf1.cond(last, lambda: apply(sums), tf.no_op)
        counts = tf.logical_and(last, finite_so_far)
    with tf.control_dependencies([applied]):
        counts = finite if micro_batches == 1 else counts
        train_op = tf1.assign_add(global_step, tf.cast(counts, tf.int64))
    batches = _batches(micro_batches, ids, places, answers)
    return rehearsal.Built(train_op, loss, grads, weight, batches, FIRST)


def _accumulate(grads, finite, variables, micro_batches):
    """Adds up the gradients; returns the sums, whether all are finite, whether this is the last."""

    def kept(name, value):
        return tf1.get_variable(f"accumulated/{name}", trainable=False, initializer=value)

    micro_step = kept("micro_step", 0)
    finite_so_far = kept("finite", True)
    sums = [kept(each.op.name, np.zeros(each.shape.as_list(), np.float32)) for each in variables]
    first = tf.equal(micro_step % micro_batches, 0)
    grads = [tf.convert_to_tensor(grad) for grad in grads]
    with tf.control_dependencies([first]):
        together = tf1.cond(first, lambda: finite, lambda: tf.logical_and(finite_so_far, finite))
        together = tf1.assign(finite_so_far, together)
        grads = tf1.cond(
            first,
            lambda: [tf1.assign(total, grad) for total, grad in zip(sums, grads)],
            lambda: [tf1.assign_add(total, grad) for total, grad in zip(sums, grads)],
        )
        micro_step = tf1.assign_add(micro_step, 1)
    return grads, together, tf.equal(micro_step % micro_batches, 0)


def adam_in_float16(contrib):
    """Every batch is a step."""

    def wrap(optimizer):
        manager = contrib.ExponentialUpdateLossScaleManager(
            init_loss_scale=2**32,
            incr_every_n_steps=30,
            decr_every_n_nan_or_inf=2,
            decr_ratio=0.5,
        )
        return contrib.LossScaleOptimizer(optimizer, manager)

    return _build(wrap, tf.float16)


def adam_for_the_rewrite(experimental):
    """Two micro-batches to a step; sparse gradients stay sparse until they are added up."""

    def wrap(optimizer):
        try:
            return experimental.enable_mixed_precision_graph_rewrite(
                optimizer, experimental.DynamicLossScale(2.0**126, increment_period=30)
            )
        finally:
            # It finds no device to convert anything for here, but would for later tests.
            experimental.disable_mixed_precision_graph_rewrite()

    return _build(wrap, tf.float32, micro_batches=2)


PROGRAMS = {"contrib": (adam_in_float16,), "experimental": (adam_for_the_rewrite,)}
