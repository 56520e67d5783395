"""Members of `tf.contrib` besides `mixed_precision`."""

from tf_lossscale_compat.migrate import _successors, rewrites

_CONTRIB = "tensorflow.contrib"


def _message(canonical):
    name = "tf" + canonical[len("tensorflow") :]
    if name.split(".")[2] == "mixed_precision":
        return (
            f"`{name}` is nothing that TensorFlow 1.15 made public, and this package has no such"
            " name: use one of the classes of `tf_lossscale_compat.contrib.mixed_precision`"
        )
    return f"`{name}` is gone since TensorFlow 2.0: {advice(canonical)}"


def advice(canonical):
    """Returns what to do about a member of contrib."""
    successor = _successors.successor(canonical)
    return f"write {successor}" if successor else "replace it by hand"


def _is_below(canonical, above):
    return canonical.startswith(above + ".")


def find(plan):
    """Yields what imports or mentions another member of contrib."""
    if plan.to < (2, 0):
        return
    for binding in plan.tree.bindings:
        canonical = rewrites.canonical(binding.path)
        if plan.is_moved(binding) or plan.is_dropped(binding):
            continue
        if _is_unknown(binding.path):
            yield plan.tree.start(binding.alias), _message(canonical)
        elif canonical == _CONTRIB and all(plan.is_edited(chain) for chain in binding.chains):
            yield (
                plan.tree.start(binding.alias),
                "`tf.contrib` is gone since TensorFlow 2.0: remove this import if nothing needs it",
            )
    for chain in plan.tree.chains:
        if plan.is_edited(chain):
            continue
        for binding, name in chain.references:
            if binding is None or plan.is_moved(binding) or not _is_unknown(name):
                continue
            canonical = rewrites.canonical(name)
            imported = rewrites.canonical(binding.path)
            # What the import already brings was reported there.
            if _is_unknown(imported) and (canonical + ".").startswith(imported + "."):
                continue
            yield plan.tree.start(chain.nodes[0]), _message(canonical)
            break


def _is_unknown(name):
    """Whether a name is in contrib and no rewrite knows it."""
    if not _is_below(rewrites.canonical(name), _CONTRIB):
        return False
    namespace, rest = rewrites.find(name)
    return namespace is None or bool(rest and rest[0] not in namespace.members)
