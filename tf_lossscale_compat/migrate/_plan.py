"""Decides what to edit in one piece of source code, and what to leave to a person.

Two kinds of edits are made. Where an import leads to a namespace that moves or to a member of one,
the import is changed and the code that uses it stays as it is. Where a name is reached from further
up (`tf.contrib.mixed_precision.X`), the expression is changed and an import is added beside the one
it depended on, in the same branch or function, so that it is executed just when that one is.
"""

import re
from typing import Dict, List, NamedTuple, Set, Tuple

import libcst as cst

from tf_lossscale_compat.migrate import _tree, checks, rewrites
from tf_lossscale_compat.migrate.checks import Finding
from tf_lossscale_compat.migrate.rewrites import Call, Usage

PACKAGE = "tf_lossscale_compat"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Edit(NamedTuple):
    """Bytes `start` to `end` of the source become `new`."""

    start: int
    end: int
    new: bytes


class Plan:
    """What is to be done to one source.

    Attributes:
      edits: list of `Edit`, in order, that do not overlap.
      findings: list of `Finding`, in order.

    Args:
      tree: `_tree.Tree`.
      keep_imports: whether an import of TensorFlow itself stays though the source needs it no
        more, as in a notebook, whose next cell is yet to be written.
    """

    def __init__(self, tree, keep_imports=False):
        self._tree = tree
        self._keep_imports = keep_imports
        self._edits: Set[Edit] = set()
        self._findings = set()
        self._usages = {}
        self._edited = {}  # id of a chain: the module to import for its new text.
        self._moved = {}  # id of a binding: its namespace and the names beyond it.
        self._dropped = set()  # ids of bindings whose import is replaced.
        self._supplied = set()  # ids of bindings whose import now imports this package too.

        if any(binding.path.split(".")[0] in rewrites.ROOTS for binding in tree.bindings):
            self._move_bindings()
            self._edit_chains()
            self._drop_bindings()
            self._edit_imports()
            self._add_imports()
        for check in checks.CHECKS:
            self._findings.update(check.find(self))
        self.edits = sorted(self._edits)
        self.findings = sorted(self._findings)

    # What the checks look at.

    @property
    def tree(self):
        return self._tree

    def is_edited(self, chain):
        return id(chain) in self._edited

    def is_moved(self, binding):
        return id(binding) in self._moved

    def is_dropped(self, binding):
        return id(binding) in self._dropped | self._supplied

    def report(self, node, message):
        self._findings.add(Finding(self._tree.span(node)[0], message))

    # Step by step.

    def _accepts(self, namespace):
        """Whether the file means this namespace's members: True, False, or None for unclear."""
        if namespace.manner is None:
            return True
        if namespace.old not in self._usages:
            calls = [
                _call(self._tree, node)
                for chain, node in self._tree.calls
                if any(
                    rewrites.find(name)[0] is namespace and _is_member(*rewrites.find(name))
                    for binding, name in chain.references
                    if binding is not None
                )
            ]
            usage = Usage(calls, self._tree.attributes)
            self._usages[namespace.old] = namespace.manner(usage)
        return self._usages[namespace.old]

    def _target(self, qualified):
        """Returns the namespace, if any, that a name is to be rewritten for, and its names beyond.

        The last result says whether it is left to a person because the manner is unclear.
        """
        namespace, rest = rewrites.find(qualified)
        if namespace is None or (rest and rest[0] not in namespace.members):
            return None, rest, False
        if not rest and not namespace.whole:
            return None, rest, False
        accepted = self._accepts(namespace)
        return (namespace if accepted else None), rest, accepted is None

    def _move_bindings(self):
        candidates = {}
        for binding in self._tree.bindings:
            if binding.qualified != binding.path:
                continue  # `import a.b.c` binds `a`, which does not move.
            namespace, rest = rewrites.find(binding.path)
            if namespace is None or len(rest) > 1:
                continue
            if rest:
                target, _, unclear = self._target(binding.path)
                if target is not None:
                    self._moved[id(binding)] = (target, rest)
                elif unclear:
                    self.report(binding.alias, _unclear(binding.path))
            elif all(self._goes_with(chain, binding, namespace) for chain in binding.chains) and (
                namespace.whole or (binding.chains and not binding.elsewhere)
            ):
                candidates[id(binding)] = (binding, namespace)
        # A name that two imports may have bound moves with both or with neither.
        while True:
            stays = [
                key
                for key, (binding, _) in candidates.items()
                if any(
                    id(other) not in candidates and rewrites.find(name)[0] is not None
                    for chain in binding.chains
                    for other, name in chain.references
                    if other is not None
                )
            ]
            if not stays:
                break
            for key in stays:
                del candidates[key]
        for key, (_, namespace) in candidates.items():
            self._moved[key] = (namespace, [])

    def _goes_with(self, chain, binding, namespace):
        """Whether a chain means the same once its import leads to the new namespace."""
        for other, name in chain.references:
            if other is not binding:
                continue
            target, rest, _ = self._target(name)
            if target is None:
                return False
            beyond = name[len(binding.qualified) :]
            if ".".join([target.new, *rest]) != namespace.new + beyond:
                return False
        return True

    def _edit_chains(self):
        for chain in self._tree.chains:
            if len(chain.nodes) < 2 or any(self.is_moved(each) for each in chain.bindings):
                continue
            targets = [
                (None, [], False) if binding is None else self._target(name)
                for binding, name in chain.references
            ]
            if any(unclear for _, _, unclear in targets):
                self.report(chain.nodes[0], _unclear(chain.text))
                continue
            found = [(target, rest) for target, rest, _ in targets if target is not None]
            if not found:
                continue
            (target, rest) = found[0]
            if len(found) < len(targets) or any(
                (other.new, len(beyond)) != (target.new, len(rest)) for other, beyond in found
            ):
                self.report(
                    chain.nodes[0],
                    f"`{chain.names[0]}` is bound in more than one way in this file, so"
                    f" `{chain.text}` cannot be told for sure: write"
                    f" `{'.'.join([target.new, *rest])}` if it is TensorFlow's",
                )
                continue
            if len(rest) >= len(chain.nodes):
                continue  # The name is a member that was imported: the import moves.
            start, end = self._tree.span(chain.nodes[-1 - len(rest)])
            if b"#" in self._tree.source[start:end]:
                self.report(
                    chain.nodes[0],
                    f"a comment stands inside `{chain.text}`: write"
                    f" `{'.'.join([target.new, *rest])}` by hand",
                )
                continue
            taken = [
                assignment
                for assignment in self._tree.assignments(chain, PACKAGE)
                if not self._imports_package(assignment)
            ]
            if taken:
                self.report(
                    chain.nodes[0],
                    f"`{PACKAGE}` is another object's name here: import the package under a name"
                    f" of its own and write `{'.'.join([target.new, *rest])}` with that",
                )
                continue
            self._edits.add(Edit(start, end, target.new.encode()))
            self._edited[id(chain)] = target.module

    def _imports_package(self, assignment):
        binding = self._tree.binding(assignment)
        return binding is not None and binding.qualified == PACKAGE

    def _drop_bindings(self):
        """Finds imports that nothing uses once the chains are edited."""
        for binding in self._tree.bindings:
            if self.is_moved(binding) or binding.path.split(".")[0] not in rewrites.ROOTS:
                continue
            if binding.elsewhere:
                continue
            works = not rewrites.canonical(binding.path).startswith("tensorflow.contrib")
            if works and (self._keep_imports or not binding.chains or self._mentioned(binding)):
                continue
            if not works and not binding.chains:
                namespace, _ = rewrites.find(binding.path)
                if namespace is None or binding.qualified == binding.path:
                    continue
            if all(
                self.is_edited(chain) and (not works or chain.bindings == [binding])
                for chain in binding.chains
            ):
                self._dropped.add(id(binding))

    def _mentioned(self, binding):
        """Whether text that is no code, or no longer, still holds the name: a string, a comment."""
        source = self._tree.source
        keep, position = [], 0
        spans = sorted(
            [edit[:2] for edit in self._edits] + [self._tree.span(binding.statement.node)]
        )
        for start, end in spans:
            keep.append(source[position:start])
            position = max(position, end)
        keep.append(source[position:])
        return re.search(rb"\b%s\b" % re.escape(binding.local.encode()), b" ".join(keep))

    def _needs(self, binding):
        return sorted({self._edited[id(chain)] for chain in binding.chains})

    def _edit_imports(self):
        for statement in self._tree.statements:
            if isinstance(statement.node, cst.Import):
                self._edit_import(statement)
            else:
                self._edit_import_from(statement)

    def _edit_import(self, statement):
        for binding in statement.bindings:
            if self.is_moved(binding):
                namespace, _ = self._moved[id(binding)]
                self._replace(binding.alias.name, namespace.new.encode())
                continue
            namespace, _ = rewrites.find(binding.path)
            modules = self._needs(binding) if id(binding) in self._dropped else []
            if binding.qualified != binding.path and namespace is not None:
                # `import tensorflow.contrib.mixed_precision`: the module is gone as well.
                if "contrib" in binding.path.split("."):
                    modules = sorted({namespace.new, *modules})
                    if id(binding) not in self._dropped and not self._bound_besides(binding):
                        modules.insert(0, binding.qualified)
                    self._supplied.add(id(binding))
            elif id(binding) in self._dropped and not modules:
                modules = [PACKAGE]
            if modules:
                modules = [
                    module
                    for module in modules
                    if not any(other.startswith(module + ".") for other in modules)
                ]
                self._replace(binding.alias, ", ".join(modules).encode())

    def _bound_besides(self, binding):
        """Whether each use of a binding has another import that binds it as well."""
        return all(
            self.is_edited(chain)
            or any(
                other is not binding and other.path in ("tensorflow", "tensorflow.compat.v1")
                for other in chain.bindings
            )
            for chain in binding.chains
        )

    def _edit_import_from(self, statement):
        node = statement.node
        goes = [
            binding
            for binding in statement.bindings
            if self.is_moved(binding) or id(binding) in self._dropped
        ]
        if not goes:
            return
        groups: Dict[str, List[Tuple[_tree.Binding, str]]] = {}
        modules: Set[str] = set()
        for binding in goes:
            if id(binding) in self._dropped:
                modules.update(self._needs(binding) or [PACKAGE])
                continue
            namespace, rest = self._moved[id(binding)]
            module, _, name = ".".join([namespace.new, *rest]).rpartition(".")
            groups.setdefault(module, []).append((binding, name))
        if len(goes) == len(statement.bindings) and len(groups) == 1 and not modules:
            # All go to the same place: the names stay where they are.
            ((module, pairs),) = groups.items()
            self._replace(node.module, module.encode())
            for binding, name in pairs:
                if name != binding.alias.name.value:
                    self._replace(binding.alias, _alias(binding, name))
            return
        lines = [
            f"from {module} import ".encode() + b", ".join(_alias(*pair) for pair in pairs)
            for module, pairs in groups.items()
        ]
        lines += [f"import {module}".encode() for module in sorted(modules)]
        if len(goes) == len(statement.bindings):
            self._replace(node, self._glue(statement).join(lines))
            return
        self._remove_aliases(statement, goes)
        for line in lines:
            self._insert_after(statement, line)

    def _remove_aliases(self, statement, goes):
        spans = [self._tree.span(binding.alias) for binding in statement.bindings]
        gone = [binding in goes for binding in statement.bindings]
        last_kept = max(number for number, is_gone in enumerate(gone) if not is_gone)
        for number, is_gone in enumerate(gone):
            if is_gone and number < last_kept:
                self._edits.add(Edit(spans[number][0], spans[number + 1][0], b""))
        if last_kept + 1 < len(spans):
            # With what follows the last name, such as a comma before a closing parenthesis.
            self._edits.add(Edit(spans[last_kept][1], spans[-1][1], b""))

    def _add_imports(self):
        wanted: Dict[str, list] = {}
        for chain in self._tree.chains:
            if not self.is_edited(chain):
                continue
            module = self._edited[id(chain)]
            bindings = chain.bindings
            if any(id(binding) in self._dropped | self._supplied for binding in bindings):
                continue
            if self._is_imported(chain, module):
                continue
            statements = []
            for binding in bindings:
                if binding.statement not in statements:
                    statements.append(binding.statement)
            for anchor in self._anchors(statements):
                wanted.setdefault(module, []).append(anchor)
        for module, anchors in wanted.items():
            # One at the top serves the functions below it.
            tops = [self._tree.span(each.node)[0] for each in anchors if len(each.around) == 1]
            top = min(tops, default=len(self._tree.source))
            for anchor in anchors:
                inside = any(isinstance(each, cst.FunctionDef) for each in anchor.around)
                if not inside or self._tree.span(anchor.node)[0] < top:
                    self._insert_after(anchor, f"import {module}".encode())

    def _is_imported(self, chain, module):
        for assignment in self._tree.assignments(chain, PACKAGE):
            path = self._tree.binding(assignment).path
            if path == module or path.startswith(module + "."):
                return True
        return False

    def _anchors(self, statements):
        """Returns the statements after which an import is as good as after these.

        Args:
          statements: the import statements that may bind one name.
        """
        if len(statements) == 1:
            return statements
        arounds = [statement.around for statement in statements]
        common = 0
        while all(len(each) > common and each[common] is arounds[0][common] for each in arounds):
            common += 1
        where = arounds[0][common - 1] if common else None
        if isinstance(where, (cst.Try, cst.TryStar, cst.If)):
            # They are branches of one statement: behind it, whichever branch was taken.
            return [_After(where, arounds[0][:common])]
        first = statements[0]
        if len(first.around) == common + 1:
            return [first]
        return statements

    def _glue(self, statement):
        """Returns what stands between a statement and another one after it."""
        line = statement.around[-1]
        if isinstance(line, cst.SimpleStatementSuite) or len(line.body) > 1:
            return b"; "
        start, end = self._tree.span(statement.node)
        return self._new_line(start, end)

    def _new_line(self, start, end):
        source = self._tree.source
        line_start = max(source.rfind(b"\n", 0, start), source.rfind(b"\r", 0, start)) + 1
        indent = source[line_start:start]
        newline = _LINE_END.search(source, end)
        if newline is None:
            return self._tree.module.default_newline.encode() + indent
        return newline.group() + indent

    def _line_end(self, offset):
        match = _LINE_END.search(self._tree.source, offset)
        return len(self._tree.source) if match is None else match.start()

    def _replace(self, node, new):
        start, end = self._tree.span(node)
        self._edits.add(Edit(start, end, new))

    def _insert_after(self, anchor, text):
        tree = self._tree
        if isinstance(anchor, _After):
            start, end = tree.span(anchor.node)
            last = _last_line(anchor.node)
            place = self._line_end(tree.span(last)[1])
            self._edits.add(Edit(place, place, self._new_line(start, place) + text))
            return
        start, end = tree.span(anchor.node)
        glue = self._glue(anchor)
        place = end if glue == b"; " else self._line_end(end)
        self._edits.add(Edit(place, place, glue + text))


class _After(NamedTuple):
    """A compound statement to insert behind, and the nodes around it with itself."""

    node: cst.CSTNode
    around: tuple


def _last_line(node):
    """Returns the last simple statement, or line of them, in a compound statement."""
    for part in ("finalbody", "orelse"):
        if getattr(node, part, None) is not None:
            return _last_line(getattr(node, part))
    if getattr(node, "handlers", None):
        return _last_line(node.handlers[-1])
    body = node.body
    if isinstance(body, cst.SimpleStatementSuite):
        return body
    last = (body.body if isinstance(body, cst.IndentedBlock) else body)[-1]
    return last if isinstance(last, cst.SimpleStatementLine) else _last_line(last)


def _alias(binding, name):
    return (name if name == binding.local else f"{name} as {binding.local}").encode()


def _is_member(namespace, rest):
    return namespace is not None and len(rest) == 1 and rest[0] in namespace.members


def _unclear(name):
    return (
        f"this file uses `{name}` in the manner of TensorFlow 2.4 to 2.15 and in Keras 3's: write"
        " `tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer` where the former is meant"
    )


def _call(tree, node):
    return Call(
        tuple(argument.keyword.value for argument in node.args if argument.keyword is not None),
        tuple(tree.text(argument.value) for argument in node.args),
        sum(argument.keyword is None and not argument.star for argument in node.args),
    )
