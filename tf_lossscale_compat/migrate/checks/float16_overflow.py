"""Loss scales that begin above what float16 can hold, in files that speak of float16.

A loss in float16 is infinite when it is multiplied with such a scale.
"""

import ast
import re

_LARGEST = 65504
_FLOAT16 = re.compile(rb"\b(?:float16|fp16|half)\b")
# Of each class the argument with the first loss scale: its position and its name.
_FIRST = {
    "FixedLossScaleManager": (0, "loss_scale"),
    "ExponentialUpdateLossScaleManager": (0, "init_loss_scale"),
    "FixedLossScale": (0, "loss_scale_value"),
    "DynamicLossScale": (0, "initial_loss_scale"),
    "LossScaleOptimizer": (2, "initial_scale"),
}


def _number(text):
    """Returns the number that an expression of literals is, None for anything else."""

    def value(node):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Pow) and abs(right) < 200 and abs(left) < 1000:
                return left**right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.LShift) and 0 <= right < 200:
                return left << right
        raise ValueError(node)

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ArithmeticError):
        return None


def find(plan):
    """Yields the calls that make such a loss scale."""
    tree = plan.tree
    if not _FLOAT16.search(tree.source):
        return
    for name, chain, call in plan.wrapper_calls():
        position, keyword = _FIRST.get(name, (None, None))
        given = [each for each in call.args if each.keyword and each.keyword.value == keyword]
        before = call.args[: position + 1] if position is not None else ()
        if not given and not any(each.star for each in before):
            given = [each for each in before[position:] if not each.keyword]
        scale = _number(tree.text(given[0].value)) if given else None
        if scale is not None and scale > _LARGEST:
            yield (
                tree.start(chain.nodes[0]),
                f"the loss scale begins at {scale:.16g}, above {_LARGEST}, which is the largest"
                " float16: where the loss is float16, cast it to float32 before it is scaled, or"
                " begin at 2**15",
            )
