"""`from tensorflow.contrib.mixed_precision import *`: which names are meant is not to be seen."""

import libcst as cst

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate._tree import dotted


def find(plan):
    """Yields star imports of a namespace with loss scales, of contrib, and of what is above."""
    tree = plan.tree
    for statement in tree.statements:
        node = statement.node
        if not isinstance(node, cst.ImportFrom) or not isinstance(node.names, cst.ImportStar):
            continue
        if node.relative or node.module is None:
            continue
        path = dotted(node.module)
        namespace, rest = rewrites.find(path)
        if namespace is not None and not rest:
            yield (
                tree.start(node),
                f"a star import of `{path}`: import the names that are used, from"
                f" `{namespace.new}`",
            )
        elif rewrites.canonical(path).startswith("tensorflow.contrib"):
            yield (
                tree.start(node),
                f"a star import of `{path}`, gone since TensorFlow 2.0: replace it by hand",
            )
        else:
            for chain in tree.chains:
                if chain.references:
                    continue
                namespace, rest = rewrites.find(f"{path}.{chain.text}")
                if namespace is not None and (rest[:1] or [None])[0] in namespace.members:
                    yield (
                        tree.start(chain.nodes[0]),
                        f"`{chain.text}` seems to come from a star import of `{path}`: write"
                        f" `{'.'.join([namespace.new, *rest])}`",
                    )
