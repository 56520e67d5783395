"""Horovod's float16 compression around an optimizer with a loss scale: of unscaled gradients.

Those below float16's smallest number become 0 there, which is what loss scaling is against.
"""

import ast

from tf_lossscale_compat.migrate.checks._finding import Finding

_OPTIMIZERS = ("LossScaleOptimizer", "MixedPrecisionLossScaleOptimizer")


def _key(node):
    """What a name, or an attribute of a name, is known by; None for anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id, node.attr)
    return None


def _compresses(call):
    """Whether Horovod may be told to compress: of an expression only `.none` says that it isn't."""
    given = [each.value for each in call.keywords if each.arg == "compression"]
    return bool(given) and not (isinstance(given[0], ast.Attribute) and given[0].attr == "none")


class _Visitor(ast.NodeVisitor):
    """Follows names from assignment to use in the order of the text."""

    def __init__(self, makes_wrapper):
        self._makes_wrapper = makes_wrapper
        self._wrappers = set()
        self.found = []

    def visit_Assign(self, node):
        self.visit(node.value)
        keys = {_key(target) for target in node.targets} - {None}
        self._wrappers -= keys
        if self._makes_wrapper(node.value):
            self._wrappers |= keys

    def visit_Call(self, node):
        self.generic_visit(node)
        name = (_key(node.func) or ("",))[-1]
        if name == "DistributedOptimizer" and node.args and _compresses(node):
            first = node.args[0]
            if self._makes_wrapper(first) or _key(first) in self._wrappers:
                self.found.append(node.func)


def find(plan):
    """Yields the calls of Horovod's that are given such an optimizer."""
    tree = plan.tree
    if all(chain.names[-1] != "DistributedOptimizer" for chain, _ in tree.calls):
        return
    made = {
        tree.span(chain.nodes[0])[0]
        for name, chain, _ in plan.wrapper_calls()
        if name in _OPTIMIZERS
    }
    starts = [0]
    for line in tree.source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(node):
        return starts[node.lineno - 1] + node.col_offset

    visitor = _Visitor(lambda node: isinstance(node, ast.Call) and offset(node.func) in made)
    try:
        visitor.visit(ast.parse(tree.source))
    except SyntaxError:  # Of a newer Python than this one.
        return
    for function in visitor.found:
        yield Finding(
            offset(function),
            "compression here is of gradients that the loss-scale optimizer has unscaled: in"
            " float16 those below 6e-8 become 0. Put Horovod's optimizer inside, around the plain"
            " one, where gradients still are scaled",
        )
