"""Says what comes next for the files of one call on the TensorFlow that they go to.

Each step is a command or lines to paste. What TensorFlow's own `tf_upgrade_v2` does is left to it.
"""

import os
import re
import shlex

from tf_lossscale_compat.migrate import _successors, rewrites

# Of names that `tf.compat.v1` alone has since TensorFlow 2 those that show what a file is written
# for: the commonest.
_TENSORFLOW_1 = re.compile(
    r"(?:placeholder\w*|\w*Session|ConfigProto|GPUOptions|RunOptions|GraphDef|GraphKeys|app|flags"
    r"|gfile|logging|layers|get_variable|get_variable_scope|variable_scope|get_collection"
    r"|add_to_collection|\w*variables_initializer|(?:global|local|trainable)_variables"
    r"|get_default_graph|get_default_session|reset_default_graph|set_random_seed|random_uniform"
    r"|random_normal|truncated_normal|assign|assign_add|log|to_float|to_int32|to_int64|py_func"
    r"|is_nan|is_inf|is_finite|train\.(?:\w+(?:Optimizer|Hook|Session|_decay|global_step)|Saver)"
    r"|losses\.(?:\w*(?:softmax|sigmoid)_cross_entropy|\w+_loss|absolute_difference|get_\w+)"
    r"|metrics\.(?:accuracy|auc|mean|precision|recall)|summary\.(?:FileWriter|merge|merge_all)"
    r"|nn\.(?:rnn_cell|\w*dynamic_rnn|static_rnn)|data\.make_\w+_iterator"
    r"|image\.resize_(?:image|bilinear|bicubic|area|nearest)\w*)(?:\.|$)"
)
_KERAS_2 = re.compile(r"(?:layers|nn\.rnn_cell)(?:\.|$)")
_SWITCH = "TF_USE_LEGACY_KERAS"
_BEHAVIOR = re.compile(rb"\bdisable_(?:v2_behavior|eager_execution)\b")
_MAIN = re.compile(rb"^if __name__ ==", re.MULTILINE)
# What `tensorflow.compat.v1` does not have, though tf_upgrade_v2 takes the import there.
_NOT_REPEATED = re.compile(r"tensorflow\.(?:python|core|examples|tools)\.")


def is_for_keras_3(to, source):
    """Whether `tf.keras` is Keras 3 for a file: its version, as of `Plan`, and its bytes."""
    switched = os.environ.get(_SWITCH, "").lower() in ("1", "true")
    return to >= (2, 16) and not switched and _SWITCH.encode() not in source


def facts(plan, findings):
    """Returns what a file needs that nothing was rewritten for: pairs (step, what shows it).

    Args:
      plan: `_plan.Plan`.
      findings: list of `_source.Finding`, what is reported of it.
    """
    tree, found, is_version_1, keras = plan.tree, {}, False, []
    if plan.to < (2, 0) or not plan.is_about_loss_scaling:
        return []
    by_hand = any(_NOT_REPEATED.match(binding.path + ".") for binding in tree.bindings)
    for _, name, _ in tree.mentions():
        root, _, rest = rewrites.canonical(name).partition(".")
        shown = f"`tf.{rest}`"
        gone = _successors.successor(f"tf.{rest}") if rest.startswith("contrib.") else None
        if "tf_slim" in (gone or root):
            found["slim batch_norm" if "batch_norm" in tree.attributes else "slim", ""] = None
        if root != "tensorflow" or not rest:
            continue
        if rest.startswith("keras"):
            keras.append(("keras", shown))
        if not _TENSORFLOW_1.match(rest):
            continue
        is_version_1 = True
        if _KERAS_2.match(rest):
            keras.append(("keras", shown))
        if "compat.v1" not in name:
            found["by hand" if by_hand else "upgrade", shown] = None
    if is_version_1:
        found["behavior" if _MAIN.search(tree.source) else "behavior elsewhere", ""] = None
        if is_for_keras_3(plan.to, tree.source):
            found.update(dict.fromkeys(keras))
    if any(": on Keras 3 " in finding.message for finding in findings):
        found["choice", ""] = None
    return list(found)


class Steps:
    """The steps for all files of one call.

    Args:
      to: the TensorFlow that they go to, a tuple of two numbers.
    """

    def __init__(self, to):
        self._to = "{}.{}".format(*to)
        self._files = {}  # Step: {path: what shows it}.
        self._is_disabled = False

    def read(self, data):
        """Takes the bytes of any file."""
        self._is_disabled |= bool(_BEHAVIOR.search(data))

    def add(self, path, found):
        """Takes the `facts` of a file."""
        for step, shown in found:
            self._files.setdefault(step, {}).setdefault(path, []).append(shown)

    def text(self):
        """Returns all steps, "" where there are none."""
        steps = [
            *self._upgrade(),
            *self._behavior(),
            *self._slim(),
            *self._keras(),
        ]
        if not steps:
            return ""
        numbered = [f"\n{number}. {step}\n" for number, step in enumerate(steps, 1)]
        return f"\nnext, on TensorFlow {self._to}:\n" + "".join(numbered)

    def _upgrade(self):
        for_tool, by_hand = self._files.get("upgrade"), self._files.get("by hand")
        if for_tool:
            command = "tf_upgrade_v2 --mode SAFETY --reportfile tf_upgrade_v2.log"
            yield (
                f"{_shown(for_tool)}: only `tf.compat.v1` has this since TensorFlow 2. Let"
                " TensorFlow's own tool change the import:\n"
                + "".join(
                    f"\n    {command} --infile {path} --outfile {path}"
                    for path in map(shlex.quote, for_tool)
                )
            )
        if by_hand:
            yield (
                f"{_shown(by_hand)}: only `tf.compat.v1` has this since TensorFlow 2. Replace"
                " `import tensorflow as tf` by this line and leave imports such as `from"
                " tensorflow.python` alone, which tf_upgrade_v2 would break:\n"
                "\n    import tensorflow.compat.v1 as tf"
            )

    def _behavior(self):
        main = self._files.get("behavior") or self._files.get("behavior elsewhere")
        if main and not self._is_disabled:
            where = " or ".join(main) if len(main) < 3 else "the program's main file"
            yield (
                f"In {where}, below the imports, and in no file that the program imports, write"
                " this line, so that graphs and variables are those of TensorFlow 1:\n"
                "\n    tf.disable_v2_behavior()"
            )

    def _slim(self):
        batch_norm = self._files.get("slim batch_norm")
        files = {**self._files.get("slim", {}), **(batch_norm or {})}
        if files:
            yield f"{_listing(files)}: install tf-slim.\n\n    pip install tf-slim"
        if batch_norm:
            yield (
                f"{_listing(batch_norm)}: for its `batch_norm`, add these lines, as tf-slim looks"
                " for tf_keras' layers at a former place:\n\n    import sys\n"
                "    import tf_keras.src.legacy_tf_layers.normalization as normalization\n"
                '    sys.modules["tf_keras.legacy_tf_layers.normalization"] = normalization'
            )

    def _keras(self):
        keras, choice = self._files.get("keras"), self._files.get("choice")
        commands = (
            f":\n\n    pip install --no-deps 'tf_keras=={self._to}.*'\n    export {_SWITCH}=1"
        )
        if keras:
            yield f"{_shown(keras)}: Keras 3 lacks this. Stay with Keras 2{commands}"
        if choice:
            yield (
                f"{_listing(choice)}: change the places that say `on Keras 3`, or leave them and"
                f" stay with Keras 2{', as in the step before' if keras else commands}"
            )


def _shown(files):
    """Returns files with what shows their step: names, but for the first few how many."""
    first = list(dict.fromkeys(name for names in files.values() for name in names))
    more = f" and {len(first) - 3} more names" if len(first) > 3 else ""
    return f"{_listing(files)} ({', '.join(first[:3])}{more})"


def _listing(files):
    paths = list(files)
    return ", ".join(paths[:4]) + (f" and {len(paths) - 4} more files" if len(paths) > 4 else "")
