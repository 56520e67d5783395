"""Decides what to edit in one piece of source code, and what to leave to a person.

Two kinds of edits are made. Where an import leads to a namespace that moves or to a member of one,
the import is changed and the code that uses it stays as it is. Where a name is reached from further
up (`tf.contrib.mixed_precision.X`), the expression is changed and an import is added beside the one
it depended on, in the same branch or function, so that it is executed just when that one is.
"""

import re
from typing import Any, Dict, List, Set, Tuple

import libcst as cst
from libcst import matchers

from tf_lossscale_compat.migrate import _tree, checks, rewrites
from tf_lossscale_compat.migrate.checks import policies

PACKAGE = "tf_lossscale_compat"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Plan:
    """Edits and findings for one source.

    Attributes:
      edits: list of (start, end, new bytes) in bytes of the source, in order, without overlap.
      findings: list of (where in the source, in bytes, and what to say), in order.
    """

    def __init__(self, tree: _tree.Tree) -> None:
        self.tree = tree
        self._keeps_scales = policies.take_objects(tree)
        self._edits: Set[Tuple[int, int, bytes]] = set()
        self._findings: Set[Tuple[int, str]] = set()
        self._usages: Dict[str, Any] = {}
        self._edited: Dict[int, str] = {}  # id of a chain: the module to import for its new text.
        self._moved: Dict[int, Any] = {}  # id of a binding: its namespace and the names beyond it.
        self._dropped: Set[int] = set()  # ids of bindings whose import is replaced.
        # Ids of bindings whose import now imports this package too.
        self._supplied: Set[int] = set()

        self._move_members()
        self._move_namespaces()
        self._edit_chains()
        self._drop_bindings()
        self._add_imports(self._edit_imports())
        for check in checks.CHECKS:
            for where, message in check.find(self):
                self._report(where, message)
        self.edits = sorted(self._edits)
        self.findings = sorted(self._findings)

    def is_edited(self, chain):
        return id(chain) in self._edited

    def is_ours(self, chain):
        """Returns whether a name leads to this package once everything is edited."""
        return (
            self.is_edited(chain)
            or any(self.is_moved(binding) for binding in chain.bindings)
            or any(_is_ours(name) for _, name in chain.references)
        )

    def is_moved(self, binding):
        return id(binding) in self._moved

    def is_dropped(self, binding):
        return id(binding) in self._dropped | self._supplied

    def _report(self, where, message):
        """Adds a finding for a node, a chain or a byte."""
        where = where.nodes[0] if isinstance(where, _tree.Chain) else where
        self._findings.add((where if isinstance(where, int) else self.tree.start(where), message))

    def is_in_class_check(self, chain):
        """Returns whether a name is in the second argument of `isinstance` or `issubclass`."""
        place, calls = self.tree.start(chain.nodes[0]), self.tree.calls
        checks = [call for name, call in calls if name.text in ("isinstance", "issubclass")]
        spans = [self.tree.span(call.args[1].value) for call in checks if len(call.args) > 1]
        return any(start <= place < end for start, end in spans)

    def wrapper_calls(self):
        """Yields (name of the class, chain, call) where the file makes one of this package's."""
        for chain, call in self.tree.calls:
            parts = [part for _, name in chain.references for part in name.split(".")]
            name = next((part for part in parts if part in _CLASSES), None)
            if name and self.is_ours(chain):
                yield name, chain, call

    def accepts(self, namespace):
        """Returns whether the file means a namespace's members: True, False, None for unclear."""
        if namespace.is_meant is None:
            return not (self._keeps_scales and "LossScale" in namespace.members)
        if namespace.old not in self._usages:
            member = namespace, [*namespace.members]
            calls = [
                node
                for chain, node in self.tree.calls
                if any(rewrites.find(name) == member for _, name in chain.imported)
            ]
            self._usages[namespace.old] = namespace.is_meant(calls, self.tree)
        return self._usages[namespace.old]

    def _target(self, qualified):
        """Returns the namespace to rewrite a name to, or None, and the parts of the name below it.

        The last result is whether it is left to a person because it is unclear.
        """
        namespace, rest = rewrites.find_member(qualified)
        accepted = namespace is not None and self.accepts(namespace)
        return (namespace if accepted else None), rest, accepted is None

    def _found_imports(self):
        """Yields imports that bind a namespace or a member of one, with it and the names beyond."""
        for binding in self.tree.bindings:
            namespace, rest = rewrites.find(binding.path)
            # `import a.b.c` binds `a`, which does not move.
            if namespace is not None and len(rest) < 2 and binding.qualified == binding.path:
                yield binding, namespace, rest

    def _move_members(self):
        for binding, _, rest in self._found_imports():
            if not rest:
                continue
            target, _, unclear = self._target(binding.path)
            if target is not None:
                self._moved[id(binding)] = (target, rest)
            elif unclear:
                self._report(binding.alias, _UNCLEAR.format(binding.path))

    def _move_namespaces(self):
        moved = {
            id(binding): (binding, namespace)
            for binding, namespace, rest in self._found_imports()
            if not rest
            and (namespace.whole or (binding.chains and not binding.elsewhere))
            and all(self._goes_with(chain, binding, namespace) for chain in binding.chains)
        }

        def is_torn(binding):
            return any(
                id(other) not in moved and rewrites.find(name)[0] is not None
                for chain in binding.chains
                for other, name in chain.imported
            )

        # A name that two imports may have bound moves with both or with neither.
        while any(is_torn(binding) for binding, _ in moved.values()):
            moved = {key: pair for key, pair in moved.items() if not is_torn(pair[0])}
        self._moved.update((key, (namespace, [])) for key, (_, namespace) in moved.items())

    def _goes_with(self, chain, binding, namespace):
        """Returns whether a chain means the same once its import leads to the new namespace."""
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
        for chain in self.tree.chains:
            if len(chain.nodes) < 2 or any(self.is_moved(each) for each in chain.bindings):
                continue
            targets = [
                (None, [], False) if binding is None else self._target(name)
                for binding, name in chain.references
            ]
            found = [(target, rest) for target, rest, _ in targets if target is not None]
            if any(unclear for _, _, unclear in targets):
                message = _UNCLEAR.format(chain.text)
            elif not found:
                continue
            else:
                (target, rest), ends = found[0], {(each.new, len(rest)) for each, rest in found}
                is_one = len(found) == len(targets) and len(ends) == 1
                if is_one and len(rest) >= len(chain.nodes):
                    continue  # The name is a member that was imported: the import moves.
                message = self._obstacle(chain, target, rest, is_one)
            if message:
                self._report(chain, message)
                continue
            self._replace(chain.nodes[-1 - len(rest)], target.new.encode())
            self._edited[id(chain)] = target.module

    def _obstacle(self, chain, target, rest, is_one):
        """Returns the message if a chain cannot be edited safely, else None."""
        new = f"write `{'.'.join([target.new, *rest])}`"
        if not is_one:
            return (
                f"LSC201 `{chain.names[0]}` is bound in more than one way: {new} for TensorFlow's"
            )
        if "#" in self.tree.text(chain.nodes[-1 - len(rest)]):
            return f"LSC201 a comment stands inside `{chain.text}`: {new} by hand"
        named = map(self.tree.binding, self.tree.assignments(chain, PACKAGE))
        if any(binding is None or binding.qualified != PACKAGE for binding in named):
            return f"LSC201 `{PACKAGE}` is another object's name: rename that object, and {new}"
        if any(map(self._is_lazy_elsewhere, chain.bindings)):
            what = f"LSC201 `{chain.names[0]}` is imported by a function for others"
            return f"{what}: import `{target.module}` there in the same way and {new}"
        return None

    def _is_lazy_elsewhere(self, binding):
        """Returns whether a function imports a name for others so that an import cannot follow."""
        word = _declared(binding.statement.around, binding.local)
        return word is cst.Nonlocal or (word is cst.Global and not _works(binding))

    def _drop_bindings(self):
        """Finds imports that nothing uses once the chains are edited."""
        for binding in self.tree.bindings:
            if self.is_moved(binding) or binding.path.split(".")[0] not in rewrites.ROOTS:
                continue
            if binding.elsewhere or _declared(binding.statement.around, binding.local):
                continue
            works = _works(binding)
            if works and (not binding.chains or self._mentioned(binding)):
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
        """Returns whether the source has the name in other places than these chains."""
        name = rb"\b%s\b" % re.escape(binding.local.encode())
        imported = self.tree.text(binding.statement.node).encode()
        besides = len(re.findall(name, self.tree.source)) - len(re.findall(name, imported))
        return besides > len(binding.chains)

    def _needs(self, binding):
        return sorted({self._edited[id(chain)] for chain in binding.chains})

    def _edit_imports(self):
        given: Dict[str, int] = {}  # What the top of the file imports already, and where.
        for statement in self.tree.statements:
            modules = {
                module
                for binding in statement.bindings
                if id(binding) in self._dropped
                for module in self._needs(binding) or [PACKAGE]
            }
            is_all = all(id(binding) in self._dropped for binding in statement.bindings)
            if modules and is_all and modules <= set(given) and self._remove(statement):
                continue
            if isinstance(statement.node, cst.Import):
                self._edit_import(statement)
            else:
                self._edit_import_from(statement)
            if len(statement.around) == 1:
                for module in modules:
                    given.setdefault(module, self.tree.start(statement.node))
        return given

    def _remove(self, statement):
        """Removes an import that is a line of its own at the top of a file; returns whether."""
        (start, end), line = self.tree.span(statement.node), statement.around[-1]
        end = self._line_end(end)
        if len(statement.around) > 1 or len(line.body) > 1 or b"#" in self.tree.source[start:end]:
            return False
        newline = _LINE_END.match(self.tree.source, end)
        self._edits.add((start, newline.end() if newline else end, b""))
        return True

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
        """Returns whether another import at the top of the file binds the same name."""
        return any(
            other.local == binding.local and len(other.statement.around) == 1
            for other in self.tree.bindings
            if rewrites.canonical(other.path) == "tensorflow"
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
        spans = [self.tree.span(binding.alias) for binding in statement.bindings]
        gone = [binding in goes for binding in statement.bindings]
        last_kept = max(number for number, is_gone in enumerate(gone) if not is_gone)
        for number, is_gone in enumerate(gone):
            if is_gone and number < last_kept:
                self._edits.add((spans[number][0], spans[number + 1][0], b""))
        if last_kept + 1 < len(spans):
            # With what follows the last name, such as a comma before a closing parenthesis.
            self._edits.add((spans[last_kept][1], spans[-1][1], b""))

    def _add_imports(self, given):
        """Adds the imports that no edited one brings; `given` as `_edit_imports` returns it."""
        wanted: Dict[str, list] = {}
        lazy = set()  # ids of statements in a function that imports for others, by `global tf`.
        for chain in self.tree.chains:
            if not self.is_edited(chain):
                continue
            module = self._edited[id(chain)]
            bindings = chain.bindings
            if any(id(binding) in self._dropped | self._supplied for binding in bindings):
                continue
            start = self.tree.start(chain.nodes[0])
            if self._is_imported(chain, module) or given.get(module, start) < start:
                continue
            for anchor in self._anchors(list(dict.fromkeys(each.statement for each in bindings))):
                wanted.setdefault(module, []).append(anchor)
                if any(_declared(anchor.around, binding.local) for binding in bindings):
                    lazy.add(id(anchor.node))
        for module, anchors in wanted.items():
            # One at the top serves all below it.
            tops = [self.tree.start(each.node) for each in anchors if len(each.around) == 1]
            top = min(tops, default=len(self.tree.source))
            for anchor in anchors:
                if self.tree.start(anchor.node) <= top:
                    lines = [f"import {module}".encode()]
                    if id(anchor.node) in lazy:
                        lines.insert(0, f"global {PACKAGE}".encode())
                    self._insert_after(anchor, *lines)

    def _is_imported(self, chain, module):
        bindings = map(self.tree.binding, self.tree.assignments(chain, PACKAGE))
        return any(f"{binding.path}.".startswith(f"{module}.") for binding in bindings)

    def _anchors(self, statements):
        """Returns the statements to import after, of those that may bind one name."""
        if len(statements) == 1:
            return statements
        arounds = [statement.around for statement in statements]
        common = 0
        while all(len(each) > common and each[common] is arounds[0][common] for each in arounds):
            common += 1
        where = arounds[0][common - 1] if common else None
        if isinstance(where, (cst.Try, cst.TryStar, cst.If)):
            # They are branches of one statement: behind it, whichever branch was taken.
            return [_tree.Statement(where, arounds[0][:common])]
        return statements[:1] if len(arounds[0]) == common + 1 else statements

    def _glue(self, statement):
        """Returns what stands between a statement and another one after it."""
        line = statement.around[-1]
        if isinstance(line, cst.SimpleStatementSuite) or len(line.body) > 1:
            return b"; "
        start, end = self.tree.span(statement.node)
        return self._new_line(start, end)

    def _new_line(self, start, end):
        source = self.tree.source
        line_start = max(source.rfind(b"\n", 0, start), source.rfind(b"\r", 0, start)) + 1
        indent = source[line_start:start]
        newline = _LINE_END.search(source, end)
        if newline is None:
            return self.tree.module.default_newline.encode() + indent
        return newline.group() + indent

    def _line_end(self, offset):
        match = _LINE_END.search(self.tree.source, offset)
        return len(self.tree.source) if match is None else match.start()

    def _replace(self, node, new):
        start, end = self.tree.span(node)
        self._edits.add((start, end, new))

    def _insert_after(self, anchor, *lines):
        start, end = self.tree.span(anchor.node)
        is_import = isinstance(anchor.node, (cst.Import, cst.ImportFrom))
        glue = self._glue(anchor) if is_import else self._new_line(start, end)
        place = end if glue == b"; " else self._line_end(end)
        self._edits.add((place, place, b"".join(glue + line for line in lines)))


def _works(binding):
    return not rewrites.canonical(binding.path).startswith("tensorflow.contrib")


def _declared(around, name):
    """Returns what the innermost function around a statement declares a name as.

    That is `cst.Global` or `cst.Nonlocal`; None where it does not.
    """
    functions = [node for node in around if isinstance(node, cst.FunctionDef)]
    for function in functions[-1:]:
        words: Any = matchers.findall(function, matchers.Global() | matchers.Nonlocal())
        for word in words:
            if name in [item.name.value for item in word.names]:
                return type(word)
    return None


def _alias(binding, name):
    return (name if name == binding.local else f"{name} as {binding.local}").encode()


# Why a name is left to a person; in place of {} the name as the file has it.
_UNCLEAR = (
    "LSC202 this file uses `{}` both as in TensorFlow 2.4 to 2.15 and as in Keras 3: where it means"
    " TensorFlow's class, write `tf_lossscale_compat.keras.mixed_precision.LossScaleOptimizer`"
)


def _is_ours(name):
    parts = name.split(".")
    return parts[0] == PACKAGE and any(part in _CLASSES for part in parts[1:])


_CLASSES = {name for namespace in rewrites.NAMESPACES.values() for name in namespace.members}
