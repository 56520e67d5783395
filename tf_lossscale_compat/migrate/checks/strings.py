"""Strings that hold one of the names: for `importlib`, `mock.patch`, quoted annotations, docs.

Whether a string is code or prose only a person can tell.
"""

import re

from tf_lossscale_compat.migrate import rewrites

_NAME = re.compile(r"(?<![\w.])(?:tf|tensorflow|tensorflow_core|keras|tf_keras)(?:\.[A-Za-z_]\w*)+")

_TODAY = ("keras.mixed_precision", "tf_keras.mixed_precision")


def find(plan):
    """Yields each place in a string that names what moves."""
    tree = plan.tree
    for node in tree.strings:
        text = node.value
        if "." not in text:
            continue
        for match in _NAME.finditer(text):
            name = match.group()
            qualified = "tensorflow" + name[2:] if name.startswith("tf.") else name
            namespace, rest = rewrites.find_member(qualified)
            # Keras has a class of that name today, so a string that names it may be right.
            if namespace is None or namespace.old in _TODAY:
                continue
            start = tree.start(node) + len(text[: match.start()].encode("utf-8"))
            yield (
                start,
                f"a string names `{name}`: if code or a reader takes it for the name, write"
                f" `{'.'.join([namespace.new, *rest])}`",
            )
