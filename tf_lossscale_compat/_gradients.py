"""Scaling losses, unscaling gradients, and the finite test: dense, sparse, None, any dtype."""

from tf_lossscale_compat import _tf

tf = _tf.tf


def scale_loss(loss, scale):
    """Returns `loss` times `scale`, in the dtype of `loss`.

    Args:
      loss: float tensor, or what converts to one.
      scale: float32 scalar tensor.
    """
    loss = tf.convert_to_tensor(loss)
    return loss * tf.cast(scale, loss.dtype)


def unscale(grad, reciprocal):
    """Returns `grad` times `reciprocal`, in the dtype of `grad`; sparse stays sparse.

    Args:
      grad: tensor, `tf.IndexedSlices` or None.
      reciprocal: float32 scalar tensor, one over the loss scale.
    """
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values * tf.cast(reciprocal, grad.values.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad * tf.cast(reciprocal, grad.dtype)


def _finite(grad):
    """Returns bool scalar tensors that are all True if and only if `grad` is finite."""
    if isinstance(grad, tf.IndexedSlices):
        grad = grad.values
    grad = tf.convert_to_tensor(grad)
    if grad.dtype.is_complex:
        parts = [tf.math.real(grad), tf.math.imag(grad)]
    elif grad.dtype == tf.bfloat16:
        # Exact, and older versions have no bfloat16 kernel for the test.
        parts = [tf.cast(grad, tf.float32)]
    elif grad.dtype.is_floating:
        parts = [grad]
    else:
        parts = []  # Integers are finite.
    return [tf.reduce_all(tf.math.is_finite(part)) for part in parts]


def all_finite(grads):
    """Returns whether every element of `grads` is finite, as a bool scalar tensor.

    Args:
      grads: nested structure of tensors and `tf.IndexedSlices` of any dtype; None is ignored.
        An empty tensor is finite, as is a structure without tensors.
    """
    tests = []
    for grad in tf.nest.flatten(grads):
        if grad is not None:
            tests.extend(_finite(grad))
    if not tests:
        return tf.constant(True)
    return tests[0] if len(tests) == 1 else tf.reduce_all(tf.stack(tests))
