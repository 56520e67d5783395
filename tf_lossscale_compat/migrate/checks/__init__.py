"""What cannot be rewritten safely and is reported: one module for each kind.

Each has `find(plan)`, which yields pairs: where a place is in the source, in bytes, and a message
with what it is and what to do.
"""

from tf_lossscale_compat.migrate.checks import (
    compiled_loss,
    dynamic_access,
    estimator,
    float16_overflow,
    other_contrib,
    other_modules,
    policies,
    star_imports,
    strings,
    unknown_tensorflow,
    unscaled_gradients,
    version_guards,
)

CHECKS = (
    compiled_loss,
    dynamic_access,
    estimator,
    float16_overflow,
    other_contrib,
    other_modules,
    policies,
    star_imports,
    strings,
    unknown_tensorflow,
    unscaled_gradients,
    version_guards,
)
