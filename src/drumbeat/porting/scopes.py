"""What the names in a script stand for: `L.Dense` is `keras.layers.Dense`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import libcst as cst
from libcst import metadata

from drumbeat.porting import known

PROVIDERS = (
    metadata.ScopeProvider,
    metadata.ParentNodeProvider,
    metadata.PositionProvider,
    metadata.ExpressionContextProvider,
)

_KERAS_IN_TENSORFLOW = {
    "tensorflow.keras": "keras",
    "tensorflow.compat.v2.keras": "keras",
    **{f"tensorflow.{part}": f"keras.{part}" for part in ("losses", "metrics", "optimizers")},
}


def dotted(node: cst.CSTNode) -> str | None:
    """`a.b.c` as text, where `node` is nothing but that."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr.value}"
    return None


def canonical(name: str) -> str:
    """`name` as Keras itself is called: `tensorflow.keras.layers` is `keras.layers`."""
    for prefix, keras in _KERAS_IN_TENSORFLOW.items():
        if name == prefix or name.startswith(f"{prefix}."):
            return f"{keras}{name[len(prefix) :]}"
    return name


class Scopes:
    """The script's names, and what is assigned to them.

    Assignments are not followed through the flow of the program: a name that is assigned
    different things stands for none of them.
    """

    def __init__(self, wrapper: metadata.MetadataWrapper) -> None:
        found = wrapper.resolve_many(PROVIDERS)
        self.module = wrapper.module
        self._scopes: Mapping[cst.CSTNode, Any] = found[metadata.ScopeProvider]
        self.parents: Mapping[cst.CSTNode, Any] = found[metadata.ParentNodeProvider]
        self._positions: Mapping[cst.CSTNode, Any] = found[metadata.PositionProvider]
        self._contexts: Mapping[cst.CSTNode, Any] = found[metadata.ExpressionContextProvider]
        self._known: dict[cst.CSTNode, str | None] = {}
        self._nodes: dict[type, list[Any]] = {}
        waiting: list[cst.CSTNode] = [self.module]
        while waiting:
            node = waiting.pop()
            self._nodes.setdefault(type(node), []).append(node)
            waiting.extend(reversed(node.children))
        self._stars: list[str] = [
            canonical(module)
            for statement in self.module.body
            for module in _star_imports(statement)
        ]

    def all(self, kind: type) -> Sequence[Any]:
        """All nodes of the script that are of the kind, in order."""
        return self._nodes.get(kind, ())

    def line(self, node: cst.CSTNode) -> int:
        """Where it begins, counted from 1."""
        return self._positions[node].start.line

    def is_read(self, node: cst.CSTNode) -> bool:
        """It is neither assigned to nor deleted."""
        return self._contexts.get(node) is not metadata.ExpressionContext.STORE

    def enclosing(self, node: cst.CSTNode, kind: type) -> Any:
        """The innermost `kind` around it, or None."""
        found = self.parents.get(node)
        while found is not None and not isinstance(found, kind):
            found = self.parents.get(found)
        return found

    def name_of(self, node: cst.CSTNode) -> str | None:
        """The full name that `node` stands for, if that of something imported."""
        if node not in self._known:
            self._known[node] = None  # for a name that is assigned to itself
            self._known[node] = self._resolve(node)
        return self._known[node]

    def _resolve(self, node: cst.CSTNode) -> str | None:
        if isinstance(node, cst.Attribute):
            before = self.name_of(node.value)
            return before and canonical(f"{before}.{node.attr.value}")
        if not isinstance(node, cst.Name):
            return None
        found = set()
        for assignment in self.assignments(node):
            if isinstance(assignment, metadata.ImportAssignment):
                found.add(canonical(imported_as(assignment.node, node.value)))
            elif isinstance(assignment, metadata.BuiltinAssignment):
                return None
            else:
                value = self._value(assignment)
                if value is not None and dotted(value) == "None":
                    continue  # as after an import that failed
                found.add(self.name_of(value) if value is not None else None)
        if not found:
            return next(
                (f"{m}.{node.value}" for m in self._stars if known.is_in(m, node.value)), None
            )
        return found.pop() if len(found) == 1 else None

    def assignments(self, node: cst.Name) -> Collection[Any]:
        """All that gives `node`'s name a value where `node` is."""
        scope = self._scope(node)
        if scope is None or node.value not in scope:
            return ()
        return sorted(scope[node.value], key=lambda each: self._order(each))

    def _order(self, assignment: Any) -> tuple[int, int]:
        node = getattr(assignment, "node", None)
        place = self._positions.get(node) if node is not None else None
        return (place.start.line, place.start.column) if place else (0, 0)

    def _scope(self, node: cst.CSTNode | None) -> Any:
        while node is not None:
            if (scope := self._scopes.get(node)) is not None:
                return scope
            node = self.parents.get(node)
        return None

    def values(self, node: cst.Name) -> list[cst.BaseExpression | None]:
        """What is assigned to `node`'s name: None stands for what can't be known."""
        return [self._value(each) for each in self.assignments(node)]

    def defined(self, node: cst.CSTNode, kind: type) -> Any:
        """The class or function of the script that the name `node` stands for, or None."""
        if not isinstance(node, cst.Name):
            return None
        found = [getattr(each, "node", None) for each in self.assignments(node)]
        return found[0] if len(found) == 1 and isinstance(found[0], kind) else None

    def _value(self, assignment: Any) -> cst.BaseExpression | None:
        node = getattr(assignment, "node", None)
        holder = self.parents.get(node) if node is not None else None
        if isinstance(holder, cst.Element):
            return self._of_tuple(holder)
        if isinstance(holder, cst.AssignTarget):
            return cast("cst.Assign", self.parents[holder]).value
        if isinstance(holder, (cst.AnnAssign, cst.NamedExpr)):
            return holder.value
        return None

    def _of_tuple(self, element: cst.Element) -> cst.BaseExpression | None:
        targets = self.parents[element]
        holder = self.parents.get(targets)
        if not isinstance(holder, cst.AssignTarget) or not isinstance(targets, cst.Tuple):
            return None
        value = cast("cst.Assign", self.parents[holder]).value
        if not isinstance(value, cst.Tuple) or len(value.elements) != len(targets.elements):
            return None
        return value.elements[list(targets.elements).index(element)].value

    def is_unused(self, node: cst.Import | cst.ImportFrom, local: str) -> bool:
        """Nothing reads the name `local` that the import binds."""
        scope = self._scope(node)
        found = [each for each in scope.assignments[local] if each.node is node] if scope else ()
        return bool(found) and not any(each.references for each in found)

    def loop_over(self, node: cst.Name) -> cst.BaseExpression | None:
        """What a loop takes `node`'s name from, if that is where it comes from."""
        for assignment in self.assignments(node):
            holder = self.parents.get(getattr(assignment, "node", None) or node)
            if isinstance(holder, (cst.For, cst.CompFor)):
                return holder.iter
        return None

    def global_names(self) -> Iterator[tuple[str, str]]:
        """Names at the top of the script and what was imported as them, in order."""
        scope = self._scopes.get(self.module)
        if scope is None:
            return
        for assignment in sorted(scope.assignments, key=self._order):
            if isinstance(assignment, metadata.ImportAssignment):
                local = assignment.name.partition(".")[0]
                yield local, canonical(imported_as(assignment.node, local))
            elif (value := self._value(assignment)) is not None and (full := self.name_of(value)):
                yield assignment.name, full


def is_from_start(node: cst.ImportFrom) -> bool:
    """The import names a module in full: not `from . import x`."""
    return not node.relative and node.module is not None


def imported_as(node: Any, local: str) -> str:
    """The full name of what the import binds to `local`."""
    if isinstance(node.names, cst.ImportStar):
        return local
    module = ""
    if isinstance(node, cst.ImportFrom):
        if not is_from_start(node):
            return f".{local}"
        module = f"{dotted(cast('cst.CSTNode', node.module))}."
    for alias in node.names:
        bound = alias.evaluated_alias
        if bound == local or (bound is None and isinstance(node, cst.ImportFrom)):
            if (bound or alias.evaluated_name) == local:
                return f"{module}{alias.evaluated_name}"
        elif bound is None and alias.evaluated_name.partition(".")[0] == local:
            return local
    return f".{local}"


def _star_imports(statement: cst.CSTNode) -> Iterator[str]:
    parts = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    for part in parts:
        is_star = isinstance(part, cst.ImportFrom) and isinstance(part.names, cst.ImportStar)
        if isinstance(part, cst.ImportFrom) and is_star and is_from_start(part):
            yield dotted(cast("cst.CSTNode", part.module)) or ""
