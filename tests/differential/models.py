"""What has no original here, in a few lines each, as docs/ describes it."""

import tensorflow as tf

from tests import modes, rules

tf1 = tf.compat.v1


def finite(grads):
    return all(bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(g)))) for g in grads)


class DynamicLossScale:
    """R2.0's with what is beyond it, in eager mode."""

    def __init__(self, initial, period, multiplier=2.0, **bounds):
        self._current_loss_scale = tf.Variable(initial, trainable=False, dtype=tf.float32)
        self._num_good_steps = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._rule = {"period": period, "multiplier": multiplier, **bounds}

    def __call__(self):
        return tf.convert_to_tensor(self._current_loss_scale)

    def update(self, grads):
        flag, state = finite(grads), (self._current_loss_scale, self._num_good_steps)
        values = rules.dynamic([each.numpy() for each in state], flag, **self._rule)
        for variable, value in zip(state, values):
            variable.assign(value)
        return None, tf.constant(flag)


class FixedLossScaleManager:
    """R1.15's, as the next two, for the TensorFlows without contrib."""

    def __init__(self, loss_scale):
        self._scale = tf.convert_to_tensor(loss_scale, tf.float32)

    def get_loss_scale(self):
        return self._scale

    def update_loss_scale(self, flag):
        return tf.no_op()


class ExponentialUpdateLossScaleManager:
    def __init__(self, start, period, bad_period=2, increase=2, decrease=0.8):
        def make(name, value, dtype):
            return tf1.Variable(value, trainable=False, dtype=dtype, name=name)

        self._rule = period, bad_period, increase, decrease
        self._loss_scale = make("loss_scale", start, tf.float32)
        self._num_good_steps = make("good_steps", 0, tf.int32)
        self._num_bad_steps = make("bad_steps", 0, tf.int32)

    def get_loss_scale(self):
        return self._loss_scale

    def update_loss_scale(self, flag):
        period, bad_period, increase, decrease = self._rule
        scale, good, bad = self._loss_scale, self._num_good_steps, self._num_bad_steps

        def changed(ratio):
            grown = scale * ratio if ratio >= 1 else tf.maximum(1.0, scale * ratio)
            kept = branch(tf.math.is_finite(grown), lambda: [scale.assign(grown)], list)
            return [kept, good.assign(0), bad.assign(0)]

        def of_good():
            return branch(
                good + 1 >= period, lambda: changed(increase), lambda: [good.assign_add(1)]
            )

        def of_bad():
            return branch(
                bad + 1 >= bad_period,
                lambda: changed(decrease),
                lambda: [bad.assign_add(1), good.assign(0)],
            )

        return branch(flag, lambda: [of_good()], lambda: [of_bad()])


class LossScaleOptimizer:
    def __init__(self, opt, manager):
        self._opt, self._manager = opt, manager

    def compute_gradients(self, loss, **options):
        scale = tf.convert_to_tensor(self._manager.get_loss_scale())
        scaled = (lambda: loss() * scale) if callable(loss) else loss * scale
        pairs = self._opt.compute_gradients(scaled, **options)
        one_over = 1.0 / scale
        dense = [(tf.convert_to_tensor(grad), var) for grad, var in pairs]
        return [(grad * tf.cast(one_over, grad.dtype), var) for grad, var in dense]

    def apply_gradients(self, pairs, global_step=None, name=None):
        tests = [tf.reduce_all(tf.math.is_finite(grad)) for grad, _ in pairs]
        flag = tf.reduce_all(tests)

        def apply():
            return self._opt.apply_gradients(pairs, global_step, name)

        if tf.executing_eagerly():
            if flag:  # In TensorFlow 2.0 a conditional would give its name to what is made in it.
                apply()
            return self._manager.update_loss_scale(flag)
        with modes.control_flow(1):
            done = tf1.cond(flag, apply, tf.no_op)
        with tf.control_dependencies([done]):
            return tf.group(self._manager.update_loss_scale(flag))

    def minimize(self, loss, global_step=None, name=None, **options):
        pairs = self.compute_gradients(loss, **options)
        return self.apply_gradients(pairs, global_step, name)


def branch(flag, chosen, other):
    """A conditional of two functions that return what they have done."""
    if tf.executing_eagerly():
        chosen() if flag else other()
        return None

    def after(done):
        with tf.control_dependencies([tf.group(*done())]):
            return tf.constant(0)

    return tf.cond(flag, lambda: after(chosen), lambda: after(other))
