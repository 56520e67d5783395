"""Loss scales of users' own that several files of tests use."""

import tensorflow as tf

from tf_lossscale_compat import LossScale


class Counted(LossScale):
    """With as many variables as a dynamic one, in another order; every step is applied."""

    def __init__(self):
        self.scale = self._add_weight("scale", 64.0, tf.float32)
        self.seen = self._add_weight("seen", 0, tf.int64)

    def __call__(self):
        return tf.identity(self.scale)

    def update(self, grads):
        self.seen.assign_add(1)
        return None, True

    def get_config(self):
        return {}
