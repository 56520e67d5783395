"""Names that are reached in ways that no tool can follow: star imports, values and strings."""

import re

import libcst as cst

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate._tree import dotted

_NAME = re.compile(r"(?<![\w.])(?:tf|tensorflow|tensorflow_core|keras|tf_keras)(?:\.[A-Za-z_]\w*)+")
_TODAY = ("keras.mixed_precision", "tf_keras.mixed_precision")


def find(plan):
    """Yields star imports, namespaces that are used as values, and strings with a name."""
    yield from _star_imports(plan)
    yield from _values(plan)
    yield from _strings(plan.tree)


def _star_imports(plan):
    """Yields star imports of a namespace with loss scales, of contrib, and of what is above."""
    tree = plan.tree
    for statement in tree.statements:
        node = statement.node
        if not isinstance(node.names, cst.ImportStar) or node.relative or node.module is None:
            continue
        path = dotted(node.module)
        namespace, rest = rewrites.find(path)
        what = f"LSC204 a star import of `{path}`"
        if namespace is not None and not rest:
            yield node, f"{what}: import the names that are used, from `{namespace.new}`"
        else:
            for chain in tree.chains:
                namespace, rest = rewrites.find_member(f"{path}.{chain.text}")
                if namespace is not None and rest and not chain.references:
                    new = ".".join([namespace.new, *rest])
                    yield chain, f"LSC204 `{chain.text}`, by a star import: write `{new}`"


def _values(plan):
    """Yields what takes `tf.contrib`, or a namespace with loss scales, as a value."""
    # Attributes of names that no import binds: perhaps a namespace's new name.
    aliased = {
        chain.names[1]
        for chain in plan.tree.chains
        if len(chain.names) > 1 and not chain.bindings and chain.references
    }
    looked = {
        id(call.args[0].value): (chain.text, call.args[1].value)
        for chain, call in plan.tree.calls
        if chain.text in ("getattr", "setattr", "delattr") and len(call.args) > 1
    }
    for chain in plan.tree.chains:
        if not plan.is_ours(chain):
            message = _as_value(chain, aliased, *looked.get(id(chain.nodes[-1]), (None, None)))
            if message:
                yield chain, message


def _as_value(chain, aliased, function, argument):
    name = getattr(argument, "evaluated_value", None)
    for _, qualified in chain.imported:
        canonical = rewrites.canonical(qualified)
        namespace, rest = rewrites.find(qualified)
        if canonical == "tensorflow.contrib" or (
            canonical == "tensorflow" and function and name == "contrib"
        ):
            where = f"looked into with `{function}`" if function else "used as a value"
            ours = "tf_lossscale_compat.contrib.mixed_precision"
            return f"LSC205 `tf.contrib` is {where}: for its loss scaling use `{ours}`"
        if namespace is None or rest:
            continue
        members = set(namespace.members)
        if function and (not isinstance(name, str) or name in members):
            where = f"looked into with `{function}`: for {_listing(members)}"
        elif not function and aliased & members:
            where = f"used as a value: where that leads to {_listing(aliased & members)},"
        else:
            continue
        return f"LSC205 `{chain.text}` is {where} use `{namespace.new}`"
    return None


def _listing(names):
    return ", ".join(f"`{name}`" for name in sorted(names))


def _strings(tree):
    """Yields each place in a string that names what moves."""
    for node in tree.strings:
        for match in _NAME.finditer(node.value):
            name = match.group()
            qualified = "tensorflow" + name[2:] if name.startswith("tf.") else name
            namespace, rest = rewrites.find_member(qualified)
            # Keras has a class of that name today, so a string that names it may be right.
            if namespace is not None and namespace.old not in _TODAY:
                start = tree.start(node) + len(node.value[: match.start()].encode("utf-8"))
                advice = f"if it is used as the name, write `{'.'.join([namespace.new, *rest])}`"
                yield start, f"LSC206 a string names `{name}`: {advice}"
