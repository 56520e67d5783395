"""`Policy(name, loss_scale=…)` of `tf.keras.mixed_precision.experimental`.

In TensorFlow 2.0 to 2.3 a policy held a loss scale, and `Model.compile` wrapped the optimizer with
it. TensorFlow 2.4 took the argument away: https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0
"""

import re

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate.checks._finding import Finding

_POLICY = re.compile(r"(tensorflow\.)?keras\.mixed_precision\.(experimental\.)?Policy(V1)?$")
_MESSAGE = (
    "a policy takes no loss scale any more: leave the argument out and wrap the optimizer in"
    " `tf_lossscale_compat.keras.mixed_precision.experimental.LossScaleOptimizer(optimizer,"
    " loss_scale)`"
)


def find(plan):
    """Yields the calls of a policy with a loss scale."""
    for chain, call in plan.tree.calls:
        names = [name for binding, name in chain.references if binding is not None]
        if not any(_POLICY.match(rewrites.canonical(name)) for name in names):
            continue
        positional = [argument for argument in call.args if argument.keyword is None]
        keywords = [argument.keyword.value for argument in call.args if argument.keyword]
        if "loss_scale" in keywords or len(positional) > 1:
            yield Finding(plan.tree.span(chain.nodes[0])[0], _MESSAGE)
