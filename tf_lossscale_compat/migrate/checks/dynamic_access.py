"""Namespaces that are used as values, `getattr(tf.contrib, name)` above all.

Which of their members is meant shows at run time only.
"""

from tf_lossscale_compat.migrate import rewrites


def _constant(node):
    """Returns the string that a node is, None for anything else."""
    value = getattr(node, "evaluated_value", None)
    return value if isinstance(value, str) else None


def _reached_by_alias(tree):
    """Returns the attributes of names that no import binds: perhaps a namespace's new name."""
    return {
        chain.names[1]
        for chain in tree.chains
        if len(chain.names) > 1 and not chain.bindings and chain.references
    }


def find(plan):
    """Yields what takes `tf.contrib`, or a namespace with loss scales, as a value."""
    tree = plan.tree
    aliased = _reached_by_alias(tree)
    for chain in tree.chains:
        if plan.is_ours(chain):
            continue
        function, argument = chain.function or (None, None)
        name = _constant(argument)
        for binding, qualified in chain.references:
            if binding is None:
                continue
            canonical = rewrites.canonical(qualified)
            namespace, rest = rewrites.find(qualified)
            start = tree.start(chain.nodes[0])
            if canonical == "tensorflow.contrib" or (
                canonical == "tensorflow" and function and name == "contrib"
            ):
                where = f"looked into with `{function}`" if function else "used as a value"
                yield (
                    start,
                    f"`tf.contrib` is {where} and is gone since TensorFlow 2.0: for its loss"
                    " scaling take `tf_lossscale_compat.contrib.mixed_precision`",
                )
                break
            if namespace is None or rest:
                continue
            if function and (name is None or name in namespace.members):
                yield (
                    start,
                    f"`{chain.text}` is looked into with `{function}`: for"
                    f" {_listing(namespace.members)} take `{namespace.new}`",
                )
                break
            if not function and aliased & set(namespace.members):
                yield (
                    start,
                    f"`{chain.text}` is used as a value: where that leads to"
                    f" {_listing(aliased & set(namespace.members))}, take `{namespace.new}`",
                )
                break


def _listing(names):
    return ", ".join(f"`{name}`" for name in sorted(names))
