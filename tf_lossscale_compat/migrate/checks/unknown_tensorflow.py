"""`tf.contrib.mixed_precision.X` where nothing shows that `tf` is TensorFlow.

It is assigned, a parameter, imported from somewhere else, or not bound in this file at all.
"""

import re

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate.checks._finding import Finding

_LOOKS_LIKE_TENSORFLOW = re.compile(r"_*(tf|tensorflow)(_?(compat_)?v?[12])?$")


def find(plan):
    """Yields names that would be rewritten if their first part were TensorFlow."""
    tree = plan.tree
    for chain in tree.chains:
        if len(chain.names) < 2 or not _LOOKS_LIKE_TENSORFLOW.match(chain.names[0]):
            continue
        sources = [binding.path for binding in chain.bindings]
        if any(path.split(".")[0] in rewrites.ROOTS for path in sources):
            continue
        namespace, rest = rewrites.find(".".join(["tensorflow", *chain.names[1:]]))
        if namespace is None or (rest and rest[0] not in namespace.members):
            continue
        if not rest and not namespace.whole:
            continue
        if sources:
            why = f"`{chain.names[0]}` comes from `{sources[0]}`"
        elif chain.references:
            why = f"`{chain.names[0]}` is assigned in this file"
        else:
            why = f"`{chain.names[0]}` is not imported in this file"
        yield Finding(
            tree.span(chain.nodes[0])[0],
            f"{why}: if it is TensorFlow, write `{'.'.join([namespace.new, *rest])}`",
        )
