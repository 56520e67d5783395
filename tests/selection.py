"""Which tests the matrix leaves out of an environment, as others run the same; see noxfile.py."""

import ast
import functools
import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parent
# About tools that read and write source code: TensorFlow has no part in what they test, so the
# oldest and the newest Python are enough.
TOOLS = (
    "build_file_test.py",
    "migrate_checks_test.py",
    "migrate_command_test.py",
    "migrate_compat_v1_mixed_precision_test.py",
    "migrate_contrib_test.py",
    "migrate_keras_experimental_test.py",
    "migrate_keras_mixed_precision_test.py",
    "migrate_mixed_precision_experimental_test.py",
    "migrate_notebook_test.py",
    "migrate_pairs_test.py",
    "migrate_train_experimental_test.py",
    "migrate_warnings_test.py",
    "mutants_test.py",
)
# One of `keras_homes` among the parameters of a test, as it shows itself, not a string.
KERAS_3, LEGACY = (re.compile(rf"(?<![\w'\"/]){name}(?![\w'\"/])") for name in ("keras3", "legacy"))


def left_out(item, what):
    """Whether a test is left out.

    Args:
      item: pytest's, of a test.
      what: str, words with commas between. "tools": that is of `TOOLS`; "legacy": that is of
        legacy Keras optimizers; "ran": that README's command has run on the same TensorFlow, where
        tf_keras is not installed.
    """
    words = what.split(",")
    if "tools" in words and item.path.name in TOOLS:
        return True
    # Named parameters are in the name.
    row = getattr(item.function, "__x_params_repr__", None) or item.name.replace("_", " ")
    if "legacy" in words and LEGACY.search(row):
        return True
    if "ran" not in words or item.get_closest_marker("slow"):
        return False
    name = item.cls.__name__ if item.cls else item.originalname
    return name not in needing_tf_keras(item.path) or bool(KERAS_3.search(row))


@functools.lru_cache(maxsize=None)
def _leading():
    """The pattern of tf_keras, and of modules that tests share and that have it in them."""
    helpers = [path for path in TESTS.rglob("*.py") if not path.name.endswith("_test.py")]
    texts = {
        path.stem: path.read_text(encoding="utf-8")
        for path in helpers
        if path.name not in ("conftest.py", "selection.py")
    }
    stems, before = set(), None
    while stems != before:
        before = set(stems)
        # Modules are run as files or something of them is used: other words are just that.
        pattern = re.compile(
            r"\b(tf_keras\b|(%s)(\.|\s+import\b))" % "|".join(sorted(stems) or ["-"])
        )
        stems.update(stem for stem, text in texts.items() if pattern.search(text))
    return pattern


@functools.lru_cache(maxsize=None)
def needing_tf_keras(path):
    """Names of what a file defines that leads to tf_keras, by itself or by others of the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    uses, found, bare = {}, set(), False
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names = [node.name]
        else:
            stores = (n for n in ast.walk(node) if isinstance(n, ast.Name))
            names = [n.id for n in stores if isinstance(n.ctx, ast.Store)]
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        leads = bool(_leading().search("\n".join(lines[start - 1 : node.end_lineno])))
        bare = bare or (leads and not names)
        for name in names:
            loads = (n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            uses.setdefault(name, set()).update(loads)
            if leads:
                found.add(name)
    before = None
    while found != before:
        before = set(found)
        found.update(name for name, used in uses.items() if used & found)
    return set(uses) if bare else found
