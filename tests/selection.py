"""Which tests the matrix leaves out of an environment, as others run the same; see noxfile.py."""

import ast
import collections
import collections.abc
import functools
import inspect
import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parent
# About tools that read and write source code, and arguments of commands: TensorFlow has no part in
# what they test, so the oldest and the newest Python are enough.
TOOLS = (
    "build_file_test.py",
    "cli_test.py",
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
)
# Of what is in event files, which have been the same since TensorFlow 1: the oldest and the newest
# are enough.
PICTURES = ("plot_test.py",)
# What users run from one end to the other, put together from what the other tests hold on every
# TensorFlow. It runs once before TensorFlow 2, once before its mixed precision was stable, once on
# Keras 2 and once on Keras 3: on 1.15.5, 2.0.4, 2.10.1 and the newest.
PROGRAMS = (
    "benchmarks_test.py",
    "demo_test.py",
    "docs_test.py",
    "examples_test.py",
    "rehearsals_test.py",
    "run_test.py",
    "seeded_fault_test.py",
    "tf1_cluster_test.py",
)
# Rows of these are no combinations of a few values: each compares another whole run with what an
# original, a model or one process does, and on most versions some of them skip themselves.
WHOLE = (
    "agreement_test.py",
    "checkpoint_generations_test.py",
    "conformance_test.py",
    "rehearsal_test.py",
    "rehearsals_test.py",
    "side_by_side_test.py",
    "tf1_cluster_test.py",
)
# Where every kind of step is crossed with every mode, policy and fault: rows that "values" would
# leave out are marked slow.
CROSSED = (
    "optimizers_test.py",
    "silent_faults_test.py",
    "step_record_test.py",
)
# One of `keras_homes` among the parameters of a test, as it shows itself, not a string.
HOME = re.compile("keras3|current|legacy|v2")
KERAS_3, LEGACY = (re.compile(rf"(?<![\w'\"/]){name}(?![\w'\"/])") for name in ("keras3", "legacy"))


def left_out(item, what):
    """Whether a test is left out.

    Args:
      item: pytest's, of a test.
      what: str, words with commas between. "tools": that is of `TOOLS`, and so "pictures" and
        "programs"; "legacy": that is of legacy Keras optimizers; "ran": that README's command has
        run on the same TensorFlow, where tf_keras is not installed. Others are for `spare_rows`.
    """
    words = what.split(",")
    for word, files in (("tools", TOOLS), ("pictures", PICTURES), ("programs", PROGRAMS)):
        if word in words and item.path.name in files:
            return True
    # Named parameters are in the name.
    row = getattr(item.function, "__x_params_repr__", None) or item.name.replace("_", " ")
    if "legacy" in words and LEGACY.search(row):
        return True
    if "ran" not in words or item.get_closest_marker("slow"):
        return False
    name = item.cls.__name__ if item.cls else item.originalname
    return name not in needing_tf_keras(item.path) or bool(KERAS_3.search(row))


def values(function):
    """What a row of absl's parameterized test is given.

    Args:
      function: the test, as absl made it.

    Returns:
      dict of str, what `repr` says of each value, by name or position; None if it is no row.
    """
    code = getattr(function, "__code__", None)
    cells = dict(zip(code.co_freevars, function.__closure__ or ())) if code else {}
    if "testcase_params" not in cells:
        return None
    given = cells["testcase_params"].cell_contents
    if isinstance(given, collections.abc.Mapping):
        return {name: repr(value) for name, value in given.items()}
    if isinstance(given, collections.abc.Sequence) and not isinstance(given, str):
        return {position: repr(value) for position, value in enumerate(given)}
    return {0: repr(given)}


def _cover(rows, found, kept):
    """Adds rows to `kept` while they have values that are not in `found`, most of them first.

    Args:
      rows: list of (item, set of its values).
      found: set, to which the values of rows that are kept are added.
      kept: set of items.
    """
    # Rows under XLA last, as some skip themselves: what else they have then has another row.
    for under_xla in (False, True):
        left = [row for row in rows if ("'jit'" in {v for _, v in row[1]}) == under_xla]
        while left:
            best = max(left, key=lambda row: len(row[1] - found))  # The first of several.
            if not best[1] - found:
                break
            left.remove(best)
            kept.add(best[0])
            found |= best[1]


def spare_rows(items, what):
    """Which rows of parameterized tests are left out. Each test keeps one at least.

    Args:
      items: list of pytest's, of all tests.
      what: str, words with commas between. "values": a test keeps rows until each value of each of
        its parameters is in one. "turns": a test keeps one row, the next test of the file the
        one after that; moreover rows until each family of Keras optimizers that its rows have is
        in one, and each other value that any test of its class has.

    Returns:
      A set of items.
    """
    words = what.split(",")
    if not {"turns", "values"} & set(words):
        return set()
    tests = collections.OrderedDict()
    for item in items:
        row = values(item.function) if item.cls and item.path.name not in WHOLE else None
        if row is not None:
            name = inspect.unwrap(item.function).__qualname__
            tests.setdefault((item.path, item.cls, name), []).append((item, row))
    kept, turns, seen = set(), collections.Counter(), collections.defaultdict(set)
    for (path, cls, name), rows in tests.items():
        if "turns" in words:
            rows = [
                (item, {(name if HOME.fullmatch(v) else None, v) for v in row.values()})
                for item, row in rows
            ]
            usual = [row for row in rows if (None, "'jit'") not in row[1]] or rows
            item, found = usual[turns[path] % len(usual)]
            turns[path] += 1
            kept.add(item)
            seen[cls] |= found
            _cover(rows, seen[cls], kept)
        else:
            _cover([(item, set(row.items())) for item, row in rows], set(), kept)
    return {item for rows in tests.values() for item, _ in rows} - kept


def slow_rows(items):
    """Those of all tests that are marked slow as other rows have each of their values.

    Each family of Keras optimizers is looked at by itself. So the choice is the same beside
    tf_keras, where rows that README's command was to run without it are left out.
    """
    families = collections.defaultdict(list)
    for item in items:
        if item.path.name in CROSSED:
            given = (values(item.function) or {}).values()
            families[tuple(filter(HOME.fullmatch, given))].append(item)
    return set().union(*(spare_rows(each, "values") for each in families.values()))


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
