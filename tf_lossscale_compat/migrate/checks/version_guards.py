"""`if tf2: raise …` in a file that is rewritten: it would keep it from running where it now can."""

import re

import libcst as cst

from tf_lossscale_compat.migrate.checks._finding import Finding

_VERSION = re.compile(
    r"\b\w*tf_?v?2\w*\b|\btf\w*_version|(?:tf|tensorflow)\w*\.(?:__version__|VERSION\b)"
    r"|hasattr\(\s*(?:tf|tensorflow)\w*\s*,\s*[\"']contrib[\"']",
    re.IGNORECASE,
)
_EXITS = ("exit", "sys.exit", "os._exit", "quit")


def _raises(tree, block):
    """Whether a block ends the program or raises, directly."""
    statements = list(getattr(block.body, "body", []))
    for statement in list(statements):
        statements += (
            getattr(statement, "body", []) if isinstance(statement, cst.SimpleStatementLine) else []
        )
    for statement in statements:
        if isinstance(statement, cst.Raise):
            return True
        value = getattr(statement, "value", None)
        if isinstance(value, cst.Call) and tree.text(value.func) in _EXITS:
            return True
    return False


def find(plan):
    """Yields conditions on the version of TensorFlow behind which something is raised."""
    if not plan.is_about_loss_scaling:
        return
    tree = plan.tree
    for node in tree.branches:
        if not _VERSION.search(tree.text(node.test)):
            continue
        if isinstance(node, cst.If):
            other = node.orelse if isinstance(node.orelse, cst.Else) else None
            if not _raises(tree, node) and not (other and _raises(tree, other)):
                continue
        yield Finding(
            tree.span(node)[0],
            f"`{tree.text(node.test)}` looks at the version of TensorFlow and stops the program:"
            " see to it that it lets the version pass that you go to",
        )
