"""Breaks the package on purpose, a little at a time, and says which breaks no test notices.

    python tools/mutants.py --sample 150 --seed 1        a part of all mutants, chosen by a seed
    python tools/mutants.py --only _update_rule          all mutants of one module
    python tools/mutants.py --list --only _update_rule   which they are; nothing is run
    python tools/mutants.py --again                      those that survived last time, once more

A mutant is the package with one change in one module. It is killed if a test fails that passes
after the same tests without the change, times out if the tests take several times as long as they
should, is unreached if no test executes the changed line, and survives otherwise. The score is how
many of all are killed or time out, those that are explained left aside. Needs Python 3.12 or newer
and a system that can fork; use the environment of the newest TensorFlow, and read "unreached" as
"not reached on this TensorFlow": several branches are there for older ones.

What is changed, each alone:
    comparison  `<` and `<=`, `>` and `>=`, `==` and `!=`, `is` and `is not`, `in` and `not in` for
                each other; `<`, `<=`, `>`, `>=` also to their opposites
    operator    `+` and `-`, `*` and `/`, `&` and `|`, ... for each other, `-x` to `x`; of two
                joined lists one is left out
    condition   `and` and `or` for each other; `not x` to `x`; what `if`, `while` and `... if ...`
                ask, negated; the `if` of a comprehension dropped
    constant    numbers plus one, True and False for each other, other strings (no sentences)
    argument    a keyword argument left out; the first two positional arguments swapped, or of
                `tf.where` and `cond` the alternatives
    function    `max` to `min`, `any` to `all`, `logical_and` to `logical_or`, ...; casts,
                conversions and the like dropped: `tf.cast(x, t)` to `x`
    statement   a call or an increment that stands alone removed; `raise` removed; the context of a
                `with` left out

What is not: docstrings, type hints, the texts of errors, warnings and log messages, f-strings,
`__repr__`, `__str__`, `__dir__`, names in `__all__`, imports; and what cannot change a result by
construction, such as the order of the arguments of `tf.maximum` or the size of a cache.

How it runs. TensorFlow, Keras and pytest are imported once, in this process, which never runs an
operation. Each mutant gets a fork of it: an import hook compiles the changed source in place of the
file, which itself is never written to, and pytest runs the tests that could notice, the quickest
first, up to the first failure. Which those are says a map that is made first, in a fork for each
test file: which lines of the modules each test executes (and how long it takes). After the tests
that execute the changed line come the others of their classes, as what one of them traced may be
used by the rest. For a line that runs at import, such as a default or a constant, they are all
tests that execute any line of the module, beginning with those that execute a line that uses it.
`--budget` limits how many seconds of tests one mutant may cost, by their times in the map, which
are seconds of computing; where that left tests out, the report says so. Tests that fail on the
package as it is, that take longer than `--slowest`, or that start other processes, which a hook
cannot reach, are left out.

Results are kept in `.mutants/` (`--work`), the map there too. A run that was interrupted goes on
where it stopped (give it the same arguments). Both are forgotten when the package or the tests
change; only `--again` builds on older results: what was noticed once still counts. `--json` and
`--report` write the result elsewhere, too.

Survivors that cannot be killed are explained in tools/mutants_explained.txt, a line with the mutant
as the report names it and an indented line with the reason:

    _update_rule.exponential: constant `1.0` -> `2.0` in `lowered = tf.maximum(...)`
        Why no test can see this.

They are left out of the score. Explanations of mutants that are not there any more, or that a test
kills, are reported as stale, and the script ends with 1 if there are any.
"""

import argparse
import ast
import collections
import contextlib
import copy
import dataclasses
import hashlib
import importlib
import importlib.machinery
import json
import linecache
import os
import pathlib
import random
import signal
import sys
import time
import traceback

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "tf_lossscale_compat"
EXPLAINED = pathlib.Path(__file__).resolve().with_name("mutants_explained.txt")

# The modules that the numbers come from, as patterns; some may not be there.
MODULES = (
    "_compiled.py",
    "_gradients.py",
    "_policy.py",
    "_replicas.py",
    "_state.py",
    "_step.py",
    "_update_rule.py",
    "loss_scale.py",
    "loss_scale_manager.py",
    "loss_scale_optimizer.py",
    "keras/_calls.py",
    "keras/_keras3.py",
    "keras/_optimizer*.py",
    "keras/_shared.py",
    "keras/_tf_keras.py",
)
# Test files that need not be asked: they start processes, or are about other modules.
NOT_ASKED = (
    "benchmarks",
    "build_file",
    "cli",
    "contrib_install",
    "crash_resume",
    "demo",
    "docs",
    "examples",
    "migrate",
    "multi_worker",
    "mutants",
    "packaging",
    "rehearsal",
    "run",
    "version_table",
)

# What a mutant may take beyond five times its tests' seconds in the map, such as to collect them.
SPARE_SECONDS = 60
# Without any work for so long, a process waits for what will never come.
BLOCKED_SECONDS = 60

# Must be imported before any test runs: it makes logical devices, which TensorFlow allows but once.
IMPORTED_FIRST = "tests.replicas"
# How many tests of one file are run before the other files are collected.
FIRST_TESTS = 25

KILLED, TIMED_OUT, SURVIVED, UNREACHED = "killed", "timed out", "survived", "unreached"
NOTICED = (KILLED, TIMED_OUT)
ERROR = "not judged"  # Pytest could not be run; such mutants are tried again.

# Making mutants.

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
FUNCTIONS = {
    "all": "any",
    "any": "all",
    "imag": "real",
    "logical_and": "logical_or",
    "logical_or": "logical_and",
    "max": "min",
    "maximum": "minimum",
    "min": "max",
    "minimum": "maximum",
    "real": "imag",
    "reduce_all": "reduce_any",
    "reduce_any": "reduce_all",
    "zeros_like": "ones_like",
}
# Calls that give back what they are given in another form.
DROPPED = {
    "bool",
    "cast",
    "convert_to_tensor",
    "dict",
    "float",
    "identity",
    "int",
    "list",
    "logical_not",
    "reciprocal",
    "sorted",
    "tuple",
}
# Functions for which a swap of arguments changes nothing, or can only crash.
NOT_SWAPPED = set(FUNCTIONS) | {
    "add",
    "equal",
    "getattr",
    "group",
    "hasattr",
    "isinstance",
    "issubclass",
    "multiply",
    "partial",
    "setattr",
    "update_wrapper",
}
CHOICES = {"_select", "cond", "select", "where"}
# Arguments that decide no result.
NOT_DROPPED = {"maxsize", "stacklevel"}
# Whose arguments are texts.
TEXTS = {"debug", "error", "exception", "format", "info", "log_first_n", "warn", "warning"}
NOT_MUTATED = {"__repr__", "__str__", "__dir__"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one module: `new` instead of the syntax node at `path`."""

    module: str  # As in the package, without its name: "keras._shared".
    line: int
    lines: range  # Of the node.
    around: range  # Of the statement, or of its head: a constant may have no line to itself.
    at_import: bool  # Whether it runs when the module is imported, in no function.
    used: frozenset  # If so, the lines that depend on it.
    name: str  # Unique, and the same when lines are added elsewhere.
    kind: str
    path: tuple
    new: ast.AST


def _called(node):
    """The last part of the name of what is called, or ""."""
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


def _is_text(value):
    """Whether a string is a sentence for people, not a name that something depends on."""
    return value.count(" ") >= 2


def _with(node, **fields):
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _replaced(items, index, *new):
    return [*items[:index], *new, *items[index + 1 :]]


def _is_negated(test):
    """Whether another mutant is the same as `not test`."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1 and type(test.ops[0]) in COMPARISONS
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _changes(node):
    """Yields (kind, instead) of each way to break this node by itself, its children left alone."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for instead in COMPARISONS[type(operator)]:
                yield "comparison", _with(node, ops=_replaced(node.ops, index, instead()))
    elif isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        if isinstance(node.op, ast.Add) and any(
            isinstance(side, (ast.List, ast.ListComp, ast.Tuple)) for side in sides
        ):
            for side in sides:
                yield "operator", side
        elif type(node.op) in OPERATORS and not any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in sides
        ):
            yield "operator", _with(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in OPERATORS:
            yield "operator", _with(node, op=OPERATORS[type(node.op)]())
        yield "statement", ast.Pass()
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield "condition", node.operand
        elif isinstance(node.op, ast.USub):
            yield "operator", node.operand
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "condition", _with(node, op=other())
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        if not _is_negated(node.test):
            yield "condition", _with(node, test=ast.UnaryOp(op=ast.Not(), operand=node.test))
    elif isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            yield "condition", _with(node, ifs=_replaced(node.ifs, index))
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "constant", ast.Constant(not node.value)
        elif isinstance(node.value, (int, float)):
            yield "constant", ast.Constant(node.value + 1)
        elif isinstance(node.value, str) and not _is_text(node.value):
            # In the middle, as tests may look for it as a part.
            yield "constant", ast.Constant(f"{node.value[:1]}_{node.value[1:]}")
    elif isinstance(node, ast.Call):
        yield from _changes_of_call(node)
    elif isinstance(node, ast.Raise):
        yield "statement", ast.Pass()
    elif isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Call):
            yield "statement", ast.Pass()
    elif isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        yield "statement", ast.If(test=ast.Constant(True), body=node.body, orelse=[])


def _changes_of_call(node):
    name = _called(node)
    if name in TEXTS:
        return
    makes_tuple = isinstance(node.func, ast.Name) and name[:1].isupper()  # All are required.
    for index, keyword in enumerate(node.keywords):
        if keyword.arg not in {None, *NOT_DROPPED} and not makes_tuple:
            yield "argument", _with(node, keywords=_replaced(node.keywords, index))
    starred = any(isinstance(arg, ast.Starred) for arg in node.args[:2])
    if len(node.args) >= 2 and not starred and name not in NOT_SWAPPED:
        # Of a choice, the alternatives: its condition is of another type than they.
        where = 1 if name in CHOICES and len(node.args) >= 3 else 0
        first, second = node.args[where : where + 2]
        if ast.dump(first) != ast.dump(second):
            args = [*node.args[:where], second, first, *node.args[where + 2 :]]
            yield "argument", _with(node, args=args)
    if name in FUNCTIONS:
        if isinstance(node.func, ast.Attribute):
            function: ast.expr = _with(node.func, attr=FUNCTIONS[name])
        else:
            function = _with(node.func, id=FUNCTIONS[name])
        yield "function", _with(node, func=function)
    if name in DROPPED and node.args and not isinstance(node.args[0], ast.Starred):
        yield "function", node.args[0]


def _text(node):
    """The first line of a node's source, shortened."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        node = _with(node, decorator_list=[], body=[ast.Pass()])
    elif isinstance(node, ast.stmt) and hasattr(node, "body"):
        node = _with(node, body=[ast.Pass()])
    text = ast.unparse(ast.fix_missing_locations(node)).strip()
    first, *others = text.split("\n")
    if len(first) > 100:
        first = first[:60] + " ... " + first[-35:]
    return first if not others or first.endswith(":") else first + " ..."


def _skipped(node, field):
    """Whether nothing under this field of a node is changed."""
    if field in ("annotation", "returns", "type_params"):
        return True
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return True
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.Call) and field != "func" and _called(node) in TEXTS:
        return True
    if isinstance(node, ast.keyword):
        return node.arg in NOT_DROPPED
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name in NOT_MUTATED
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and field == "value":
        targets = getattr(node, "targets", None) or [node.target]
        return any(getattr(target, "id", "") == "__all__" for target in targets)
    # A docstring, or any other text that stands alone.
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _head(statement):
    """The lines of a statement, without those of the statements in it."""
    last = statement.end_lineno
    inside = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt)]
    if inside:
        last = max(statement.lineno, inside[0].lineno - 1)
    return range(statement.lineno, last + 1)


def _names(tree):
    """Returns {name: lines that read or write it, as a variable or an attribute}."""
    lines = collections.defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            lines[getattr(node, "id", getattr(node, "attr", ""))].add(node.lineno)
    return lines


def _used(statement, names):
    """The lines that depend on a statement of a module or class: uses of its name, or its body."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset(range(statement.body[0].lineno, statement.end_lineno + 1))
    targets = [*getattr(statement, "targets", ()), getattr(statement, "target", None)]
    return frozenset().union(*(names.get(getattr(t, "id", ""), ()) for t in targets))


def mutants_of(source, module):
    """Returns all mutants of a module's source, in the order of its lines."""
    tree = ast.parse(source)
    uses = _names(tree)
    found = []
    counts = collections.Counter()

    def visit(node, path, scope, in_function, statement):
        if isinstance(node, ast.stmt):
            statement = node
        line = getattr(node, "lineno", getattr(statement, "lineno", 0))
        if isinstance(node, ast.comprehension):
            line = node.target.lineno
        for kind, new in _changes(node):
            name = f"{'.'.join([module, *scope])}: {kind} `{_text(node)}`"
            name += " removed" if isinstance(new, ast.Pass) else f" -> `{_text(new)}`"
            if isinstance(node, ast.With):
                name = f"{'.'.join([module, *scope])}: statement `{_text(node)}` left out"
            elif node is not statement and _text(statement) != _text(node):
                name += f" in `{_text(statement)}`"
            counts[name] += 1
            if counts[name] > 1:
                name += f" #{counts[name]}"
            if isinstance(node, ast.stmt):
                lines = _head(node)
            else:
                lines = range(line, getattr(node, "end_lineno", line) + 1)
            found.append(
                Mutant(
                    module=module,
                    line=line,
                    lines=lines,
                    around=_head(statement),
                    at_import=not in_function,
                    used=frozenset() if in_function else _used(statement, uses),
                    name=name,
                    kind=kind,
                    path=path,
                    new=new,
                )
            )
        is_definition = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        for field, value in ast.iter_fields(node):
            if _skipped(node, field):
                continue
            inside, deeper = scope, in_function
            if is_definition and field == "body":
                inside = (*scope, node.name)
                deeper = in_function or not isinstance(node, ast.ClassDef)
            elif isinstance(node, ast.Lambda) and field == "body":
                deeper = True
            elif is_definition and field == "args":
                inside = (*scope, node.name)
            if isinstance(value, ast.AST):
                visit(value, (*path, (field, None)), inside, deeper, statement)
            elif isinstance(value, list):
                for index, child in enumerate(value):
                    if isinstance(child, ast.AST):
                        visit(child, (*path, (field, index)), inside, deeper, statement)

    visit(tree, (), (), False, None)
    return found


def mutated(source, mutant):
    """Returns the module's source with the change made, in a layout of its own."""
    tree = ast.parse(source)
    parent, (*above, (field, index)) = tree, mutant.path
    for name, position in above:
        parent = getattr(parent, name)
        if position is not None:
            parent = parent[position]
    new = copy.deepcopy(mutant.new)
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


# Explanations.


def read_explained(text):
    """Returns {mutant's name: reason}."""
    explained, name = {}, None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            name = line.strip()
            explained[name] = ""
        elif name is None:
            raise ValueError(f"line {number} gives a reason, but no mutant stands before it")
        else:
            explained[name] = f"{explained[name]} {line.strip()}".strip()
    without = [name for name, reason in explained.items() if not reason]
    if without:
        raise ValueError(f"no reason is given for {without[0]}")
    return explained


def stale(explained, all_names, results):
    """Returns {explained mutant: why the explanation is stale}."""
    found = {}
    for name in explained:
        if name not in all_names:
            found[name] = "there is no such mutant"
        elif results.get(name, {}).get("state") in NOTICED:
            found[name] = f"it is {results[name]['state']}: {results[name].get('by', '')}"
    return found


def summary(results, explained):
    """Returns {state: number}, and the score in percent, None where nothing was run."""
    counts = collections.Counter()
    for name, result in results.items():
        noticed = result["state"] in NOTICED
        counts["explained" if name in explained and not noticed else result["state"]] += 1
    noticed = counts[KILLED] + counts[TIMED_OUT]
    total = noticed + counts[SURVIVED] + counts[UNREACHED]
    return dict(counts), round(100.0 * noticed / total, 1) if total else None


def report(results, explained, all_names):
    """Returns the report as text: survivors by module, what is stale, the score."""
    lines = []
    left = {
        name: result
        for name, result in results.items()
        if result["state"] not in NOTICED and name not in explained
    }
    for name, result in sorted(left.items(), key=lambda item: (item[1]["file"], item[1]["line"])):
        lines.append(f"{result['file']}:{result['line']}: {result['state']}")
        lines.append(f"    {name}")
        if result["state"] == ERROR:
            lines.append(f"    {result['by']}")
        if result["state"] == SURVIVED:
            line = f"    {result['ran']} tests passed"
            if result["left_out"]:
                line += f", {result['left_out']} were left out for their time"
            lines.append(line)
    for name, why in stale(explained, all_names, results).items():
        lines.append(f"stale explanation: {why}")
        lines.append(f"    {name}")
    for state in (SURVIVED, UNREACHED):
        kinds = collections.Counter(r["kind"] for r in left.values() if r["state"] == state)
        if kinds:
            told = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
            lines.append(f"{state}, by kind: {told}")
    by_module = collections.defaultdict(dict)
    for name, result in results.items():
        by_module[result["module"]][name] = result
    for module, own in [*sorted(by_module.items()), ("all", results)]:
        counts, score = summary(own, explained)
        told = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        lines.append(f"{module}: {told or 'nothing run'}; score {score}")
    return "\n".join(lines) + "\n"


# Choosing tests.


def choose(mutant, tests, budget, slowest):
    """Returns the tests to run, the quickest first, and how many the budget left out.

    Args:
      mutant: `Mutant`.
      tests: {node id: {"seconds": float, "lines": {module: [line]}}}, the map.
      budget: float, seconds of tests to run.
      slowest: float, tests that take longer are left out without a word.

    Returns:
      A list of node ids, empty if no test reaches the mutant, and an int.
    """
    lines = {test: set(facts["lines"].get(mutant.module, ())) for test, facts in tests.items()}
    if mutant.at_import:
        reaching = [test for test in tests if lines[test]]
    else:
        reaching = [test for test in tests if not lines[test].isdisjoint(mutant.lines)]
        if not reaching:
            reaching = [test for test in tests if not lines[test].isdisjoint(mutant.around)]
    groups = {test.rpartition("::")[0] for test in reaching}
    known = set(reaching)
    others = [t for t in tests if t not in known and t.rpartition("::")[0] in groups]

    def seconds(test):
        return tests[test]["seconds"]

    def order(test):
        return (lines[test].isdisjoint(mutant.used), seconds(test))

    chosen, spent, left_out = [], 0.0, 0
    for test in sorted(reaching, key=order) + sorted(others, key=seconds):
        if seconds(test) > slowest:
            continue
        if chosen and spent + seconds(test) > budget:
            left_out += test in known
            continue
        spent += seconds(test)
        chosen.append(test)
    return chosen, left_out


# Running, in forks of a process that has imported TensorFlow.


class SourceHook:
    """Import hook that compiles given sources in place of files, and may watch their lines."""

    def __init__(self, sources, on_code=None):
        self._sources = sources  # {module, without the package's name: (path, source)}
        self._on_code = on_code

    def find_spec(self, fullname, path=None, target=None):
        module = fullname[len(PACKAGE) + 1 :]
        if not fullname.startswith(PACKAGE + ".") or module not in self._sources:
            return None
        loader = _Loader(fullname, *self._sources[module], self._on_code)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=loader.path)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname, path, source, on_code):
        super().__init__(fullname, str(path))
        self._source = source
        self._on_code = on_code

    def get_source(self, fullname=None):
        return self._source

    def get_code(self, fullname):
        # Who asks for the source, such as autograph, is to see this one. Without a time of the
        # file, the entry is never compared with it.
        lines = self._source.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self._source), None, lines, self.path)
        code = compile(self._source, self.path, "exec", dont_inherit=True)
        if self._on_code is not None:
            self._on_code(fullname[len(PACKAGE) + 1 :], code)
        return code

    def exec_module(self, module):
        module.__file__ = self.path
        exec(self.get_code(module.__name__), module.__dict__)


class Recorder:
    """Pytest plugin that records which lines of the package each test executes, and its time."""

    TOOL = 4

    def __init__(self):
        self.tests = {}
        self._began = 0.0
        self._lines = collections.defaultdict(set)
        self._codes = {}  # By identity: functions of two modules may be equal.
        sys.monitoring.use_tool_id(self.TOOL, "mutants")
        sys.monitoring.register_callback(self.TOOL, sys.monitoring.events.LINE, self._on_line)

    def watch(self, module, code):
        self._codes[id(code)] = (module, code)
        sys.monitoring.set_local_events(self.TOOL, code, sys.monitoring.events.LINE)
        for constant in code.co_consts:
            if hasattr(constant, "co_consts"):
                self.watch(module, constant)

    def _on_line(self, code, line):
        if id(code) in self._codes:
            self._lines[self._codes[id(code)][0]].add(line)
        return sys.monitoring.DISABLE

    def pytest_runtest_logreport(self, report):
        facts = self.tests.setdefault(report.nodeid, {"outcome": "passed"})
        if report.outcome != "passed":
            facts["outcome"] = report.outcome

    def pytest_runtest_protocol(self, item, nextitem):
        for name, module in list(sys.modules.items()):
            if name.startswith(PACKAGE + ".") and module is not None:
                _forget_traces(module)
        self._lines.clear()
        sys.monitoring.restart_events()
        self._began = time.process_time()

    def pytest_runtest_logfinish(self, nodeid, location):
        lines = {module: sorted(found) for module, found in self._lines.items()}
        seconds = round(time.process_time() - self._began, 3)
        self.tests.setdefault(nodeid, {}).update(lines=lines, seconds=seconds)


def _forget_traces(module):
    """Drops what was traced, so that each test executes all the lines that it depends on.

    Other caches stay: some hold classes, of which there must be one.
    """
    for value in list(vars(module).values()):
        traces = getattr(value, "_concrete", None)
        if isinstance(traces, dict):
            traces.clear()


class Chosen:
    """Pytest plugin that runs chosen tests in the order given and notes which one failed."""

    def __init__(self, tests):
        self._order = {test: index for index, test in enumerate(tests)}
        self.failed = None
        self.ran = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )

    def pytest_runtest_logreport(self, report):
        self.ran += report.when == "call"
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed and self.failed is None:
            self.failed = f"import of {report.nodeid}"


def _cpu_seconds(process):
    """What a process has computed so far, which says more than a clock where others compute, too.

    It is the clock, slowed down, where the system does not tell.
    """
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return time.monotonic() / 10
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(child, seconds):
    """Returns the status with which a child ended, or None if it is to be stopped."""
    started, began = _cpu_seconds(child), time.monotonic()
    computed, active = started, began
    pause = 0.01
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        now, so_far = time.monotonic(), _cpu_seconds(child)
        if so_far > computed + 0.03:
            computed, active = so_far, now
        blocked = now - active > BLOCKED_SECONDS
        if blocked or so_far - started > seconds or now - began > 10 * seconds:
            return None
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


def in_fork(work, seconds, log):
    """Runs `work()` in a fork; returns what it returned, JSON, or None if it did not end.

    It may compute for so many seconds, last for ten times as many, and may not do nothing for long.
    What the fork and the processes that it starts print goes to the file `log`.
    """
    results = log.with_suffix(".json")
    results.unlink(missing_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # Who stops this process in between would leave a fork that nobody stops.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            results.write_text(json.dumps(work()), encoding="utf-8")
        except BaseException:
            results.write_text(json.dumps({"error": traceback.format_exc()}), encoding="utf-8")
        finally:
            os._exit(0)
    status = None
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = _wait(child, seconds)
    finally:  # Also where this process is stopped: the fork is in a session of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.kill(child, signal.SIGKILL)  # It may not have come as far as its session.
            os.waitpid(child, 0)
    if status is None:
        return None
    if not results.exists():
        return {"crashed": os.waitstatus_to_exitcode(status)}
    return json.loads(results.read_text(encoding="utf-8"))


def _pytest(plugin, files):
    # None of the plugins that are installed is needed, and each fork would import them.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    arguments = ["-x", "-q", "--tb=short", "-p", "no:xdist", "-p", "no:cacheprovider"]
    arguments += ["-o", "addopts=", "-W", "ignore"]
    if isinstance(plugin, Recorder):
        arguments.remove("-x")
    return int(pytest.main([*arguments, *files], plugins=[plugin]))


def _record(sources, test_file):
    def work():
        recorder = Recorder()
        sys.meta_path.insert(0, SourceHook(sources, recorder.watch))
        code = _pytest(recorder, [test_file])
        return {"tests": recorder.tests, "code": code}

    return work


def rounds(module, tests):
    """Returns lists of tests: some of one file first, as to collect all files takes seconds.

    It is the file named after the module, or else the one with the most tests.
    """
    files = collections.Counter(test.partition("::")[0] for test in tests)
    own = f"tests/{module.rpartition('.')[2].lstrip('_')}_test.py"
    first = own if own in files else files.most_common(1)[0][0]
    early = [test for test in tests if test.partition("::")[0] == first][:FIRST_TESTS]
    late = [test for test in tests if test not in set(early)]
    return [early, late] if late else [early]


def _try(module, path, source, tests, last=None):
    """What runs tests on a module of this source: in `rounds`, up to the one `last`, if any."""

    def work():
        sys.meta_path.insert(0, SourceHook({module: (path, source)}))
        ran = 0
        with contextlib.suppress(Exception):  # Files that import it will say what is wrong.
            importlib.import_module(IMPORTED_FIRST)
        for some in rounds(module, tests):
            if last in some:
                some = some[: some.index(last) + 1]
            plugin = Chosen(some)
            code = _pytest(plugin, list(dict.fromkeys(test.partition("::")[0] for test in some)))
            ran += plugin.ran
            if code != 0 or last in some:
                break
        return {"code": code, "failed": plugin.failed, "ran": ran}

    return work


def judge(outcome):
    """Returns a result's state and what decided it, from what `in_fork` returned."""
    if outcome is None:
        return TIMED_OUT, "the time limit"
    if "error" in outcome:
        return ERROR, outcome["error"].strip().split("\n")[-1]
    if "crashed" in outcome:
        # A full memory's way to end a process, and that of a test that exits.
        proves = outcome["crashed"] not in (0, -signal.SIGKILL)
        return KILLED if proves else ERROR, f"the interpreter's end ({outcome['crashed']})"
    if outcome["code"] == 0:
        return SURVIVED, ""
    if outcome["failed"] is None:
        return ERROR, f"pytest ended with {outcome['code']}"
    return KILLED, outcome["failed"]


def preload():
    """Imports what every fork needs, and runs none of it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    importlib.import_module("tensorflow")
    for name in ("keras", "tf_keras", "hypothesis", "absl.testing.parameterized"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


# The command.


def module_name(path):
    return ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts)


def find_modules(only=()):
    """Returns {module: path} of those that are mutated; `only` names some, dotted or by path."""
    found = {}
    for pattern in MODULES:
        for path in sorted((ROOT / PACKAGE).glob(pattern)):
            if path.name != "__init__.py":
                found[module_name(path)] = path
    if not only:
        return found
    chosen = {}
    for name in only:
        wanted = name.replace("/", ".")
        wanted = wanted[: -len(".py")] if wanted.endswith(".py") else wanted
        path = (ROOT / PACKAGE).joinpath(*wanted.split(".")).with_suffix(".py")
        if not path.is_file():
            raise SystemExit(f"--only: there is no module {name!r}; known: {', '.join(found)}")
        chosen[wanted] = path
    return chosen


def fingerprint(*folders):
    """A hash of all Python files under folders of the repository."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            # The tests of this script say nothing about the package.
            if path.name != "mutants_test.py":
                digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _read_state(path, key):
    """What a file in the work folder holds for this state of the repository, else {}."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return state["content"] if state["key"] == key else {}


def _write_state(path, key, content):
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"key": key, "content": content}), encoding="utf-8")
    new.replace(path)


def make_map(work, key, test_files, seconds):
    """Returns {node id: facts} of all tests in these files that pass."""
    sources = {
        module_name(path): (path, path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / PACKAGE).rglob("*.py"))
        if path.name != "__init__.py"
    }
    path = work / "map.json"
    by_file = _read_state(path, key)
    for number, name in enumerate(test_files, 1):
        if name not in by_file:
            began = time.monotonic()
            log = work / (pathlib.Path(name).stem + ".map.log")
            outcome = in_fork(_record(sources, name), seconds, log)
            if outcome is None or "tests" not in outcome:
                print(f"map {number}/{len(test_files)} {name}: did not end, left out", flush=True)
                outcome = {"tests": {}}
            by_file[name] = outcome["tests"]
            _write_state(path, key, by_file)
            took = time.monotonic() - began
            failed = [t for t, f in by_file[name].items() if f.get("outcome") == "failed"]
            print(
                f"map {number}/{len(test_files)} {name}: {len(by_file[name])} tests,"
                f" {len(failed)} failed and are left out, {took:.0f} s",
                flush=True,
            )
    return {
        test: facts
        for name in test_files
        for test, facts in by_file[name].items()
        if facts.get("outcome") == "passed" and "lines" in facts
    }


def _parser():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0],
        epilog="The text at the top of this file says what is changed and how it runs.",
    )
    parser.add_argument("--only", action="append", default=[], metavar="MODULE")
    parser.add_argument("--sample", type=int, metavar="N", help="so many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run what survived last time")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="test files to ask; all others")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of tests per mutant")
    parser.add_argument("--slowest", type=float, default=15.0, help="seconds of one test")
    parser.add_argument("--file-limit", type=float, default=900.0, help="seconds to map a file")
    parser.add_argument("--minutes", type=float, help="stop after so many; the next run goes on")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / ".mutants")
    parser.add_argument("--explained", type=pathlib.Path, default=EXPLAINED)
    parser.add_argument("--json", type=pathlib.Path, help="write the result here, too")
    parser.add_argument("--report", type=pathlib.Path, help="write the report here, too")
    return parser


def sampled(mutants, number, seed):
    """Returns so many of the mutants, the same for a seed; all in their order if None.

    They are in no order, so that those that are run first are a sample, too, if time is up early.
    """
    if number is None:
        return mutants
    return random.Random(seed).sample(mutants, min(number, len(mutants)))


def main(argv=None):
    options = _parser().parse_args(argv)
    began = time.monotonic()
    paths = find_modules(options.only)
    sources = {module: path.read_text(encoding="utf-8") for module, path in paths.items()}
    every = [m for module in paths for m in mutants_of(sources[module], module)]
    chosen = sampled(every, options.sample, options.seed)
    if options.list:
        for mutant in chosen:
            print(f"{paths[mutant.module].relative_to(ROOT)}:{mutant.line}: {mutant.name}")
        print(f"{len(chosen)} of {len(every)} mutants")
        return 0
    if sys.version_info < (3, 12) or not hasattr(os, "fork"):
        raise SystemExit("mutants are run on Python 3.12 or newer, where processes can fork")
    explained = {}
    if options.explained.is_file():
        explained = read_explained(options.explained.read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Which ends the fork, too.
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT)]
    options.work.mkdir(parents=True, exist_ok=True)
    key = fingerprint(PACKAGE, "tests")
    kept = options.work / "results.json"
    if options.again:
        results = json.loads(kept.read_text(encoding="utf-8"))["content"]
        done = {name for name, result in results.items() if result["state"] in NOTICED}
        chosen = [m for m in every if m.name in results and m.name not in done]
    else:
        results = _read_state(kept, key)
        done = {name for name, result in results.items() if result["state"] != ERROR}
    files = options.tests or [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").glob("*_test.py"))
        if not path.name.startswith(NOT_ASKED)
    ]
    preload()
    print(f"{len(chosen)} of {len(every)} mutants; imported in {time.monotonic() - began:.0f} s")
    tests = make_map(options.work, key, files, options.file_limit)
    print(f"{len(tests)} tests in the map after {time.monotonic() - began:.0f} s", flush=True)
    log = options.work / "mutant.log"
    for number, mutant in enumerate(chosen, 1):
        if mutant.name in done:
            continue
        if options.minutes and time.monotonic() - began > 60 * options.minutes:
            print("time is up; the same command goes on from here")
            break
        start = time.monotonic()
        nodes, left_out = choose(mutant, tests, options.budget, options.slowest)
        result = {
            "module": mutant.module,
            "file": paths[mutant.module].relative_to(ROOT).as_posix(),
            "line": mutant.line,
            "kind": mutant.kind,
            "left_out": left_out,
            "ran": 0,
        }
        if not nodes:
            result.update(state=UNREACHED, by="")
        else:
            limit = SPARE_SECONDS + 5 * sum(tests[node]["seconds"] for node in nodes)
            source = mutated(sources[mutant.module], mutant)
            work = _try(mutant.module, paths[mutant.module], source, nodes)
            outcome = in_fork(work, limit, log)
            state, by = judge(outcome)
            if state == KILLED and by in nodes:
                # The same tests in the same order, on the source as it is: did the mutant do it?
                unchanged = ast.unparse(ast.parse(sources[mutant.module])) + "\n"
                work = _try(mutant.module, paths[mutant.module], unchanged, nodes, last=by)
                if judge(in_fork(work, limit, log))[0] != SURVIVED:
                    state, by = ERROR, f"{by} fails without the mutant, too, after these tests"
            result.update(state=state, by=by, ran=(outcome or {}).get("ran", 0))
        result["seconds"] = round(time.monotonic() - start, 2)
        results[mutant.name] = result
        _write_state(kept, key, results)
        print(
            f"{number}/{len(chosen)} {result['state']} {result['seconds']:.1f} s"
            f" line {mutant.line}: {mutant.name} {result['by']}",
            flush=True,
        )
    wanted = {mutant.name for mutant in (every if options.again else chosen)}
    results = {name: result for name, result in results.items() if name in wanted}
    # Explanations of modules that were not asked about are not stale.
    asked = {name: why for name, why in explained.items() if _is_asked(name, paths)}
    told = report(results, asked, {mutant.name for mutant in every})
    print(told, end="")
    if options.report:
        options.report.write_text(told, encoding="utf-8")
    if options.json:
        counts, score = summary(results, asked)
        times = [result["seconds"] for result in results.values()]
        content = {
            "seed": options.seed,
            "all_mutants": len(every),
            "run": len(results),
            "counts": counts,
            "score": score,
            "seconds_per_mutant": round(sum(times) / len(times), 2) if times else None,
            "results": results,
        }
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return 1 if stale(asked, {mutant.name for mutant in every}, results) else 0


def _is_asked(name, modules):
    """Whether a mutant's name is one of these modules', or of none that exists."""
    own = [module for module in find_modules() if name.startswith((module + ".", module + ":"))]
    return not own or any(module in modules for module in own)


if __name__ == "__main__":
    sys.exit(main())
