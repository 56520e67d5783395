"""What cannot be rewritten safely and is reported: one module for each kind.

Each has `find(plan)`, which yields a `Finding` for every place.
"""

from tf_lossscale_compat.migrate.checks import (
    dynamic_access,
    estimator,
    float16_overflow,
    horovod_compression,
    other_contrib,
    policy_loss_scale,
    private_modules,
    star_imports,
    strings,
    unknown_tensorflow,
    unscaled_gradients,
    version_guards,
)
from tf_lossscale_compat.migrate.checks._finding import Finding

CHECKS = (
    dynamic_access,
    estimator,
    float16_overflow,
    horovod_compression,
    other_contrib,
    policy_loss_scale,
    private_modules,
    star_imports,
    strings,
    unknown_tensorflow,
    unscaled_gradients,
    version_guards,
)

__all__ = ["CHECKS", "Finding"]
