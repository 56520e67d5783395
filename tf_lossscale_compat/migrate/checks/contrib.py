"""Other members of `tf.contrib`, and names where `tf` may be TensorFlow or not."""

import collections
import re

from tf_lossscale_compat import _contrib_successors
from tf_lossscale_compat.migrate import rewrites

_CONTRIB = "tensorflow.contrib"
_LOOKS_LIKE_TENSORFLOW = re.compile(r"(?:\w+\.)*?_*(?:tf|tensorflow)(?:_?(?:compat_)?v?[12])?\.")


def find(plan):
    """Yields what imports, mentions or may mention another member of contrib, or what moves.

    Other members are reported only if the file is about loss scaling, each name once, or with
    `--contrib`.
    """
    found, places = list(_maybe(plan.tree)), collections.defaultdict(list)
    if plan.to >= (2, 0):
        found += [*_imported(plan), *_mentioned(plan)]
    for start, message in sorted(found):
        if message.startswith("LSC"):  # It is no other member of contrib.
            yield start, message
        elif plan.lists_contrib:
            places[message].append(start)
    for message, starts in places.items():
        count = f", {len(starts)} times in this file" if len(starts) > 1 else ""
        yield starts[0], f"LSC211 {message}{count}"


def _imported(plan):
    for binding in plan.tree.bindings:
        if plan.is_moved(binding) or plan.is_dropped(binding):
            continue
        canonical = rewrites.canonical(binding.path)
        if _is_unknown(binding.path):
            yield plan.tree.start(binding.alias), _message(canonical)
        elif canonical == _CONTRIB and all(map(plan.is_edited, binding.chains)):
            advice = (
                "`tf.contrib` was removed in TensorFlow 2.0: remove the import if nothing needs it"
            )
            yield plan.tree.start(binding.alias), advice


def _mentioned(plan):
    for chain in plan.tree.chains:
        for binding, name in chain.imported if not plan.is_edited(chain) else ():
            if plan.is_moved(binding) or not _is_unknown(name):
                continue
            canonical, imported = map(rewrites.canonical, (name, binding.path))
            # What the import already brings was reported there.
            if not (_is_unknown(imported) and (canonical + ".").startswith(imported + ".")):
                yield plan.tree.start(chain.nodes[0]), _message(canonical)
                break


def _is_unknown(name):
    """Returns whether a name is in contrib and no rewrite knows it."""
    namespace, rest = rewrites.find(name)
    return rewrites.canonical(name).startswith(_CONTRIB + ".") and (
        namespace is None or bool(rest and rest[0] not in namespace.members)
    )


def _message(canonical):
    name = "tf" + canonical[len("tensorflow") :]
    if name.split(".")[2] == "mixed_precision":
        ours = "tf_lossscale_compat.contrib.mixed_precision"
        return f"LSC212 `{name}` was not public: use a class of `{ours}`"
    successor = _contrib_successors.successor(canonical)
    advice = f"use {successor}" if successor else "replace it by hand"
    return f"`{name}` was removed in TensorFlow 2.0: {advice}"


# -- names that may be TensorFlow's -----------------------------------------------------------


def as_tensorflow(chain):
    """Returns a chain's qualified name if it may begin with TensorFlow, None if it may not.

    It may where no import of TensorFlow, Keras or this package shows what its name is.
    """
    roots = {name.split(".")[0] for _, name in chain.imported}
    match = _LOOKS_LIKE_TENSORFLOW.match(chain.text)
    if not match or roots & {*rewrites.ROOTS, "tf_lossscale_compat"}:
        return None
    return "tensorflow." + chain.text[match.end() :]


def _maybe(tree):
    """Yields where and what to say, with a code unless it is another member of contrib."""
    for chain in tree.chains:
        qualified = as_tensorflow(chain)
        namespace, rest = rewrites.find_member(qualified or "")
        if namespace is not None:
            advice = f"write `{'.'.join([namespace.new, *rest])}`"
        elif qualified and _is_unknown(qualified) and "mixed_precision" not in qualified:
            advice = _message(rewrites.canonical(qualified))
        else:
            continue
        name = chain.text[: len("tensorflow") - len(qualified)]
        sources = [binding.path for binding in chain.bindings]
        if sources:
            why = f"`{name}` comes from `{sources[0]}` (say so by --tensorflow-as)"
        elif name != chain.names[0]:
            why = f"`{name}` is an attribute"
        else:
            why = f"`{name}` is {'assigned' if chain.references else 'not imported'} in this file"
        code = "" if namespace is None else "LSC207 "
        yield tree.start(chain.nodes[0]), f"{code}{why}: if it is TensorFlow, {advice}"
