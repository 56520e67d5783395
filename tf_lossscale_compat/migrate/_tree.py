"""Imports, dotted names, calls and strings of a piece of source code, with their positions.

LibCST parses it and tells which names stand for which imports. Its tree is never turned into text:
positions lead back to the bytes that were read, and edits change these bytes.
"""

import ast
import bisect
import dataclasses
import itertools
import re
import warnings
from typing import Sequence

import libcst as cst
from libcst import codemod, helpers, metadata
from libcst.codemod import visitors

_STATEMENTS = (
    cst.SimpleStatementLine,
    cst.BaseCompoundStatement,
    cst.BaseSuite,
    cst.Else,
    cst.ExceptHandler,
    cst.ExceptStarHandler,
    cst.Finally,
    cst.MatchCase,
)
# LibCST descends on the stack, and so do its visitors, several calls for each level.
_MAX_LEVELS = 150
_MAX_BRACKETS = 100
_BRACKETS = re.compile(r"[()\[\]{}]")


class ParseError(ValueError):
    """The source is not Python 3; `line` and `column` say where, counted from 1."""

    def __init__(self, message, line, column):
        super().__init__(message)
        self.line = line
        self.column = column


def _check_depth(text):
    """Raises `ParseError` for code that is nested too deeply for LibCST, which would crash."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of invalid escapes, which are not our business.
            level = [ast.parse(text)]
    except (SyntaxError, ValueError):
        # No Python, or a newer one's: then brackets have to do.
        steps = [1 if bracket in "([{" else -1 for bracket in _BRACKETS.findall(text)]
        depths = itertools.accumulate(steps, lambda depth, step: max(depth + step, 0))
        too_deep = max(depths, default=0) > _MAX_BRACKETS
    except (RecursionError, MemoryError):
        too_deep = True
    else:
        for _ in range(_MAX_LEVELS):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        too_deep = bool(level)
    if too_deep:
        raise ParseError("its code is nested too deeply", 1, 1)


def parse(text):
    """Returns LibCST's tree of a source; raises `ParseError`."""
    _check_depth(text)
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise ParseError(error.message, error.raw_line, error.raw_column + 1) from None
    except (RecursionError, UnicodeError) as error:
        raise ParseError(f"{type(error).__name__}: {error}", 1, 1) from None


class Chain:
    """A name with the attributes after it: `tf.train.experimental.LossScale`."""

    def __init__(self, nodes):
        self.nodes = nodes  # From the name to the longest attribute.
        self.names = [nodes[0].value] + [node.attr.value for node in nodes[1:]]
        self.references = []  # Of (import binding or None for another assignment, qualified name).

    @property
    def text(self):
        return ".".join(self.names)

    @property
    def imported(self):
        """Those of `references` that are imports."""
        return [each for each in self.references if each[0] is not None]

    @property
    def bindings(self):
        return [binding for binding, _ in self.imported]


@dataclasses.dataclass(eq=False)
class Binding:
    """One name that an import statement binds."""

    statement: "Statement"
    alias: cst.ImportAlias
    path: str  # What is imported, dotted; relative imports begin with dots.
    local: str  # The name that it binds here.
    qualified: str  # What that stands for: `path`, but for `import a.b.c` it is `a`.
    chains: list = dataclasses.field(default_factory=list)  # Those whose name may be this one.
    elsewhere: bool = False  # Whether anything else refers to it, such as a quoted annotation.


@dataclasses.dataclass(eq=False)
class Statement:
    """An import statement: its node, its bindings, and the nodes around it, outermost first."""

    node: cst.CSTNode
    around: tuple
    bindings: list = dataclasses.field(default_factory=list)


class _Collector(cst.CSTVisitor):
    """Gathers names in the order of the source, without those that only define or label."""

    def __init__(self):
        super().__init__()
        self.chains = []
        self.statements = []
        self.calls = []  # Of (chain, Call node).
        self.strings = []
        self.attributes: dict = {}  # Of attributes' names the nodes that end with them.
        self.methods = set()  # Names of attributes that are called.
        self.nones = set()
        self.values = []  # Of (name such as `self.optimizer`, node of what is assigned to it).
        self._around = []

    def on_visit(self, node):
        self._around.append(node)
        return super().on_visit(node)

    def on_leave(self, original_node):
        self._around.pop()
        super().on_leave(original_node)

    def visit_Attribute(self, node):  # noqa: N802
        nodes, value = [], node
        while isinstance(value, cst.Attribute):
            self.attributes.setdefault(value.attr.value, []).append(value)
            nodes.append(value)
            value = value.value
        if isinstance(value, cst.Name):
            self.chains.append(Chain([value] + nodes[::-1]))
        else:
            value.visit(self)
        return False

    def visit_Name(self, node):  # noqa: N802
        self.chains.append(Chain([node]))
        return False

    def visit_Import(self, node):  # noqa: N802
        around = [each for each in self._around if isinstance(each, _STATEMENTS)]
        self.statements.append(Statement(node, tuple(around)))
        return False

    visit_ImportFrom = visit_Import  # noqa: N815

    def visit_Call(self, node):  # noqa: N802
        first = len(self.chains)
        node.func.visit(self)
        # The chain whose outermost node is the function, if it is a chain at all.
        is_chain = len(self.chains) == first + 1 and self.chains[first].nodes[-1] is node.func
        function = self.chains[first] if is_chain else None
        if isinstance(node.func, cst.Attribute):
            self.methods.add(node.func.attr.value)
        for argument in node.args:
            argument.value.visit(self)
        if function is not None:
            self.calls.append((function, node))
        return False

    def visit_Assign(self, node):  # noqa: N802
        for target in node.targets:
            self._assign(target.target, node.value)

    def visit_AnnAssign(self, node):  # noqa: N802
        self._assign(node.target, node.value)

    def _assign(self, target, value):
        if isinstance(value, cst.Name) and value.value == "None":
            self.nones.add(id(target))
        if isinstance(target, cst.Tuple):
            is_tuple = isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements)
            for number, each in enumerate(target.elements):
                self._assign(each.value, value.elements[number].value if is_tuple else value)
        elif isinstance(target, (cst.Name, cst.Attribute)) and value is not None:
            self.values.append((helpers.get_full_name_for_node(target), value))

    def visit_Param(self, node):  # noqa: N802
        for part in (node.annotation, node.default):
            if part is not None:
                part.visit(self)
        return False

    def visit_SimpleString(self, node):  # noqa: N802
        self.strings.append(node)
        return False

    visit_FormattedStringText = visit_SimpleString  # noqa: N815


dotted = helpers.get_full_name_for_node_or_raise


def _leftmost(node):
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


class Tree(_Collector):
    """One parsed source.

    Its `source` is bytes, in UTF-8 and without a byte order mark; `bindings` are those of all
    import statements.

    Raises `ParseError` where it is no Python 3 code. `tensorflow_as` as of `_source.migrate`.
    """

    def __init__(self, text: str, tensorflow_as: Sequence[str] = ()) -> None:
        super().__init__()
        module = parse(text)
        if module.code != text:
            raise ParseError("LibCST does not reproduce this file", 1, 1)
        self.source = text.encode("utf-8")
        self.lines = self.source.splitlines(keepends=True)
        self._line_starts = [0, *itertools.accumulate(map(len, self.lines))]
        # Nothing is changed in the tree, so it need not be copied first.
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self._spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self.module = module
        module.visit(self)
        self.bindings: list = []
        self._tensorflow_as = tensorflow_as
        self._by_alias: dict = {}
        for statement in self.statements:
            self._bind(statement)
        for chain in self.chains:
            self._resolve(chain)
        self._look_elsewhere()

    def _bind(self, statement):
        node = statement.node
        if isinstance(node.names, cst.ImportStar):
            return
        prefix = ""
        if isinstance(node, cst.ImportFrom):
            prefix = "." * len(node.relative)
            if node.module is not None:
                prefix += dotted(node.module) + "."
        for alias in node.names:
            written = prefix + dotted(alias.name)
            path = self._known(written)
            local, qualified = dotted(alias.name).split(".")[0], path
            if alias.asname is not None:
                local = alias.asname.name.value
            elif isinstance(node, cst.Import):
                qualified = local
            binding = Binding(statement, alias, path, local, qualified)
            binding.elsewhere = path != written  # The module that hands it on is imported still.
            statement.bindings.append(binding)
            self.bindings.append(binding)
            as_name = alias.name if alias.asname is None else alias.asname.name
            self._by_alias[id(as_name)] = binding

    def _known(self, name):
        """Returns a qualified name, as TensorFlow's own if a module passes TensorFlow on."""
        stem = name.lstrip(".")
        parts = stem.split(".")
        for length in range(len(parts), 1, -1):
            head = ".".join(parts[:length])
            if head in self._tensorflow_as or (
                # Relative: whose parent is meant the file does not say.
                stem != name and any(each.endswith("." + head) for each in self._tensorflow_as)
            ):
                return ".".join(["tensorflow", *parts[length:]])
        return name

    def assignments(self, chain, name=None):
        """Returns the assignments that a name, by default the chain's first, may refer to here."""
        scope = self._scopes.get(chain.nodes[0])
        return [] if scope is None else scope[name or chain.names[0]]

    def binding(self, assignment):
        """Returns the `Binding` of an import's assignment, None for any other."""
        return self._by_alias.get(id(getattr(assignment, "as_name", None)))

    def _resolve(self, chain):
        found = []
        for assignment in self.assignments(chain):
            binding = self.binding(assignment)
            if binding is not None:
                written = {name.name for name in assignment.get_qualified_names_for(chain.text)}
                names = {
                    self._known(name)
                    for name in written
                    # A statement with several names answers for all of them.
                    if any(each.startswith(binding.qualified) for each in (name, self._known(name)))
                }
                found += [(binding, name) for name in sorted(names)]
            # `tf = None` is what a module that does without TensorFlow says: nothing to call there.
            elif id(getattr(assignment, "node", None)) not in self.nones:
                found.append((None, chain.text))
        # In the order of the source, not in that of a set.
        found.sort(key=lambda pair: -1 if pair[0] is None else self.start(pair[0].alias))
        for binding, qualified in found:
            if (binding, qualified) not in chain.references:
                chain.references.append((binding, qualified))
                if binding is not None:
                    binding.chains.append(chain)

    def _look_elsewhere(self):
        known = {id(chain.nodes[0]) for chain in self.chains}
        seen = set()
        for scope in self._scopes.values():
            if scope is None or id(scope) in seen:
                continue
            seen.add(id(scope))
            for assignment in scope.assignments:
                binding = self.binding(assignment)
                if binding is not None and any(
                    id(_leftmost(access.node)) not in known for access in assignment.references
                ):
                    binding.elsewhere = True
        if b"__all__" in self.source:
            exports = visitors.GatherExportsVisitor(codemod.CodemodContext())
            self.module.visit(exports)
            for binding in self.bindings:
                binding.elsewhere |= binding.local in exports.explicit_exported_objects

    def value(self, node):
        """Returns what a name stands for that the file assigns once; else the node itself."""
        if not isinstance(node, cst.Name):
            return node
        start = self.start(node)  # `optimizer = Wrapper(optimizer)` says nothing of the inner one.
        values = [
            value
            for name, value in self.values
            if name == node.value and not self.start(value) <= start < self.span(value)[1]
        ]
        return values[0] if len(values) == 1 else node

    def argument(self, call, position, *keywords):
        """Returns the node of a call's argument, None where it is not given or cannot be told.

        Its position is None where it is given by a keyword alone.
        """
        given = [each for each in call.args if each.keyword and each.keyword.value in keywords]
        before = call.args[: position + 1] if position is not None else ()
        if not given and not any(each.star for each in before):
            given = [each for each in before[position:] if not each.keyword]
        return given[0].value if given else None

    @property
    def words(self):
        """All identifiers and strings, in lower case."""
        names = {name.lower() for chain in self.chains for name in chain.names}
        return names | {node.value.strip("\"'").lower() for node in self.strings}

    def mentions(self):
        """Yields what imports and names lead to, as (node, dotted name, what was imported for it).

        The last is empty for imports themselves and for names that a star import may bind.
        """
        stars = []
        for statement in self.statements:
            node = statement.node
            if isinstance(node.names, cst.ImportStar) and node.module is not None:
                stars.append("." * len(node.relative) + dotted(node.module))
            for binding in statement.bindings:
                yield binding.alias, binding.path, ""
        for chain in self.chains:
            for binding, name in chain.imported:
                yield chain.nodes[0], name, binding.path
            if not chain.references:
                for path in stars:
                    yield chain.nodes[0], f"{path}.{chain.text}", ""

    def span(self, node):
        """Returns where a node begins and ends in `source`, without parentheses around it."""
        span = self._spans[node]
        return span.start, span.start + span.length

    def start(self, node):
        return self._spans[node].start

    def text(self, node):
        start, end = self.span(node)
        return self.source[start:end].decode("utf-8")

    def position(self, offset):
        """Returns the line and the column of a byte, counted from 1, columns in characters."""
        line = bisect.bisect_right(self._line_starts, offset)
        start = self._line_starts[line - 1]
        return line, len(self.source[start:offset].decode("utf-8")) + 1
