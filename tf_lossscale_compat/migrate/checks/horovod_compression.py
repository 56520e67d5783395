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


def _argument(call, name, *positions):
    """The expressions that may be this argument of a call; positions differ between its makes."""
    given = [each.value for each in call.keywords if each.arg == name]
    return given or [call.args[position] for position in positions if position < len(call.args)]


def _compresses(call):
    """Whether Horovod may be told to compress: of an expression only `.none` says that it isn't."""
    if any(each.arg == "compression" for each in call.keywords):
        return any(
            not (isinstance(each, ast.Attribute) and each.attr == "none")
            for each in _argument(call, "compression")
        )
    return any(getattr(each, "attr", "") == "fp16" for each in _argument(call, "", 4, 5))


class _Visitor(ast.NodeVisitor):
    """Follows names from assignment to use in the order of the text, function by function."""

    def __init__(self, makes_wrapper):
        self._makes_wrapper = makes_wrapper
        self._wrappers = set()
        self.found = []

    def _assign(self, targets, value):
        keys = {_key(target) for target in targets} - {None}
        self._wrappers = self._wrappers - keys
        if self._makes_wrapper(value):
            self._wrappers |= keys

    def visit_Assign(self, node):
        self.visit(node.value)
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)
            self._assign([node.target], node.value)

    def visit_NamedExpr(self, node):
        self.visit(node.value)
        self._assign([node.target], node.value)

    def visit_If(self, node):
        # After either branch.
        before, after = self._wrappers, set()
        self.visit(node.test)
        for branch in (node.body, node.orelse):
            self._wrappers = before
            for statement in branch:
                self.visit(statement)
            after |= self._wrappers
        self._wrappers = after

    def visit_FunctionDef(self, node):
        before, arguments = self._wrappers, node.args
        named = arguments.args + arguments.kwonlyargs + getattr(arguments, "posonlyargs", [])
        self._wrappers = before - {(each.arg,) for each in named}
        self.generic_visit(node)
        # Of what is assigned within, attributes are seen outside.
        self._wrappers = before | {key for key in self._wrappers if len(key) > 1}

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Call(self, node):
        self.generic_visit(node)
        name = (_key(node.func) or ("",))[-1]
        if name == "DistributedOptimizer" and _compresses(node):
            for first in _argument(node, "optimizer", 0):
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

    def offset(node):
        return tree.line_starts[node.lineno - 1] + node.col_offset

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
