"""`tf.keras.mixed_precision.experimental.{Policy, set_policy, global_policy}`: the stable names.

TensorFlow 2.4 gave them names outside of `experimental`, and later versions have no others:
https://github.com/tensorflow/tensorflow/releases/tag/v2.4.0. They mean the same as long as no loss
scale is in a policy. In a file where that may be so, all stay, for they go together.
"""

import re
from typing import Set

import libcst as cst

from tf_lossscale_compat.migrate import rewrites
from tf_lossscale_compat.migrate.checks import policy_loss_scale

_MODULE = re.compile(r"(?:tensorflow\.)?keras\.mixed_precision\.experimental")
_STABLE = {
    "Policy": "Policy",
    "global_policy": "global_policy",
    "set_policy": "set_global_policy",
}
_MEMBERS = (*_STABLE, "get_layer_policy")
_LOSS_SCALE_OF_POLICY = re.compile(
    rb"policy\w*\s*(?:\([^()\n]*\)\s*)?\.\s*loss_scale\b", re.IGNORECASE
)
_INFER = re.compile(r"[\"']infer")


def _rest(name):
    """Returns the parts of a name beyond the experimental module, None for a name elsewhere."""
    match = _MODULE.match(rewrites.canonical(name))
    if match is None:
        return None
    beyond = rewrites.canonical(name)[match.end() :]
    return beyond.split(".")[1:] if beyond[:1] in ("", ".") else None


def _is_policy(name):
    return bool(_rest(name)) and _rest(name)[0] in _MEMBERS


def rename(plan):
    """Adds the edits to a plan, or reports the places."""
    tree = plan.tree
    chains = [
        chain
        for chain in tree.chains
        if not plan.is_edited(chain) and any(_is_policy(name) for _, name in chain.references)
    ]
    imported = [binding for binding in tree.bindings if _is_policy(binding.path)]
    if not chains and not imported:
        return
    reported = {finding.offset for finding in policy_loss_scale.find(plan)}
    keep = None
    if reported or _LOSS_SCALE_OF_POLICY.search(tree.source):
        keep = "once no loss scale is kept in a policy"
    elif any(
        _INFER.match(tree.text(argument.value))
        for chain, call in tree.calls
        if chain in chains or any(binding in imported for binding in chain.bindings)
        for argument in call.args[:1]
    ):
        keep = "which know no 'infer'"
    stays: Set[int] = set()
    for statement in tree.statements:
        if not _edit_import(plan, statement, chains, keep):
            stays.update(id(binding) for binding in statement.bindings)
    for binding in imported:
        if id(binding) in stays:
            plan.report(binding.alias, _message(binding.path, keep))
    for chain in chains:
        if any(_is_policy(binding.path) for binding in chain.bindings):
            continue  # The import says it.
        rests = {tuple(_rest(name) or ()) for _, name in chain.references}
        rest = next(rest for rest in rests if rest)
        number = len(chain.nodes) - len(rest)  # Where the member is.
        start = tree.span(chain.nodes[number - 2 if number > 1 else 0])[1]
        end = tree.span(chain.nodes[number])[1]
        if (
            keep
            or len(rests) > 1
            or rest[0] not in _STABLE
            or b"#" in tree.source[start:end]
            or (number == 1 and any(id(binding) in stays for binding in chain.bindings))
        ):
            if tree.span(chain.nodes[0])[0] not in reported:
                plan.report(chain.nodes[0], _message(chain.text, keep, rest[0]))
        elif number > 1 or _STABLE[rest[0]] != rest[0]:
            plan.edit(start, end, "." + _STABLE[rest[0]])


def _edit_import(plan, statement, chains, keep):
    """Changes an import of the experimental module, or from it; returns False where it stays."""
    tree, node = plan.tree, statement.node
    left = [
        binding
        for binding in statement.bindings
        if _rest(binding.path) is not None and not plan.is_moved(binding)
    ]
    if not left or plan.is_dropped(left[0]):
        return True
    if keep:
        return False
    if all(_is_policy(binding.path) for binding in left):
        others = [each for each in statement.bindings if each not in left]
        if not all(plan.is_moved(each) for each in others):
            return False
        if not all(_rest(binding.path)[0] in _STABLE for binding in left):
            return False
        start, end = tree.span(node.module)
        plan.edit(end - len(".experimental"), end, "")
        for binding in left:
            name = _rest(binding.path)[0]
            if _STABLE[name] != name:
                new = _STABLE[name]
                new += "" if binding.alias.asname is not None else f" as {name}"
                start, end = tree.span(binding.alias.name)
                plan.edit(start, end, new)
        return True
    # The module itself, under a name of its own.
    (binding, *more) = statement.bindings
    if more or binding.elsewhere or binding.qualified != binding.path:
        return binding.qualified != binding.path and not any(
            chain.bindings == [binding] for chain in chains
        )
    if not binding.chains or not all(
        plan.is_edited(chain)
        or (chain in chains and chain.bindings == [binding] and _rest_of(chain)[0] in _STABLE)
        for chain in binding.chains
    ):
        return False
    if isinstance(node, cst.Import):
        start, end = tree.span(binding.alias.name)
        plan.edit(end - len(".experimental"), end, "")
    else:
        above, _, name = tree.text(node.module).rpartition(".")
        if name != "mixed_precision":
            return False
        local = "" if binding.local == name else f" as {binding.local}"
        start, end = tree.span(node)
        plan.edit(start, end, f"from {above} import {name}{local}")
    return True


def _rest_of(chain):
    return next(_rest(name) for _, name in chain.references if _rest(name))


def _message(name, keep, member=None):
    member = member or name.rpartition(".")[2]
    if member not in _STABLE:
        return f"`{name}` has no stable name: take the layer's `dtype_policy`"
    when = f", {keep}" if keep else ""
    return (
        f"`{name}` was taken away after TensorFlow 2.4: from that version on write"
        f" `tf.keras.mixed_precision.{_STABLE[member]}`{when}"
    )
