"""`if tf2: raise …` in a file that is rewritten: it would keep it from running where it now can."""

import re

import libcst as cst

_VERSION = re.compile(
    r"\b\w*tf_?v?2\w*\b|\btf\w*_version|(?:tf|tensorflow)\w*\.(?:__version__|VERSION\b)"
    r"|hasattr\(\s*(?:tf|tensorflow)\w*\s*,\s*[\"']contrib[\"']",
    re.IGNORECASE,
)
_EXITS = ("exit", "sys.exit", "os._exit", "quit")


def _raises(tree, block):
    """Whether a block ends the program or raises, directly."""
    for line in block.body.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else [line]:
            value = getattr(statement, "value", None)
            exits = isinstance(value, cst.Call) and tree.text(value.func) in _EXITS
            if exits or isinstance(statement, cst.Raise):
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
        yield (
            tree.start(node),
            "this condition on the version of TensorFlow stops the program: let the version pass"
            " that you go to",
        )
