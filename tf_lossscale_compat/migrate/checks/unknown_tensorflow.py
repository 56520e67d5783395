"""`tf.contrib.mixed_precision.X` where nothing shows that `tf` is TensorFlow.

It is assigned, a parameter, an attribute such as `self.tf`, imported from somewhere else, or not
bound in this file at all.
"""

import re

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate.checks import other_contrib

_LOOKS_LIKE_TENSORFLOW = re.compile(r"_*(tf|tensorflow)(_?(compat_)?v?[12])?$")


def _place(chain):
    """Returns which of a chain's names may be TensorFlow, None if none may."""
    for number, name in enumerate(chain.names[:-1]):
        if _LOOKS_LIKE_TENSORFLOW.match(name):
            return number
    return None


def looks_like_tensorflow(chain):
    """Whether a chain may begin with TensorFlow though no import of TensorFlow shows it."""
    roots = [name.split(".")[0] for binding, name in chain.references if binding is not None]
    ours = any(root in (*rewrites.ROOTS, "tf_lossscale_compat") for root in roots)
    return not ours and _place(chain) is not None


def as_tensorflow(chain):
    """Returns what such a chain's qualified name would be."""
    return ".".join(["tensorflow", *chain.names[_place(chain) + 1 :]])


def find(plan):
    """Yields names that would be rewritten if their first part were TensorFlow."""
    tree = plan.tree
    for chain in tree.chains:
        if not looks_like_tensorflow(chain):
            continue
        advice = _advice(as_tensorflow(chain))
        if advice is None:
            continue
        name = ".".join(chain.names[: _place(chain) + 1])
        sources = [binding.path for binding in chain.bindings]
        if sources:
            why = f"`{name}` comes from `{sources[0]}` (say so by --tensorflow-as)"
        elif name != chain.names[0]:
            why = f"`{name}` is an attribute"
        elif chain.references:
            why = f"`{name}` is assigned in this file"
        else:
            why = f"`{name}` is not imported in this file"
        yield tree.start(chain.nodes[0]), f"{why}: if it is TensorFlow, {advice}"


def _advice(qualified):
    """Returns what to do about a name if it is TensorFlow's, None for nothing."""
    namespace, rest = rewrites.find_member(qualified)
    if namespace is not None:
        return f"write `{'.'.join([namespace.new, *rest])}`"
    parts = rewrites.canonical(qualified).split(".")
    if parts[:2] != ["tensorflow", "contrib"] or parts[2:3] in ([], ["mixed_precision"]):
        return None
    advice = other_contrib.advice(".".join(parts))
    return f"`tf.{'.'.join(parts[1:])}` is gone since TensorFlow 2.0: {advice}"
