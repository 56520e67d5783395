"""The next steps for the files of one call, on the TensorFlow that they go to.

Each step is a command or lines to paste. What TensorFlow's own `tf_upgrade_v2` does is left to it.
"""

import collections
import itertools
import os
import re
import shlex
from typing import Tuple

from tf_lossscale_compat import _contrib_successors
from tf_lossscale_compat.migrate import rewrites

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
# What Keras 3 lacks, or cannot do in a graph, as its optimizers and regularizers of `get_variable`;
# with `fit`, which it cannot do there, any name of Keras.
_KERAS_2 = re.compile(
    r"(?:layers|nn\.rnn_cell|keras\.(?:optimizers|regularizers|experimental|estimator"
    r"|backend\.[gs]et_session))(?:\.|$)"
)
_SWITCH = "TF_USE_LEGACY_KERAS"
_KERAS_2_FILE = re.compile(rb"TF_USE_LEGACY_KERAS|^\s*(?:import|from) tf_keras\b", re.MULTILINE)
# Names of contrib, of files that are not parsed; a `\b` in front would take six times as long.
_CONTRIB = re.compile(rb"(?:tf|tensorflow)\.contrib\b(?:\.(\w+))?")
# Steps for a whole program, which a file of it shows to be done: each file that is started by
# itself, unless others that they may import do it.
_BEHAVIOR = re.compile(rb"disable_(?:v2_behavior|eager_execution)\b")
_BATCH_NORM = re.compile(rb"tf_keras\.legacy_tf_layers\b")
_MAIN = re.compile(rb"^if __name__ ==", re.MULTILINE)
# What `tensorflow.compat.v1` does not have, though tf_upgrade_v2 takes the import there.
_NOT_REPEATED = re.compile(r"tensorflow\.(?:python|core|examples|tools)\.")


def is_for_keras_3(to: Tuple[int, int], source: bytes) -> bool:
    """Returns whether `tf.keras` is Keras 3, by TensorFlow's version and the file's bytes."""
    switched = os.environ.get(_SWITCH, "").lower() in ("1", "true")
    return to >= (2, 16) and not switched and not _KERAS_2_FILE.search(source)


def facts(plan, findings):
    """Returns what a file needs besides the rewrites: pairs (step, what shows it)."""
    if plan.to < (2, 0) or not plan.is_about_loss_scaling:
        return []
    tree, found = plan.tree, []
    names = [(rewrites.canonical(name), name) for _, name, _ in tree.mentions()]
    rest = [(name[11:], whole) for name, whole in names if name.startswith("tensorflow.")]
    by_hand = any(_NOT_REPEATED.match(binding.path + ".") for binding in tree.bindings)
    version_1 = [(name, whole) for name, whole in rest if _TENSORFLOW_1.match(name)]
    for name, whole in version_1:
        if "compat.v1" not in whole:
            found.append(("by hand" if by_hand else "upgrade", f"`tf.{name}`"))
    if version_1 and not _BEHAVIOR.search(tree.source):
        is_1 = ("tensorflow.compat.v1", "tf") in [(each.path, each.local) for each in tree.bindings]
        found.append(("main" if _MAIN.search(tree.source) else "not main", "1" * is_1))
    if version_1 and plan.is_for_keras_3:
        lacks = re.compile(r"keras\.|" + _KERAS_2.pattern) if "fit" in tree.methods else _KERAS_2
        found += [("keras", f"`tf.{name}`") for name, _ in rest if lacks.match(name)]
    contrib = [name for name, _ in names if name.startswith("tensorflow.contrib.")]
    now = [_contrib_successors.successor(name) or "" for name in contrib]
    if any("tf_slim" in name for name in [*now, *dict(names)]):
        found.append(("slim", ""))
        if "batch_norm" in tree.attributes and plan.to >= (2, 16):
            found.append(("batch_norm", ""))
    if any(finding.code.startswith("LSC4") for finding in findings):
        found.append(("choice", ""))
    return list(dict.fromkeys(found))


class Steps:
    """The steps for all files of one call."""

    def __init__(self, options):
        self._to = "{}.{}".format(*options.to)
        self._counts_contrib = options.to >= (2, 0) and not options.contrib
        self._files: dict = collections.defaultdict(dict)  # Step: {path: what shows it}.
        self._done = set()
        self._contrib: dict = {}  # {path: its names of contrib, where nothing is said of them}.

    def read(self, path, data):
        """Takes the bytes of any file."""
        if _BEHAVIOR.search(data):
            self._done.add("not main" if _MAIN.search(data) else "main")
        if _BATCH_NORM.search(data):
            self._done.add("batch_norm")
        self._contrib[path] = _CONTRIB.findall(data) if self._counts_contrib else []

    def add(self, path, result):
        """Takes the last `_source.Result` of a file."""
        if result.is_about:
            self._contrib.pop(path, None)
        for step, shown in result.facts:
            self._files[step].setdefault(path, []).append(shown)

    def text(self):
        """Returns all steps, "" where there are none."""
        steps = [f"\n{number}. {step}\n" for number, step in enumerate(self._steps(), 1)]
        return f"\nnext, on TensorFlow {self._to}:\n" + "".join(steps) if steps else ""

    def _steps(self):
        files = self._files
        only = "only `tf.compat.v1` has this in TensorFlow 2"
        if files["upgrade"]:
            command = "tf_upgrade_v2 --mode SAFETY --reportfile tf_upgrade_v2.log"
            paths = map(shlex.quote, files["upgrade"])
            commands = [f"\n    {command} --infile {path} --outfile {path}" for path in paths]
            tool = "Let TensorFlow's own tool change the import"
            flags = "it reports `tf.flags` as an error, but `tf.compat.v1` has it"
            yield f"{_shown(files['upgrade'])}: {only}. {tool} ({flags}):\n{''.join(commands)}"
        if files["by hand"]:
            yield (
                f"{_shown(files['by hand'])}: {only}. In place of `import tensorflow as tf` write"
                " this line, and leave imports such as `from tensorflow.python` alone, which"
                " tf_upgrade_v2 would break:\n\n    import tensorflow.compat.v1 as tf"
            )
        main = files["main"] or ({} if "not main" in self._done else files["not main"])
        if main and "main" not in self._done:
            where = _listing(main) if files["main"] else "the program's main file"
            yield (
                f"In {where}, below the imports, write this line, so that graphs and variables are"
                " those of TensorFlow 1 (a file that is imported there may have it instead):\n"
                f"\n    tf.{'compat.v1.' if '' in itertools.chain(*main.values()) else ''}"
                "disable_v2_behavior()"
            )
        if files["slim"]:
            yield f"{_listing(files['slim'])}: install tf-slim.\n\n    pip install tf-slim"
        install = f"pip install --no-deps 'tf_keras=={self._to}.*'"
        if files["batch_norm"] and "batch_norm" not in self._done:
            yield (
                f"{_listing(files['batch_norm'])}: tf-slim looks for the layers of its `batch_norm`"
                f" where tf_keras no longer has them. Install tf_keras and add these lines:\n\n"
                f"    {install}\n\n    import sys\n"
                "    import tf_keras.src.legacy_tf_layers.normalization as normalization\n"
                '    sys.modules["tf_keras.legacy_tf_layers.normalization"] = normalization'
            )
        keras_2 = f":\n\n    {install}\n    export {_SWITCH}=1"
        if files["keras"]:
            shown = _shown(files["keras"])
            yield f"{shown}: Keras 3 lacks this in graphs. Stay with Keras 2{keras_2}"
        if files["choice"]:
            yield (
                f"{_listing(files['choice'])}: change the places that say `on Keras 3`, or leave"
                " them and stay with Keras 2 (from 2.10 or earlier, with `optimizers.legacy`)"
                + (", as in the step before" if files["keras"] else keras_2)
            )
        found = [names for names in self._contrib.values() if names]
        if found:
            counts = collections.Counter(filter(None, itertools.chain(*found))).most_common(3)
            most = ", ".join(f"`{name.decode()}` {count}" for name, count in counts)
            yield (
                "`tf.contrib` was removed in TensorFlow 2.0. Files without loss scaling have"
                f" {sum(map(len, found))} names of it in {len(found)} files"
                + (f" ({most})" if most else "")
                + ": `--contrib` lists them, with what to write."
            )


def _shown(files):
    """Returns files with the names that show their step: the first three, and how many more."""
    first = list(dict.fromkeys(itertools.chain(*files.values())))
    more = f" and {len(first) - 3} more names" if len(first) > 3 else ""
    return f"{_listing(files)} ({', '.join(first[:3])}{more})"


def _listing(files):
    paths = list(files)
    return ", ".join(paths[:4]) + (f" and {len(paths) - 4} more files" if len(paths) > 4 else "")
