"""Variables of Keras 3: no `tf.Variable`, with only the last part of their names as `name`."""

import re

from tf_lossscale_compat.migrate.checks import keras_3, newer_versions

# Whose variables these are; `trainable_variables()` is TensorFlow's own.
_VARIABLES = re.compile(
    r"(\w+(?:\[.*?\]|\(.*?\))?)\.(?:(?:non_)?trainable_)?(?:variables|weights)\b(?!\()"
)
# What follows a name that is bound, and what it is bound to in turn; what takes a `lambda` for it.
_TAKEN = re.compile(rb"([\w ,()*]*?)\bin\s((?:\((?:[^()]|\([^()]*\))*\)|[^\n:()])*)")
_FUNCTIONS = {"sorted", "filter", "map", "min", "max"}
# What is before a name that may stay: a search for what is left of it, or a print.
_LAST = r"(?:(?:recurrent_)?kernel|bias|gamma|beta|moving_mean|moving_variance|embeddings)"
_HARMLESS = re.compile(
    rf"(?:[\"']{_LAST}[\"'] (?:not )?in |re\.search\(r?[\"'](?:{_LAST}\|?)+[\"'], )$"
    r"|^\s*(?:print|(?:\w+\.)*log\w*(?:\.\w+)?)\("
)
_PATH = (
    "LSC427 it is only `kernel`, `bias` and so on, in which no layer is found and of which a dict"
    " keeps one: write `{}.path`, which has no `:0`"
)
_RENAMED = "LSC404 nothing calls this: name it `reset_state`"
_LATE = "LSC428 `fit` reads it after validation has changed it: write `tf.identity({})`"
_OF_TENSORFLOW = re.compile(
    r"(.+?)\.(read_value|value(?=\()|(?:experimental_)?ref|values|device|op|get_shape|initial\w+"
    r"|is_initialized|scatter_\w+|sparse_read|gather_nd|eval|load|assign\w*(?=\(.*\bread_value=)"
    r"|dtype\.(?:is_\w+|\w+_dtype|name|size))\b"
)
_IS_ONE = re.compile(rb"(?<=isinstance\()\w+, *\(?[\w., ]*\b(?:tf|tensorflow)\.Variable\b")
_OF_OPTIMIZER = re.compile(r"(?:\w+\.)*\w*opt\w*\.(?:iterations|learning_rate)")
_RETURNED = re.compile(rb"(?:\breturn|[\"']:) (self\.\w+)(?![\w.(\[]| [-+*/])")


def find(plan):
    """Yields what reads variables as those of Keras 2, and metrics that return theirs."""
    if not (plan.is_for_keras_3 and plan.is_about_loss_scaling):
        return
    tree = plan.tree
    values = {name: tree.text(value) for name, value in tree.values}
    own = {name for name, text in values.items() if text.startswith("self.add_weight(")}
    calls = {id(chain): tree.text(call) for chain, call in tree.calls}
    for chain in tree.chains:
        first, start = chain.names[0], tree.start(chain.nodes[0])
        is_name = chain.names[1:2] == ["name"]
        match = _OF_TENSORFLOW.match(calls.get(id(chain), chain.text))
        name = match.group(1) if match else first * bool(_IS_ONE.match(tree.source, start))
        owner = _owner(tree, chain, values) if is_name or name == first else ""
        if owner and is_name:
            line, column = tree.position(start)
            before = tree.lines[line - 1].decode()[: column - 1]
            if "opt" not in owner and not _HARMLESS.search(before):
                yield chain, keras_3.say(f"{first}.name", _PATH.format(first))
        elif owner or name in own or _OF_OPTIMIZER.fullmatch(name):
            rest = f".{match.group(2)}" if match else ""
            advice = f"LSC429 this is no `tf.Variable`: write `{name}.value{rest}`"
            yield chain, keras_3.say(name + rest, advice)
    yield from _metrics(tree, own)


def _owner(tree, chain, values):
    """Returns whose variable a chain's first name is in turn, "" if it is none."""
    nodes = [each.node for each in tree.assignments(chain) if hasattr(each, "node")]
    use, starts = tree.start(chain.nodes[0]), sorted(map(tree.start, nodes))
    start = ([each for each in starts if each < use] or starts[:1] or [use])[-1]
    taken = _TAKEN.match(tree.source, start)
    text = re.split(r" (?:if|for) ", taken.group(2).decode())[0] if taken else ""
    for each, call in tree.calls if not taken else ():
        if each.names[-1] in _FUNCTIONS and tree.start(call) <= start < tree.span(call)[1]:
            text = re.sub(r"lambda[^,]*", "", tree.text(call))
    text = re.sub(r"[\w.]+", lambda each: values.get(each.group(), each.group()), text)
    if "zip(" in text:  # Its last, as gradients are first.
        text = "" if taken and b"," in taken.group(1) else text.rpartition(",")[2]
    match = _VARIABLES.search(text)
    return match.group(1) if match and "gradient" not in text else ""


def _metrics(tree, own):
    """Yields what Keras 3 does not call, or reads too late, of metrics that the file defines."""
    for methods in tree.overrides(lambda chain: newer_versions.of_keras(chain, r"metrics\.")):
        if "reset_states" in methods and "reset_state" not in {*methods, *dict(tree.values)}:
            yield methods["reset_states"], keras_3.say("reset_states", _RENAMED)
        span = tree.span(methods["result"]) if "result" in methods else (0, 0)
        for match in _RETURNED.finditer(tree.source, *span):
            name = match.group(1).decode()
            if name in own:
                yield match.start(1), keras_3.say(name, _LATE.format(name))
