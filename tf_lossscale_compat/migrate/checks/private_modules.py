"""TensorFlow's and Keras' private modules about loss scaling.

They went without notice, each in another version. What is imported from them may be more than the
public classes, so a person has to look.
"""

import re

from tf_lossscale_compat.migrate.checks._finding import Finding

_PRIVATE = re.compile(
    r"(?:tensorflow\.python\.training\.experimental\.(?P<v1>loss_scale\w*|mixed_precision)"
    r"|tensorflow\.python\.keras\.mixed_precision\.(?:experimental\.)?loss_scale\w*"
    r"|keras\.(?:src\.)?mixed_precision\.loss_scale\w*)(?:\.\w+)*$"
)


def find(plan):
    """Yields the imports of a private module, or from one."""
    for binding in plan.tree.bindings:
        match = _PRIVATE.match(binding.path)
        if match:
            new = "train.experimental" if match.group("v1") else "keras.mixed_precision"
            yield Finding(
                plan.tree.span(binding.alias)[0],
                f"`{binding.path}` is private to TensorFlow or Keras: take the public classes of"
                f" `tf_lossscale_compat.{new}`",
            )
