"""What cannot be rewritten safely and is reported: one module for each kind.

Each has `find(plan)`, which yields a `Finding` for every place.
"""

from tf_lossscale_compat.migrate.checks import (
    dynamic_access,
    other_contrib,
    policy_loss_scale,
    private_modules,
    star_imports,
    strings,
    unknown_tensorflow,
)
from tf_lossscale_compat.migrate.checks._finding import Finding

CHECKS = (
    dynamic_access,
    other_contrib,
    policy_loss_scale,
    private_modules,
    star_imports,
    strings,
    unknown_tensorflow,
)

__all__ = ["CHECKS", "Finding"]
