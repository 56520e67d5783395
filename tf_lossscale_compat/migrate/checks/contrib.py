"""Private names of `tf.contrib.mixed_precision`, and names where `tf` may be TensorFlow or not."""

import re

from tf_lossscale_compat.migrate import rewrites

_CONTRIB = "tensorflow.contrib.mixed_precision."
_LOOKS_LIKE_TENSORFLOW = re.compile(r"(?:\w+\.)*?_*(?:tf|tensorflow)(?:_?(?:compat_)?v?[12])?\.")
_MESSAGE = (
    "LSC212 `tf{}` was not public: use a class of `tf_lossscale_compat.contrib.mixed_precision`"
)


def find(plan):
    """Yields other names of contrib's module, and names that may be one that moves."""
    for binding in plan.tree.bindings:
        if not (plan.is_moved(binding) or plan.is_dropped(binding)) and _is_private(binding.path):
            yield binding.alias, _message(binding.path)
    for chain in plan.tree.chains:
        for binding, name in chain.imported if not plan.is_edited(chain) else ():
            if not plan.is_moved(binding) and _is_private(name) and not _is_private(binding.path):
                yield chain, _message(name)
                break
    yield from _maybe(plan.tree)


def _is_private(name):
    namespace, rest = rewrites.find(name)
    is_known = namespace is not None and (not rest or rest[0] in namespace.members)
    return rewrites.canonical(name).startswith(_CONTRIB) and not is_known


def _message(name):
    return _MESSAGE.format(rewrites.canonical(name)[len("tensorflow") :])


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
    for chain in tree.chains:
        qualified = as_tensorflow(chain)
        namespace, rest = rewrites.find_member(qualified or "")
        if namespace is None:
            continue
        name = chain.text[: len("tensorflow") - len(qualified)]
        sources = [binding.path for binding in chain.bindings]
        if sources:
            why = f"`{name}` comes from `{sources[0]}` (say so by --tensorflow-as)"
        elif name != chain.names[0]:
            why = f"`{name}` is an attribute"
        else:
            why = f"`{name}` is {'assigned' if chain.references else 'not imported'} in this file"
        new = ".".join([namespace.new, *rest])
        yield chain, f"LSC207 {why}: if it is TensorFlow, write `{new}`"
